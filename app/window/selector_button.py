"""The button that opens the menu of a selector in the top bar."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRectF, QSize, Qt
from PySide6.QtGui import QAction, QFont, QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QMenu, QSizePolicy, QToolButton

from app.draw.format import whole_words
from app.kit.icons import pixmap
from app.kit.reader import STATUS, Reader, State
from app.kit.theme import current_theme, font_text


class SelectorButton(Reader[State], QToolButton):
    """A button with a bold name, a muted description and a chevron; the description is shortened where space is
    scarce."""

    follows = (STATUS,)
    reads_while_hidden = True  # so that its width is right when it is shown

    def __init__(self) -> None:
        super().__init__()
        self._menu = QMenu(self)
        self._menu.setToolTipsVisible(True)
        self._menu.triggered.connect(self._on_triggered)
        self.clicked.connect(self._on_clicked)
        self._name = ""
        self._detail = ""
        self._room = 54
        self._bold = font_text(12.5, QFont.Weight.DemiBold)
        self._plain = font_text(12.5)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)

    def _on_triggered(self, action: QAction) -> None:
        raise NotImplementedError

    def _on_clicked(self) -> None:
        self._menu.popup(self.mapToGlobal(QPoint(0, self.height() + 3)))

    def set_texts(self, name: str, detail: str) -> None:
        if (name, detail) != (self._name, self._detail):
            self._name, self._detail = name, detail
            bold, plain = QFontMetricsF(self._bold), QFontMetricsF(self._plain)
            self._room = round(bold.horizontalAdvance(name) + plain.horizontalAdvance(detail)) + 54
            self.updateGeometry()
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(self._room, 28)

    def minimumSizeHint(self) -> QSize:
        return QSize(min(self.sizeHint().width(), 96), 28)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        frame = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        edge = "accent" if self.hasFocus() else "faint" if self.underMouse() else "hairline"
        painter.setPen(QPen(current_theme().color(edge), 1))
        painter.setBrush(current_theme().color("panel" if current_theme().is_dark else "field"))
        painter.drawRoundedRect(frame, 5, 5)
        ratio = self.devicePixelRatioF()
        chevron = pixmap("chevron", current_theme().muted, 14, ratio)
        painter.drawPixmap(QPoint(self.width() - 21, (self.height() - 14) // 2), chevron)
        self._write(painter, self.width() - 26.0)

    def _write(self, painter: QPainter, right: float) -> None:
        x = 11.0
        for font, text, role in ((self._bold, self._name, "text"), (self._plain, self._detail, "muted")):
            metrics = QFontMetricsF(font)
            room = max(0.0, right - x)
            # a name may be cut at any letter; a description is shortened by whole words
            is_name = font is self._bold
            shown = metrics.elidedText(text, Qt.TextElideMode.ElideRight, room) if is_name else ""
            shown = shown or whole_words(text, room, metrics.horizontalAdvance)
            painter.setFont(font)
            painter.setPen(current_theme().color(role))
            area = QRectF(x, 0, room, self.height())
            painter.drawText(area, int(Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine), shown)
            x += metrics.horizontalAdvance(text) + 9
