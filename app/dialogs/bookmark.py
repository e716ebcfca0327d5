"""The dialog that sets a bookmark, or changes the note of one."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QPlainTextEdit, QWidget

from app.kit.bookmark_places import place_words, places
from app.kit.dialog import QuestionDialog
from app.kit.labels import plain_label
from app.kit.segments import Segments
from app.models import Models
from engine.spec.bookmark import MAX_CHARACTERS, Bookmark, BookmarkTarget

TIPS = {
    "step": "The step that is looked at",
    "token": "The selected token, wherever it stands on this branch",
    "page": "The selected page, as it is after this step",
    "head": "The selected layer and kv head, as they are after this step",
}


class BookmarkDialog(QuestionDialog):
    """Choose what to bookmark and write a note, which may stay empty. Signal: `chosen(Bookmark)`."""

    def __init__(self, models: Models, kind: str, parent: QWidget, target: BookmarkTarget | None = None) -> None:
        super().__init__("Bookmark" if target is None else "Note", parent)
        self._models = models
        self._places = {"": target} if target is not None else dict(places(models))
        self._filled_in = ""  # the note that came with the chosen place, as opposed to one typed by the user
        self.kind = self.add(Segments([(name, name, TIPS[name]) for name in self._places if name]), "On")
        self.place = self.add(plain_label(), "Which is")
        self.note = QPlainTextEdit()
        self.note.setTabChangesFocus(True)
        self.note.setAccessibleName("Note")
        self.note.setPlaceholderText("A note, or nothing")
        self.note.setFixedHeight(92)
        self.add(self.note)
        self.note.installEventFilter(self)
        if target is not None:
            self.form.setRowVisible(self.kind, False)
        self.ok.setText("Save")
        self._choose(kind if kind in self._places else next(iter(self._places)))
        self.kind.chosen.connect(self._choose)
        self.note.textChanged.connect(self._check)

    def first_field(self) -> QWidget:
        return self.note

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Save the note on Ctrl+Return; Return alone starts a new line."""
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            is_return = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
            if is_return and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
                self.ok.click()
                return True
        return super().eventFilter(watched, event)

    @property
    def target(self) -> BookmarkTarget:
        return self._places[self.kind.choice]

    def _choose(self, kind: str) -> None:
        """Show the note of a place that already has a bookmark, unless the user has typed something."""
        self.kind.set_choice(kind)
        found = self._models.bookmarks.at(self.target)
        if self.note.toPlainText() == self._filled_in:
            self._filled_in = found.text if found is not None else ""
            self.note.setPlainText(self._filled_in)
        self.place.setText(f"{place_words(self._models, self.target)}, at step {self.target.step}")

    def _check(self) -> None:
        count = len(self.note.toPlainText())
        self.refuse(
            f"The note has {count:,} characters: {MAX_CHARACTERS:,} are kept." if count > MAX_CHARACTERS else ""
        )

    def answer(self) -> Bookmark:
        return Bookmark(self.target, self.note.toPlainText().strip())
