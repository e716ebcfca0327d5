"""What is beside each head's row of attention weights: its mass at both ends, and its most attended tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.draw.attention import HeadMass, PositionWeight
from app.draw.format import decimal, percent
from app.kit.text_lines import TextPainter
from app.kit.theme import current_theme, font_fixed, font_text

_MASS_WIDTH = 96
_LEAST_PITCH = 11.0
_LINE = 12.0
_GAP = 14.0
_SWATCH = 6.0
APART = "   "


def attended_words(found: tuple[PositionWeight, ...], name: Callable[[int], str]) -> str:
    """`0 Once 43 %  17 ·cat 8 %`: positions with their tokens and weights."""
    return APART.join(entries_of(found, name))


def entries_of(found: tuple[PositionWeight, ...], name: Callable[[int], str]) -> list[str]:
    """`0 Once 43 %` for each: a position, its token and its weight."""
    return [f"{one.position} {name(one.position)} {percent(one.weight)}" for one in found]


def whole_entries(entries: Sequence[str], room: float, num_lines: int, width: Callable[[str], float]) -> str:
    """As many whole entries as fit on `num_lines` lines, at least the first: a cut number would read as another one."""
    lines = [entries[0]]
    for entry in entries[1:]:
        longer = f"{lines[-1]}{APART}{entry}"
        if width(longer) <= room:
            lines[-1] = longer
        elif len(lines) < num_lines and width(entry) <= room:
            lines.append(entry)
        else:
            break
    return "\n".join(lines)


class MassBars(QWidget):
    """For each head a bar of length one, with its mass on the first position and on the last sixteen."""

    def __init__(self) -> None:
        super().__init__()
        self._masses: tuple[HeadMass, ...] = ()
        self._plot = QRectF()
        self._key = TextPainter(font_text(10.5))
        self.setFixedWidth(_MASS_WIDTH)

    def show_masses(self, masses: tuple[HeadMass, ...], plot: QRectF) -> None:
        if (masses, plot) != (self._masses, self._plot):
            self._masses, self._plot = masses, plot
            self.setVisible(bool(masses))
            self.update()

    def describe(self) -> None:
        """Set the tool tip to the masses in words."""
        words = (f"head {m.head}: first {percent(m.first)}, last 16 {percent(m.recent)}" for m in self._masses)
        self.setToolTip("Mass on the first token and on the last 16" + "\n" + "\n".join(words))

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._masses:
            return
        painter = QPainter(self)
        pitch = self._plot.height() / len(self._masses)
        height = min(max(pitch - 3, 1.0), 7.0)
        full = _MASS_WIDTH - 38.0
        for index, mass in enumerate(self._masses):
            middle = self._plot.top() + (index + 0.5) * pitch
            track = QRectF(0, middle - height / 2, full, height)
            painter.fillRect(track, current_theme().color("page_free"))
            first = full * min(max(mass.first, 0.0), 1.0)
            recent = full * min(max(mass.recent, 0.0), 1.0 - first / full)
            painter.fillRect(QRectF(0, track.top(), first, height), current_theme().color("page_shared"))
            painter.fillRect(QRectF(full - recent, track.top(), recent, height), current_theme().color("accent"))
            if pitch >= _LEAST_PITCH:
                painter.setPen(current_theme().color("muted"))
                painter.setFont(font_fixed(10))
                place = QRectF(full + 2, middle - 7, 36, 14)
                painter.drawText(place, int(Qt.AlignmentFlag.AlignRight), f"{decimal(100 * mass.first, 0)} %")
        self._paint_key(painter)

    def _paint_key(self, painter: QPainter) -> None:
        """Paint the legend below the bars, in two lines if there is space."""
        y = self._plot.bottom() + 9
        if self.height() - y < 19:
            x = self._paint_entry(painter, 0, y, "page_shared", "first")
            self._paint_entry(painter, x + 8, y, "accent", "last 16")
            return
        self._paint_entry(painter, 0, y, "page_shared", "first token")
        self._paint_entry(painter, 0, y + 13, "accent", "last 16")

    def _paint_entry(self, painter: QPainter, x: float, middle: float, role: str, text: str) -> float:
        """Paint a swatch of a colour and its name; returns where it ends."""
        painter.fillRect(QRectF(x, middle - _SWATCH / 2, _SWATCH, _SWATCH), current_theme().color(role))
        painter.setPen(current_theme().color("muted"))
        return self._key.left(painter, x + _SWATCH + 4, middle, text)


class TopTokens(QWidget):
    """Each head's most attended tokens beside its row, as many as fit."""

    def __init__(self, name: Callable[[int], str]) -> None:
        super().__init__()
        self._name = name
        self._rows: tuple[tuple[PositionWeight, ...], ...] = ()
        self._plot = QRectF()
        self._ink = TextPainter(font_fixed(10))

    def show_rows(self, rows: tuple[tuple[PositionWeight, ...], ...], plot: QRectF, width: int) -> None:
        """Show `rows[head]`; hidden if the lines would touch, or if `width` is too small for a token."""
        is_shown = bool(rows) and width >= 90 and plot.height() / max(1, len(rows)) >= _LEAST_PITCH
        self.setVisible(is_shown)
        self.setFixedWidth(max(1, width))
        if (rows, plot) != (self._rows, self._plot):
            self._rows, self._plot = rows, plot
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        pitch = self._plot.height() / max(1, len(self._rows))
        for head, row in enumerate(self._rows):
            lines = self._lines([(f"{one.position} {self._name(one.position)} ", percent(one.weight)) for one in row])
            lines = lines[: max(1, int(pitch // _LINE))]
            first = self._plot.top() + (head + 0.5) * pitch - (len(lines) - 1) * _LINE / 2
            for number, line in enumerate(lines):
                x = 0.0
                for name, share in line:
                    painter.setPen(current_theme().color("text"))
                    x = self._ink.left(painter, x, first + number * _LINE, name)
                    painter.setPen(current_theme().color("muted"))
                    x = self._ink.left(painter, x, first + number * _LINE, share) + _GAP

    def _lines(self, pairs: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
        """Arrange names and shares in lines, as many in each as fit, at least one."""
        lines: list[list[tuple[str, str]]] = []
        room = 0.0
        for name, share in pairs:
            width = self._ink.width(name) + self._ink.width(share)
            if not lines or width > room:
                lines.append([])
                room = float(self.width())
            lines[-1].append((name, share))
            room -= width + _GAP
        return lines
