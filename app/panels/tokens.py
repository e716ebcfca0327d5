"""The panel with the tokens of the selected sequence as chips, and a search in them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct, field
from PySide6.QtCore import QEvent, QObject, QPoint, QRect, QRectF, Qt, Signal
from PySide6.QtGui import (
    QBrush,
    QColor,
    QContextMenuEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QLineEdit, QPushButton, QScrollBar

from app.draw.edited import EditedRows, at
from app.draw.format import decimal, shortened, thousands, visible
from app.kit.bars import ColorKey, ColorName
from app.kit.heatmap import edits_shown
from app.kit.painting import TextPainter, ghost_brush
from app.kit.provenance import Holders, holders_of
from app.kit.reader import BOOKMARKS, EACH_STEP, EDITS, SELECTION, STATUS, STEPS, pictures
from app.kit.theme import Theme, Themed, current_theme, font_fixed
from app.kit.view import View
from app.kit.widgets import TellsPlaces, column, connect_all
from app.kit.words import origin_words, paint_ribbon, tip_lines
from app.models import Models, Token
from app.models.pictures import WALL
from app.models.places import num_source
from app.models.sequence_status import after_edit
from app.models.timeline import FULL_SURPRISAL
from engine.history.state import num_shared
from engine.spec.bookmark import Bookmark
from engine.spec.edit import Rows
from engine.wire.records import has_chosen

GAP = 1.0


class ChipPlace(NamedTuple):
    left: float
    width: float
    row: int


class ChipLayout:
    """The places of chips of given widths, in pixels; adding chips costs O(new chips)."""

    def __init__(self) -> None:
        self.width = -1
        self._places: list[ChipPlace] = []
        self._row_starts = [0]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> ChipPlace:
        return self._places[index]

    @property
    def num_rows(self) -> int:
        return len(self._row_starts)

    def truncate(self, count: int) -> None:
        """Keep the first `count` chips."""
        del self._places[count:]
        del self._row_starts[bisect_left(self._row_starts, max(count, 1)) :]
        if not self._row_starts:
            self._row_starts = [0]

    def extend(self, widths: Iterable[float]) -> None:
        """Add chips at the end."""
        for width in widths:
            place = self.after_last(width)
            if place.row >= self.num_rows:
                self._row_starts.append(len(self._places))
            self._places.append(place)

    def after_last(self, width: float) -> ChipPlace:
        """The place of one more chip."""
        if not self._places:
            return ChipPlace(0.0, width, 0)
        left, before, row = self._places[-1]
        left += before + GAP
        return ChipPlace(0.0, width, row + 1) if left + width > self.width else ChipPlace(left, width, row)

    def in_rows(self, first: int, last: int) -> range:
        """The indices of the chips in rows `first … last`."""
        first = min(max(0, first), self.num_rows - 1)
        return range(self._row_starts[first], self._end_of(last))

    def _end_of(self, row: int) -> int:
        return self._row_starts[row + 1] if row + 1 < self.num_rows else len(self._places)

    def at(self, x: float, row: int) -> int | None:
        """The chip at `x` in a row; None if there is none."""
        if not self._places or not 0 <= row < self.num_rows:
            return None
        index = self._last_before(x, row)
        is_on_it = index >= self._row_starts[row] and x <= self._places[index].left + self._places[index].width
        return index if is_on_it else None

    def beside(self, index: int, by: int) -> int:
        """The chip above (-1) or below (+1) another; the same one if there is no such row."""
        left, width, row = self._places[index]
        if not 0 <= row + by < self.num_rows:
            return index
        return max(self._row_starts[row + by], self._last_before(left + width / 2, row + by))

    def _last_before(self, x: float, row: int) -> int:
        """The last chip of a row that begins at or left of `x`; the one before the row if none does."""
        return bisect_right(self._places, x, self._row_starts[row], self._end_of(row), key=attrgetter("left")) - 1


# ---- what is painted: only the visible chips, so that their number does not matter -----------------------------------


class Chips(Struct, frozen=True):
    """The tokens in the cache; the text of the chosen one that is not computed yet; the selected position; which heads
    still hold each token (None: every head of every layer); whether surprisals are still to come; the selected range;
    the edits; the bookmarks by step and position; the ids of special tokens, which are no text; and how many tokens,
    the first ones, an encoder read."""

    tokens: Sequence[Token] = ()
    pending: str | None = None
    selected: int | None = None
    holders: Holders | None = None
    awaits_surprisal: bool = False
    area: tuple[int, int] | None = None
    edited: tuple[EditedRows, ...] = ()
    noted: Mapping[tuple[int, int], Bookmark] = field(default_factory=dict)
    special: frozenset[int] = frozenset()
    num_source: int = 0

    def evicted_share(self, index: int) -> float:
        """The share of all heads of all layers that evicted a token's row."""
        held = self.holders
        if held is None or index >= len(held.heads) or not held.all_heads:
            return 0.0
        return 1 - float(held.heads[index]) / held.all_heads

    def is_outlined(self, position: int) -> bool:
        """Whether a position is in the selected range; without a range, whether it is the selected one."""
        return position == self.selected if self.area is None else self.area[0] <= position < self.area[1]

    def is_start(self, index: int) -> bool:
        """Whether a token is the first generated one, or the first after those that an encoder read."""
        token = self.tokens[index]
        starts = token.position == self.num_source if self.num_source else not token.is_prompt
        return index > 0 and starts and self.tokens[index - 1].is_prompt

    def words(self, token: Token) -> str:
        """All about a token, in lines, and what its marks mean."""
        lines = [
            f"“{shortened(visible(token.text[:400]), 200)}”",
            f"token {token.id_text} · position {thousands(token.position)} · step {thousands(token.step)}",
        ]
        if token.position < self.num_source:
            lines.append("source: read by the encoder, its rows are in the cross layers")
        elif token.position == self.num_source > 0:
            lines.append("the decoder starts from it")
        elif token.surprisal is not None:
            lines.append(f"surprisal {decimal(token.surprisal)} nats")
        else:
            lines.append(f"surprisal: {token.no_surprisal}")
        if token.forced:
            lines.append("forced, not chosen by the model")
        if token.token_id in self.special:
            lines.append("framed: a special token of the model, no text")
        if token.position < len(self.tokens) and self.is_start(token.position) and token.position != self.num_source:
            lines.append("bar before it: the first token after the prompt")
        if self.holders is not None and token.position < len(self.holders.heads):
            lines.append(self.holders.words(token.position))
        for one in at(self.edited, token.position):
            lines.append(f"edited at step {thousands(one.step)}: {one.edit.describe()}")
        return "\n".join((*lines, *tip_lines(self.noted.get((token.step, token.position)))))


LEAST = 0.35  # nats; less has no colour
# Opacity of the colour over the background: more would leave less than 4.5 : 1 contrast to the text in the dark theme.
FAINTEST, STRONGEST = 0.08, 0.46
KEY_WIDTH = 100


def surprisal_color(theme: Theme, surprisal: float | None) -> QColor | None:
    """The background colour for a surprisal in nats; None if it is unknown or too small."""
    if surprisal is None or surprisal < LEAST:
        return None
    share = min(1.0, surprisal / FULL_SURPRISAL)
    return theme.color("signed_positive", round((FAINTEST + (STRONGEST - FAINTEST) * share) * 255))


class SurprisalKey(Themed, ColorKey):
    """The colours of surprisal between two numbers, for a panel's title strip."""

    def __init__(self) -> None:
        super().__init__()
        self.set_background("title_strip")
        self.setFixedWidth(KEY_WIDTH)
        self.take_theme()

    def take_theme(self) -> None:
        faintest, strongest = (surprisal_color(current_theme(), at) for at in (LEAST, FULL_SURPRISAL))
        assert faintest is not None
        assert strongest is not None
        ends = (color.name(QColor.NameFormat.HexArgb) for color in (faintest, strongest))
        self.show_keys((ColorName(next(ends), f"0 … {FULL_SURPRISAL:g}+ nats", next(ends)),))
        self.setToolTip("Surprisal of a token: minus the logarithm of the probability that it had")
        self.setAccessibleName(f"Colours of surprisal, from 0 to {FULL_SURPRISAL:g} nats and more")


EDGE = 6


class EndFollower(QObject):
    """Whether a scroll area follows its end. Only the user's scrolling ends that; a new length, size or layout does
    not."""

    def __init__(self, area: QAbstractScrollArea, slack: int) -> None:
        super().__init__(area)
        self._area = area
        self._slack = slack
        self.is_following = True
        self.button = QPushButton("newest ↓", area)
        self.button.setObjectName("small")
        self.button.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.button.setToolTip("Follow the newest token again")
        self.button.setAccessibleName("Follow the newest token")
        self.button.hide()
        connect_all(
            (self.button.clicked, self.resume),
            (self._bar.actionTriggered, self._on_scrolled),
            (self._bar.rangeChanged, self._on_range),
        )
        area.viewport().installEventFilter(self)

    @property
    def _bar(self) -> QScrollBar:
        return self._area.verticalScrollBar()

    def resume(self) -> None:
        """Scroll to the end, and follow it."""
        self._follow(True)
        self._bar.setValue(self._bar.maximum())

    def follow_if_at_end(self) -> None:
        """After scrolling something into view: follow the end if it is in view as well."""
        self._follow(self._is_at_end(self._bar.value()))

    def _follow(self, follows: bool) -> None:
        self.is_following = follows
        self.button.setVisible(not follows)
        # the button has a line of its own below the rows, so that it covers none of them
        self._area.setViewportMargins(0, 0, 0, 0 if follows else self.button.sizeHint().height() + EDGE)
        self._place()

    def _is_at_end(self, value: int) -> bool:
        return value >= self._bar.maximum() - self._slack

    def _on_scrolled(self) -> None:
        """The user scrolled by wheel, key or drag; the bar's value changes only after this signal, its slider
        before."""
        self._follow(self._is_at_end(self._bar.sliderPosition()))

    def _on_range(self, _least: int, most: int) -> None:
        if self.is_following:
            self._bar.setValue(most)
        elif most == 0:
            self._follow(True)

    def _place(self) -> None:
        view, size = self._area.viewport().geometry(), self.button.sizeHint()
        self.button.setGeometry(
            view.right() - size.width() - EDGE, view.bottom() + 1 + EDGE // 2, size.width(), size.height()
        )
        self.button.raise_()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize and not self.is_following:
            self._place()
        return False


ROW_HEIGHT = 22
CHIP_HEIGHT = 19
PADDING = 3.0
MAX_CHARS = 48
FOOT = 2.5  # distance in pixels of a forced token's line from the lower edge
# Height of the hatch at the bottom of a token's chip when heads have evicted its row; the text stays readable.
GHOST_LEAST, GHOST_MOST = 2.0, 6.0


class TokenCanvas(Themed, TellsPlaces, QAbstractScrollArea):
    """Signals: `picked(position)` when a token is clicked or reached by keys, None when the selection is cleared;
    `dragged(start, stop)` over several; `menu_wanted(position or None, point on the screen)`."""

    picked = Signal(object)
    dragged = Signal(int, int)
    menu_wanted = Signal(object, object)

    def __init__(self) -> None:
        super().__init__()
        self.chips = Chips()
        self._layout = ChipLayout()
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

    def show_chips(self, chips: Chips) -> None:
        """Show a state; lays out and paints only the chips that changed."""
        old, self.chips = self.chips, chips
        if chips.tokens is not old.tokens or chips.pending != old.pending:
            self._take_tokens(old.tokens, chips.tokens)
        have_values = len(chips.tokens) == len(old.tokens) and chips.tokens is not old.tokens  # replaced or filled in
        marks = [(one.holders, one.area, one.edited, one.noted, one.num_source) for one in (chips, old)]
        if have_values or marks[0] != marks[1]:
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
        self._layout.extend(self._width(token.text) for token in self.chips.tokens[len(self._layout) :])
        # One more row is reserved for the pending chip, so that the text does not jump when it comes.
        height = (self._pending_place().row + 1) * ROW_HEIGHT
        bar = self.verticalScrollBar()
        bar.setPageStep(self.viewport().height())
        bar.setSingleStep(ROW_HEIGHT)
        bar.setRange(0, max(0, height - self.viewport().height()))

    def _pending_place(self) -> ChipPlace:
        pending = self.chips.pending
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
        if visible_tokens.stop == len(self.chips.tokens) and self.chips.pending is not None:
            self._paint_pending(painter, self.chips.pending)

    def _chip(self, place: ChipPlace) -> QRectF:
        return QRectF(place.left, place.row * ROW_HEIGHT + (ROW_HEIGHT - CHIP_HEIGHT) / 2, place.width, CHIP_HEIGHT)

    def _paint_token(self, painter: QPainter, index: int) -> None:
        token, chip, theme = self.chips.tokens[index], self._chip(self._layout[index]), current_theme()
        evicted = self.chips.evicted_share(index)
        fill = surprisal_color(theme, token.surprisal) if evicted < 1 else None
        if fill is not None:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(fill)
            painter.drawRoundedRect(chip.adjusted(0, 0.5, 0, -0.5), 3.5, 3.5)
        if evicted > 0:
            self._paint_ghost(painter, chip, evicted)
        if token.position < self.chips.num_source:
            painter.fillRect(chip.adjusted(0, 0.5, 1, -0.5), theme.color("page_shared", 60))
        if token.token_id in self.chips.special:  # a square frame
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(theme.color("accent"), 1))
            painter.drawRect(chip.adjusted(0.5, 1.5, -0.5, -1.5))
        if token.forced:  # a line below the text
            foot = QRectF(chip.left() + PADDING, chip.bottom() - FOOT, chip.width() - 2 * PADDING, 1.5)
            painter.fillRect(foot, theme.color("accent"))
        if self.chips.is_start(index):  # a bar before the first generated one
            painter.fillRect(QRectF(chip.left() - 1.5, chip.top() + 1, 2, chip.height() - 2), theme.color("accent"))
        painter.setPen(theme.color("text" if evicted < 1 else "muted"))
        self._painter.left(painter, chip.left() + PADDING, chip.center().y(), _shown(token.text))
        if edited := at(self.chips.edited, token.position):  # a line above it; masked from attention: struck through
            painter.fillRect(QRectF(chip.left() + 1, chip.top() - 0.5, chip.width() - 2, 2), theme.color("edited"))
            if any(one.is_hidden for one in edited):
                middle = QRectF(chip.left() + 1, chip.center().y() - 0.5, chip.width() - 2, 1.5)
                painter.fillRect(middle, theme.color("edited"))
        if (token.step, token.position) in self.chips.noted:
            paint_ribbon(painter, chip.right() - 1, chip.top() - 2, 0.85)
        if self.chips.is_outlined(token.position):
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(theme.color("selected"), 1.6))
            painter.drawRoundedRect(chip, 4, 4)

    def _paint_ghost(self, painter: QPainter, chip: QRectF, evicted: float) -> None:
        """Hatch the bottom of a chip, the higher the more heads have evicted the row."""
        if self._hatch is None:
            self._hatch = ghost_brush(current_theme(), self.devicePixelRatioF())
        height = GHOST_LEAST + (GHOST_MOST - GHOST_LEAST) * evicted
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
        is_longer = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier) and self.chips.selected is not None
        self._is_dragging = False
        if is_longer and index is not None and self.chips.selected is not None:
            self._drag_over(self.chips.selected, index)
            return
        self._pressed = index
        position = None if index is None else self.chips.tokens[index].position
        is_same = position == self.chips.selected and self.chips.area is None
        self.picked.emit(None if is_same else position)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        index = self.index_at(event.position().toPoint()) if self._pressed is not None else None
        if self._pressed is not None and index is not None and (index != self._pressed or self._is_dragging):
            self._is_dragging = True
            self._drag_over(self._pressed, index)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._pressed = None

    def _drag_over(self, pressed: int, index: int) -> None:
        positions = sorted(self.chips.tokens[at].position for at in (pressed, index))
        self.dragged.emit(positions[0], positions[1] + 1)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        index = self.index_at(event.pos())
        self.menu_wanted.emit(None if index is None else self.chips.tokens[index].position, event.globalPos())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        tokens, key = self.chips.tokens, Qt.Key(event.key())
        if not tokens or key not in _KEYS:
            super().keyPressEvent(event)
            return
        last, selected = len(tokens) - 1, self.chips.selected
        here = last if selected is None else min(selected, last)
        if event.modifiers() & Qt.KeyboardModifier.ShiftModifier and self.chips.area is not None:
            here = min(self.chips.area[1] - 1, last)
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
        first = self.chips.selected
        if first is not None and first < len(self.chips.tokens):
            self._drag_over(first, max(there, first))

    def tip_at(self, place: QPoint) -> str:
        index = self.index_at(place)
        return "" if index is None else self.chips.words(self.chips.tokens[index])

    def _reveal(self) -> None:
        selected = self.chips.selected
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
        index, tokens = self.chips.selected, self.chips.tokens
        self.setAccessibleDescription(
            self.chips.words(tokens[index]) if index is not None and index < len(tokens) else ""
        )


_KEYS = frozenset({
    Qt.Key.Key_Left, Qt.Key.Key_Right, Qt.Key.Key_Home, Qt.Key.Key_End, Qt.Key.Key_Up, Qt.Key.Key_Down,
})  # fmt: skip


def _shown(text: str) -> str:
    return shortened(visible(text[: 2 * MAX_CHARS]), MAX_CHARS) if text else "∅"


# ---- the panel -------------------------------------------------------------------------------------------------------


ROOM_FOR_BOTH = 300  # pixels


class FindLine(QLineEdit):
    """A line edit that hides on Esc, before the window's Esc shortcut stops the engine."""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.hide()
            return
        super().keyPressEvent(event)


# What the words of the title strip mean
TIPS = {
    "surprisal": "The colour of a token is its surprisal: minus the logarithm of the probability that it had.",
    "hatched": "The higher the hatch of a token, the more heads have evicted its row.",
    "forked": "The sequence that this one was forked from, and after which step.",
    "source": "Tokens that the encoder read, and tokens of the decoder.",
}


class TokensPanel(View[Chips]):
    """Chips coloured by surprisal; a click selects a position, a drag several. Signal: `menu_wanted(point on the
    screen)`, for the selection."""

    name = "tokens"
    follows = (EACH_STEP, STEPS, SELECTION, STATUS, EDITS, BOOKMARKS, pictures(WALL))

    menu_wanted = Signal(object)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.canvas = TokenCanvas()
        self._key = SurprisalKey()
        self.add_to_strip(self._key)
        self._is_forked = False
        self.find_line = FindLine()
        self.find_line.setFont(font_fixed())
        self.find_line.setPlaceholderText("Find in the tokens, Enter for the next")
        self.find_line.setAccessibleName("Find token text")
        self.find_line.hide()
        self.set_body(column(self.find_line, (self.canvas, 1), spacing=6))
        connect_all(
            (self.canvas.picked, self.select_position),
            (self.canvas.dragged, self._on_dragged_over),
            (self.canvas.menu_wanted, self._on_menu_wanted),
        )
        self.find_line.returnPressed.connect(self.find_next)
        self.follow(models)

    def want(self, *, is_visible: bool) -> None:
        """Request who still holds each token, if the mode evicts rows."""
        status = self._models.status.now
        evicts = not status.cache.retention.keeps_all
        self._models.viewport.update(wants_holders=evicts and is_visible)

    def read(self) -> Chips | str:
        now = self._models.selection.now
        tokens = self._models.timeline.tokens(now.seq_id, now.step)
        if not tokens:
            if self._models.status.now.model is None:
                return "Tokens appear here once a model is loaded and a prompt is sent."
            return "Send the prompt: its tokens appear here, one chip each."
        part = self._models.timeline.part(now.seq_id, now.step)
        computed = self._models.timeline.newest_of(now.seq_id, now.step)
        if part is not None and computed is not None and (found := after_edit(self._models, part, computed.step)):
            part = found[1]
        pending = part.sampled_text if part is not None and has_chosen(part) else None
        awaits = self._models.timeline.awaits_surprisal(now.seq_id)
        area = None if now.area is None else (now.area.start, now.area.stop)
        if area == (0, len(tokens)):  # an area of all tokens selects heads, not tokens
            area = None
        holders, edited = holders_of(self._models), edits_shown(self._models)
        noted = self._models.bookmarks.on_tokens(now.seq_id)
        model = self._models.status.now.model
        special = frozenset(model.special_ids) if model is not None else frozenset()
        source = num_source(self._models)
        return Chips(tokens, pending, now.position, holders, awaits, area, edited, noted, special, source)

    def show_state(self, state: Chips) -> None:
        words = brief = "surprisal"
        if state.holders is not None:
            words = brief = "hatched: evicted by now" if state.holders.is_now else "hatched: evicted"
        elif state.awaits_surprisal:
            words, brief = "surprisal: comes when the engine rests", "surprisal: comes later"
        origin = origin_words(self._models, self._models.selection.now.seq_id)
        self._is_forked = bool(origin)
        if origin:
            words, brief = f"{words} · forked from {origin}", "forked · " + origin.rpartition(" · ")[2]
        if state.num_source:
            own = len(state.tokens) - state.num_source
            words = f"{thousands(state.num_source)} source, {thousands(own)} decoder · {words}"
        tip = [TIPS["hatched" if state.holders is not None else "surprisal"]]
        tip += [TIPS["forked"]] if origin else []
        tip += [TIPS["source"]] if state.num_source else []
        self.set_detail(words, brief, "\n".join(tip))
        self.canvas.show_chips(state)
        self._fit_key()

    def show_nothing(self, why: str) -> None:
        super().show_nothing(why)
        self.canvas.show_chips(Chips())
        self._fit_key()

    def _fit_key(self) -> None:
        """Hide the colours' legend where it and the text about the hatch do not both fit."""
        has_room = self.width() >= ROOM_FOR_BOTH or (
            self.state is not None and self.state.holders is None and not self._is_forked
        )
        self._key.setVisible(self.state is not None and has_room)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_key()

    # ---- intents -------------------------------------------------------------------------------------------------

    def _on_dragged_over(self, start: int, stop: int) -> None:
        self._models.selection.update(position=start, area=Rows(start, stop))

    def _on_menu_wanted(self, position: int | None, place: QPoint) -> None:
        """Open the menu for the token under the mouse, or for the selected area if that contains it."""
        area = self._models.selection.now.area
        if position is not None and not (area is not None and area.start <= position < area.stop):
            self._on_dragged_over(position, position + 1)
        self.menu_wanted.emit(place)

    def open_find(self) -> None:
        """Show the search line and put the cursor in it."""
        self.find_line.show()
        self.find_line.setFocus()
        self.find_line.selectAll()

    def find_next(self) -> None:
        """Select the next token, after the selected one, at which an occurrence of the text begins; after the last, the
        first."""
        now = self._models.selection.now
        tokens = self._models.timeline.tokens(now.seq_id, now.step)
        if not self.find_line.text() or not tokens:
            return
        # Each token's text is lowered by itself: some letters change their length, and indices must still match tokens.
        parts = [token.text.lower() for token in tokens]
        starts = list(accumulate((len(part) for part in parts), initial=0))
        text, wanted = "".join(parts), self.find_line.text().lower()
        here = now.position
        place = text.find(wanted, starts[here + 1] if here is not None and here < len(parts) else 0)
        place = place if place >= 0 else text.find(wanted)
        if place < 0:
            self.message.emit(f"“{visible(wanted[:80])}” is not in the tokens")
            return
        self._models.selection.update(position=tokens[bisect_right(starts, place) - 1].position)
