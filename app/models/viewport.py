"""Which pictures the visible views need: written by the views, read by the controller."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from app.draw.token_range import TokenRange
from app.models.slices import HEAD


class WantedPair(Struct, frozen=True):
    """Which pictures of two runs and their difference are wanted: `columns` wide, and for the wall `rows` per
    thumbnail."""

    kind: Literal["wall", "head", "attention"]
    columns: int
    rows: int = 1


class WantedPictures(Struct, frozen=True):
    """The sizes and places of the wanted pictures. None: that picture is hidden, and none is requested.

    `wall_size` is `(columns, rows)` per thumbnail. `attention_lens` and `attention_rows` are what the picture of
    queries shows, and in how many rows at most; `query_head` is the head that was clicked of those of a kv head.
    `head_range` and `attention_range` are the visible positions, None for all; they are stored only here. `head_place`
    and `attention_layer` are the place of a pinned panel, None if it follows the selection. `wants_holders`: how many
    heads still hold each token, which comes with the wall.
    """

    wall_size: tuple[int, int] | None = None
    head_columns: int | None = None
    head_range: TokenRange | None = None
    head_place: tuple[int, int, str] | None = None
    attention_columns: int | None = None
    attention_layer: int | None = None
    attention_lens: str = "attention"
    attention_rows: int = 64
    query_head: int = 0
    attention_range: TokenRange | None = None
    compared: WantedPair | None = None
    wants_row: bool = False
    wants_table: bool = False
    wants_holders: bool = False
    wants_outliers: bool = False


class Viewport(QObject):
    """Holds what is wanted. Signal: `changed()`."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._now = WantedPictures()

    @property
    def now(self) -> WantedPictures:
        return self._now

    def update(self, **changes: Any) -> None:
        new = replace(self._now, **changes)
        if new != self._now:
            self._now = new
            self.changed.emit()

    def show_all(self) -> None:
        """Show all positions: a range chosen in another sequence or history means nothing here."""
        self.update(head_range=None, attention_range=None)

    def is_pinned(self, kind: str) -> bool:
        """Whether the panel of that kind of picture is pinned to a layer or head."""
        return (self._now.head_place if kind == HEAD else self._now.attention_layer) is not None

    def forget_places(self) -> None:
        """Unpin all panels: another model need not have their layers and heads."""
        self.update(head_place=None, attention_layer=None)
