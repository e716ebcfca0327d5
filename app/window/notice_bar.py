"""The base of bars that appear above the panels, tinted by their kind."""

from __future__ import annotations

from typing import ClassVar

from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.kit.boxes import row
from app.kit.icons import pixmap
from app.kit.labels import ElidedLabel
from app.kit.reader import Reader, State
from app.kit.theme import current_theme

ICON, HEIGHT = 14, 32
LONGEST = 400  # characters of a file's own text in a tool tip


def paint_bar(bar: QWidget, role: str, icon: str = "", alpha: int = 26) -> None:
    """Paint a bar's background: the bar colour tinted with the colour `role`, a hairline below, and an icon at the
    left."""
    painter, theme = QPainter(bar), current_theme()
    painter.fillRect(bar.rect(), theme.color("bar"))
    painter.fillRect(bar.rect(), theme.color(role, alpha))
    painter.setPen(QPen(theme.color("hairline"), 1))
    painter.drawLine(0, bar.height() - 1, bar.width(), bar.height() - 1)
    if icon:
        mark = pixmap(icon, theme.color(role).name(), ICON, bar.devicePixelRatioF())
        painter.drawPixmap(12, (bar.height() - ICON) // 2, mark)


class NoticeBar(Reader[State], QWidget):
    """An icon, a text, and buttons; visible as long as `read` returns a state."""

    reads_while_hidden = True
    role: ClassVar[str]
    icon: ClassVar[str]

    def build(self, *buttons: QWidget) -> None:
        """Lay out the text and these buttons."""
        self.words = ElidedLabel()
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        row(34, (self.words, 1), *buttons, 14, spacing=12, on=self)

    def show_state(self, state: State) -> None:
        """Show the bar; subclasses set their text first."""
        self.setVisible(True)

    def show_nothing(self, why: str) -> None:
        self.setVisible(False)

    def paintEvent(self, event: QPaintEvent) -> None:
        paint_bar(self, self.role, self.icon)
