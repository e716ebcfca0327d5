"""Rows, columns and stacks of widgets: the layouts of panels and dialogs."""

from __future__ import annotations

from typing import TypeVar

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import (
    QBoxLayout,
    QHBoxLayout,
    QLayout,
    QScrollArea,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

Item = QWidget | QLayout
BoxItem = Item | tuple[Item, int] | int | None  # an item; (item, stretch); so many pixels; a stretch of free space
L = TypeVar("L", bound=QBoxLayout)
Margins = tuple[int, int, int, int]  # left, top, right, bottom, in pixels
_NONE = (0, 0, 0, 0)


def row(*parts: BoxItem, spacing: int = 6, margins: Margins = _NONE, on: QWidget | None = None) -> QHBoxLayout:
    """Lay parts out beside each other; `on`: the widget that gets the layout."""
    return fill(QHBoxLayout(on) if on is not None else QHBoxLayout(), parts, spacing, margins)


def column(*parts: BoxItem, spacing: int = 3, margins: Margins = _NONE, on: QWidget | None = None) -> QVBoxLayout:
    """Lay parts out below each other; `on`: the widget that gets the layout."""
    return fill(QVBoxLayout(on) if on is not None else QVBoxLayout(), parts, spacing, margins)


def fill(box: L, parts: tuple[BoxItem, ...], spacing: int, margins: Margins = _NONE) -> L:
    """Add parts to a layout."""
    box.setContentsMargins(*margins)
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


class Spare(QWidget):
    """Holds what a panel shows only where there is room for it. It asks for no width: a panel behind a tab is not
    resized, and would go on asking for the width that it once had."""

    def __init__(self, layout: QLayout) -> None:
        super().__init__()
        self.setLayout(layout)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())


def stack(*sheets: QWidget) -> QStackedWidget:
    """Widgets of which one is shown at a time, the first at first."""
    widget = QStackedWidget()
    for sheet in sheets:
        widget.addWidget(sheet)
    return widget


def scrolled(inner: QWidget, area: QScrollArea | None = None) -> QScrollArea:
    """A scroll area without frame and background, which scrolls only upwards and downwards."""
    area = area or QScrollArea()
    area.setFrameShape(QScrollArea.Shape.NoFrame)
    area.setWidgetResizable(True)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setWidget(inner)
    area.viewport().setAutoFillBackground(False)
    inner.setAutoFillBackground(False)  # setWidget has enabled it
    return area
