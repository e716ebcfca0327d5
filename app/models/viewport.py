"""What the picture views need right now: written by views, read by the controller."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from app.draw.token_range import TokenRange
from app.models.slices import HEAD
from engine.wire.requests import TensorName


class WantedPair(Struct, frozen=True):
    """A picture of two runs and their difference: of `columns`, and for the wall `rows` of each thumbnail."""

    kind: Literal["wall", "head", "attention"]
    columns: int
    rows: int = 1


class WantedPictures(Struct, frozen=True):
    """None means hidden: nothing is asked of the engine for that picture.

    `wall_size` is `(columns, rows)` per thumbnail; `head_range` and `attention_range` are the visible positions, None
    for all of them: maps draw what stands here and keep no range of their own; `head_place` and `attention_layer` are
    where a pinned panel stays, None while it follows the selection.
    `wants_holders` asks how many heads still hold each token, which comes with the wall.
    """

    wall_size: tuple[int, int] | None = None
    head_columns: int | None = None
    head_range: TokenRange | None = None
    head_place: tuple[int, int, TensorName] | None = None
    attention_columns: int | None = None
    attention_layer: int | None = None
    attention_range: TokenRange | None = None
    compared: WantedPair | None = None
    wants_row: bool = False
    wants_table: bool = False
    wants_holders: bool = False
    wants_outliers: bool = False


class Viewport(QObject):
    """Holds what is wanted and says `changed()` when that is something else."""

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
        """Another sequence, or another history: what was close in the last one means nothing here."""
        self.update(head_range=None, attention_range=None)

    def is_pinned(self, kind: str) -> bool:
        """Whether the panel of that kind of picture stays where it is."""
        return (self._now.head_place if kind == HEAD else self._now.attention_layer) is not None

    def forget_places(self) -> None:
        """Another model: it need not have the layers and heads that panels stayed at."""
        self.update(head_place=None, attention_layer=None)
