"""The dialog for how far to run: a number of steps, up to a number of tokens, or until a condition holds."""

from __future__ import annotations

from PySide6.QtWidgets import QRadioButton, QWidget

from app.kit.changes import connect_all
from app.kit.dialog import QuestionDialog
from app.kit.fields import line_field, whole_field
from app.models import Models
from app.models.sequence_status import selected_info
from engine.counted import counted
from engine.errors import InputError
from engine.predict.capacity import setting_of
from engine.spec.condition import HOW_TO_COMBINE, help_lines
from engine.spec.stops import parsed, why_never

MOST = 10_000_000


class RunToDialog(QuestionDialog):
    """Choose where a run stops. Signal: `chosen(num_steps or condition)`."""

    def __init__(self, models: Models, parent: QWidget) -> None:
        super().__init__("Run to", parent)
        self._models = models
        info = selected_info(models)
        self._seq_id, self._num_tokens = (0, 0) if info is None else (info.seq_id, info.num_tokens)
        self._steps = whole_field("Steps to run, then rest", 32, 1, MOST, is_grouped=True)
        name = "Tokens of the sequence to run to"
        self.tokens = whole_field(name, self._num_tokens + 32, 1, MOST, is_grouped=True)
        tip = "\n".join((*help_lines(), HOW_TO_COMBINE))
        self.condition = line_field("Condition to run to", models.stops.query, "entropy > 2", tip)
        which = f"sequence {self._seq_id} has" if info is not None else "the sequence has"
        texts = ("So many steps", f"Until {which} so many tokens", "Until this holds")
        self.ways = [QRadioButton(text) for text in texts]
        for way, field in zip(self.ways, (self._steps, self.tokens, self.condition), strict=True):
            self.form.addRow(way, field)
        self.ways[0].setChecked(True)
        self.ok.setText("Run")
        self.setMinimumWidth(540)
        connect_all(
            (self._steps.valueChanged, self._on_steps),
            (self.tokens.valueChanged, self._on_tokens),
            (self.condition.textEdited, self._on_condition),
        )

    def first_field(self) -> QWidget | None:
        return self._steps

    def _on_steps(self) -> None:
        self.ways[0].setChecked(True)

    def _on_tokens(self) -> None:
        self.ways[1].setChecked(True)

    def _on_condition(self) -> None:
        self.ways[2].setChecked(True)

    def answer(self) -> int | str:
        if self.ways[0].isChecked():
            return self._steps.value()
        if self.ways[1].isChecked():
            return self._until_tokens()
        text = self.condition.text().strip()
        condition, model = parsed(text), self._models.status.model
        is_compared = self._models.comparison.now is not None
        if model is not None and (
            problem := why_never(condition, setting_of(model, self._models.status.cache, is_compared=is_compared))
        ):
            raise InputError(problem)
        return text

    def _until_tokens(self) -> str:
        wanted = self.tokens.value()
        if wanted <= self._num_tokens:
            raise InputError(
                f"Sequence {self._seq_id} has {counted(self._num_tokens, 'token')} already: "
                "give more, or go back to that step."
            )
        return f"tokens >= {wanted} and sequence = {self._seq_id}"
