"""The text as one chip per token, painted: only what is visible, however many there are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
from PySide6.QtCore import QEvent, QPoint, QRect, QRectF, Qt, Signal
from PySide6.QtGui import (
    QBrush,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QToolTip, QWidget

from app.draw.format import decimal, shortened, visible
from app.kit.following import Follower
from app.kit.labels import plain_tip
from app.kit.pictures import ghost_brush
from app.kit.provenance import Holders
from app.kit.text_lines import TextPainter
from app.kit.theme import Theme, font_fixed
from app.models import Token
from app.panels.tokens.surprisal_key import surprisal_color

ROW_HEIGHT = 22
CHIP_HEIGHT = 19
PADDING = 3.0
GAP = 1.0
MAX_CHARS = 48
# The hatching of a token that heads have dropped: at its foot, so that its text stays readable.
GHOST_LEAST, GHOST_MOST = 2.0, 6.0


class TokenStrip(QAbstractScrollArea):
    """Shows tokens; `picked(position)` when one is clicked or walked to, None when the selection is given up."""

    picked = Signal(object)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._tokens: tuple[Token, ...] = ()
        self._pending: str | None = None
        self._selected: int | None = None
        self._holders: Holders | None = None
        self._hatch: QBrush | None = None
        self._rects: list[tuple[float, float, int]] = []  # left, width, row of every laid-out token
        self._row_starts: list[int] = [0]
        self._laid_width = -1
        self.setFont(font_fixed(12.0))
        self._ink = TextPainter(self.font())
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)  # nothing behind is painted with it
        self.setAccessibleName("Tokens")
        self.follower = Follower(self, ROW_HEIGHT - 1)

    # ---- what to show --------------------------------------------------------------------------------------------

    def set_theme(self, theme: Theme) -> None:
        self._theme = theme
        self._hatch = None
        self.viewport().update()

    def set_tokens(self, tokens: tuple[Token, ...], pending: str | None) -> None:
        """The tokens in the cache, and the text of the one that is chosen but not fed yet."""
        if tokens is self._tokens and pending == self._pending:
            return
        keep = min(len(self._rects), len(tokens), len(self._tokens))
        if keep and self._tokens[keep - 1] is not tokens[keep - 1]:
            keep = 0
        is_other = bool(tokens and self._tokens) and tokens[0] is not self._tokens[0]
        self._tokens, self._pending = tokens, pending
        self._truncate(keep)
        self._lay_out()
        if is_other or self.follower.is_following:  # another sequence begins at its end
            self.follower.resume()
        self._update_from(keep - 1)

    def _update_from(self, index: int) -> None:
        """Paint a token and what follows it anew; what stands before it stays as it is, or scrolls."""
        viewport = self.viewport()
        if index < 0:
            viewport.update()
            return
        left, _, row = self._rects[index]
        top = row * ROW_HEIGHT - self.verticalScrollBar().value()
        viewport.update(int(left), top, viewport.width(), ROW_HEIGHT)
        viewport.update(0, top + ROW_HEIGHT, viewport.width(), max(0, viewport.height() - top))

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self.viewport().scroll(dx, dy)

    def set_holders(self, holders: Holders | None) -> None:
        """Who still holds each token; None: every head of every layer."""
        if holders is self._holders or (
            holders is not None
            and self._holders is not None
            and holders.is_now == self._holders.is_now
            and np.array_equal(holders.heads, self._holders.heads)
        ):
            return
        self._holders = holders
        self.viewport().update()

    def set_selected(self, position: int | None) -> None:
        if position != self._selected:
            self._selected = position
            self._describe()
            self._reveal()
            self.viewport().update()

    # ---- laying out: O(new tokens), everything only when the width changes ---------------------------------------

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self.viewport().width() == self._laid_width:
            self._lay_out()
            return
        first = self._visible_range(0, 0)[0]
        self._truncate(0)
        self._lay_out()
        if not self.follower.is_following and first < len(self._rects):
            self.verticalScrollBar().setValue(self._rects[first][2] * ROW_HEIGHT)  # the reader's place
            self.follower.settle()

    def _truncate(self, count: int) -> None:
        del self._rects[count:]
        del self._row_starts[bisect_left(self._row_starts, max(count, 1)) :]
        if not self._row_starts:
            self._row_starts = [0]

    def _lay_out(self) -> None:
        self._laid_width = self.viewport().width()
        left, row = self._pen()
        for token in self._tokens[len(self._rects) :]:
            width = self._width(_shown(token.text))
            if left > 0 and left + width > self._laid_width:
                left, row = 0.0, row + 1
                self._row_starts.append(len(self._rects))
            self._rects.append((left, width, row))
            left += width + GAP
        # One more row leaves room for the pending chip, so that it does not make the text jump.
        height = (self._pending_place()[2] + 1) * ROW_HEIGHT
        bar = self.verticalScrollBar()
        bar.setPageStep(self.viewport().height())
        bar.setSingleStep(ROW_HEIGHT)
        bar.setRange(0, max(0, height - self.viewport().height()))

    def _pen(self) -> tuple[float, int]:
        if not self._rects:
            return 0.0, 0
        left, width, row = self._rects[-1]
        return left + width + GAP, row

    def _pending_place(self) -> tuple[float, float, int]:
        left, row = self._pen()
        width = self._width(_shown(self._pending)) if self._pending is not None else 0.0
        return (0.0, width, row + 1) if left > 0 and left + width > self._laid_width else (left, width, row)

    def _width(self, shown: str) -> float:
        return self._ink.width(shown) + 2 * PADDING

    # ---- painting ------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        painter.fillRect(event.rect(), self._theme.color("panel"))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.translate(0, -self.verticalScrollBar().value())
        first, last = self._visible_range(event.rect().top(), event.rect().bottom())
        changed, offset = event.region(), self.verticalScrollBar().value()
        for index in range(first, last):
            left, width, row = self._rects[index]
            if changed.intersects(QRect(int(left), row * ROW_HEIGHT - offset, int(width) + 2, ROW_HEIGHT)):
                self._paint_token(painter, index)
        if last == len(self._tokens) and self._pending is not None:
            self._paint_pending(painter)

    def _visible_range(self, top: int, bottom: int) -> tuple[int, int]:
        offset = self.verticalScrollBar().value()
        rows = len(self._row_starts)
        first = min(max(0, (top + offset) // ROW_HEIGHT), rows - 1)
        after = (bottom + offset) // ROW_HEIGHT + 1
        stop = self._row_starts[after] if after < rows else len(self._rects)
        return self._row_starts[first], stop

    def _chip(self, place: tuple[float, float, int]) -> QRectF:
        left, width, row = place
        return QRectF(left, row * ROW_HEIGHT + (ROW_HEIGHT - CHIP_HEIGHT) / 2, width, CHIP_HEIGHT)

    def _paint_token(self, painter: QPainter, index: int) -> None:
        token, chip = self._tokens[index], self._chip(self._rects[index])
        dropped = self._dropped_share(index)
        fill = surprisal_color(self._theme, token.surprisal) if dropped < 1 else None
        if fill is not None:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(fill)
            painter.drawRoundedRect(chip.adjusted(0, 0.5, 0, -0.5), 3.5, 3.5)
        if dropped > 0:
            self._paint_ghost(painter, chip, dropped)
        if token.forced:
            painter.fillRect(
                QRectF(chip.left() + PADDING, chip.bottom() - 2.5, chip.width() - 2 * PADDING, 1.5),
                self._theme.color("accent"),
            )
        if index and not token.is_prompt and self._tokens[index - 1].is_prompt:
            painter.fillRect(
                QRectF(chip.left() - 1.5, chip.top() + 1, 2, chip.height() - 2), self._theme.color("accent")
            )
        painter.setPen(self._theme.color("text" if dropped < 1 else "muted"))
        self._ink.left(painter, chip.left() + PADDING, chip.center().y(), _shown(token.text))
        if token.position == self._selected:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(self._theme.color("selected"), 1.6))
            painter.drawRoundedRect(chip.adjusted(0, 0, 0, 0), 4, 4)

    def _dropped_share(self, index: int) -> float:
        """The part of the heads of all layers that hold a token's row no more."""
        held = self._holders
        if held is None or index >= len(held.heads) or not held.all_heads:
            return 0.0
        return 1 - float(held.heads[index]) / held.all_heads

    def _paint_ghost(self, painter: QPainter, chip: QRectF, dropped: float) -> None:
        """Hatched at its foot, the higher the more heads have dropped the row."""
        if self._hatch is None:
            self._hatch = ghost_brush(self._theme, self.devicePixelRatioF())
        height = GHOST_LEAST + (GHOST_MOST - GHOST_LEAST) * dropped
        painter.fillRect(QRectF(chip.left(), chip.bottom() - 0.5 - height, chip.width(), height), self._hatch)

    def _paint_pending(self, painter: QPainter) -> None:
        chip = self._chip(self._pending_place())
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(self._theme.color("faint"), 1, Qt.PenStyle.DashLine))
        painter.drawRoundedRect(chip.adjusted(0.5, 0.5, -0.5, -0.5), 3.5, 3.5)
        painter.setPen(self._theme.color("muted"))
        self._ink.left(painter, chip.left() + PADDING, chip.center().y(), _shown(self._pending or ""))

    # ---- picking -------------------------------------------------------------------------------------------------

    def index_at(self, point: QPoint) -> int | None:
        """Which token is under a point of the viewport."""
        row = (point.y() + self.verticalScrollBar().value()) // ROW_HEIGHT
        if not self._rects or not 0 <= row < len(self._row_starts):
            return None
        start = self._row_starts[row]
        stop = self._row_starts[row + 1] if row + 1 < len(self._row_starts) else len(self._rects)
        index = bisect_right(self._rects, float(point.x()), start, stop, key=_left) - 1
        if index < start or point.x() > self._rects[index][0] + self._rects[index][1]:
            return None
        return index

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = self.index_at(event.position().toPoint())
        if event.button() != Qt.MouseButton.LeftButton:
            return
        position = None if index is None else self._tokens[index].position
        self.picked.emit(None if position == self._selected else position)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        moves = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}
        key = Qt.Key(event.key())
        if not self._tokens or key not in {*moves, Qt.Key.Key_Home, Qt.Key.Key_End, Qt.Key.Key_Up, Qt.Key.Key_Down}:
            super().keyPressEvent(event)
            return
        last = len(self._tokens) - 1
        here = last if self._selected is None else min(self._selected, last)
        if key in moves:
            there = here + moves[key]
        elif key in (Qt.Key.Key_Home, Qt.Key.Key_End):
            there = 0 if key == Qt.Key.Key_Home else last
        else:
            there = self._neighbour_row(here, -1 if key == Qt.Key.Key_Up else 1)
        self.picked.emit(self._tokens[min(max(there, 0), last)].position)

    def _neighbour_row(self, index: int, by: int) -> int:
        left, width, row = self._rects[index]
        if not 0 <= row + by < len(self._row_starts):
            return index
        start = self._row_starts[row + by]
        stop = self._row_starts[row + by + 1] if row + by + 1 < len(self._row_starts) else len(self._rects)
        return max(start, bisect_right(self._rects, left + width / 2, start, stop, key=_left) - 1)

    def viewportEvent(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            index = self.index_at(event.pos())
            QToolTip.showText(event.globalPos(), "" if index is None else self._tip(self._tokens[index]), self)
            return True
        return super().viewportEvent(event)

    def _tip(self, token: Token) -> str:
        lines = [
            f"“{shortened(visible(token.text[:400]), 200)}”",
            f"token {token.token_id} · position {token.position} · step {token.step}",
        ]
        if token.surprisal is not None:
            lines.append(f"surprisal {decimal(token.surprisal)} nats")
        if token.forced:
            lines.append("forced, not sampled")
        if self._holders is not None and token.position < len(self._holders.heads):
            lines.append(self._holders.words(token.position))
        return plain_tip("\n".join(lines))

    def _reveal(self) -> None:
        if self._selected is None or self._selected >= len(self._rects):
            return
        top = self._rects[self._selected][2] * ROW_HEIGHT
        bar = self.verticalScrollBar()
        if top < bar.value():
            bar.setValue(top)
            self.follower.settle()
        elif top + ROW_HEIGHT > bar.value() + self.viewport().height():
            bar.setValue(top + ROW_HEIGHT - self.viewport().height())
            self.follower.settle()

    def _describe(self) -> None:
        index = self._selected
        if index is not None and index < len(self._tokens):
            self.setAccessibleDescription(self._tip(self._tokens[index]))


def _shown(text: str) -> str:
    return shortened(visible(text[: 2 * MAX_CHARS]), MAX_CHARS) if text else "∅"


def _left(place: tuple[float, float, int]) -> float:
    return place[0]
