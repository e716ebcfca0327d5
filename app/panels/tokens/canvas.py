"""Paints the tokens as chips; only the visible ones, so that their number does not matter."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPoint, QRect, QRectF, Qt, Signal
from PySide6.QtGui import (
    QBrush,
    QContextMenuEvent,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QToolTip

from app.draw.edited import at
from app.draw.format import shortened, visible
from app.kit.bookmark_places import paint_ribbon
from app.kit.following import EndFollower
from app.kit.labels import plain_tip
from app.kit.pictures import ghost_brush
from app.kit.text_lines import TextPainter
from app.kit.theme import Themed, current_theme, font_fixed
from app.models import Token
from app.panels.tokens.chip_marks import paint_edited, paint_marks, paint_source
from app.panels.tokens.chips import Chips, token_words
from app.panels.tokens.draw import ChipLayout, ChipPlace
from app.panels.tokens.surprisal_key import surprisal_color
from engine.history.run import num_shared
from engine.spec.bookmark import Bookmark

ROW_HEIGHT = 22
CHIP_HEIGHT = 19
PADDING = 3.0
MAX_CHARS = 48
# Height of the hatch at the bottom of a token's chip when heads have dropped its row; the text stays readable.
GHOST_LEAST, GHOST_MOST = 2.0, 6.0


class TokenCanvas(Themed, QAbstractScrollArea):
    """Signals: `picked(position)` when a token is clicked or reached by keys, None when the selection is cleared;
    `dragged(start, stop)` over several; `menu_wanted(position or None, point on the screen)`."""

    picked = Signal(object)
    dragged = Signal(int, int)
    menu_wanted = Signal(object, object)

    def __init__(self) -> None:
        super().__init__()
        self._chips = Chips()
        self._layout = ChipLayout()
        self._noted: dict[tuple[int, int], Bookmark] = {}
        self._hatch: QBrush | None = None
        self._pressed: int | None = None  # index of the token on which the mouse was pressed
        self._is_dragging = False
        self.setFont(font_fixed(12.0))
        self._painter = TextPainter(self.font())
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)  # Qt need not paint what is behind
        self.setAccessibleName("Tokens")
        self.follower = EndFollower(self, ROW_HEIGHT - 1)

    # ---- what to show --------------------------------------------------------------------------------------------

    @property
    def chips(self) -> Chips:
        """The state shown."""
        return self._chips

    def show_chips(self, chips: Chips) -> None:
        """Show a state; lays out and paints only the chips that changed."""
        old, self._chips = self._chips, chips
        self._noted = {(one.target.step, one.target.position): one for one in chips.noted}  # type: ignore[union-attr]
        if chips.tokens is not old.tokens or chips.pending != old.pending:
            self._take_tokens(old.tokens, chips.tokens)
        have_values = len(chips.tokens) == len(old.tokens) and chips.tokens is not old.tokens  # replaced or filled in
        if have_values or chips.holders != old.holders:
            self.viewport().update()
        if (chips.area, chips.edited, chips.noted, chips.num_source) != (
            old.area, old.edited, old.noted, old.num_source,
        ):  # fmt: skip
            self.viewport().update()
        if chips.selected != old.selected:
            self._describe()
            if self._pressed is None:  # while dragging, the tokens must not scroll away
                self._reveal()
            self.viewport().update()

    def _take_tokens(self, old: Sequence[Token], tokens: Sequence[Token]) -> None:
        keep = min(len(self._layout), num_shared(tokens, old))
        self._layout.truncate(keep)
        self._lay_out()
        is_other = bool(tokens and old) and tokens[0] is not old[0]
        if is_other or self.follower.is_following:  # another sequence is shown from its end
            self.follower.resume()
        self._update_from(keep - 1)

    def _update_from(self, index: int) -> None:
        """Repaint a token and everything after it."""
        viewport = self.viewport()
        if index < 0:
            viewport.update()
            return
        place = self._layout[index]
        top = place.row * ROW_HEIGHT - self.verticalScrollBar().value()
        viewport.update(int(place.left), top, viewport.width(), ROW_HEIGHT)
        viewport.update(0, top + ROW_HEIGHT, viewport.width(), max(0, viewport.height() - top))

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self.viewport().scroll(dx, dy)

    def take_theme(self) -> None:
        self._hatch = None

    # ---- layout: O(new tokens); everything only when the width changes -------------------------------------------

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self.viewport().width() == self._layout.width:
            self._lay_out()
            return
        first = self._visible(0, 0).start
        self._layout.truncate(0)
        self._lay_out()
        if not self.follower.is_following and first < len(self._layout):
            self.verticalScrollBar().setValue(self._layout[first].row * ROW_HEIGHT)  # keep the first visible token
            self.follower.follow_if_at_end()

    def _lay_out(self) -> None:
        self._layout.width = self.viewport().width()
        self._layout.extend(self._width(token.text) for token in self._chips.tokens[len(self._layout) :])
        # One more row is reserved for the pending chip, so that the text does not jump when it comes.
        height = (self._pending_place().row + 1) * ROW_HEIGHT
        bar = self.verticalScrollBar()
        bar.setPageStep(self.viewport().height())
        bar.setSingleStep(ROW_HEIGHT)
        bar.setRange(0, max(0, height - self.viewport().height()))

    def _pending_place(self) -> ChipPlace:
        pending = self._chips.pending
        return self._layout.after_last(self._width(pending) if pending is not None else 0.0)

    def _width(self, text: str) -> float:
        return self._painter.width(_shown(text)) + 2 * PADDING

    def _visible(self, top: int, bottom: int) -> range:
        """The tokens between two y coordinates of the viewport."""
        offset = self.verticalScrollBar().value()
        return self._layout.in_rows((top + offset) // ROW_HEIGHT, (bottom + offset) // ROW_HEIGHT)

    # ---- painting ------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        painter.fillRect(event.rect(), current_theme().color("panel"))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        changed, offset = event.region(), self.verticalScrollBar().value()
        painter.translate(0, -offset)
        visible_tokens = self._visible(event.rect().top(), event.rect().bottom())
        for index in visible_tokens:
            left, width, row = self._layout[index]
            if changed.intersects(QRect(int(left), row * ROW_HEIGHT - offset, int(width) + 2, ROW_HEIGHT)):
                self._paint_token(painter, index)
        if visible_tokens.stop == len(self._chips.tokens) and self._chips.pending is not None:
            self._paint_pending(painter, self._chips.pending)

    def _chip(self, place: ChipPlace) -> QRectF:
        return QRectF(place.left, place.row * ROW_HEIGHT + (ROW_HEIGHT - CHIP_HEIGHT) / 2, place.width, CHIP_HEIGHT)

    def _paint_token(self, painter: QPainter, index: int) -> None:
        token, chip, theme = self._chips.tokens[index], self._chip(self._layout[index]), current_theme()
        dropped = self._chips.dropped_share(index)
        fill = surprisal_color(theme, token.surprisal) if dropped < 1 else None
        if fill is not None:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(fill)
            painter.drawRoundedRect(chip.adjusted(0, 0.5, 0, -0.5), 3.5, 3.5)
        if dropped > 0:
            self._paint_ghost(painter, chip, dropped)
        if token.position < self._chips.num_source:
            paint_source(painter, chip)
        is_special = token.token_id in self._chips.special
        is_first = self._chips.is_start(index)
        paint_marks(painter, chip, PADDING, is_special=is_special, is_forced=token.forced, is_first=is_first)
        painter.setPen(theme.color("text" if dropped < 1 else "muted"))
        self._painter.left(painter, chip.left() + PADDING, chip.center().y(), _shown(token.text))
        paint_edited(painter, chip, at(self._chips.edited, token.position))
        if (token.step, token.position) in self._noted:
            paint_ribbon(painter, chip.right() - 1, chip.top() - 2, 0.85)
        if self._chips.is_outlined(token.position):
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(theme.color("selected"), 1.6))
            painter.drawRoundedRect(chip, 4, 4)

    def _paint_ghost(self, painter: QPainter, chip: QRectF, dropped: float) -> None:
        """Hatch the bottom of a chip, the higher the more heads have dropped the row."""
        if self._hatch is None:
            self._hatch = ghost_brush(current_theme(), self.devicePixelRatioF())
        height = GHOST_LEAST + (GHOST_MOST - GHOST_LEAST) * dropped
        painter.fillRect(QRectF(chip.left(), chip.bottom() - 0.5 - height, chip.width(), height), self._hatch)

    def _paint_pending(self, painter: QPainter, text: str) -> None:
        chip = self._chip(self._pending_place())
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(current_theme().color("faint"), 1, Qt.PenStyle.DashLine))
        painter.drawRoundedRect(chip.adjusted(0.5, 0.5, -0.5, -0.5), 3.5, 3.5)
        painter.setPen(current_theme().color("muted"))
        self._painter.left(painter, chip.left() + PADDING, chip.center().y(), _shown(text))

    # ---- picking -------------------------------------------------------------------------------------------------

    def index_at(self, point: QPoint) -> int | None:
        """The index of the token at a point of the viewport; None if there is none."""
        return self._layout.at(float(point.x()), (point.y() + self.verticalScrollBar().value()) // ROW_HEIGHT)

    def token_rect(self, index: int) -> QRect:
        """The rectangle of a token in the viewport."""
        rect = self._chip(self._layout[index]).translated(0, -self.verticalScrollBar().value())
        return rect.toRect()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() != Qt.MouseButton.LeftButton:
            return
        index = self.index_at(event.position().toPoint())
        is_longer = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier) and self._chips.selected is not None
        self._is_dragging = False
        if is_longer and index is not None and self._chips.selected is not None:
            self._drag_over(self._chips.selected, index)
            return
        self._pressed = index
        position = None if index is None else self._chips.tokens[index].position
        is_same = position == self._chips.selected and self._chips.area is None
        self.picked.emit(None if is_same else position)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        index = self.index_at(event.position().toPoint()) if self._pressed is not None else None
        if self._pressed is not None and index is not None and (index != self._pressed or self._is_dragging):
            self._is_dragging = True
            self._drag_over(self._pressed, index)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._pressed = None

    def _drag_over(self, pressed: int, index: int) -> None:
        positions = sorted(self._chips.tokens[at].position for at in (pressed, index))
        self.dragged.emit(positions[0], positions[1] + 1)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        index = self.index_at(event.pos())
        self.menu_wanted.emit(None if index is None else self._chips.tokens[index].position, event.globalPos())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        tokens, key = self._chips.tokens, Qt.Key(event.key())
        if not tokens or key not in _KEYS:
            super().keyPressEvent(event)
            return
        last, selected = len(tokens) - 1, self._chips.selected
        here = last if selected is None else min(selected, last)
        if event.modifiers() & Qt.KeyboardModifier.ShiftModifier and self._chips.area is not None:
            here = min(self._chips.area[1] - 1, last)
        there = {
            Qt.Key.Key_Left: max(here - 1, 0),
            Qt.Key.Key_Right: min(here + 1, last),
            Qt.Key.Key_Home: 0,
            Qt.Key.Key_End: last,
            Qt.Key.Key_Up: self._layout.beside(here, -1),
            Qt.Key.Key_Down: self._layout.beside(here, +1),
        }[key]
        if event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self._lengthen(there)
            return
        self.picked.emit(tokens[there].position)

    def _lengthen(self, there: int) -> None:
        """With Shift, the keys move the end of the area that begins at the selected token."""
        first = self._chips.selected
        if first is not None and first < len(self._chips.tokens):
            self._drag_over(first, max(there, first))

    def viewportEvent(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            index = self.index_at(event.pos())
            QToolTip.showText(
                event.globalPos(),
                plain_tip("" if index is None else self.words(self._chips.tokens[index])),
                self,
            )
            return True
        return super().viewportEvent(event)

    def words(self, token: Token) -> str:
        """Describe a token, in several lines."""
        noted = self._noted.get((token.step, token.position))
        return token_words(token, self._chips.holders, self._chips.edited, noted, num_source=self._chips.num_source)

    def _reveal(self) -> None:
        selected = self._chips.selected
        if selected is None or selected >= len(self._layout):
            return
        top, bar = self._layout[selected].row * ROW_HEIGHT, self.verticalScrollBar()
        if top < bar.value():
            bar.setValue(top)
            self.follower.follow_if_at_end()
        elif top + ROW_HEIGHT > bar.value() + self.viewport().height():
            bar.setValue(top + ROW_HEIGHT - self.viewport().height())
            self.follower.follow_if_at_end()

    def _describe(self) -> None:
        """Set the accessible description to that of the selected token; empty if none is selected."""
        index, tokens = self._chips.selected, self._chips.tokens
        self.setAccessibleDescription(self.words(tokens[index]) if index is not None and index < len(tokens) else "")


_KEYS = frozenset({
    Qt.Key.Key_Left, Qt.Key.Key_Right, Qt.Key.Key_Home, Qt.Key.Key_End, Qt.Key.Key_Up, Qt.Key.Key_Down,
})  # fmt: skip


def _shown(text: str) -> str:
    return shortened(visible(text[: 2 * MAX_CHARS]), MAX_CHARS) if text else "∅"
