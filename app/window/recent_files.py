"""The snapshots that were opened last, as a menu."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QWidget

from app.kit.labels import plain_tip, prose


class RecentFiles(QMenu):
    """Intent: `chosen(Path)`."""

    chosen = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("Recent snapshots", parent)
        self.setToolTipsVisible(True)
        self.triggered.connect(self._on_triggered)
        self.set_paths(())

    def set_paths(self, paths: Sequence[str]) -> None:
        """Newest first."""
        self.clear()
        for path in paths:
            action = self.addAction(prose(Path(path).name).replace("&", "&&"))
            action.setData(path)
            action.setToolTip(plain_tip(prose(path)))
        self.setEnabled(bool(paths))

    def _on_triggered(self, action: QAction) -> None:
        self.chosen.emit(Path(action.data()))
