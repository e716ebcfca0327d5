"""Rows and columns of widgets without margins of their own: what panels and dialogs are laid out in."""

from __future__ import annotations

from typing import TypeVar

from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QLayout, QVBoxLayout, QWidget

Item = QWidget | QLayout
BoxItem = Item | tuple[Item, int] | int | None  # an item, one with its stretch, so many pixels, the room that is left
L = TypeVar("L", bound=QBoxLayout)


def row(*parts: BoxItem, spacing: int = 6, on: QWidget | None = None) -> QHBoxLayout:
    """Parts beside each other, as the layout of a widget where `on` is given."""
    return fill(QHBoxLayout(on) if on is not None else QHBoxLayout(), parts, spacing)


def column(*parts: BoxItem, spacing: int = 3, on: QWidget | None = None) -> QVBoxLayout:
    """Parts below each other, as the layout of a widget where `on` is given."""
    return fill(QVBoxLayout(on) if on is not None else QVBoxLayout(), parts, spacing)


def fill(box: L, parts: tuple[BoxItem, ...], spacing: int) -> L:
    """Add parts to a layout, which loses its margins."""
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
    """A widget that is laid out so."""
    widget = QWidget()
    widget.setLayout(layout)
    return widget
