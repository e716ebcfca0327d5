"""Files that were opened last, or sessions that ended last, as a menu."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QWidget

from app.kit.labels import plain_tip, prose
from engine.saved.folder import ENDED


class RecentFiles(QMenu):
    """Intent: `chosen(Path)`."""

    chosen = Signal(object)

    def __init__(self, title: str, parent: QWidget | None = None) -> None:
        super().__init__(title, parent)
        self.setToolTipsVisible(True)
        self.triggered.connect(self._on_triggered)
        self.set_paths(())

    def set_paths(self, paths: Sequence[str]) -> None:
        """Newest first."""
        self.clear()
        for path in paths:
            action = self.addAction(prose(Path(path).name.removesuffix(ENDED)).replace("&", "&&"))
            action.setData(path)
            action.setToolTip(plain_tip(prose(path)))
        self.setEnabled(bool(paths))

    def _on_triggered(self, action: QAction) -> None:
        self.chosen.emit(Path(action.data()))
