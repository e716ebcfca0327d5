"""Writes tables and pictures to files, completely or not at all. The functions return what went wrong, or ""."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QBuffer, QIODevice, QPoint
from PySide6.QtGui import QImage, QPainter, QPixmap
from PySide6.QtWidgets import QWidget

from engine.errors import InputError
from engine.files.atomic import write_bytes

CSS_DPI = 96  # pixels per inch of SVG drawings, as in CSS
PICTURE_KINDS = "PNG picture (*.png);;SVG drawing (*.svg)"


def save_text(text: str, path: Path) -> str:
    """Write a text as UTF-8; lone surrogates, which UTF-8 cannot encode, are escaped."""
    return _save(text.encode("utf-8", "backslashreplace"), path)


def save_picture(picture: QImage | QPixmap, path: Path) -> str:
    """Write a picture as PNG."""
    content = png_bytes(picture)
    if not content:
        return f"The picture for {path} could not be made: the window may be too large."
    return _save(content, path)


def png_bytes(picture: QImage | QPixmap) -> bytes:
    """A picture as PNG; empty if it could not be encoded."""
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    is_made = picture.save(buffer, "PNG")  # type: ignore[call-overload]
    return bytes(buffer.data().data()) if is_made else b""


def save_look(widget: QWidget, path: Path) -> str:
    """Write a widget as it looks: as SVG if the name ends in .svg, else as PNG."""
    if why_not := why_no_look(widget):
        return why_not
    return save_drawing(widget, path) if path.suffix.lower() == ".svg" else save_picture(widget.grab(), path)


def why_no_look(widget: QWidget) -> str:
    """Why there is no picture of a widget; empty if there is. What is hidden reads nothing, and is out of date."""
    name = widget.accessibleName() or widget.windowTitle()
    return "" if widget.isVisible() else f"{name} is not on the screen: show it first."


def save_drawing(widget: QWidget, path: Path) -> str:
    """Write what a widget paints as SVG."""
    from PySide6.QtSvg import QSvgGenerator

    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    generator = QSvgGenerator()
    generator.setOutputDevice(buffer)
    generator.setResolution(CSS_DPI)
    generator.setSize(widget.size())
    generator.setViewBox(widget.rect())
    generator.setTitle(widget.accessibleName())
    painter = QPainter(generator)
    widget.render(painter, QPoint())
    painter.end()
    return _save(bytes(buffer.data().data()), path)


def _save(content: bytes, path: Path) -> str:
    try:
        write_bytes(path, content)
    except InputError as problem:
        return str(problem)
    return ""
