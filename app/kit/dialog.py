"""What every dialog has in common: its first field has the focus and its text selected, and Enter applies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeVar

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QIcon, QShowEvent
from PySide6.QtWidgets import (
    QAbstractSpinBox,
    QDialog,
    QDialogButtonBox,
    QFormLayout,
    QLayout,
    QLineEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.kit.labels import plain_label
from engine.errors import InputError

F = TypeVar("F", bound=QWidget)


class Dialog(QDialog):
    """A window of its own that is gone once it is closed, and gives the keyboard back."""

    def __init__(self, title: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)

    def done(self, result: int) -> None:
        super().done(result)
        if (parent := self.parentWidget()) is not None:
            parent.window().activateWindow()  # without a window manager the keyboard would be nobody's

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not event.spontaneous():
            self._begin()
            QTimer.singleShot(0, self, self._begin)  # some platforms give the focus once the window is active

    def first_field(self) -> QWidget | None:
        """What a person types into first; None where nothing is asked."""
        return None

    def _begin(self) -> None:
        field = self.first_field()
        if field is None or field.hasFocus():
            return
        field.setFocus(Qt.FocusReason.TabFocusReason)
        if isinstance(field, QAbstractSpinBox | QLineEdit):
            field.selectAll()


class FormDialog(Dialog):
    """A dialog with a form: Tab walks its fields from top to bottom and then the buttons."""

    def __init__(self, title: str, parent: QWidget) -> None:
        super().__init__(title, parent)
        self.form = QFormLayout()
        self.form.setHorizontalSpacing(14)
        self.form.setVerticalSpacing(9)

    def add(self, field: F, label: str | None = None) -> F:
        """Put a field below the others, under its name unless it has another label."""
        self.form.addRow(field.accessibleName() if label is None else label, field)
        return field

    def first_field(self) -> QWidget | None:
        return next(self._answerable(), None)

    def _answerable(self) -> Iterator[QWidget]:
        """What can be typed into or chosen, from top to bottom; a button is none."""
        return (field for field in focusable(self.form) if not isinstance(field, QPushButton) and field.isEnabled())

    def showEvent(self, event: QShowEvent) -> None:
        buttons = self.findChildren(QPushButton)
        walk = [*focusable(self.form)]
        walk += [button for button in buttons if button not in walk]
        for before, after in pairwise(walk):
            self.setTabOrder(before, after)
        super().showEvent(event)


class QuestionDialog(FormDialog):
    """A form with OK and Cancel; what is refused is said inside, and the dialog stays. Intent: `chosen`, with what each
    kind of dialog says."""

    chosen = Signal(object)

    def __init__(self, title: str, parent: QWidget) -> None:
        super().__init__(title, parent)
        self._problem = plain_label(wraps=True)
        self._problem.hide()
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel)
        self.ok = buttons.button(QDialogButtonBox.StandardButton.Ok)
        self.ok.setProperty("primary", True)
        self.ok.setDefault(True)
        for button in buttons.buttons():
            button.setIcon(QIcon())  # some desktops put theirs in, in their own colours
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(18, 16, 18, 14)
        layout.setSpacing(12)
        layout.addLayout(self.form)
        layout.addWidget(self._problem)
        layout.addWidget(buttons)
        self.setMinimumWidth(420)

    def showEvent(self, event: QShowEvent) -> None:
        for button in self.findChildren(QPushButton):
            button.setAutoDefault(button is self.ok)  # Enter means OK, wherever the focus is in the form
        super().showEvent(event)

    def ask(self, slot: Callable[..., object]) -> None:
        """Open it, and let that slot have what is chosen."""
        self.chosen.connect(slot)
        self.open()

    def answer(self) -> object | None:
        """What is chosen, None where that is nothing new; `InputError` says what is impossible about it."""
        raise NotImplementedError

    def accept(self) -> None:
        try:
            answer = self.answer()
        except InputError as error:
            self.refuse(str(error))
            return
        if answer is not None:
            self.chosen.emit(answer)
        super().accept()

    def refuse(self, text: str) -> None:
        """Say what is wrong; the empty text takes it back."""
        self._problem.setText(text)
        self._problem.setVisible(bool(text))


def focusable(layout: QLayout) -> Iterator[QWidget]:
    """The widgets of a layout, and of those inside it, that Tab can reach, in their order."""
    for index in range(layout.count()):
        if (item := layout.itemAt(index)) is None:
            continue
        widget, inner = item.widget(), item.layout()
        if widget is not None and widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            yield widget
            continue
        inner = widget.layout() if widget is not None else inner
        if inner is not None:
            yield from focusable(inner)
