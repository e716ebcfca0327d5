"""Lists of `name … number` lines, some with a small chart, and a bar of numbers with their names above them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from PySide6.QtCore import QPoint, QPointF, QRect, QRectF, QSize
from PySide6.QtGui import QFont, QFontMetricsF, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QScrollArea, QSizePolicy, QWidget

from app.draw.format import thousands
from app.kit.painting import LEFT, TextPainter, argb, loud_color, pixels_image
from app.kit.theme import TextRole, current_theme, font_fixed, font_text
from app.kit.widgets import Opaque, TellsPlaces, scrolled
from engine.counted import counted
from engine.spec.terms import Term

PITCH = 19
_SPARK_HEIGHT = 14
_ASIDE_GAP, _LABEL_GAP = 16, 12


class Fact(Struct, frozen=True):
    """One line. `aside` is a muted second number, in a column left of the text; `short` replaces a text that does not
    fit.

    `tip` is the tool tip of the line.

    `bars` are drawn as a small bar chart in `color`, `strip` as a row of pixels `0xAARRGGBB`; both left of the text.
    """

    label: str
    text: str = ""
    aside: str = ""
    role: TextRole = "text"
    indent: int = 0
    bars: tuple[float, ...] | None = None
    marked: int | None = None
    color: str = "accent"
    strip: tuple[int, ...] | None = None
    has_rule: bool = False
    short: str = ""
    is_head: bool = False
    tip: str = ""


def term_facts(terms: Sequence[Term]) -> tuple[Fact, ...]:
    """The terms of a formula of bytes, filled in, one line each; the symbols are in the tool tip. A formula of one term
    has no names: `2·L·H_kv·D·S·b`, and below it the numbers."""
    if len(terms) == 1:
        (term,) = terms
        return (Fact(f"= {term.values}", indent=1, role="muted", tip=term_tip(term)),)
    return tuple(
        Fact(f"{term.words} {term.values}", thousands(term.num_bytes), role="muted", indent=1, tip=term_tip(term))
        for term in terms
    )


def term_tip(term: Term) -> str:
    """The term in symbols and in numbers, and what each symbol means."""
    return f"{term.words}\n{term.symbols}\n= {term.values}\n= {counted(term.num_bytes, 'byte')}\n{term.legend}"


def section(title: str) -> tuple[Fact, ...]:
    """The heading of a group of lines, with an empty line above it."""
    return Fact(""), Fact(title, is_head=True)


class WholeLines(QScrollArea):
    """A scroll area that shows only complete lines and scrolls by lines: a line cut at the end looks like a mistake.
    Its widget consists of lines of `PITCH` pixels, possibly with a picture below."""

    def __init__(self, lines: QWidget) -> None:
        super().__init__()
        scrolled(lines, self)
        self.setMinimumHeight(2 * PITCH)  # by itself it takes 70 pixels, which small windows do not have
        self.verticalScrollBar().valueChanged.connect(self._on_scrolled)

    def _on_scrolled(self, value: int) -> None:
        bar = self.verticalScrollBar()
        bar.setValue(value if value == bar.maximum() else round(value / PITCH) * PITCH)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.setViewportMargins(0, 0, 0, self.height() % PITCH if self.height() > PITCH else 0)
        super().resizeEvent(event)
        self.verticalScrollBar().setSingleStep(PITCH)


class Facts(TellsPlaces, Opaque, QWidget):
    """Paints the lines, and provides them as text to screen readers and the clipboard."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.facts: tuple[Fact, ...] = ()
        self._numbers, self._words = TextPainter(font_fixed(11.5)), TextPainter(font_text(12))
        self._heads = TextPainter(font_text(12, QFont.Weight.DemiBold))
        # Small charts end at a fixed distance from the right, whatever the number of digits.
        self._least_beside = self._numbers.width("-00.0 … 00.0")
        self._beside = self._least_beside
        self._texts = self._asides = 0.0  # widths of the columns of texts and asides
        self.set_background()

    def show_facts(self, facts: tuple[Fact, ...]) -> None:
        """Show these lines; only those that changed are repainted."""
        if facts == self.facts:
            return
        old, self.facts = self.facts, facts
        self.setAccessibleDescription(self.text())
        widths = (self._numbers.width(fact.text) for fact in facts if fact.bars is not None or fact.strip)
        columns = self._beside, self._texts, self._asides
        self._beside = max([self._least_beside, *widths])
        with_aside = [fact for fact in facts if fact.aside]
        self._texts = max((self._numbers.width(fact.text) for fact in with_aside), default=0.0)
        self._asides = max((self._numbers.width(fact.aside) for fact in with_aside), default=0.0)
        if len(facts) != len(old):
            self.setMinimumHeight(PITCH * len(facts))
            self.updateGeometry()
            self.update()
            return
        if columns != (self._beside, self._texts, self._asides):
            self.update()
            return
        for index, (fact, before) in enumerate(zip(facts, old, strict=True)):
            if fact != before:
                self.update(0, index * PITCH, self.width(), PITCH)

    def tip_at(self, place: QPoint) -> str:
        index = place.y() // PITCH
        return self.facts[index].tip if 0 <= index < len(self.facts) else ""

    def text(self) -> str:
        """All lines as plain text."""
        return "\n".join(f"{'  ' * fact.indent}{fact.label}\t{fact.text}".rstrip() for fact in self.facts)

    def sizeHint(self) -> QSize:
        return QSize(220, PITCH * len(self.facts))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        numbers_width = self._texts + _ASIDE_GAP + self._asides
        has_aside = self.width() >= numbers_width + 124
        changed = event.region()
        beside = min(self._beside, self.width() * 0.72)
        for index, fact in enumerate(self.facts):
            if not changed.intersects(QRect(0, index * PITCH, self.width(), PITCH)):
                continue
            row = QRectF(0, index * PITCH, self.width(), PITCH)
            if fact.has_rule:
                painter.setPen(QPen(current_theme().color("hairline"), 1))
                painter.drawLine(row.topLeft() + QPointF(0, 0.5), row.topRight() + QPointF(0, 0.5))
            middle = row.center().y()
            has_picture = fact.bars is not None or bool(fact.strip)
            room = row.width() * 0.72 if has_picture else row.width() - self._room_of_label(row, fact)
            shown = self._numbers.fitting(room, fact.text, fact.short)
            painter.setPen(current_theme().color(fact.role))
            text_width = row.right() - self._numbers.right(painter, row.right(), middle, shown)
            if fact.aside and has_aside:
                text_width = numbers_width
                painter.setPen(current_theme().color("muted"))
                self._numbers.right(painter, row.right() - self._texts - _ASIDE_GAP, middle, fact.aside)
            if has_picture:
                text_width = beside  # so that all small charts end at the same place
            free = QRectF(row.left() + 10 * fact.indent, row.top(), row.width() - text_width - 8, PITCH)
            self._paint_label(painter, free, fact)

    def _room_of_label(self, row: QRectF, fact: Fact) -> float:
        """The width that a label takes: what it needs, but at most 55 % of the line, the rest being the number's."""
        return min(self._words.width(fact.label) + 10 * fact.indent + _LABEL_GAP, row.width() * 0.55)

    def _paint_label(self, painter: QPainter, free: QRectF, fact: Fact) -> None:
        if fact.is_head:
            painter.setPen(current_theme().color("text"))
            self._heads.left(painter, free.left(), free.center().y(), self._heads.elided(fact.label, free.width()))
            return
        is_said = fact.role == "bad" or not (fact.text or fact.bars)  # a line without a number is all in its label
        painter.setPen(current_theme().color(fact.role if is_said else "muted"))
        shown = self._words.elided(fact.label, free.width())
        end = self._words.left(painter, free.left(), free.center().y(), shown)
        left = max(end + 11, free.right() * 0.42)
        place = QRectF(left, free.top() + (PITCH - _SPARK_HEIGHT) / 2, free.right() - left - 2, _SPARK_HEIGHT)
        if place.width() < 16:
            return
        if fact.bars is not None:
            self._paint_bars(painter, place, fact)
        if fact.strip:
            painter.drawImage(place, pixels_image(np.array([fact.strip], dtype=np.uint32)))

    def _paint_bars(self, painter: QPainter, place: QRectF, fact: Fact) -> None:
        ratio = self.devicePixelRatioF()
        width, height = int(place.width() * ratio), int(place.height() * ratio)
        codes = bar_codes(fact.bars or (), width, height, gap=max(1, round(ratio)), marked=fact.marked)
        colors = [0, *(argb(c) for c in self._colors(fact.color))]
        painter.drawImage(place.topLeft(), pixels_image(np.array(colors, dtype=np.uint32)[codes], ratio))

    def _colors(self, role: str) -> tuple[str, str, str]:
        return getattr(current_theme(), role), current_theme().selected, loud_color(current_theme())


def bar_codes(
    values: Sequence[float], width: int, height: int, gap: int, marked: int | None = None
) -> npt.NDArray[np.uint8]:
    """Bars of magnitudes that fit into a line, `[height, width]`: 0 empty, 1 bar, 2 the `marked` one, 3 NaN or Inf,
    which are full bars; a value that is not zero has at least one pixel."""
    count = len(values)
    codes = np.zeros((max(height, 1), max(width, 1)), dtype=np.uint8)
    numbers = np.abs(np.array(values, dtype=np.float64))
    finite = numbers[np.isfinite(numbers)]
    most = float(finite.max(initial=0))
    for index, value in enumerate(numbers):
        left, right = index * width // count, (index + 1) * width // count
        right -= gap if right - left > 2 * gap else 0
        is_finite = bool(np.isfinite(value))
        tall = height if not is_finite else max(1, round(value / most * height)) if value else 0
        code = 3 if not is_finite else 2 if index == marked else 1
        # where bars share a pixel column, the greatest code is kept
        kept = codes[height - tall :, left : max(right, left + 1)]
        kept[...] = np.maximum(kept, code)
    return codes


HEIGHT = 31
_GAP = 10.0


class Reading(Struct, frozen=True):
    """A number with its name, a short name for narrow places, its tool tip and its colour role."""

    name: str
    short: str
    value: str
    tip: str = ""
    role: str = "text"


class FactBar(TellsPlaces, QWidget):
    """Columns as wide as their contents; where room is scarce the short names are used."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: tuple[Reading, ...] = ()
        self._is_faded = False
        self._names, self._numbers = font_text(10.5), font_fixed(12)
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_facts(self, facts: Sequence[Reading], *, is_faded: bool = False) -> None:
        if (tuple(facts), is_faded) != (self.facts, self._is_faded):
            self.facts, self._is_faded = tuple(facts), is_faded
            self.setAccessibleName(", ".join(f"{fact.name} {fact.value}" for fact in self.facts))
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(200, HEIGHT)

    def _placed(self) -> list[tuple[QRectF, Reading, str]]:
        """The place of each number and the name used; spare width is distributed evenly."""
        if not self.facts:
            return []
        names, numbers = QFontMetricsF(self._names), QFontMetricsF(self._numbers)
        for is_short in (False, True):
            labels = [fact.short if is_short else fact.name for fact in self.facts]
            widths = [
                max(names.horizontalAdvance(label), numbers.horizontalAdvance(fact.value)) + 1
                for label, fact in zip(labels, self.facts, strict=True)
            ]
            free = self.width() - sum(widths) - _GAP * (len(widths) - 1)
            if free >= 0:
                break
        more = max(0.0, free) / len(widths)
        x, placed = 0.0, []
        for width, fact, label in zip(widths, self.facts, labels, strict=True):
            placed.append((QRectF(x, 0, width, HEIGHT), fact, label))
            x += width + _GAP + more
        return placed

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setOpacity(0.55 if self._is_faded else 1.0)
        for place, fact, label in self._placed():
            painter.setFont(self._names)
            painter.setPen(current_theme().color("muted"))
            painter.drawText(QRectF(place.left(), 0, place.width(), 14), LEFT, label)
            painter.setFont(self._numbers)
            painter.setPen(current_theme().color(fact.role))
            painter.drawText(QRectF(place.left(), 14, place.width(), 17), LEFT, fact.value)

    def tip_at(self, place: QPoint) -> str:
        return next((fact.tip for rect, fact, _ in self._placed() if rect.contains(place)), "")
