"""What the picture views need right now: written by views, read by the controller."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from PySide6.QtCore import QObject, Signal

from engine.commands import TensorName


@dataclass(frozen=True)
class Wanted:
    """None means hidden: nothing is asked of the engine for that picture.

    `wall_size` is `(columns, rows)` per thumbnail; `head_range` the token rows `(start, stop)`, None for all of them;
    `head_place` and `attention_layer` are where a pinned panel stays, None while it follows the selection.
    `wants_holders` asks how many heads still hold each token, which comes with the wall.
    """

    wall_size: tuple[int, int] | None = None
    head_columns: int | None = None
    head_range: tuple[int, int] | None = None
    head_place: tuple[int, int, TensorName] | None = None
    attention_columns: int | None = None
    attention_layer: int | None = None
    wants_row: bool = False
    wants_table: bool = False
    wants_holders: bool = False


class Viewport(QObject):
    """Holds what is wanted and says `changed()` when that is something else."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._now = Wanted()

    @property
    def now(self) -> Wanted:
        return self._now

    def update(self, **changes: Any) -> None:
        new = replace(self._now, **changes)
        if new != self._now:
            self._now = new
            self.changed.emit()
