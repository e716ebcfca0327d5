"""What the user looks at: one selection that all panels follow, and the pictures that the visible views need."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from app.draw.grid import TokenRange
from app.models.history import HistoryTree
from app.models.pictures import HEAD
from engine.spec.edit import Rows

Frame = Callable[[], AbstractContextManager[None]]


class Selected(Struct, frozen=True):
    """The selected place. `step` is a node of any branch, None follows the live one; `position` None selects no token.

    `page` is a page that was selected itself, in pool number `pool`; None: the page of the token. `channel` is a
    channel of the selected head, selected together with it; selecting another head or lens clears it. `area` are the
    rows that were dragged over, tokens of some layers, heads and channels; None if a single place was selected. `ahead`
    is a place to run to, that many steps ahead of the live one; 0 if none was selected.
    """

    step: int | None = None
    seq_id: int = 0
    layer: int = 0
    kv_head: int = 0
    position: int | None = None
    lens: str = "keys"
    change: bool = False
    page: int | None = None
    pool: int = 0
    channel: int | None = None
    area: Rows | None = None
    ahead: int = 0


def chosen_cell(now: Selected) -> tuple[int, int] | None:
    """(position, channel) of the selected cell of a head; None if no single one is selected."""
    area = now.area
    if area is not None and area.stop == area.start + 1 and area.channels is not None and len(area.channels) == 1:
        return area.start, area.channels[0]
    return None if now.position is None or now.channel is None else (now.position, now.channel)


class Selection(QObject):
    """Holds the selected place. Signal: `changed(old, new)`."""

    changed = Signal(object, object)

    def __init__(self) -> None:
        super().__init__()
        self.now = Selected()
        self.frame: Frame = nullcontext  # in which views that follow it read once
        self._history: HistoryTree | None = None

    def follow(self, history: HistoryTree) -> None:
        """Set the history tree; selecting its live node is the same as following (`step` None)."""
        self._history = history

    def update(self, **changes: Any) -> None:
        """Change fields of the selection; emits nothing if they stay the same. The live node becomes `step` None.

        Changing the token or sequence clears the selected page, which would not be that token's. Selecting a single
        place clears the area.
        """
        if "page" not in changes and {"position", "seq_id"} & changes.keys():
            changes["page"] = None
        if "channel" not in changes and {"layer", "kv_head", "lens", "seq_id"} & changes.keys():
            changes["channel"] = None
        if "area" not in changes and {"position", "layer", "kv_head", "seq_id", "channel"} & changes.keys():
            changes["area"] = None
        if "step" in changes and "ahead" not in changes:
            changes["ahead"] = 0
        if self._history is not None and changes.get("step") == self._history.live:
            changes = {name: None if name == "step" else value for name, value in changes.items()}
        old, new = self.now, replace(self.now, **changes)
        if new != old:
            self.now = new
            with self.frame():
                self.changed.emit(old, new)


class WantedPair(Struct, frozen=True):
    """Which pictures of two runs and their difference are wanted: `columns` wide, and for the wall `rows` per
    thumbnail."""

    kind: Literal["wall", "head", "attention"]
    columns: int
    rows: int = 1


class WantedPictures(Struct, frozen=True):
    """The sizes and places of the wanted pictures. None: that picture is hidden, and none is requested.

    `wall_size` is `(columns, rows)` per thumbnail. `attention_lens`, `attention_latest` and `attention_rows` are what
    the picture of queries shows, of how many of the latest (0: all), and in how many rows at most; `query_head` is the
    head that was clicked of those of a kv head. `head_range` and `attention_range` are the visible positions, None for
    all; they are stored only here. `head_place`
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
    attention_latest: int = 0
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
        self.now = WantedPictures()
        self.frame: Frame = nullcontext

    def update(self, **changes: Any) -> None:
        new = replace(self.now, **changes)
        if new != self.now:
            self.now = new
            with self.frame():
                self.changed.emit()

    def show_all(self) -> None:
        """Show all positions: a range chosen in another sequence or history means nothing here."""
        self.update(head_range=None, attention_range=None)

    def is_pinned(self, kind: str) -> bool:
        """Whether the panel of that kind of picture is pinned to a layer or head."""
        return (self.now.head_place if kind == HEAD else self.now.attention_layer) is not None

    def forget_places(self) -> None:
        """Unpin all panels: another model need not have their layers and heads."""
        self.update(head_place=None, attention_layer=None)
