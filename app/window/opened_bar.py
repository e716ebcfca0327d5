"""The bar above the panels while a file is open: which one it is, and the buttons to continue from it or close it."""

from __future__ import annotations

from PySide6.QtCore import Signal

from app.control.actions import Actions
from app.draw.format import byte_size, counted
from app.kit.buttons import push_button
from app.kit.labels import plain_tip, prose
from app.kit.reader import STATUS
from app.models import Models
from app.window.notice_bar import LONGEST, NoticeBar
from engine.wire.status import OpenedFile


class OpenedBar(NoticeBar[OpenedFile]):
    """Visible as long as the engine holds a file. Signals: `continue_wanted()`, `close_wanted()`."""

    follows = (STATUS,)
    role, icon = "selected", "folder"

    continue_wanted = Signal()
    close_wanted = Signal()

    def __init__(self, models: Models, actions: Actions) -> None:
        super().__init__()
        action = actions["snapshot.continue"]
        self._go_on = push_button(action.text(), self.continue_wanted)
        close = actions["snapshot.close"]
        self._close = push_button("Close file", self.close_wanted)
        self._close.setToolTip(plain_tip(close.toolTip()))
        self.build(self._go_on, self._close)
        self.follow(models)

    def read(self) -> OpenedFile | str:
        return self._models.status.opened or "no file is open"

    def show_state(self, state: OpenedFile) -> None:
        name = prose(state.path.name)
        count = state.num_steps
        steps = "no recorded steps" if not count else counted(count, "recorded step")
        model = prose(state.model) or "unknown model"
        kind = "file" if state.has_rows else "session"
        parts = [f"Opened {kind}: {name}, read-only", model, steps, byte_size(state.num_bytes)]
        if not state.has_rows:
            parts.append("K and V come with its model")
        if state.why_not:
            parts.append(f"cannot be gone on from: {prose(state.why_not)}")
        self.words.setText(" · ".join(parts), name)
        self._go_on.setEnabled(not state.why_not)
        about = [str(state.path), state.created, state.written_by, state.notes]
        tip = "\n".join(prose(words[:LONGEST]) for words in about if words)
        self.words.setToolTip(plain_tip(tip))
        why = f"Not possible: {prose(state.why_not)}" if state.why_not else f"Decode on with {model}"
        self._go_on.setToolTip(plain_tip(why))
        super().show_state(state)
