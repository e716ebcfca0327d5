"""The base classes of dialogs: the first field has the focus with its text selected, and Enter applies."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QFont, QGuiApplication, QIcon, QShowEvent
from PySide6.QtWidgets import (
    QAbstractSpinBox,
    QCheckBox,
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QDoubleSpinBox,
    QFileDialog,
    QFormLayout,
    QLabel,
    QLayout,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QPushButton,
    QSpinBox,
    QTreeWidget,
    QTreeWidgetItem,
    QWidget,
)

from app.kit.asking import Question
from app.kit.facts import Fact, Facts
from app.kit.fields import line_field
from app.kit.theme import font_fixed, font_text
from app.kit.widgets import column, connect_all, holder, on_change, plain_label, push_button, row, scrolled
from engine.client import is_elsewhere
from engine.errors import InputError
from engine.wire.commands import ListFolder
from engine.wire.events import Event, Failed, FolderListed

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

    def add(self, field: F, label: str | None = None, *beside: QWidget) -> F:
        """Add a field at the end, labelled with its accessible name unless `label` is given, with buttons `beside`."""
        label = field.accessibleName() if label is None else label
        self.form.addRow(label, holder(row((field, 1), *beside, spacing=8)) if beside else field)
        return field

    def show_row(self, field: QWidget, is_shown: bool) -> None:
        """Show or hide a field with its label and the buttons beside it."""
        held = self.form.indexOf(field) < 0 and field.parentWidget()
        self.form.setRowVisible(held or field, is_shown)

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
    """A form with OK, named for what it does, and Cancel; if the input is refused, the reason is shown inside and the
    dialog stays open. Signal: `chosen(answer)`, with what the subclass's `answer` returns."""

    chosen = Signal(object)

    def __init__(self, title: str, parent: QWidget, ok: str = "OK", width: int = 420) -> None:
        super().__init__(title, parent)
        self.problem = plain_label(role="bad", wraps=True)
        self.problem.hide()
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel)
        self.ok = buttons.button(QDialogButtonBox.StandardButton.Ok)
        self.ok.setText(ok)
        self.ok.setProperty("primary", True)
        self.ok.setDefault(True)
        for button in buttons.buttons():
            button.setIcon(QIcon())  # some desktops add icons in colours of their own
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        column(self.form, self.problem, buttons, spacing=12, margins=MARGINS, on=self)
        self.setMinimumWidth(width)

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
        answer, problem = self._answered()
        if problem:
            self.refuse(problem)
            return
        if answer is not None:
            self.chosen.emit(answer)
        super().accept()

    def check(self) -> Any:
        """The answer as the fields are now; None where it is impossible, which is then said, and OK disabled."""
        answer, problem = self._answered()
        self.refuse(problem)
        self.ok.setEnabled(not problem)
        return answer

    def _answered(self) -> tuple[object | None, str]:
        """The answer, or what is wrong."""
        try:
            return self.answer(), ""
        except InputError as error:
            return None, str(error)

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


SheetField = QSpinBox | QDoubleSpinBox | QComboBox | QLineEdit | QCheckBox
_FIELD_WIDTH = 190


class Sheet(FormDialog):
    """Subclasses add fields and return the results from `_facts()`; the text of a refusal it raises is shown instead.
    The results are `copied`, as the subclass says.

    Signal: `message(text)`, for the status line.
    """

    message = Signal(str)
    copied: ClassVar[str]
    refusals: tuple[type[Exception], ...] = (ValueError,)

    def __init__(self, title: str, parent: QWidget) -> None:
        super().__init__(title, parent)
        self._labels: dict[QWidget, QLabel] = {}
        self.problem = plain_label(role="bad", wraps=True, can_select=True)
        self.problem.setAccessibleName("What is wrong")
        self.facts = Facts("Results")
        self._copy = push_button("Copy", self._on_copy, is_small=False)
        self._lay_out()

    def _lay_out(self) -> None:
        results = holder(column(self.problem, self.facts, None, spacing=8, margins=(0, 0, 10, 0)))
        sides = row(column(self.form, None), (scrolled(results), 1), spacing=24)
        buttons = row(None, self._copy, push_button("Close", self.close, is_small=False))
        column((sides, 1), buttons, spacing=12, margins=MARGINS, on=self)

    # ---- fields --------------------------------------------------------------------------------------------------

    def add(self, field: F, label: str | None = None, *beside: QWidget) -> F:
        on_change(self.refresh, field)
        if isinstance(field, QCheckBox):
            return super().add(field, "")
        if isinstance(field, QComboBox):
            field.setFont(font_fixed())
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

    def copy_text(self) -> str:
        """The results as they are copied."""
        return self.facts.text()

    def _on_copy(self) -> None:
        QGuiApplication.clipboard().setText(self.copy_text())
        self.message.emit(self.copied)


def heading(tree: QTreeWidget, text: str) -> QTreeWidgetItem:
    """Add a heading to a tree, below which its items stand; it cannot be selected."""
    item = QTreeWidgetItem([text])
    item.setFlags(Qt.ItemFlag.ItemIsEnabled)
    item.setFont(0, font_text(weight=QFont.Weight.DemiBold))
    tree.addTopLevelItem(item)
    item.setFirstColumnSpanned(True)
    return item


def ask_path(
    parent: QWidget,
    engine: str,
    wants: Callable[[Question], object],
    title: str,
    endings: tuple[str, ...],
    take: Callable[[str], object],
    start: str = "",
    take_here: Callable[[str], object] | None = None,
) -> None:
    """Ask for a file with one of these endings, without them for a folder, on the machine of the engine; `take` is
    called with its path unless the user cancels. `wants` sends a question to the engine; `start` is the folder to begin
    in. Where the engine is on another machine, a file of this one can be chosen too if there is a `take_here`."""
    if is_elsewhere(engine):
        dialog = FilesThere(title, endings, parent, take_here)
        dialog.wants.connect(wants)
        dialog.ask(take)
        dialog.begin(start)
    elif path := path_here(parent, title, endings, start):
        take(path)


def path_here(parent: QWidget, title: str, endings: tuple[str, ...], start: str = "") -> str:
    """The path of a file or folder of this machine; empty if the user cancels."""
    if endings:
        kinds = f"{title} ({' '.join(f'*{each}' for each in endings)});;All files (*)"
        path, _ = QFileDialog.getOpenFileName(parent, title, start, kinds)
    else:
        path = QFileDialog.getExistingDirectory(parent, title, start)
    parent.window().activateWindow()  # without a window manager no window would get the keyboard focus
    return path


def browse_button(
    field: QLineEdit, title: str, endings: tuple[str, ...], start: str = "", text: str = "Browse…", tip: str = ""
) -> QPushButton:
    """A button to choose the file or folder of this machine that a line names."""

    def browse() -> None:
        if path := path_here(field.window(), title, endings, start):
            field.setText(path)

    return push_button(text, browse, tip)


class FilesThere(QuestionDialog):
    """Choose a file or folder on the engine's machine. Signals: `chosen(path)`; `wants(Question)`, a folder is to be
    listed. `endings` are those of the files that can be chosen; empty: a folder is. `take_here`: called with a file
    that is chosen on this machine instead; None: none can be."""

    wants = Signal(object)

    def __init__(
        self,
        title: str,
        endings: tuple[str, ...],
        parent: QWidget,
        take_here: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__(title, parent, width=620)
        self._endings, self._take_here = endings, take_here
        self._folder = ""
        self.path = self.add(line_field("Path there", "", "its path on the machine of the engine"))
        self.names = QListWidget()
        self.names.setAccessibleName("In this folder")
        self.names.setMinimumHeight(260)
        self.add(self.names, "")
        if take_here is not None:
            self.add(push_button("On this machine…", self._on_here, is_small=False), "")
        connect_all(
            (self.names.currentItemChanged, self._on_chosen),
            (self.names.itemActivated, self._on_activated),
        )

    def begin(self, folder: str = "") -> None:
        """Show a folder; the user's own where none is given, or at first there is no such folder."""
        is_first = posixpath.isabs(folder) and not self._folder
        folder = folder if is_first or self._folder else ""
        self.wants.emit(Question(ListFolder(folder), self._take, self._on_none if is_first else self._refused))

    def _take(self, event: Event) -> None:
        assert isinstance(event, FolderListed)
        self._folder = event.path
        self.path.setText(event.path)
        self.names.clear()
        for name in ("..", *event.folders):
            self.names.addItem(QListWidgetItem(f"{name}/"))
        for name in event.files:
            if name.endswith(self._endings or ("\0",)):
                self.names.addItem(QListWidgetItem(name))

    def _on_none(self, _: Failed) -> None:
        self.begin()

    def _refused(self, failure: Failed) -> None:
        self.refuse(failure.message)

    def _on_chosen(self, item: QListWidgetItem | None) -> None:
        if item is not None:
            self.path.setText(posixpath.normpath(posixpath.join(self._folder, item.text())))

    def _on_activated(self, item: QListWidgetItem) -> None:
        if item.text().endswith("/"):
            self.begin(posixpath.normpath(posixpath.join(self._folder, item.text())))
        else:
            self._on_chosen(item)
            self.accept()

    def _on_here(self) -> None:
        if (path := path_here(self, self.windowTitle(), self._endings)) and self._take_here is not None:
            self.reject()
            self._take_here(path)

    def answer(self) -> str:
        path = self.path.text().strip()
        if not path or (self._endings and not path.endswith(self._endings)):
            kinds = f"a file that ends in {', '.join(self._endings)}" if self._endings else "a folder"
            raise InputError(f"Choose {kinds}.")
        return path
