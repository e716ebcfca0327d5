"""The button beside the status of a full sequence: a menu of what can be done."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Signal
from PySide6.QtWidgets import QMenu, QPushButton

from app.control.actions import Actions
from app.kit.labels import plain_tip
from app.kit.reader import SELECTION, STATUS, Reader
from app.models import Models
from app.models.sequence_status import SequenceStatus, selected_info, sequence_status

BACK, WINDOW, GROWING = "run.back", "cache.streamingllm", "cache.growing"


class Remedies(Reader[SequenceStatus], QPushButton):
    """Visible only while the selected sequence is full. Signal: `prompt_wanted()`; the other entries are actions."""

    follows = (STATUS, SELECTION)
    reads_while_hidden = True

    prompt_wanted = Signal()

    def __init__(self, models: Models, actions: Actions) -> None:
        super().__init__()
        self._actions = actions
        self._menu = QMenu(self)
        self._menu.setToolTipsVisible(True)
        self.setText("Go on…")
        self.setAccessibleName("What to do now that it is full")
        self.clicked.connect(self._on_clicked)
        self.hide()  # otherwise showing the window would show it as well
        self.follow(models)

    def fill(self) -> QMenu:
        """Fill the menu with what is possible now; returns it."""
        self._menu.clear()
        self._add("Look back, then go on from a step of your choice", BACK)
        info, model = selected_info(self._models), self._models.status.model
        if info is not None and model is not None:
            if info.stop == "cache full":
                self._add("Go on in a growing cache: every row moves over", GROWING)
            elif model.goes_beyond_context:
                self._add("Go on with StreamingLLM: keep the first tokens and the latest", WINDOW)
        self._menu.addAction("Write a new prompt", self.prompt_wanted.emit)
        return self._menu

    def _add(self, text: str, key: str) -> None:
        entry = self._menu.addAction(text, self._actions[key].trigger)
        entry.setToolTip(self._actions[key].toolTip())
        entry.setEnabled(self._actions[key].isEnabled())

    def _on_clicked(self) -> None:
        self.fill().popup(self.mapToGlobal(QPoint(0, self.height() + 3)))

    def read(self) -> SequenceStatus:
        return sequence_status(self._models)

    def show_state(self, state: SequenceStatus) -> None:
        self.setToolTip(plain_tip(state.why))
        if self.isHidden() == state.is_full:
            self.setVisible(state.is_full)
