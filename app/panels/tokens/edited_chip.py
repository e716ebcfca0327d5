"""The mark of a token whose rows were changed by hand."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter

from app.draw.edited import Edited
from app.kit.theme import current_theme


def paint_edited(painter: QPainter, chip: QRectF, found: Sequence[Edited]) -> None:
    """A line above what was changed; what attention does not see in any head is struck through, in some is dashed."""
    if not found:
        return
    color = current_theme().color("edited")
    painter.fillRect(QRectF(chip.left() + 1, chip.top() - 0.5, chip.width() - 2, 2), color)
    if any(one.is_hidden for one in found):
        painter.fillRect(QRectF(chip.left() + 1, chip.center().y() - 0.5, chip.width() - 2, 1.5), color)
