"""What a chip tells beside its text: a special token, one that was forced or edited, the first that was generated."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QPainter, QPen

from app.draw.edited import EditedRows
from app.kit.theme import current_theme

FOOT = 2.5  # pixels from the lower edge


def paint_source(painter: QPainter, chip: QRectF) -> None:
    """A token that an encoder read stands on a ground of its own."""
    painter.fillRect(chip.adjusted(0, 0.5, 1, -0.5), current_theme().color("page_shared", 60))


def paint_marks(
    painter: QPainter, chip: QRectF, padding: float, *, is_special: bool, is_forced: bool, is_first: bool
) -> None:
    """Under the text. A special token, which marks a place and is no text, has a frame with square corners."""
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
    """A line above what was changed; what attention does not see in any head is struck through, in some is dashed."""
    if not found:
        return
    color = current_theme().color("edited")
    painter.fillRect(QRectF(chip.left() + 1, chip.top() - 0.5, chip.width() - 2, 2), color)
    if any(one.is_hidden for one in found):
        painter.fillRect(QRectF(chip.left() + 1, chip.center().y() - 0.5, chip.width() - 2, 1.5), color)
