"""Files and folders that the engine opens: they are chosen on its machine."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFileDialog, QListWidget, QListWidgetItem, QWidget

from app.kit.changes import connect_all
from app.kit.dialog import QuestionDialog
from app.kit.fields import line_field
from app.kit.question import Question
from engine.client import is_elsewhere
from engine.errors import InputError
from engine.wire.commands import ListFolder
from engine.wire.events import Event, Failed, FolderListed


def ask_path(
    parent: QWidget,
    engine: str,
    wants: Callable[[Question], object],
    title: str,
    endings: tuple[str, ...],
    take: Callable[[str], object],
    start: str = "",
) -> None:
    """Ask for a file with one of these endings, without them for a folder, on the machine of the engine; `take` is
    called with its path unless the user cancels. `wants` sends a question to the engine; `start` is where a dialog on
    this machine begins."""
    if is_elsewhere(engine):
        dialog = FilesThere(title, endings, parent)
        dialog.wants.connect(wants)
        dialog.ask(take)
        dialog.begin()
        return
    if endings:
        kinds = f"{title} ({' '.join(f'*{each}' for each in endings)});;All files (*)"
        path, _ = QFileDialog.getOpenFileName(parent, title, start, kinds)
    else:
        path = QFileDialog.getExistingDirectory(parent, title, start)
    parent.window().activateWindow()  # without a window manager no window would get the keyboard focus
    if path:
        take(path)


class FilesThere(QuestionDialog):
    """Choose a file or folder on the engine's machine. Signals: `chosen(path)`; `wants(Question)`, a folder is to be
    listed. `endings` are those of the files that can be chosen; empty: a folder is."""

    wants = Signal(object)

    def __init__(self, title: str, endings: tuple[str, ...], parent: QWidget) -> None:
        super().__init__(title, parent)
        self._endings = endings
        self._folder = ""
        self._path = self.add(line_field("Path there", "", "its path on the machine of the engine"))
        self._names = QListWidget()
        self._names.setAccessibleName("In this folder")
        self._names.setMinimumHeight(260)
        self.add(self._names, "")
        self.setMinimumWidth(620)
        connect_all(
            (self._names.currentItemChanged, self._on_chosen),
            (self._names.itemActivated, self._on_activated),
        )

    def begin(self, folder: str = "") -> None:
        """Show a folder; the user's own where none is given."""
        self.wants.emit(Question(ListFolder(folder), self._take, self._refused))

    def _take(self, event: Event) -> None:
        assert isinstance(event, FolderListed)
        self._folder = event.path
        self._path.setText(event.path)
        self._names.clear()
        for name in ("..", *event.folders):
            self._names.addItem(QListWidgetItem(f"{name}/"))
        for name in event.files:
            if name.endswith(self._endings or ("\0",)):
                self._names.addItem(QListWidgetItem(name))

    def _refused(self, failure: Failed) -> None:
        self.problem.setText(failure.message)
        self.problem.show()

    def _on_chosen(self, item: QListWidgetItem | None) -> None:
        if item is not None:
            self._path.setText(posixpath.normpath(posixpath.join(self._folder, item.text())))

    def _on_activated(self, item: QListWidgetItem) -> None:
        if item.text().endswith("/"):
            self.begin(posixpath.normpath(posixpath.join(self._folder, item.text())))
        else:
            self._on_chosen(item)
            self.accept()

    def answer(self) -> str:
        path = self._path.text().strip()
        if not path or (self._endings and not path.endswith(self._endings)):
            kinds = f"a file that ends in {', '.join(self._endings)}" if self._endings else "a folder"
            raise InputError(f"Choose {kinds}.")
        return path
