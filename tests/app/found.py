"""What a person finds in a window by reading: a button, the menu that it opens, a field, the words in sight."""

from __future__ import annotations

from typing import Any

from PySide6.QtWidgets import QAbstractButton, QApplication, QLabel, QMenu, QWidget


def button(root: QWidget, words: str) -> QAbstractButton:
    """The one button of a widget, in sight or not, that says these words or is called so by a screen reader."""
    (found,) = (each for each in root.findChildren(QAbstractButton) if words in (each.text(), each.accessibleName()))
    return found


def opened_menu(button: QAbstractButton) -> QMenu:
    """The menu that a click on a button opens."""
    button.click()
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu)
    return menu


def field(root: QWidget, name: str) -> Any:
    """The one widget that a screen reader calls by this name."""
    (found,) = (each for each in root.findChildren(QWidget) if each.accessibleName() == name)
    return found


def texts_in(root: QWidget) -> list[str]:
    """The texts of the labels that are in sight, whole also where there is room for a part alone."""
    return [label.text() for label in root.findChildren(QLabel) if label.isVisible() and label.text()]
