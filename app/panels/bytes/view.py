"""The memory ledger: predicted, stored and reserved bytes, with a name for every difference; by layer, and over the
steps."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from PySide6.QtCore import QPoint, QRect, QRectF, Qt
from PySide6.QtGui import QAccessible, QImage, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QSizePolicy, QWidget

from app.draw.axis import ByteTicks, LinearTicks, StepAxis, StepSeries
from app.draw.format import byte_size, thousands, tick_size
from app.kit.bars import ColorKey, names_of
from app.kit.cells import CellTable
from app.kit.chart import Chart, ChartMark, Curve, Dots, SelectedLine
from app.kit.facts import PITCH, Fact, Facts, WholeLines
from app.kit.painting import TextPainter, argb, pixels_image
from app.kit.plot import StepPlot
from app.kit.provenance import Provenance, shown_record, source_of
from app.kit.reader import SELECTION, STEPS
from app.kit.theme import Themed, current_theme, font_fixed, font_text
from app.kit.view import MARGIN, STRIP_HEIGHT, View
from app.kit.widgets import Opaque, TellsPlaces, column, holder, stack
from app.models import Models
from app.panels.bytes import draw
from app.panels.bytes.draw import BarColors, LayerBar
from app.panels.bytes.words import Cells, layer_cells, layer_words, ledger_lines
from engine.wire.records import StepRecord

LEAST_HEIGHT = 58
_MAX_READ = 40
_MOST_PITCH = 64.0  # greatest width of a layer's bar, in pixels
_PIECES = ("page_used", "page_shared", "page_cached", "page_host")


class LayerBars(Themed, TellsPlaces, Opaque, QWidget):
    """One bar per layer: stored bytes within reserved ones, with a line at the bytes predicted by the formula."""

    def __init__(self) -> None:
        super().__init__()
        self._bars: tuple[LayerBar, ...] = ()
        self._pixels = np.zeros((0, 0), np.uint32)
        self._image = QImage()
        self._painter = TextPainter(font_fixed(10))
        self.set_background()
        self.setAccessibleName("Bytes per layer")
        self.setMinimumSize(60, LEAST_HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    def show_bars(self, bars: tuple[LayerBar, ...]) -> None:
        if bars == self._bars:
            return
        is_same_form = len(bars) == len(self._bars)
        self._bars = bars
        if QAccessible.isActive():  # a long text, needed only by screen readers
            self.setAccessibleDescription("\n".join(layer_words(bar.source) for bar in bars[:_MAX_READ]))
        if self._draw() or not is_same_form:
            self.update()

    def _plot(self) -> QRect:
        return QRect(0, 15, self.width(), max(1, self.height() - 30))

    def _draw(self) -> bool:
        """Draw the bars; returns whether a pixel changed, which a few more bytes seldom cause."""
        ratio, plot, pitch = self.devicePixelRatioF(), self._plot(), self._pitch()
        gap = 4 if pitch > 12 else 1 if pitch > 3 else 0
        theme = current_theme()
        colors = BarColors(
            argb(theme.page_free), tuple(argb(getattr(theme, role)) for role in _PIECES), argb(theme.text)
        )
        size = round(plot.width() * ratio), round(plot.height() * ratio)
        pixels = draw.paint_bars(self._bars, *size, pitch * ratio, round(gap * ratio), colors)
        if np.array_equal(pixels, self._pixels):
            return False
        self._pixels, self._image = pixels, pixels_image(pixels, ratio)
        return True

    def take_theme(self) -> None:
        self._draw()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._draw()

    def _pitch(self) -> float:
        return min(self.width() / max(1, len(self._bars)), _MOST_PITCH)

    def tip_at(self, place: QPoint) -> str:
        """All numbers of the layer under the mouse."""
        index = int(place.x() / self._pitch()) if self._bars else -1
        return layer_words(self._bars[index].source) if 0 <= index < len(self._bars) else ""

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        if not self._bars:
            return
        plot = self._plot()
        painter.drawImage(plot.topLeft(), self._image)
        painter.setFont(font_text(11))
        painter.setPen(current_theme().color("muted"))
        painter.drawText(QRectF(0, -1, self.width(), 14), 0, "stored / reserved")
        pitch = self._pitch()
        every = max(1, -(-26 // int(max(pitch, 1))))
        is_told_by_number = len({bar.name[:1] for bar in self._bars}) == 1  # False with L0 and X0 (cross layers)
        for index in range(0, len(self._bars), every):
            name = self._bars[index].name
            text, x = name[1:] if pitch <= 22 and is_told_by_number else name, (index + 0.5) * pitch - 1
            self._painter.between(painter, text, x, plot.bottom() + 9, 0, self.width(), self.width())


NAMES = ("stored", "reserved", "KV Loupe", "weights", "allocator", "process", "peak")
ROLES = ("page_used", "page_shared", "good", "accent", "page_cached", "muted", "warning")
_LEAST_STEPS = 12


def memory_row(record: StepRecord) -> tuple[float, ...]:
    """A record's bytes in the order of `NAMES`; NaN if unknown or zero."""
    held = record.num_bytes
    aside = (held.looking, held.weights, held.allocator, held.process, held.peak)
    return float(held.stored), float(held.reserved), *(float(size) if size else float("nan") for size in aside)


def memory_chart(rows: npt.NDArray[np.float64], axis: StepAxis, selected: int | None) -> Chart:
    """`rows` `[N, 7]` of bytes on a logarithmic axis, as a process holds thousands of times what a short cache does.
    Each curve has a dot at its peak. `axis` has the steps of the rows; `selected` is one of them."""
    first = axis.first
    steps = np.arange(first, first + len(rows), dtype=np.float64)
    values = np.log2(np.maximum(rows, 1.0))
    marks: list[ChartMark] = []
    for index, role in enumerate(ROLES):
        held = np.isfinite(rows[:, index])
        if held.any():
            x, y = steps[held], values[held, index]
            peak = int(y.argmax())
            marks.append(Curve(x, y, role, 1.6, is_dashed=NAMES[index] in ("reserved", "peak")))
            marks.append(Dots(x[peak : peak + 1], y[peak : peak + 1], role, size=6, fill="panel"))
    if selected is not None and (place := axis.place_of(selected)) is not None:
        marks.append(SelectedLine(place))
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    return Chart(
        tuple(marks),
        np.column_stack([steps, values[:, 0]]),
        ((first - 0.5, first + max(len(rows), _LEAST_STEPS) - 0.5), (low - 0.5, high + 0.5)),
        LinearTicks(axis.name, least=1),
        ByteTicks(tick_size),
        "",
        peak_words(rows),
        can_zoom_y=True,
    )


def key_names(rows: npt.NDArray[np.float64]) -> tuple[str, ...]:
    """A name for each column; empty if it has no curve (on a CPU there is no allocator)."""
    has_curve = [bool(np.isfinite(column).any()) for column in rows.T]
    return tuple(name if has else "" for name, has in zip(NAMES, has_curve, strict=True))


def peak_words(rows: npt.NDArray[np.float64]) -> str:
    """`peak: stored 390.0 KiB · process 587.1 MiB`."""
    return f"peak: {_words(np.nanmax(np.where(np.isfinite(rows), rows, 0), axis=0))}"


def step_words(record: StepRecord) -> str:
    """The bytes after a step, with their names."""
    return f"step {thousands(record.step)} · {_words(np.array(memory_row(record)))}"


def _words(row: npt.NDArray[np.float64]) -> str:
    return " · ".join(f"{name} {byte_size(int(size))}" for name, size in zip(NAMES, row, strict=True) if size > 0)


SUM, LAYERS, OVER_STEPS = "sum", "layers", "steps"
_WIDE = 420
_GAP = 12
_LEAST_LEDGER, _MOST_LEDGER = 304, 480  # width in pixels of the ledger beside the bars; its longest label is whole
_NO_LIMIT = 16_777_215  # Qt's QWIDGETSIZE_MAX


class LedgerView(Struct, frozen=True):
    """The bytes of one step, as lines with bars or as a table of layers; or those of all steps up to `newest`, with the
    step `told` described."""

    record: StepRecord
    lines: tuple[Fact, ...] = ()
    bars: tuple[LayerBar, ...] = ()
    cells: Cells | None = None
    newest: StepRecord | None = None
    selected: int | None = None
    told: StepRecord | None = None


class BytesView(View[LedgerView]):
    """The ledger of the step shown."""

    name = "bytes"
    abilities = frozenset(("view.reset",))
    follows = (SELECTION, STEPS)
    choices = (
        (SUM, "sum", "All layers together, every gap named"),
        (LAYERS, "layers", "Every layer in numbers"),
        (OVER_STEPS, "steps", "What cache, weights, allocator and process held after every step, and the peaks"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.facts = Facts()
        self.facts.setAccessibleName("Memory ledger")
        self.table = CellTable("Bytes of every layer")
        self._bars = LayerBars()
        self._series = StepSeries(memory_row, len(NAMES))
        self.plot = StepPlot("Memory after every step")
        self.key = ColorKey()
        self._split = column(self.facts, (self._bars, 2))
        body = holder(self._split)
        self._sheets = stack(WholeLines(body), self.table, holder(column(self.key, self.plot)))
        self.set_body(self._sheets)
        self.plot.connect_steps(self._models.selection, self.refresh, self.message)
        self.follow(models)

    def read(self) -> LedgerView | str:
        record = shown_record(self._models)
        if record is None:
            return (
                f"What the cache takes, and why, appears here with the first step: {self._models.draft.how_to_begin}."
            )
        if why_not := self._models.status.why_unmeasured("byte counts"):
            return why_not
        held = self._models.timeline.num_bytes(self._models.selection.now.step) or record.num_bytes
        if self.choice == OVER_STEPS:
            timeline, pointed = self._models.timeline, self.plot.pointed_step
            newest = timeline.latest
            told = (timeline.record(pointed) if pointed is not None else None) or record
            return LedgerView(record, newest=newest, selected=self._selected(), told=told)
        if self.choice == LAYERS:
            return LedgerView(record, cells=layer_cells(held))
        is_shared = any(pool.num_shared for pool in record.page_maps)
        return LedgerView(record, ledger_lines(held, is_shared), draw.layer_bars(held))

    def provenance(self, state: LedgerView) -> Provenance:
        record = state.told or state.record
        return source_of(self._models, "recorded", record.dtype, record.step, is_of_cache_now=True)

    def show_state(self, state: LedgerView) -> None:
        self._sheets.setCurrentIndex(2 if state.told is not None else int(state.cells is not None))
        if state.told is not None:
            self._show_steps(state, state.told)
            return
        if state.cells is not None:
            self.table.show_cells(*state.cells)
            return
        self.facts.show_facts(state.lines)
        self._bars.show_bars(state.bars)
        self._space()

    def _show_steps(self, state: LedgerView, told: StepRecord) -> None:
        self.plot.show_steps((state.newest, state.selected), partial(self._chart, state.selected))
        self.plot.show_words(step_words(told))

    def _chart(self, selected: int | None) -> tuple[Chart, list[int]]:
        timeline = self._models.timeline
        rows = self._series.follow(timeline.records)
        self.key.show_keys(names_of(ROLES, key_names(rows)))
        return memory_chart(rows, StepAxis(timeline.steps), selected), list(timeline.steps)

    def _selected(self) -> int | None:
        """The selected step; None while the live one is followed."""
        record = shown_record(self._models)
        return None if self._models.selection.now.step is None or record is None else record.step

    # ---- room ----------------------------------------------------------------------------------------------------

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        is_wide = self.width() > _WIDE and self.height() < 10 * PITCH + 130
        direction = QBoxLayout.Direction.LeftToRight if is_wide else QBoxLayout.Direction.TopToBottom
        if direction != self._split.direction():
            self._split.setDirection(direction)
            self._split.setStretch(0, 5 if is_wide else 0)
            self.facts.setMinimumWidth(_LEAST_LEDGER if is_wide else 0)
            self.facts.setMaximumWidth(_MOST_LEDGER if is_wide else _NO_LIMIT)
            self._split.setAlignment(self._bars, Qt.AlignmentFlag.AlignTop if is_wide else Qt.AlignmentFlag(0))
        # beside a ledger that is scrolled, the bars must still fit into the panel
        room = max(LEAST_HEIGHT, self._room)
        self._bars.setMinimumHeight(room if is_wide else LEAST_HEIGHT)
        self._bars.setMaximumHeight(room if is_wide else _NO_LIMIT)

        self._space()

    @property
    def _room(self) -> int:
        return self.height() - STRIP_HEIGHT - 2 * MARGIN - 1

    def _space(self) -> None:
        """Place the bars below the ledger so that they are visible as a whole, or only after scrolling, but never in
        part."""
        free = self._room // PITCH * PITCH - self.facts.sizeHint().height()
        is_below = self._split.direction() == QBoxLayout.Direction.TopToBottom
        self._split.setSpacing(free if is_below and _GAP < free < _GAP + LEAST_HEIGHT else _GAP)
