"""Menus and dialogs of edits, and what was made by them."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QMenu

from engine.spec.edit import Edit
from engine.wire.commands import MakeEdit
from tests.app.fake_engine import FakeEngine

LEFT = Qt.MouseButton.LeftButton


def choose(menu: QMenu, text: str) -> None:
    """A click on an entry of an open menu."""
    action = next(action for action in menu.actions() if action.text() == text)
    assert action.isEnabled(), text
    QTest.mouseClick(menu, LEFT, pos=menu.actionGeometry(action).center())
    QApplication.processEvents()


def made(engine: FakeEngine) -> list[Edit]:
    return [command.edit for command in engine.of(MakeEdit)]  # type: ignore[attr-defined]


def opened(kind: type[QDialog]) -> QDialog:
    return next(w for w in QApplication.topLevelWidgets() if type(w) is kind and w.isVisible())
