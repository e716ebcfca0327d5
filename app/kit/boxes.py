"""Rows and columns of widgets without margins: the layouts of panels and dialogs."""

from __future__ import annotations

from typing import TypeVar

from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QLayout, QVBoxLayout, QWidget

Item = QWidget | QLayout
BoxItem = Item | tuple[Item, int] | int | None  # an item; (item, stretch); so many pixels; a stretch of free space
L = TypeVar("L", bound=QBoxLayout)


def row(*parts: BoxItem, spacing: int = 6, on: QWidget | None = None) -> QHBoxLayout:
    """Lay parts out beside each other; `on`: the widget that gets the layout."""
    return fill(QHBoxLayout(on) if on is not None else QHBoxLayout(), parts, spacing)


def column(*parts: BoxItem, spacing: int = 3, on: QWidget | None = None) -> QVBoxLayout:
    """Lay parts out below each other; `on`: the widget that gets the layout."""
    return fill(QVBoxLayout(on) if on is not None else QVBoxLayout(), parts, spacing)


def fill(box: L, parts: tuple[BoxItem, ...], spacing: int) -> L:
    """Add parts to a layout, and remove its margins."""
    box.setContentsMargins(0, 0, 0, 0)
    box.setSpacing(spacing)
    for part in parts:
        item, stretch = part if isinstance(part, tuple) else (part, 0)
        match item:
            case None:
                box.addStretch(1)
            case int():
                box.addSpacing(item)
            case QLayout():
                box.addLayout(item, stretch)
            case _:
                box.addWidget(item, stretch)
    return box


def holder(layout: QLayout) -> QWidget:
    """A widget with this layout."""
    widget = QWidget()
    widget.setLayout(layout)
    return widget
