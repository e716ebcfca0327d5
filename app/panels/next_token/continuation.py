"""The line for another continuation from the step shown: a typed text, a token id, or another seed."""

from __future__ import annotations

import re

from msgspec.structs import replace
from PySide6.QtCore import Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QLineEdit, QWidget

from app.draw.format import thousands
from app.kit.boxes import row
from app.kit.buttons import push_button
from app.kit.theme import font_fixed
from app.models import Models
from app.models.sequence_status import selected_info
from engine.spec.sampling import SamplingParams

_ID = re.compile(r"#(\d{1,9})")
_MOST = 2**63 - 1  # the largest seed


class ContinuationLine(QWidget):
    """Signals: `token_forced(token_id)`, `text_forced(text)`, `sampling_tried(SamplingParams)`; `left()` with Esc."""

    token_forced = Signal(int)
    text_forced = Signal(str)
    sampling_tried = Signal(object)
    left = Signal()

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._models = models
        self.edit = QLineEdit()
        self.edit.setFont(font_fixed(11.5))
        self.edit.setPlaceholderText("another text, or #id")
        self.edit.setMaxLength(4000)
        self.edit.setAccessibleName("What comes next instead: a text, or a token id behind #")
        self.edit.returnPressed.connect(self._on_typed)
        self.seed = push_button("Other seed", self._on_seed)
        row((self.edit, 1), self.seed, on=self)

    def show_state(self, step: int | None) -> None:
        """Adapt the tool tips to the step it starts from (None: the live one), and enable *Other seed* unless sampling
        is greedy."""
        where = "here" if step is None else f"step {thousands(step)}, as a branch: what there is stays"
        self.edit.setToolTip(f"Enter: goes on with this text from {where}.\nA # and a number is the token of that id")
        sampling = self._sampling
        is_greedy = sampling is None or sampling.is_greedy
        self.seed.setEnabled(not is_greedy)
        if sampling is None or is_greedy:
            self.seed.setToolTip("Greedy decoding draws nothing: choose a temperature beside the prompt first")
        else:
            self.seed.setToolTip(f"Draw once more, with seed {_next_seed(sampling)}, from {where}")

    @property
    def _sampling(self) -> SamplingParams | None:
        info = selected_info(self._models)
        return info.sampling if info is not None else None

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.text() == "\x1b":
            self.edit.clear()
            self.left.emit()
        else:
            super().keyPressEvent(event)

    def _on_typed(self) -> None:
        text = self.edit.text()
        if not text:
            return
        self.edit.clear()
        if (found := _ID.fullmatch(text)) is not None:
            self.token_forced.emit(int(found[1]))
        else:
            self.text_forced.emit(text)

    def _on_seed(self) -> None:
        if (sampling := self._sampling) is not None:
            self.sampling_tried.emit(replace(sampling, seed=_next_seed(sampling)))


def _next_seed(sampling: SamplingParams) -> int:
    return min(sampling.seed + 1, _MOST)
