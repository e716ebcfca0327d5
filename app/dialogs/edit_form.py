"""The base classes of the dialogs that edit the cache: they show which numbers an edit changes, or why it is
impossible."""

from __future__ import annotations

from msgspec.structs import replace
from PySide6.QtCore import QObject
from PySide6.QtWidgets import QWidget

from app.draw.edit_words import rows_words, size_words
from app.kit.changes import on_change
from app.kit.dialog import QuestionDialog
from app.kit.labels import plain_label
from app.kit.segments import Segments
from app.kit.theme import font_fixed
from app.models import Models
from app.models.chosen_rows import NOTHING, chosen_rows
from engine.errors import InputError
from engine.spec.edit import Edit, EditedPart, Rows
from engine.spec.edit_text import edit_text

_PARTS: dict[str, EditedPart] = {"both": "both", "keys": "keys", "values": "values"}


class EditForm(QuestionDialog):
    """A form for one edit. A subclass adds its fields, calls `listen` at the end of its constructor and implements
    `edit`. Signal: `chosen(Edit)`."""

    def __init__(self, title: str, models: Models, parent: QWidget) -> None:
        super().__init__(title, parent)
        self.models = models
        self.touched = plain_label(wraps=True)
        self.touched.setAccessibleName("What will be touched")
        self.text = plain_label("", font_fixed(11.5), "muted", wraps=True)
        self.text.setAccessibleName("The edit as text")
        self.ok.setText("Apply")
        self.setMinimumWidth(460)

    def listen(self, *fields: QObject) -> None:
        """Show what the fields mean, now and whenever one of them changes. Call it when all fields exist."""
        self.form.addRow("Touches", self.touched)
        self.form.addRow("As text", self.text)
        on_change(self.show_edit, *fields)
        self.show_edit()

    def edit(self) -> Edit:
        """Return the edit; raises `InputError` where the fields are incomplete."""
        raise NotImplementedError

    def touched_words(self, edit: Edit) -> str:
        """Describe what an edit changes, in words and bytes."""
        return edit.describe()

    def answer(self) -> Edit:
        edit, model = self.edit(), self.models.status.model
        if model is None:
            raise InputError("There is no model any more: load one.")
        edit.check(model.geometry, self.models.timeline.num_tokens(edit.seq_id))
        return edit

    def show_edit(self) -> None:
        """Show what the edit would do, or one sentence saying why it is impossible."""
        problem, edit = "", None
        try:
            edit = self.answer()
        except InputError as error:
            problem = str(error)
        self.refuse(problem)
        self.ok.setEnabled(edit is not None)
        self.touched.setText(self.touched_words(edit) if edit is not None else "")
        self.text.setText(edit_text(edit) if edit is not None else "")
        for label in (self.touched, self.text):
            self.form.setRowVisible(label, edit is not None)
        self._grow()

    def _grow(self) -> None:
        """Make the dialog taller where wrapped lines need more height than it had at first."""
        layout = self.layout()
        if layout is not None and self.isVisible():
            layout.activate()
            self.resize(self.width(), max(self.height(), layout.totalHeightForWidth(self.width())))

    def size_of(self, rows: Rows) -> str:
        """Return `positions 4 … 7 · layer 3 · K and V`, followed by a line such as `1,024 numbers, 4.0 KiB`."""
        model = self.models.status.model
        assert model is not None
        return f"{rows_words(rows)}\n{size_words(rows, model.geometry, model.dtype)}"

    @property
    def seq_id(self) -> int:
        return self.models.selection.now.seq_id


class RowsForm(EditForm):
    """A form for an edit of the selected rows: of K, of V or of both."""

    def __init__(self, title: str, models: Models, parent: QWidget) -> None:
        super().__init__(title, models, parent)
        rows = chosen_rows(models)
        choices = (("both", "K and V", ""), ("keys", "K", "Keys alone"), ("values", "V", "Values alone"))
        self.part = Segments(choices, rows.part if rows is not None else "both")

    def listen(self, *fields: QObject) -> None:
        self.add(self.part, "Of")
        super().listen(self.part, *fields)

    @property
    def rows(self) -> Rows:
        """Return the selected rows; raises `InputError` where nothing is selected."""
        rows = chosen_rows(self.models)
        if rows is None:
            raise InputError(f"Nothing is selected: {NOTHING}.")
        return replace(rows, part=_PARTS[self.part.choice])

    def touched_words(self, edit: Edit) -> str:
        return self.size_of(self.rows)
