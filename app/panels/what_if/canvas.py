"""The candidates for the next token, before and after: two bars a row, both probabilities and the rank."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QFont, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QToolTip, QWidget

from app.draw.format import brief
from app.kit.labels import plain_tip
from app.kit.theme import Theme, font_fixed, font_text
from app.panels.what_if.draw import Pair, pairs
from engine.wire.records import WhatIfAnswer

_ROW, _LEAST_ROW, _HEADER = 19, 15, 16
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)


class ShiftBars(QWidget):
    """As many of the top candidates as there is room for. `is_faded`: they are of another question than the newest."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._answer: WhatIfAnswer | None = None
        self._words = ""
        self._is_faded = False
        self._pairs: tuple[Pair, ...] = ()
        self._font, self._bold = font_fixed(11.5), font_fixed(11.5, QFont.Weight.Bold)
        self._small = font_text(10.5)
        self.setMinimumSize(120, 40)

    def set_theme(self, theme: Theme) -> None:
        self._theme = theme
        self.update()

    def show_answer(self, answer: WhatIfAnswer | None, words: str, *, is_faded: bool) -> None:
        """`words` name what the second column was tried with."""
        if (answer, words, is_faded) != (self._answer, self._words, self._is_faded):
            self._answer, self._words, self._is_faded = answer, words, is_faded
            self._choose()

    @property
    def shown(self) -> tuple[Pair, ...]:
        return self._pairs

    def sizeHint(self) -> QSize:
        return QSize(260, _HEADER + 8 * _ROW)

    def _choose(self) -> None:
        room = max(1, (self.height() - _HEADER) // _LEAST_ROW)
        self._pairs = pairs(self._answer, min(room, 12)) if self._answer is not None else ()
        words = [f"{p.text}: {p.number_before} to {p.number_after}, rank {p.rank}" for p in self._pairs]
        self.setAccessibleName("; ".join(words))
        self.update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._choose()

    # ---- painting ------------------------------------------------------------------------------------------------

    @property
    def _row_height(self) -> float:
        free = self.height() - _HEADER
        return min(max(free / max(1, len(self._pairs)), _LEAST_ROW), _ROW)

    def _columns(self) -> tuple[QRectF, QRectF, QRectF, QRectF]:
        """Token, before, after, rank: left edges and widths as rectangles without a height."""
        metrics = QFontMetricsF(self._font)
        rank = max([metrics.horizontalAdvance(p.rank) for p in self._pairs] + [24.0]) + 4
        text = min(max(self.width() * 0.22, 66.0), 120.0)
        half = (self.width() - text - rank - 16) / 2
        lefts = (0.0, text, text + half + 8, self.width() - rank)
        return tuple(  # type: ignore[return-value]
            QRectF(left, 0, width, 0) for left, width in zip(lefts, (text - 8, half, half, rank), strict=True)
        )

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        columns = self._columns()
        self._paint_header(painter, columns)
        for index, pair in enumerate(self._pairs):
            self._paint_pair(painter, columns, pair, _HEADER + index * self._row_height)

    def _paint_header(self, painter: QPainter, columns: tuple[QRectF, QRectF, QRectF, QRectF]) -> None:
        painter.setFont(self._small)
        painter.setPen(self._theme.color("muted"))
        metrics = QFontMetricsF(self._small)
        after = f"after · {self._words}" if self._words else "after"
        if metrics.horizontalAdvance(after) > columns[2].width():
            after = self._words
        for column, text, align in zip(
            columns, ("", "before", after, "rank"), (_LEFT, _LEFT, _LEFT, _RIGHT), strict=True
        ):
            shown = metrics.elidedText(text, Qt.TextElideMode.ElideRight, column.width())
            painter.drawText(QRectF(column.left(), 0, column.width(), _HEADER - 2), align, shown)
        painter.setPen(QPen(self._theme.color("hairline"), 1))
        painter.drawLine(0, _HEADER - 2, self.width(), _HEADER - 2)

    def _paint_pair(
        self, painter: QPainter, columns: tuple[QRectF, QRectF, QRectF, QRectF], pair: Pair, top: float
    ) -> None:
        height = self._row_height
        token, before, after, rank = (QRectF(c.left(), top, c.width(), height) for c in columns)
        painter.setFont(self._bold if 1 in (pair.rank_before, pair.rank_after) else self._font)
        painter.setPen(self._theme.color("text"))
        metrics = painter.fontMetrics()
        painter.drawText(token, _LEFT, metrics.elidedText(pair.text, Qt.TextElideMode.ElideRight, int(token.width())))
        painter.setFont(self._font)
        self._paint_bar(painter, before, pair.before, pair.number_before, "page_used", 1.0)
        is_new_top = pair.rank_after == 1 and pair.moved != 0
        role = "selected" if is_new_top else "accent"
        self._paint_bar(painter, after, pair.after, pair.number_after, role, 0.45 if self._is_faded else 1.0)
        painter.setOpacity(0.55 if self._is_faded else 1.0)
        painter.setPen(self._theme.color("muted" if not pair.moved else "selected" if is_new_top else "text"))
        painter.drawText(rank, _RIGHT, pair.rank)
        painter.setOpacity(1.0)

    def _paint_bar(
        self, painter: QPainter, place: QRectF, share: float, number: str, role: str, opacity: float
    ) -> None:
        room = painter.fontMetrics().horizontalAdvance(">99.9 %") + 8  # the widest number there is
        bar = QRectF(place.left(), round(place.center().y()) - 4, max(8.0, place.width() - room), 8)
        painter.fillRect(bar, self._theme.color("page_free"))
        painter.setOpacity(opacity)
        if share > 0:
            painter.fillRect(
                QRectF(bar.left(), bar.top(), max(1.5, bar.width() * share), bar.height()), self._theme.color(role)
            )
        painter.setPen(self._theme.color("text"))
        painter.drawText(place, _RIGHT, number)
        painter.setOpacity(1.0)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent):
            row = int((event.pos().y() - _HEADER) // self._row_height)
            pair = self._pairs[row] if 0 <= row < len(self._pairs) and event.pos().y() >= _HEADER else None
            QToolTip.showText(event.globalPos(), plain_tip(self._tip(pair)) if pair is not None else "", self)
            return True
        return super().event(event)

    def _tip(self, pair: Pair) -> str:
        return "\n".join(
            (
                f"{pair.text}  id {pair.token_id}",
                f"before: probability {brief(pair.before, 6)}, rank {pair.rank_before}",
                f"after: probability {brief(pair.after, 6)}, rank {pair.rank_after}",
            )
        )
