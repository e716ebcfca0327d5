"""The edits made by hand: each is a node of the history tree, with what was measured of its effect."""

from __future__ import annotations

from msgspec import Struct
from PySide6.QtCore import QObject, Signal

from app.models.history import HistoryTree
from engine.spec.edit import Edit
from engine.wire.measurements import EditMeasured
from engine.wire.records import EditMade


class MadeEdit(Struct, frozen=True):
    """An edit and the number of its node in the history tree."""

    step: int
    edit: Edit


class Edits(QObject):
    """The edits in the history, and their effect on the next token. Only the controller writes.

    Signal: `changed()`, an edit was made, undone or measured, or other edits are in force at the live node.
    """

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._measured: dict[int, EditMeasured] = {}
        self._told: tuple[tuple[MadeEdit, ...], tuple[MadeEdit, ...]] = ((), ())

    def follow(self, history: HistoryTree) -> None:
        """Set the history tree that the edits are read from."""
        self._history = history
        history.changed.connect(self._on_history)

    @property
    def made(self) -> tuple[MadeEdit, ...]:
        """Every edit, undone ones too, oldest first."""
        return tuple(
            MadeEdit(node.step, change.edit)
            for node in self._history.added_nodes
            for change in node.changes
            if isinstance(change, EditMade)
        )

    def on_path(self, step: int | None = None) -> tuple[MadeEdit, ...]:
        """The edits on the path to a node (None: the live one), oldest first."""
        tip = self._history.live if step is None else step
        if tip is None or tip not in self._history:
            return ()
        return tuple(made for made in self.made if self._history.is_on_path(made.step, tip))

    @property
    def undone(self) -> tuple[MadeEdit, ...]:
        """The edits that are not on the path to the live node."""
        live = set(self.on_path())
        return tuple(made for made in self.made if made not in live)

    def measured(self, step: int) -> EditMeasured | None:
        """The measured effect of the edit `step` on the next token; None if it is not known."""
        return self._measured.get(step)

    def kl(self, step: int) -> float | None:
        """How far an edit moved the distribution of the next token, in nats; None where that is not known."""
        measured, added = self._measured.get(step), self._history.added(step)
        return measured.kl if measured is not None else added.kl if added is not None else None

    def take(self, measured: EditMeasured) -> None:
        """Store the measured effect of an edit."""
        self._measured[measured.step] = measured
        self.changed.emit()

    def _on_history(self) -> None:
        now = self.made, self.on_path()
        if now != self._told:
            self._told = now
            known = {made.step for made in now[0]}
            self._measured = {step: found for step, found in self._measured.items() if step in known}
            self.changed.emit()
