"""Whose sampling the fields of the prompt show: the selected sequence's, or the next prompt's."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QSpinBox

from app.kit.changes import on_change
from app.models import Models
from app.models.sequence_status import selected_info
from app.panels.prompt.sampling import SamplingButton
from engine.spec.sampling import SamplingParams


class SamplingOf(QObject):
    """The button and the seed follow the selected sequence, whenever `show_told` is called; `wished(params)` when a
    person changes them.

    While a wish is on its way the fields keep it: what is told until then is older.
    """

    wished = Signal(object)

    def __init__(self, models: Models, button: SamplingButton, seed: QSpinBox, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self._button, self._seed = button, seed
        self._shown_of: int | None = None  # the sequence whose sampling is in the fields
        self._asked: list[SamplingParams] = []  # what was wished of it and is not told back yet
        on_change(self._on_changed, button, seed)
        models.status.failed.connect(self._on_failed)

    @property
    def params(self) -> SamplingParams:
        return self._button.params(self._seed.value())

    def show_told(self) -> None:
        """Fill the fields with what the engine tells of the selected sequence."""
        info, seq_id = selected_info(self._models), self._models.selection.now.seq_id
        told = info.sampling if info is not None else None
        if told is None or self._shown_of != seq_id:
            self._asked.clear()
        self._shown_of = seq_id if told is not None else None
        if told in self._asked:
            del self._asked[: self._asked.index(told) + 1]
        elif told is not None and not self._asked:
            self._button.show_params(told)
            self._seed.blockSignals(True)
            self._seed.setValue(min(told.seed, self._seed.maximum()))
            self._seed.blockSignals(False)

    def _on_changed(self) -> None:
        if self._shown_of is not None:
            self._asked.append(self.params)
        self.wished.emit(self.params)

    def _on_failed(self, text: str) -> None:
        if text and self._asked:
            self._asked.clear()
            self.show_told()
