"""Marks over a heat map: axes, hairlines, selected column, crosshair, edits, and numbers in large cells.

Painted in one pass; the cost depends on what fits on the screen, not on the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct
from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QPainter, QPen, QPolygonF

from app.draw.axis import Tick
from app.draw.colormap import Floats, Indices
from app.draw.edited import EditedRows, MarkKind, at, edit_name, edited_rows, runs, touches
from app.draw.format import cell_number, thousands
from app.draw.ghost import Ghosts
from app.kit.pictures import loud_color
from app.kit.text_lines import TextPainter
from app.kit.theme import Theme, current_theme, font_fixed
from app.models import Models

_NUMBER_CELL = 24.0
_OUTLINED = 4  # an edited place of at least so many pixels has an outline
_CENTER = int(Qt.AlignmentFlag.AlignCenter)


def number_name(row: int) -> str:
    return str(row)


class CellNumbers(Struct, frozen=True, eq=False):
    """Values `[rows, columns]` from position `start` on, their colour indices, and the text colour for each index."""

    values: Floats
    indices: Indices
    inks: tuple[str, ...]
    start: float
    per_column: int


class Box(NamedTuple):
    """Positions `start … stop` and rows `first … last`, both ends exclusive. `is_hidden`: masked from attention."""

    start: float
    stop: float
    first: int
    last: int
    is_hidden: bool = False


class Marks(Struct, frozen=True, eq=False):
    """What to draw over the image: `selected`, a span of positions; `selected_row`, one row in it; `area`, the
    positions and rows dragged over; `edited`, places changed by hand; `alarms`, positions with NaN or Inf; `flags`,
    positions that stand out for another reason; `ghosts`, evicted rows; `note`, text at the right end of the axis;
    `left` and `right`, margins in pixels; lines and names of the axes."""

    left: int = 30
    right: int = 1
    selected: tuple[float, float] | None = None
    selected_row: int | None = None
    area: Box | None = None
    edited: tuple[Box, ...] = ()
    x_lines: tuple[int, ...] = ()
    y_lines: tuple[int, ...] = ()
    alarms: tuple[float, ...] = ()
    flags: tuple[float, ...] = ()
    note: str = ""
    row_name: Callable[[int], str] = number_name
    numbers: CellNumbers | None = None
    ghosts: Ghosts | None = None


class PictureFrame(Struct, frozen=True):
    """The picture's area in pixels, and the range of positions and rows that it shows."""

    plot: QRectF
    low: float
    high: float
    num_rows: int
    names: tuple[Tick, ...]
    rows: tuple[Tick, ...]

    def x(self, position: float) -> float:
        return self.plot.left() + (position - self.low) / (self.high - self.low) * self.plot.width()

    def y(self, row: float) -> float:
        return self.plot.top() + row / self.num_rows * self.plot.height()

    def rect(self, box: Box) -> QRectF:
        """The visible part of a box, in whole pixels."""
        left, right = round(self.x(max(box.start, self.low))), round(self.x(min(box.stop, self.high)))
        top, bottom = round(self.y(max(box.first, 0))), round(self.y(min(box.last, self.num_rows)))
        return QRectF(
            left, top, max(right - left, 2) if box.stop > self.low and box.start < self.high else 0, bottom - top
        )

    @property
    def cell_width(self) -> float:
        return self.plot.width() / (self.high - self.low)


def paint_marks(
    painter: QPainter,
    frame: PictureFrame,
    marks: Marks,
    theme: Theme,
    ink: TextPainter,
    hover: QPointF | None,
    has_focus: bool,
) -> None:
    """Paint everything over the image, the most important last."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    _paint_lines(painter, frame, marks, theme)
    if marks.numbers is not None and frame.cell_width * marks.numbers.per_column >= _NUMBER_CELL:
        _paint_numbers(painter, frame, marks.numbers, marks.ghosts)
    _paint_axes(painter, frame, marks, theme, ink)
    _paint_edited(painter, frame, marks.edited, theme)
    if marks.area is not None:
        _paint_area(painter, frame, marks.area, theme)
    if marks.selected is not None:
        _paint_selected(painter, frame, marks.selected, theme)
    if marks.selected_row is not None:
        _paint_row(painter, frame, marks.selected_row, theme)
    if marks.flags:
        _paint_triangles(painter, frame, marks.flags, theme.color("page_shared"))
    if marks.alarms:
        _paint_triangles(painter, frame, marks.alarms, QColor(loud_color(theme)))
    if hover is not None:
        _paint_crosshair(painter, frame, hover, theme)
    if has_focus:
        painter.setPen(QPen(theme.color("accent"), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(frame.plot.adjusted(-1.5, -1.5, 0.5, 0.5))


def _paint_lines(painter: QPainter, frame: PictureFrame, marks: Marks, theme: Theme) -> None:
    painter.setPen(QPen(theme.color("text", 170), 1))
    for position in marks.x_lines:
        if frame.low < position < frame.high:
            x = round(frame.x(position))
            painter.drawLine(QPointF(x, frame.plot.top()), QPointF(x, frame.plot.bottom() - 1))
    painter.setPen(QPen(theme.color("faint"), 1))
    for row in marks.y_lines:
        y = round(frame.y(row))
        painter.drawLine(QPointF(frame.plot.left(), y), QPointF(frame.plot.right() - 1, y))


def _paint_axes(painter: QPainter, frame: PictureFrame, marks: Marks, theme: Theme, ink: TextPainter) -> None:
    """Paint the row names at the left, and below the picture token texts, their positions, and tick marks."""
    painter.setPen(theme.color("muted"))
    top, bottom = frame.plot.top(), frame.plot.bottom()
    for tick in frame.rows:
        y = min(max(frame.y(tick.at), top + 6), bottom - 6)
        ink.between(painter, tick.text, marks.left - 7, y, 0, marks.left - 7, marks.left)
    names = frame.names
    spacing = (names[1].at - names[0].at) * frame.cell_width if len(names) > 1 else 120.0
    high = frame.plot.right() + 2
    free = high
    if marks.note:
        free = ink.right(painter, high, bottom + 21, marks.note) - 8
    for tick in names:
        x = frame.x(tick.at)
        ink.between(painter, tick.text, x, bottom + 9, 0, high, spacing - 6)
        place = str(int(tick.at))
        if x + ink.width(place) / 2 < free:
            ink.between(painter, place, x, bottom + 21, 0, high, 60)
    painter.setPen(theme.color("faint"))
    painter.drawLines([QLineF(round(x), bottom + 1, round(x), bottom + 3) for x in (frame.x(t.at) for t in names)])


def _paint_selected(painter: QPainter, frame: PictureFrame, span: tuple[float, float], theme: Theme) -> None:
    if span[1] <= frame.low or span[0] >= frame.high:
        return
    left = max(frame.x(span[0]), frame.plot.left())
    right = min(max(frame.x(span[1]), left + 3), frame.plot.right())
    # a second outline in the ground colour separates the selection from cells of a similar colour
    painter.setPen(QPen(theme.color("signed_middle", 200), 1))
    painter.drawRect(QRectF(round(left) - 1, frame.plot.top(), round(right - left) + 1, frame.plot.height() - 1))
    painter.setPen(QPen(theme.color("selected"), 1))
    painter.drawRect(QRectF(round(left) - 2, frame.plot.top() - 1, round(right - left) + 3, frame.plot.height() + 1))


def _paint_area(painter: QPainter, frame: PictureFrame, area: Box, theme: Theme) -> None:
    """Outline the area that was dragged over, with a second line in the ground colour as for a selected column."""
    place = frame.rect(area)
    if place.isEmpty():
        return
    painter.setPen(QPen(theme.color("signed_middle", 200), 1))
    painter.drawRect(place.adjusted(0, 0, -1, -1))
    painter.setPen(QPen(theme.color("selected"), 1))
    painter.drawRect(place.adjusted(-1, -1, 0, 0))


def _paint_edited(painter: QPainter, frame: PictureFrame, boxes: tuple[Box, ...], theme: Theme) -> None:
    """Outline what was edited, without covering its numbers; rows masked from attention are hatched as well. A stroke
    above the picture also marks boxes that are too narrow for an outline."""
    color = theme.color("edited")
    for box in boxes:
        place = frame.rect(box)
        if place.isEmpty():
            continue
        if box.is_hidden:
            painter.fillRect(place, QBrush(theme.color("edited", 150), Qt.BrushStyle.BDiagPattern))
        painter.fillRect(QRectF(place.left(), frame.plot.top() - 3, max(place.width(), 2.0), 2), color)
        if place.width() >= _OUTLINED:
            painter.setPen(QPen(color, 1))
            painter.drawRect(place.adjusted(0, 0, -1, -1))


def _paint_row(painter: QPainter, frame: PictureFrame, row: int, theme: Theme) -> None:
    """Paint a wedge at either end of the selected row: a line through it would cover its values."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(theme.color("selected"))
    left, right, y = frame.plot.left(), frame.plot.right(), frame.y(row + 0.5)
    painter.drawPolygon(QPolygonF([QPointF(left - 6, y - 4), QPointF(left - 6, y + 4), QPointF(left, y)]))
    painter.drawPolygon(QPolygonF([QPointF(right + 1, y), QPointF(right - 6, y - 4), QPointF(right - 6, y + 4)]))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)


def _paint_triangles(painter: QPainter, frame: PictureFrame, positions: tuple[float, ...], color: QColor) -> None:
    """Paint small triangles above columns that stand out, which differ by shape and not only by colour."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(color)
    top = frame.plot.top() - 1
    for position in positions:
        if frame.low <= position <= frame.high:
            x = frame.x(position)
            painter.drawPolygon(QPolygonF([QPointF(x - 4, top - 6), QPointF(x + 4, top - 6), QPointF(x, top)]))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)


def _paint_crosshair(painter: QPainter, frame: PictureFrame, hover: QPointF, theme: Theme) -> None:
    x, y = round(frame.x(hover.x())), round(frame.y(hover.y()))
    painter.setPen(QPen(theme.color("text", 130), 1, Qt.PenStyle.DotLine))
    painter.drawLine(QPointF(x, frame.plot.top()), QPointF(x, frame.plot.bottom() - 1))
    painter.drawLine(QPointF(frame.plot.left(), y), QPointF(frame.plot.right() - 1, y))


def _paint_numbers(painter: QPainter, frame: PictureFrame, numbers: CellNumbers, ghosts: Ghosts | None) -> None:
    """Write the values into the cells if these are large enough for three digits."""
    height = frame.plot.height() / frame.num_rows
    width = frame.cell_width * numbers.per_column
    if height < 12:
        return
    first = max(0, int((frame.low - numbers.start) // numbers.per_column))
    last = min(numbers.values.shape[1], int(-(-(frame.high - numbers.start) // numbers.per_column)))
    font = font_fixed(9.5)
    painter.setFont(font)
    painter.save()
    painter.setClipRect(frame.plot)
    for column in range(first, last):
        left = frame.x(numbers.start + column * numbers.per_column)
        for row in range(numbers.values.shape[0]):
            if ghosts is not None and ghosts.is_gone(row, column):
                continue
            painter.setPen(QColor(numbers.inks[numbers.indices[row, column]]))
            text = cell_number(float(numbers.values[row, column]), width)
            painter.drawText(QRectF(left, frame.y(row), width, height), _CENTER, text)
    painter.restore()


_MOST = 3  # edits of one place that are named; earlier ones are only counted


def edits_shown(models: Models, seq_id: int | None = None) -> tuple[EditedRows, ...]:
    """The rows of a sequence (None: the selected one) that were edited up to the step shown; for a fork, also those
    edited in its ancestors before it was forked."""
    now = models.selection.now
    made = {
        one.step: one.edit
        for of, tip, _ in models.timeline.lineage(now.seq_id if seq_id is None else seq_id, now.step)
        for one in models.edits.on_path(tip)
        if one.edit.seq_id == of
    }
    return edited_rows(sorted(made.items(), key=lambda one: one[0]))


def head_boxes(
    models: Models, seq_id: int, layer: int, kv_head: int, tensor: str, num_channels: int
) -> tuple[Box, ...]:
    """The edited boxes of one head, positions × channels; rows masked from attention whichever tensor is shown."""
    found = []
    for one in edits_shown(models, seq_id):
        if touches(one.rows, layer, kv_head, "" if one.is_hidden else tensor):
            channels = one.rows.channels
            for first, last in [(0, num_channels)] if channels is None else runs(channels):
                found.append(Box(one.rows.start, one.rows.stop, first, min(last, num_channels), one.is_hidden))
    return tuple(found)


def words_at(
    models: Models,
    position: int,
    layer: int | None = None,
    kv_head: int | None = None,
    tensor: str = "",
    channel: int | None = None,
    seq_id: int | None = None,
) -> str:
    """`edited: zero at step 12, mask at step 14`: the edits that affected a place of a sequence (None: the selected
    one); empty if there are none."""
    found = [
        one for one in at(edits_shown(models, seq_id), position, channel) if touches(one.rows, layer, kv_head, tensor)
    ]
    words = [f"{edit_name(one.edit).lower()} at step {thousands(one.step)}" for one in found[-_MOST:]]
    more = f", and {len(found) - _MOST} before" if len(found) > _MOST else ""
    return f"edited: {', '.join(words)}{more}" if words else ""


def since_words(models: Models) -> str:
    """`edited by hand since step 12`; empty if there is no edit on the path to the step shown."""
    edits = models.edits.on_path(models.selection.now.step)
    return f"edited by hand since step {thousands(edits[0].step)}" if edits else ""


_ROLES = {"edit": "edited", "mode": "page_shared", "branch": "selected"}


def paint_mark(painter: QPainter, at: QPointF, kind: MarkKind) -> None:
    """Paint the symbol of a node at its point on the line; the triangle of a branch is below it."""
    theme = current_theme()
    painter.setPen(QPen(theme.color("panel"), 1))
    painter.setBrush(theme.color(_ROLES.get(kind, "muted")))
    x, y = at.x(), at.y()
    if kind == "mode":
        painter.drawRect(QRectF(x - 3.5, y - 3.5, 7, 7))
    elif kind == "edit":
        painter.drawPolygon(QPolygonF([QPointF(x, y - 5), QPointF(x + 5, y), QPointF(x, y + 5), QPointF(x - 5, y)]))
    elif kind == "branch":
        painter.drawPolygon(QPolygonF([QPointF(x - 4, y + 9), QPointF(x + 4, y + 9), QPointF(x, y + 3)]))
    else:
        painter.drawEllipse(at, 2.5, 2.5)
