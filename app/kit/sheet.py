"""A dialog that computes: fields on the left, results on the right, updated with every change of a field."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QLabel,
    QLineEdit,
    QPushButton,
    QSpinBox,
    QWidget,
)

from app.kit.boxes import column, holder, row, scrolled
from app.kit.buttons import push_button
from app.kit.changes import on_change
from app.kit.dialog import MARGINS, F, FormDialog
from app.kit.facts import Fact, Facts
from app.kit.fields import choice_field, decimal_field, line_field, whole_field
from app.kit.labels import plain_label
from app.kit.theme import font_fixed

SheetField = QSpinBox | QDoubleSpinBox | QComboBox | QLineEdit | QCheckBox
_FIELD_WIDTH = 190


class Sheet(FormDialog):
    """Subclasses add fields and return the results from `_facts()`; the text of a refusal it raises is shown instead.

    Signal: `message(text)`, for the status line.
    """

    message = Signal(str)
    refusals: tuple[type[Exception], ...] = (ValueError,)

    def __init__(self, title: str, parent: QWidget) -> None:
        super().__init__(title, parent)
        self._labels: dict[QWidget, QLabel] = {}
        self.problem = plain_label(role="bad", wraps=True, can_select=True)
        self.problem.setAccessibleName("What is wrong")
        self.facts = Facts()
        self.facts.setAccessibleName("Results")
        self._copy = push_button("Copy", self._on_copy, is_small=False)
        self._lay_out()

    def _lay_out(self) -> None:
        results = holder(column(self.problem, self.facts, None, spacing=8, margins=(0, 0, 10, 0)))
        sides = row(column(self.form, None), (scrolled(results), 1), spacing=24)
        buttons = row(None, self._copy, push_button("Close", self.close, is_small=False))
        column((sides, 1), buttons, spacing=12, margins=MARGINS, on=self)

    # ---- fields --------------------------------------------------------------------------------------------------

    def add_number(self, label: str, value: int, unit: str = "", least: int = 1, automatic: str = "") -> QSpinBox:
        """A field for a whole number; `automatic` is shown instead of the least value."""
        return self._put(whole_field(label, value, least, unit=unit, automatic=automatic, is_grouped=True))

    def add_gib(self, label: str, value: float, automatic: str = "") -> QDoubleSpinBox:
        field = decimal_field(label, value, 0, 1e7, decimals=3, step=1, unit=" GiB", automatic=automatic)
        return self._put(field)

    def add_choice(self, label: str, choices: Sequence[tuple[object, str]], chosen: object = None) -> QComboBox:
        """A list of `(value, text)` choices."""
        field = choice_field(label, choices, chosen)
        field.setFont(font_fixed())
        return self._put(field)

    def add_text(self, label: str, placeholder: str) -> QLineEdit:
        return self._put(line_field(label, hint=placeholder))

    def add_check(self, label: str, is_on: bool = False) -> QCheckBox:
        field = QCheckBox(label)
        field.setChecked(is_on)
        on_change(self.refresh, field)
        self.form.addRow("", field)
        return field

    def _put(self, field: F) -> F:
        on_change(self.refresh, field)
        field.setFixedWidth(_FIELD_WIDTH)
        name = self._labels[field] = plain_label(field.accessibleName())
        name.setBuddy(field)
        self.form.addRow(name, field)
        return field

    def use(self, field: SheetField, is_used: bool) -> None:
        """Enable a field and its label, or disable them if the field has no effect now."""
        field.setEnabled(is_used)
        if field in self._labels:
            self._labels[field].setEnabled(is_used)

    # ---- results -------------------------------------------------------------------------------------------------

    def _notes(self) -> tuple[str, ...]:
        """Warnings shown above the results; called after `_facts()`."""
        return ()

    def refresh(self) -> None:
        """Compute the results from the fields. A slot of every field's change signal."""
        self._adapt()
        try:
            facts, problem = self._facts(), "\n".join(self._notes())
        except self.refusals as refusal:
            facts, problem = (), str(refusal)
        self.problem.setText(problem)
        self.problem.setVisible(bool(problem))
        self.facts.show_facts(facts)
        self._copy.setEnabled(bool(facts))

    def showEvent(self, event: QShowEvent) -> None:
        for button in self.findChildren(QPushButton):
            button.setAutoDefault(False)  # so that Enter in a field does not press Copy or Close
        super().showEvent(event)

    def _adapt(self) -> None:
        """Enable the fields that have an effect now; overridden by subclasses."""

    def _facts(self) -> tuple[Fact, ...]:
        raise NotImplementedError

    def _on_copy(self) -> None:
        """Copy the results to the clipboard."""
        raise NotImplementedError
