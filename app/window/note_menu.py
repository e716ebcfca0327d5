"""The menu of a place that can be bookmarked: set a bookmark, write on it, delete it."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QObject, QPoint, Qt, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QMenu, QWidget

from app.kit.bookmark_places import PAGE, STEP, TOKEN, place_words, places
from app.models import Models
from engine.spec.bookmark import BookmarkTarget


class NoteMenu(QObject):
    """`panels` say what a bookmark is of while one of them has the focus. Intent: `deleted(target)`."""

    deleted = Signal(object)

    def __init__(
        self, models: Models, add: QAction, panels: Mapping[str, tuple[QWidget, ...]], parent: QWidget
    ) -> None:
        super().__init__(parent)
        self._models, self._add, self._panels, self._parent = models, add, panels, parent
        self._target: BookmarkTarget | None = None

    @property
    def kind(self) -> str:
        """What a bookmark is set on: what the panel that has the focus shows, else the smallest thing selected."""
        found, focused = places(self._models), QApplication.focusWidget()
        for kind, panels in self._panels.items():
            if kind in found and any((focused is not None and p.isAncestorOf(focused)) or p is focused for p in panels):
                return kind
        return next((kind for kind in (PAGE, TOKEN) if kind in found), STEP)

    def open_at(self, place: QPoint) -> None:
        """Show it at a place of the screen."""
        self._target = places(self._models).get(self.kind)
        if self._target is None:
            return
        menu = QMenu(self._parent)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setObjectName("notes")
        words = f"{place_words(self._models, self._target)} · step {self._target.step}"
        menu.addAction(words.replace("&", "&&")).setEnabled(False)
        menu.addSeparator()
        menu.addAction(self._add)
        if self._models.bookmarks.at(self._target) is not None:
            menu.addAction("Delete bookmark", self._on_delete)
        menu.popup(place)

    def _on_delete(self) -> None:
        self.deleted.emit(self._target)
