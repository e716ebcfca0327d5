"""Panels with heat maps: their base, the menu of lenses, several maps side by side, and the bar of colours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from msgspec import Struct
from PySide6.QtCore import QPoint, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QAction,
    QActionGroup,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QMenu, QSizePolicy, QToolButton, QWidget

from app.draw.colormap import HIGHEST, ColorScale, Floats, histogram, packed
from app.draw.format import brief, thousands
from app.draw.grid import TokenRange
from app.draw.matrix import Box, Matrix, MatrixCell, matrix_of
from app.kit.heatmap import HeatMap, Marks, edits_shown
from app.kit.painting import argb, color_scale, pixels_image
from app.kit.provenance import PositionSpan, selected_run, span_of_run, token_name
from app.kit.theme import FIXED_SIZE, current_theme, font_fixed, font_text
from app.kit.view import View
from app.kit.widgets import ElidedLabel, column, connect_all, holder, plain_label, plain_tip, row
from app.models import Models
from app.models.places import heads_shared, is_within
from app.models.selection import Selected
from engine.spec.edit import Rows
from engine.spec.lenses import LENSES, TABLE, Lens
from engine.wire.pictures import HeadPicture


class MapState(Struct, frozen=True):
    """A picture, and what is marked in it: the selected positions, or else the selected area, and what was edited."""

    picture: Any
    selected: PositionSpan | None
    area: Box | None
    edited: tuple[Box, ...]

    def marks(self, **others: Any) -> Marks:
        """These marks and others for a map."""
        selected = span_of_run(matrix_of(self.picture).span_of, self.selected)
        return Marks(selected=selected, area=self.area, edited=self.edited, **others)


M = TypeVar("M", bound=MapState)


class MapView(View[M]):
    """The visible positions and the number of columns are kept in `models.viewport`, in fields named after the `kind`
    of picture: `head_range`, `head_columns`. A subclass follows the viewport and implements `pick` and `tell`. Signal:
    `menu_wanted(point on the screen)`, for the selection."""

    abilities = frozenset(("view.reset", "view.zoom"))
    can_pin = True
    kind: ClassVar[str]
    name_length: ClassVar[int] = 12  # characters of a token's text
    readout_size: ClassVar[float] = FIXED_SIZE

    menu_wanted = Signal(object)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.map = HeatMap(self._token_name)
        self.readout = plain_label(font=font_fixed(self.readout_size))
        self.readout.setObjectName("readout")
        self.readout.setMinimumWidth(1)
        self.map.can_select = True
        self._lay_out()
        connect_all(
            (self.map.hovered, self.tell),
            (self.map.picked, self.pick),
            (self.map.dragged, self._on_dragged_over),
            (self.map.menu_wanted, self._on_menu_wanted),
            (self.map.zoomed, self._on_zoomed),
            (self.map.resized, self.refresh),
            (self.map.fit_wanted, self.fit_colors),
            (models.viewport.changed, self._on_viewport),
            (models.selection.changed, self._on_selected),
        )

    @property
    def picture(self) -> Any:
        """The picture that is shown; None if there is none."""
        return None if self.state is None else self.state.picture

    def shared(self, picture: Any) -> int:
        """How many heads of a picture share a kv head."""
        return heads_shared(self._models, picture.request.lens, picture.request.layer)

    def marked(self, picture: Any) -> tuple[PositionSpan | None, Box | None, tuple[Box, ...]]:
        """What is selected and edited in a picture, as in `MapState`."""
        now, request, shared = self._models.selection.now.area, picture.request, self.shared(picture)
        matrix, lens, area = matrix_of(picture), picture.request.lens, None
        if now is not None and (held := matrix.boxes(now, lens, shared)):
            area = Box(max(now.start, matrix.start), min(now.stop, matrix.stop), held[0].first, held[-1].last)
        edited = (
            box
            for one in edits_shown(self._models, request.seq_id)
            for box in matrix.boxes(one.rows, "" if one.is_hidden else lens, shared, is_hidden=one.is_hidden)
        )
        return None if area else selected_run(self._models), area, tuple(edited)

    def cell_at(self, point: QPointF | None) -> MatrixCell | None:
        """The cell at a point of the map; None if there is none."""
        picture = self.picture
        return None if picture is None or point is None else matrix_of(picture).at(point.x(), point.y())

    def _lay_out(self) -> None:
        self._row = row((self.map, 1), spacing=8)
        self.set_body(column((self._row, 1), self.readout, spacing=2))

    def pick(self, point: QPointF) -> None:
        """Handle a click on the map; `point` is (position, row)."""
        raise NotImplementedError

    def area(self, start: QPointF, stop: QPointF) -> Rows | None:
        """The rows between two points of the map, both included; None if there are none."""
        first, last, picture = self.cell_at(start), self.cell_at(stop), self.picture
        if first is None or last is None:
            return None
        return matrix_of(picture).rows_between(first, last, picture.request.lens, self.shared(picture))

    def _on_dragged_over(self, start: QPointF, stop: QPointF) -> None:
        if (area := self.area(start, stop)) is not None:
            self._models.selection.update(position=area.start, channel=None, area=area)

    def _on_menu_wanted(self, point: QPointF | None, place: QPoint) -> None:
        """Open the menu for what is under the mouse, or for the selected area if that contains it."""
        here = self.area(point, point) if point is not None else None
        if here is not None:
            now = self._models.selection.now.area
            if now is None or not is_within(here, now):
                self._models.selection.update(position=here.start, channel=None, area=here)
        self.menu_wanted.emit(place)

    def tell(self, point: QPointF | None) -> None:
        """Show the value under the cursor in the line below; None: the cursor is elsewhere."""
        raise NotImplementedError

    def reset_view(self) -> None:
        self.map.reset_view()

    def zoom_to_selection(self) -> None:
        position = self._models.selection.now.position
        if position is None:
            self.map.follow_newest()
        else:
            self.map.zoom_to(position)

    def want(self, *, is_visible: bool) -> None:
        self._models.viewport.update(**{f"{self.kind}_columns": self.map.num_columns if is_visible else None})

    def _on_zoomed(self, wanted: TokenRange | None) -> None:
        self._models.viewport.update(**{f"{self.kind}_range": wanted})

    def _on_selected(self, old: Selected, new: Selected) -> None:
        """Bring a token that was selected elsewhere into sight."""
        if new.position is not None and new.position != old.position:
            self.map.bring_into_sight(new.position)

    def _on_viewport(self) -> None:
        self.map.show_range(getattr(self._models.viewport.now, f"{self.kind}_range"))
        self.pin_button.setChecked(self._models.viewport.is_pinned(self.kind))

    @property
    def _shown_seq_id(self) -> int:
        """The sequence that the picture shows, which for a while may not be the selected one."""
        picture = self.picture
        return self._models.selection.now.seq_id if picture is None else int(picture.request.seq_id)

    def _token_name(self, position: int) -> str:
        return token_name(self._models, self._shown_seq_id, position, self.name_length)


COUNTS = (0, 4, 16, 64, 256)  # of the latest queries; 0: all


class ChoiceMenu(QToolButton):
    """A button with a menu of things to choose between, of which one is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        menu = QMenu(self)
        menu.setToolTipsVisible(True)
        self.setMenu(menu)

    def add_choices(self, choices: Iterable[tuple[object, str, str]], slot: object) -> QActionGroup:
        """Add choices (data, text, tool tip); the action that was chosen is told to the slot."""
        group = QActionGroup(self)
        for data, text, tip in choices:
            action = group.addAction(text)
            action.setData(data)
            action.setCheckable(True)
            action.setToolTip(plain_tip(tip))
            self.menu().addAction(action)
        group.triggered.connect(slot)
        return group


def check(group: QActionGroup, data: object) -> None:
    """Check the choice with that data."""
    for action in group.actions():
        action.setChecked(action.data() == data)


class LensMenu(ChoiceMenu):
    """Names the lens of the picture shown; its menu has all that the picture can have, and selects it: for pictures of
    rows, or `of_queries` for those of attention, where it also selects of how many of the latest queries."""

    def __init__(self, models: Models, lenses: Iterable[Lens] = TABLE, *, of_queries: bool = False) -> None:
        super().__init__()
        self._models, self._of_queries = models, of_queries
        offered = [lens for lens in lenses if not of_queries or lens.heads == "query"]
        choices = ((lens.name, f"{lens.words}  ({lens.label})", lens.formula) for lens in offered)
        self._actions, self._counts = self.add_choices(choices, self._on_triggered), QActionGroup(self)
        if of_queries:
            self.menu().addSeparator()
            self.menu().addAction("Of which queries").setEnabled(False)
            counts = ((count, latest_words(count).capitalize(), "") for count in COUNTS)
            self._counts = self.add_choices(counts, self._on_count)
        self.show_lens("keys")

    def show_lens(self, name: str, latest: int = 0, *, has_room: bool = True) -> None:
        """Name the lens of the picture that is shown, and of how many of the latest queries it is (0: all); without
        room for a name only the tool tip has it."""
        lens = LENSES[name]
        has_counts = lens.reads == "queries"
        is_some = has_counts and latest
        words = f"{lens.label} · {thousands(latest)} ▾" if is_some else f"{lens.label} ▾"
        self.setText(words if has_room else "▾")
        of = f", of {latest_words(latest)}" if is_some else ""
        self.setToolTip(f"What is drawn of each row{of}" if has_room else f"{lens.words}{of}")
        self.setAccessibleName(f"Lens: {lens.words}{of}")
        check(self._actions, name)
        check(self._counts, latest)
        self._counts.setEnabled(has_counts)

    def _on_triggered(self, action: QAction) -> None:
        if self._of_queries:
            self._models.viewport.update(attention_lens=str(action.data()))
        else:
            self._models.selection.update(lens=str(action.data()), change=False)

    def _on_count(self, action: QAction) -> None:
        self._models.viewport.update(attention_latest=int(action.data()))


def latest_words(count: int) -> str:
    """`the latest 16 queries`, or all of them."""
    return f"the latest {thousands(count)} queries" if count else "all queries"


LEAST_WRITTEN = 0.2  # numbers in cells have one decimal: with a smaller colour range all would read 0.0


class MatrixMaps(QWidget):
    """Its sides have names, and each its accessible name. Signals `pointed(point or None)`, `picked(side, point)` and
    `zoomed(range or None)` in positions and rows, as of a heat map; `resized()`."""

    pointed = Signal(object)
    picked = Signal(str, object)
    zoomed = Signal(object)
    resized = Signal()

    def __init__(self, name_position: Callable[[int], str], names: Mapping[str, str]) -> None:
        super().__init__()
        self.maps = {side: HeatMap(name_position) for side in names}
        self.captions = {side: ElidedLabel(font_text(11.5), "muted") for side in names}
        self._cells = {side: holder(column(self.captions[side], (self.maps[side], 1), spacing=1)) for side in names}
        row(*((cell, 1) for cell in self._cells.values()), spacing=10, on=self)
        for side, heatmap in self.maps.items():
            heatmap.setAccessibleName(names[side])
            connect_all((heatmap.hovered, self._on_hovered), (heatmap.picked, self._on_picked))
            heatmap.zoomed.connect(self.zoomed)
            # not amid the layout: what then shows or hides others would leave one side with the height of before
            heatmap.resized.connect(self.resized, Qt.ConnectionType.QueuedConnection)

    @property
    def first(self) -> HeatMap:
        return next(iter(self.maps.values()))

    @property
    def num_pixel_rows(self) -> int:
        """The height of a picture in pixels."""
        return int(self.first.plot_rect.height())

    def show_range(self, wanted: TokenRange | None) -> None:
        for heatmap in self.maps.values():
            heatmap.show_range(wanted)

    def zoom_to(self, position: int | None) -> None:
        """Zoom to a position, or if None to the newest."""
        if position is None:
            self.first.follow_newest()
        else:
            self.first.zoom_to(position)

    def show_matrix(
        self, side: str, matrix: Matrix, limits: Floats, marks: Marks, caption: str, *, is_signed: bool
    ) -> None:
        """Show a matrix with a colour range for each row."""
        scale, values = color_scale(current_theme(), is_signed=is_signed), matrix.shown
        indices = np.ascontiguousarray(scale.index(values / limits[: len(values), None], 1.0))
        has_numbers = is_signed and bool(limits.size) and float(limits.max()) >= LEAST_WRITTEN
        self.maps[side].show_matrix(matrix, scale, indices, marks, has_numbers=has_numbers)
        self.captions[side].setText(caption)

    def _on_picked(self, point: QPointF) -> None:
        sender = self.sender()
        self.picked.emit(next(side for side, heatmap in self.maps.items() if heatmap is sender), point)

    def _on_hovered(self, point: QPointF | None) -> None:
        for heatmap in self.maps.values():
            heatmap.show_cursor(point)
        self.pointed.emit(point)


_WIDTH = 74
_PAD = 9
_GRIP = 8
_BIN, _LONGEST = 4, 25


class RangeBar(QWidget):
    """Signals: `dragged(limit)` while the user moves an end, `reset()` on a double click."""

    dragged = Signal(float)
    reset = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._scale: ColorScale | None = None
        self._picture: HeadPicture | None = None
        self.limit = 1.0
        self._shown = 1.4
        self._held = False
        self.bar = QImage()
        self._bars = QImage()
        self.setFixedWidth(_WIDTH)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Expanding)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.SizeVerCursor)
        self.setToolTip("Drag an end, or use the arrow keys, to change the colour range; double-click fits it")

    def sizeHint(self) -> QSize:
        return QSize(_WIDTH, 120)

    def show_range(self, scale: ColorScale, picture: HeadPicture | None, limit: float) -> None:
        """Draw the histogram of a picture beside the range of the colours."""
        if (picture, limit) == (self._picture, self.limit) and scale is self._scale:
            return
        self._scale, self._picture, self.limit = scale, picture, limit
        if not self._held:  # while an end is dragged the axis stays as it is
            self._shown = limit * 1.25
        self.bar = self._bars = QImage()
        self.setAccessibleName(f"Colour range {scale.words(brief(limit))}")
        self.update()

    @property
    def _lowest(self) -> float:
        """The number at the bottom."""
        return -self._shown if self._scale is None or self._scale.is_signed else 0.0

    @property
    def _ends(self) -> tuple[tuple[float, str], ...]:
        """The ends that can be dragged, and their signs."""
        return ((self.limit, "+"), (-self.limit, "-")) if self._lowest else ((self.limit, ""),)

    def _y(self, value: float) -> float:
        return _PAD + (self._shown - value) / (self._shown - self._lowest) * (self.height() - 2 * _PAD)

    def _value(self, y: float) -> float:
        return self._shown - (y - _PAD) / max(1, self.height() - 2 * _PAD) * (self._shown - self._lowest)

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._scale is None:
            return
        painter = QPainter(self)
        height = self.height() - 2 * _PAD
        self._paint_bar(painter, height)
        if self._picture is not None:
            painter.setOpacity(0.6)
            painter.drawImage(QPointF(14, _PAD), self._histogram_image(self._picture, height))
            painter.setOpacity(1.0)
        self._paint_ends(painter)

    def _histogram_image(self, picture: HeadPicture, height: int) -> QImage:
        """The histogram's bars, with the square root of each count as length; made once per picture and range."""
        if self._bars.isNull():
            lengths = np.ceil(histogram(picture, self._lowest, self._shown, max(1, height // _BIN)) * _LONGEST)
            lit = np.arange(_LONGEST)[None, :] < np.repeat(lengths, _BIN)[:, None]
            lit[_BIN - 1 :: _BIN] = False
            self._bars = pixels_image(np.where(lit, np.uint32(argb(current_theme().muted)), np.uint32(0)))
        return self._bars

    def _paint_bar(self, painter: QPainter, height: int) -> None:
        if self.bar.isNull() and self._scale is not None and height > 0:
            values = np.linspace(self._shown, self._lowest, height, dtype=np.float32)
            column = packed(self._scale.table)[np.minimum(self._scale.index(values, self.limit), HIGHEST)]
            self.bar = pixels_image(np.repeat(column[:, None], 8, axis=1))
        painter.drawImage(QPointF(2, _PAD), self.bar)
        painter.setPen(QPen(current_theme().color("hairline"), 1))
        painter.drawRect(QRectF(1.5, _PAD - 0.5, 9, height + 1))

    def _paint_ends(self, painter: QPainter) -> None:
        painter.setFont(font_fixed(10))
        center = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        for value, sign in self._ends:
            y = round(self._y(value)) + 0.5
            painter.setPen(QPen(current_theme().color("accent" if self.hasFocus() or self._held else "text"), 1))
            painter.drawLine(QPointF(0, y), QPointF(41, y))
            painter.fillRect(QRectF(0, y - 2.5, 12, 5), painter.pen().color())
            painter.drawText(QRectF(43, y - 8, _WIDTH - 43, 16), center, sign + brief(self.limit, 2))
        painter.setPen(current_theme().color("muted"))
        painter.drawText(QRectF(43, self._y(0) - 8, _WIDTH - 43, 16), center, "0")

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.bar = self._bars = QImage()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        near = min(abs(event.position().y() - self._y(end)) for end, _ in self._ends)
        self._held = near <= _GRIP or event.position().x() < 14
        self.mouseMoveEvent(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._held:
            value = abs(self._value(event.position().y()))
            self.dragged.emit(min(max(value, self._shown / 100), self._shown))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._held:
            self._held = False
            self._shown = self.limit * 1.25
            self.bar = self._bars = QImage()
            self.update()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self._held = False
        self.reset.emit()

    def wheelEvent(self, event: QWheelEvent) -> None:
        self.dragged.emit(self.limit * 1.1 ** (-event.angleDelta().y() / 120))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        factor = {Qt.Key.Key_Up: 1.1, Qt.Key.Key_Down: 1 / 1.1}.get(Qt.Key(event.key()))
        if factor is None:
            super().keyPressEvent(event)
        else:
            self.dragged.emit(self.limit * factor)
