"""Marks on a token's chip: special, forced, edited, first generated, or read by the encoder."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QPainter, QPen

from app.draw.edited import EditedRows
from app.kit.theme import current_theme

FOOT = 2.5  # distance in pixels of a forced token's line from the lower edge


def paint_source(painter: QPainter, chip: QRectF) -> None:
    """Paint the background of a token that the encoder read."""
    painter.fillRect(chip.adjusted(0, 0.5, 1, -0.5), current_theme().color("page_shared", 60))


def paint_marks(
    painter: QPainter, chip: QRectF, padding: float, *, is_special: bool, is_forced: bool, is_first: bool
) -> None:
    """Paint marks below the text: a square frame for a special token, a line below a forced one, a bar before the first
    generated one."""
    accent = current_theme().color("accent")
    if is_special:
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(accent, 1))
        painter.drawRect(chip.adjusted(0.5, 1.5, -0.5, -1.5))
    if is_forced:
        foot = QRectF(chip.left() + padding, chip.bottom() - FOOT, chip.width() - 2 * padding, 1.5)
        painter.fillRect(foot, accent)
    if is_first:
        painter.fillRect(QRectF(chip.left() - 1.5, chip.top() + 1, 2, chip.height() - 2), accent)


def paint_edited(painter: QPainter, chip: QRectF, found: Sequence[EditedRows]) -> None:
    """Paint a line above an edited token; one that is masked from attention is also struck through."""
    if not found:
        return
    color = current_theme().color("edited")
    painter.fillRect(QRectF(chip.left() + 1, chip.top() - 0.5, chip.width() - 2, 2), color)
    if any(one.is_hidden for one in found):
        painter.fillRect(QRectF(chip.left() + 1, chip.center().y() - 0.5, chip.width() - 2, 1.5), color)
