"""The ground of a line that stands above the panels for a while, tinted by what it says."""

from __future__ import annotations

from PySide6.QtGui import QPainter, QPen
from PySide6.QtWidgets import QWidget

from app.kit.icons import pixmap
from app.kit.theme import current_theme

ICON = 14


def paint_strip(strip: QWidget, role: str, icon: str = "", alpha: int = 26) -> None:
    """Fill it with a tint of a theme colour over that of bars, with a hairline below and an icon at its left."""
    painter, theme = QPainter(strip), current_theme()
    painter.fillRect(strip.rect(), theme.color("bar"))
    painter.fillRect(strip.rect(), theme.color(role, alpha))
    painter.setPen(QPen(theme.color("hairline"), 1))
    painter.drawLine(0, strip.height() - 1, strip.width(), strip.height() - 1)
    if icon:
        mark = pixmap(icon, theme.color(role).name(), ICON, strip.devicePixelRatioF())
        painter.drawPixmap(12, (strip.height() - ICON) // 2, mark)
