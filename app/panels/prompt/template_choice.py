"""The list of chat templates: the model's own, a plain one of this program, or a file."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFileDialog

from app.draw.format import shortened, visible
from app.kit.fields import SmallBox
from engine.errors import InputError
from engine.files.text import read_text
from engine.spec.chat import MAX_TEMPLATE_CHARS, PLAIN_NAME, PLAIN_TEMPLATE

FILE = "file…"
NONE = "none of its own"
Template = tuple[str, str]  # (name, text); the text is empty for the model's own


class TemplateChoice(SmallBox):
    """Signals: `changed()` when the user chooses another one; `refused(why)` for a file that cannot be read."""

    changed = Signal()
    refused = Signal(str)

    def __init__(self) -> None:
        super().__init__("Chat template", "What writes the turns as one text, with special tokens")
        self._names: tuple[str, ...] | None = None
        self._own: Template | None = None  # read from a file
        self._taken: Template = ("", "")
        self.activated.connect(self._on_activated)

    @property
    def template(self) -> Template:
        return self._taken

    def show_names(self, names: tuple[str, ...]) -> None:
        """Offer a model's templates; a chosen one that it does not have is dropped."""
        if names != self._names:
            self._names = names
            if not self._taken[1] and self._taken[0] not in names:
                self._taken = ("", "")
            self._fill()

    def take(self, name: str, text: str) -> None:
        """Show the template that a conversation was rendered with, without emitting `changed`."""
        if text and name != PLAIN_NAME:
            self._own = (name, text)
        known = bool(text) or name in (self._names or ())
        self._taken = (name, text) if known else ("", "")
        self._fill()

    def _fill(self) -> None:
        self.blockSignals(True)
        self.clear()
        names = self._names or ()
        if not names:
            self.addItem(NONE, ("", ""))
        for number, name in enumerate(names):
            self.addItem(shortened(visible(name), 30), ("" if not number else name, ""))
        self.addItem(PLAIN_NAME, (PLAIN_NAME, PLAIN_TEMPLATE))
        if self._own is not None:
            self.addItem(shortened(visible(self._own[0]), 30), self._own)
        self.addItem(FILE, None)
        self._show_taken()
        self.let_shrink(8)
        self.blockSignals(False)

    def _show_taken(self) -> None:
        found = (n for n in range(self.count()) if tuple(self.itemData(n) or ()) == self._taken)
        self.setCurrentIndex(next(found, 0))

    def _on_activated(self, index: int) -> None:
        template = self.itemData(index)
        if template is None:
            path, _ = QFileDialog.getOpenFileName(self, "Chat template", "", "Jinja templates (*.jinja *.j2);;All (*)")
            if not path:
                self._show_taken()
                return
            try:
                text = read_text(Path(path), 4 * MAX_TEMPLATE_CHARS, "chat template")
            except InputError as error:
                self._show_taken()
                self.refused.emit(str(error))
                return
            template = self._own = (Path(path).name, text)
        self._taken = tuple(template)
        self._fill()
        self.changed.emit()
