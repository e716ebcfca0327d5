"""The base classes of dialogs: the first field has the focus with its text selected, and Enter applies."""

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
    QWidget,
)

from app.kit.boxes import column
from app.kit.labels import plain_label
from engine.errors import InputError

F = TypeVar("F", bound=QWidget)
MARGINS = (18, 16, 18, 14)


class Dialog(QDialog):
    """A dialog that is deleted when it is closed, and then gives the keyboard focus back to its parent."""

    def __init__(self, title: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._wanted = ""

    def done(self, result: int) -> None:
        super().done(result)
        if (parent := self.parentWidget()) is not None:
            parent.window().activateWindow()  # without a window manager no window would get the keyboard focus

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not event.spontaneous():
            self._begin()
            QTimer.singleShot(0, self, self._begin)  # some platforms set the focus only after the window is active

    def first_field(self) -> QWidget | None:
        """The field that the user fills in first; None if there is none."""
        return None

    def begin_at(self, name: str) -> None:
        """Begin with the field of that accessible name, if there is one, in place of the first."""
        self._wanted = name

    def _begin(self) -> None:
        named = (
            field for field in self.findChildren(QWidget) if self._wanted and field.accessibleName() == self._wanted
        )
        field = next((field for field in named if field.isVisibleTo(self)), None) or self.first_field()
        if field is None or field.hasFocus():
            return
        field.setFocus(Qt.FocusReason.TabFocusReason)
        if isinstance(field, QAbstractSpinBox | QLineEdit):
            field.selectAll()


class FormDialog(Dialog):
    """A dialog with a form: Tab moves through its fields from top to bottom and then through the buttons."""

    def __init__(self, title: str, parent: QWidget) -> None:
        super().__init__(title, parent)
        self.form = QFormLayout()
        self.form.setHorizontalSpacing(14)
        self.form.setVerticalSpacing(9)

    def add(self, field: F, label: str | None = None) -> F:
        """Add a field at the end, labelled with its accessible name unless `label` is given."""
        self.form.addRow(field.accessibleName() if label is None else label, field)
        return field

    def first_field(self) -> QWidget | None:
        return next(self._answerable(), None)

    def _answerable(self) -> Iterator[QWidget]:
        """The fields that can be edited or chosen, from top to bottom, without buttons."""
        return (field for field in focusable(self.form) if not isinstance(field, QPushButton) and field.isEnabled())

    def showEvent(self, event: QShowEvent) -> None:
        buttons = self.findChildren(QPushButton)
        walk = [*focusable(self.form)]
        walk += [button for button in buttons if button not in walk]
        for before, after in pairwise(walk):
            self.setTabOrder(before, after)
        super().showEvent(event)


class QuestionDialog(FormDialog):
    """A form with OK and Cancel; if the input is refused, the reason is shown inside and the dialog stays open. Signal:
    `chosen(answer)`, with what the subclass's `answer` returns."""

    chosen = Signal(object)

    def __init__(self, title: str, parent: QWidget) -> None:
        super().__init__(title, parent)
        self.problem = plain_label(role="bad", wraps=True)
        self.problem.hide()
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel)
        self.ok = buttons.button(QDialogButtonBox.StandardButton.Ok)
        self.ok.setProperty("primary", True)
        self.ok.setDefault(True)
        for button in buttons.buttons():
            button.setIcon(QIcon())  # some desktops add icons in colours of their own
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        column(self.form, self.problem, buttons, spacing=12, margins=MARGINS, on=self)
        self.setMinimumWidth(420)

    def showEvent(self, event: QShowEvent) -> None:
        for button in self.findChildren(QPushButton):
            button.setAutoDefault(button is self.ok)  # Enter means OK, whichever field has the focus
        super().showEvent(event)

    def ask(self, slot: Callable[..., object]) -> None:
        """Open the dialog; `slot` is called with the answer."""
        self.chosen.connect(slot)
        self.open()

    def answer(self) -> object | None:
        """What the user chose; None if it changes nothing. Raises `InputError` if it is impossible."""
        raise NotImplementedError

    def accept(self) -> None:
        numbers = [field.refusing for field in self.findChildren(QAbstractSpinBox) if hasattr(field, "refusing")]
        if problem := next((number.problem for number in numbers if number.problem), ""):
            for number in numbers:
                number.forget()  # the user has read it: what the fields show now is taken
            self.refuse(problem)
            return
        try:
            answer = self.answer()
        except InputError as error:
            self.refuse(str(error))
            return
        if answer is not None:
            self.chosen.emit(answer)
        super().accept()

    def refuse(self, text: str) -> None:
        """Show what is wrong; the empty text removes the message."""
        self.problem.setText(text)
        self.problem.setVisible(bool(text))


def focusable(layout: QLayout) -> Iterator[QWidget]:
    """The widgets of a layout and its sub-layouts that Tab can reach, in their order."""
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
