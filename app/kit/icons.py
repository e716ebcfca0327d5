"""Icons, drawn from SVG in the colour and size they are shown in."""

from __future__ import annotations

from functools import cache

from PySide6.QtCore import QByteArray, QRectF, Qt
from PySide6.QtGui import QIcon, QImage, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from app.kit.style import RESOURCES


@cache
def _source(name: str) -> str:
    return (RESOURCES / "icons" / f"{name}.svg").read_text(encoding="utf-8")


def pixmap(name: str, color: str, size: int, ratio: float = 1.0) -> QPixmap:
    """One icon, in one size and colour."""
    result = QPixmap.fromImage(_drawn(name, color, round(size * ratio)))
    result.setDevicePixelRatio(ratio)
    return result


@cache
def _drawn(name: str, color: str, pixels: int) -> QImage:
    """The icon as an image, cached, as a few dozen icons are shown on hundreds of buttons. (A pixmap could not be
    cached: none may outlive the application.)"""
    image = QImage(pixels, pixels, QImage.Format.Format_ARGB32_Premultiplied)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    renderer = QSvgRenderer(QByteArray(_source(name).replace("currentColor", color).encode()))
    renderer.render(painter, QRectF(image.rect()))
    painter.end()
    return image


def icon(name: str, color: str, checked: str | None = None, disabled: str | None = None, *, size: int = 14) -> QIcon:
    """An icon with a colour for each state, in one size, also for screens of double density."""
    result = QIcon()
    for pixels in (size, 2 * size):
        result.addPixmap(pixmap(name, color, pixels))
        if checked is not None:
            result.addPixmap(pixmap(name, checked, pixels), QIcon.Mode.Normal, QIcon.State.On)
        if disabled is not None:
            result.addPixmap(pixmap(name, disabled, pixels), QIcon.Mode.Disabled)
    return result
