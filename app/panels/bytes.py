"""The memory ledger: predicted, stored and reserved bytes, with a name for every difference; by layer, and over the
steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QAccessible, QPainter, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QSizePolicy

from app.draw.axis import ByteTicks, LinearTicks, StepAxis, StepSeries
from app.draw.format import byte_size, thousands, tick_size
from app.kit.bars import ColorKey, Surface, names_of
from app.kit.cells import CellTable, ColumnHead, TableCell
from app.kit.chart import Chart, ChartMark, Curve, Dots, SelectedLine
from app.kit.facts import PITCH, Fact, Facts, WholeLines, term_facts
from app.kit.painting import TextPainter
from app.kit.provenance import Provenance, shown_record, source_of
from app.kit.reader import SELECTION, STEPS
from app.kit.theme import TextRole, Theme, font_fixed, font_text
from app.kit.view import MARGIN, STRIP_HEIGHT, View
from app.kit.widgets import column, holder, stack
from app.models import Models
from engine.spec.terms import Term
from engine.wire.records import CacheBytes, LayerBytes, StepRecord

BytesPart = Literal["stored", "reserved", "transient", "looking"]


class LayerBar(Struct, frozen=True):
    """One layer as fractions of the largest: stored within reserved, beside predicted.

    `pieces` split the stored bytes, from the bottom up: those of tokens, then those with a name of their own.
    """

    name: str
    reserved: float
    predicted: float
    pieces: tuple[float, ...]
    source: LayerBytes


def layer_name(layer: LayerBytes, held: CacheBytes) -> str:
    """`L3`, or `X1` for a cross layer; cross layers come after all others."""
    num_own = sum(one.kind != "cross" for one in held.layers)
    return f"X{layer.layer - num_own}" if layer.kind == "cross" else f"L{layer.layer}"


def layer_bars(held: CacheBytes) -> tuple[LayerBar, ...]:
    most = max((max(layer.reserved, layer.stored, layer.predicted) for layer in held.layers), default=0) or 1
    names = [name for name, part in named(held) if part == "stored"]
    bars = []
    for layer in held.layers:
        parts = [_sum_of(layer, name, "stored") for name in names]
        pieces = tuple(part / most for part in (layer.stored - sum(parts), *parts))
        name = layer_name(layer, held)
        bars.append(LayerBar(name, layer.reserved / most, layer.predicted / most, pieces, layer))
    return tuple(bars)


def named(held: CacheBytes) -> tuple[tuple[str, BytesPart], ...]:
    """All gaps by name and part: parts of what is stored, of what is reserved, then what is transient; each in the
    order in which layers name them."""
    order: tuple[BytesPart, ...] = ("stored", "reserved", "transient")
    gaps = [gap for layer in held.layers for gap in layer.gaps]
    return tuple(dict.fromkeys((gap.name, part) for part in order for gap in gaps if gap.part == part))


def _sum_of(layer: LayerBytes, name: str, part: BytesPart) -> int:
    return sum(gap.num_bytes for gap in layer.gaps if (gap.name, gap.part) == (name, part))


# ---- words -----------------------------------------------------------------------------------------------------------


class GapWords(Struct, frozen=True):
    """A gap's label, a short one for the head of a column, and what takes the bytes."""

    label: str
    short: str
    tip: str


# By the engine's name of a gap
_GAPS = {
    "scales and offsets": GapWords("scales and offsets", "scales", "What turns the codes back into numbers."),
    "exact residual": GapWords("exact residual", "residual", "The newest rows, which the codec leaves as they are."),
    "positions of the rows kept": GapWords(
        "positions of rows", "positions", "Where each kept row stood, as evicted rows leave holes."
    ),
    "room to grow": GapWords("room to grow", "room", "Storage for rows that are still to come."),
    "dequantised copy": GapWords(
        "dequantised copy", "copy", "The numbers that attention reads, turned back from the codes of one layer."
    ),
    "page slack": GapWords("page slack", "slack", "Free slots in the last page of each sequence."),
    "pages not in use": GapWords("pages not in use", "unused", "Pages of the pool that hold no row of a sequence."),
    "padding to the reserved length": GapWords(
        "padding, to full length", "padding", "Rows reserved at once and not written yet."
    ),
    "rows kept for going back": GapWords(
        "for going back", "for going back", "Rows that the newest steps replaced or evicted, so that one can go back."
    ),
    "attention that the rule remembers": GapWords(
        "remembered attention", "remembered attention", "What the rule adds up to choose the rows it evicts."
    ),
}


def gap_words(name: str) -> GapWords:
    """The words for a gap, from the engine's name."""
    return _GAPS.get(name, GapWords(name, name, "Bytes beside the rows of tokens."))


def layer_words(layer: LayerBytes) -> str:
    """A layer's sum in full: stored bytes, which of these are not numbers of tokens, and what makes up the rest."""
    lines = [f"layer {layer.layer} ({layer.kind})" + (f" on {layer.device}" if layer.device else "")]
    lines.append(f"{thousands(layer.predicted)}  by formula")
    lines.append(f"{thousands(layer.stored)}  stored")
    signs = {
        "stored": "of these",
        "reserved": "+",
        "transient": "while attention runs",
        "looking": "aside",
    }
    order = ("stored", "reserved", "transient", "looking")
    for gap in sorted(layer.gaps, key=lambda gap: order.index(gap.part)):
        lines.append(f"   {signs[gap.part]} {thousands(gap.num_bytes)}  {gap_words(gap.name).label}")
    lines.append(f"{thousands(layer.reserved)}  reserved")
    return "\n".join(lines)


def formula_label(terms: Sequence[Term]) -> str:
    """The label of the predicted bytes: the formula itself if it is one product."""
    if not terms:
        return "predicted by formula"
    return f"formula {terms[0].symbols}" if len(terms) == 1 else f"formula, sum of {len(terms)}"


class Figure(Struct, frozen=True):
    """A line of the ledger: its label, what it counts, and its bytes; None: there is no such line; words: why there is
    no number. `is_aside`: the difference between the lines around it, or a part of the one above. `parts`: the gaps
    that are listed below it."""

    label: str
    tip: str
    of: Callable[[CacheBytes], int | str | None]
    role: TextRole = "text"
    is_aside: bool = False
    has_rule: bool = False
    parts: tuple[BytesPart, ...] = ()


def _unnamed(held: CacheBytes) -> int:
    gaps = (gap.num_bytes for layer in held.layers for gap in layer.gaps if gap.part == "reserved")
    return held.reserved - held.stored - sum(gaps)


def _known(held: CacheBytes) -> int:
    return held.reserved + held.looking + held.weights


_BELOW = "left the window, or not kept"
# stored + gaps = reserved; a gap without a name is a line of its own and never left out. Then what allocator and
# process hold, and what of it is in no line above: workspace of forwards, and for a process the program and its
# libraries. A process never holds 0 bytes: 0 is in records that were not measured, such as those of a foreign file.
FIGURES = (
    Figure("predicted by formula", "What the rows take by the formula of this cache mode.",
           lambda held: held.predicted),
    Figure("stored beyond the formula", "Stored bytes that the formula does not have.",
           lambda held: max(held.stored - held.predicted, 0) or None, is_aside=True),
    Figure(_BELOW, "Rows of the formula that have left the window or were evicted.",
           lambda held: min(held.stored - held.predicted, 0) or None, is_aside=True),
    Figure("stored in tensors", "Bytes of tensors that hold rows of tokens.", lambda held: held.stored,
           parts=("stored", "reserved")),
    Figure("⚠ without a name", "Reserved bytes that the program cannot explain: please report it.",
           lambda held: _unnamed(held) or None, "bad", is_aside=True),
    Figure("reserved in storage", "All that the storage of the cache really holds.", lambda held: held.reserved,
           parts=("transient",)),
    Figure("kept by KV Loupe", "What KV Loupe keeps to show and to go back; the cache itself does not need it.",
           lambda held: held.looking, has_rule=True, parts=("looking",)),
    Figure("of which checkpoints", "States of the cache that are kept so that a step can be gone on from.",
           lambda held: held.kept or None, is_aside=True),
    Figure("weights of the model", "The parameters of the model, in the memory of its device.",
           lambda held: held.weights or None),
    Figure("other: workspace", "What the allocator holds beyond the lines above: the workspace of forwards.",
           lambda held: None if held.allocator is None else held.allocator - _known(held), is_aside=True),
    Figure("the program itself", "What the process holds beyond the lines above: program and libraries.",
           lambda held: held.process - _known(held) if held.allocator is None and held.process > _known(held) else None,
           is_aside=True),
    Figure("held by the allocator", "Memory of the device that torch's allocator has taken.",
           lambda held: "cannot be asked here" if held.allocator is None else held.allocator, has_rule=True),
    Figure("process, resident", "Memory of the engine's process that is in RAM.",
           lambda held: held.process or "not recorded"),
    Figure("peak since the step before", "The most that the allocator held at once during the step.",
           lambda held: held.peak),
    Figure("on the device, all programs", "Memory of the device in use, by all programs.", lambda held: held.device),
)  # fmt: skip
_SHARED = ("shared, stored once", "Rows that several sequences share: the formula counts them for each.")


def ledger_lines(held: CacheBytes, is_shared: bool) -> tuple[Fact, ...]:
    """The lines of the ledger, and the formula of the predicted bytes, filled in, below these. `is_shared`: sequences
    share pages."""
    lines: list[Fact] = []
    for figure in FIGURES:
        if (number := figure.of(held)) is None:
            continue
        label, tip = _SHARED if is_shared and figure.label == _BELOW else (figure.label, figure.tip)
        if not lines:
            label = formula_label(held.terms)
        role = "muted" if isinstance(number, str) or (figure.is_aside and figure.role == "text") else figure.role
        lines.append(_line(label, number, tip, role, is_aside=figure.is_aside, has_rule=figure.has_rule))
        lines += term_facts(held.terms) if len(lines) == 1 else ()
        lines += [line for part in figure.parts for line in _part_lines(held, part)]
    return tuple(lines)


def _part_lines(held: CacheBytes, part: BytesPart) -> list[Fact]:
    """The gaps of a part by name, summed over layers; of transient bytes, which live one layer at a time, the most."""
    sums: dict[str, int] = {}
    for gap in (gap for layer in held.layers for gap in layer.gaps if gap.part == part):
        before = sums.get(gap.name, 0)
        sums[gap.name] = max(before, gap.num_bytes) if part == "transient" else before + gap.num_bytes
    words = {"reserved": "{}", "transient": "{}, briefly"}.get(part, "of which {}")
    return [
        _line(words.format(gap_words(name).label), num_bytes, gap_words(name).tip, sign=_SIGNS[part], is_aside=True)
        for name, num_bytes in sums.items()
    ]


def _line(
    label: str,
    number: int | str,
    tip: str,
    role: TextRole = "muted",
    sign: str = "",
    *,
    is_aside: bool = False,
    has_rule: bool = False,
) -> Fact:
    if isinstance(number, str):
        return Fact(label, number, role=role, tip=tip)
    size = byte_size(number) if abs(number) >= 1024 else ""
    return Fact(label, sign + thousands(number), size, role, int(is_aside), has_rule=has_rule, tip=tip)


_TIPS = {
    "stored": "part of what is stored",
    "reserved": "between stored and reserved: stored and all of these make what is reserved",
    "transient": "lives only while the layer's attention runs: in no sum",
    "looking": "",
}
_SIGNS = {"": "", "stored": "", "reserved": "+", "transient": "~", "looking": ""}

Cells = tuple[tuple[ColumnHead, ...], tuple[tuple[TableCell, ...], ...], tuple[int | None, ...]]


def layer_cells(held: CacheBytes) -> Cells:
    """(heads, rows, their layers) of the table of layers: formula, stored with its parts, every gap, and reserved. Each
    row adds up, but for transient bytes, which are in no sum: as they do not live at the same time, their maximum
    counts."""
    gaps = named(held)
    heads = (
        ColumnHead("layer", "the layer and its kind; point at it for its sum", is_words=True),
        ColumnHead("formula", "what the rows kept take by formula"),
        ColumnHead("stored", "in tensors, for rows that hold tokens"),
        *(_gap_head(gap_words(name), part) for name, part in gaps),
        ColumnHead("reserved", "what storage really holds"),
    )
    numbers = [(one.predicted, one.stored, *(_sum_of(one, *gap) for gap in gaps), one.reserved) for one in held.layers]
    parts = ("", "", *(part for _, part in gaps), "")

    def cells(row: Sequence[int]) -> tuple[TableCell, ...]:
        quiet = (True, False, *(True for _ in gaps), False)
        return tuple(
            TableCell(f"{_SIGNS[part]}{thousands(n)}" if n else "·", "muted" if is_quiet or not n else "text")
            for n, part, is_quiet in zip(row, parts, quiet, strict=True)
        )

    rows = [
        (TableCell(_layer_name(layer, held), tip=layer_words(layer)), *cells(row))
        for layer, row in zip(held.layers, numbers, strict=True)
    ]
    if len(rows) > 1:
        columns = zip(*numbers, strict=True)
        total = [(max if part == "transient" else sum)(c) for part, c in zip(parts, columns, strict=True)]
        rows.insert(0, (TableCell("all", is_bold=True), *cells(total)))
    layers = [layer.layer for layer in held.layers]
    return heads, tuple(rows), (*[None] * (len(rows) - len(layers)), *layers)


def _gap_head(gap: GapWords, part: BytesPart) -> ColumnHead:
    return ColumnHead(gap.short, f"{gap.label}: {gap.tip}" + f"\n{_TIPS[part]}" * bool(_TIPS[part]))


def _layer_name(layer: LayerBytes, held: CacheBytes) -> str:
    return f"{layer_name(layer, held)} {layer.kind}" + (f" · {layer.device}" if layer.device else "")


# ---- what is painted, and the panel ----------------------------------------------------------------------------------


LEAST_HEIGHT = 58
_MAX_READ = 40
_MOST_PITCH = 64.0  # greatest width of a layer's bar, in pixels
_PIECES = ("page_used", "page_shared", "page_cached", "page_host")


class LayerBars(Surface):
    """One bar per layer: stored bytes within reserved ones, with a line at the bytes predicted by the formula. An item
    is the number of a layer."""

    def __init__(self) -> None:
        super().__init__("Bytes per layer")
        self._bars: dict[int, LayerBar] = {}
        self._painter = TextPainter(font_fixed(10))
        self.setMinimumSize(60, LEAST_HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.can_be_walked()

    def show_bars(self, bars: tuple[LayerBar, ...]) -> None:
        shown = {bar.source.layer: bar for bar in bars}
        if shown != self._bars:
            self._bars = shown
            if QAccessible.isActive():  # a long text, needed only by screen readers
                self.setAccessibleDescription("\n".join(layer_words(bar.source) for bar in bars[:_MAX_READ]))
            self.update()

    def items(self) -> Sequence[int]:
        return list(self._bars)

    def item_at(self, place: QPointF) -> int | None:
        index = int(place.x() // self._pitch)
        return self.items()[index] if 0 <= index < len(self._bars) else None

    def words(self, item: int) -> str:
        return layer_words(self._bars[item].source) if item in self._bars else ""

    @property
    def _pitch(self) -> float:
        return min(self.width() / max(1, len(self._bars)), _MOST_PITCH)

    def paint(self, painter: QPainter, theme: Theme) -> None:
        if not self._bars:
            return
        painter.setFont(font_text(11))
        painter.setPen(theme.color("muted"))
        painter.drawText(QRectF(0, -1, self.width(), 14), 0, "stored / reserved")
        pitch, high, foot = self._pitch, max(1, self.height() - 30), self.height() - 15
        every = max(1, -(-26 // int(max(pitch, 1))))
        is_told_by_number = (
            len({bar.name[:1] for bar in self._bars.values()}) == 1
        )  # False with L0 and X0 (cross layers)
        for index, (layer, bar) in enumerate(self._bars.items()):
            self._paint_bar(painter, theme, bar, index * pitch, high, foot)
            if index % every == 0:
                text = bar.name[1:] if pitch <= 22 and is_told_by_number else bar.name
                painter.setPen(theme.color("text" if layer == self.pointed_item else "muted"))
                self._painter.between(painter, text, (index + 0.5) * pitch - 1, foot + 8, 0, self.width(), self.width())

    def _paint_bar(self, painter: QPainter, theme: Theme, bar: LayerBar, left: float, high: int, foot: float) -> None:
        """Paint a bar that stands on `foot`; what is not zero has at least a pixel."""
        gap = 4 if self._pitch > 12 else 1 if self._pitch > 3 else 0
        wide, least = max(round(left + self._pitch) - gap - round(left), 1), 1 / self.devicePixelRatioF()
        painter.fillRect(QRectF(round(left), foot, wide, -high * bar.reserved), theme.color("page_free"))
        top = foot
        for piece, role in zip(bar.pieces, _PIECES, strict=False):
            tall = max(high * piece, least) if piece > 0 else 0.0
            painter.fillRect(QRectF(round(left), top - tall, wide, tall), theme.color(role))
            top -= tall
        line = max(foot - high, foot - round(high * bar.predicted) - least)  # just above a bar of the same height
        painter.fillRect(QRectF(round(left), line, wide, least), theme.color("text"))


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
        axis.steps,
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
    step `described` in words."""

    record: StepRecord
    lines: tuple[Fact, ...] = ()
    bars: tuple[LayerBar, ...] = ()
    cells: Cells | None = None
    newest: StepRecord | None = None
    selected: int | None = None
    described: StepRecord | None = None


class BytesView(View[LedgerView]):
    """The ledger of the step shown."""

    name = "bytes"
    follows = (SELECTION, STEPS)
    choices = (
        (SUM, "sum", "All layers together, every gap named"),
        (LAYERS, "layers", "Every layer in numbers"),
        (OVER_STEPS, "steps", "What cache, weights, allocator and process held after every step, and the peaks"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.facts = Facts("Memory ledger")
        self.table = CellTable("Bytes of every layer")
        self._bars = LayerBars()
        self._series = StepSeries(memory_row, len(NAMES))
        self.plot = self.new_plot("Memory after every step", self.select_step)
        self.key = ColorKey()
        for part in (self._bars.picked, self.table.chosen):
            part.connect(self.select_layer)
        self._split = column(self.facts, (self._bars, 2))
        body = holder(self._split)
        self._sheets = stack(WholeLines(body), self.table, holder(column(self.key, self.plot)))
        self.set_body(self._sheets)
        self.follow(models)

    def read(self) -> LedgerView | str:
        record = shown_record(self._models)
        if record is None:
            return f"What the cache takes, and why, appears here with the first step: {self.how_to_begin}."
        if why_not := self._models.status.why_unmeasured("byte counts"):
            return why_not
        held = self._models.timeline.num_bytes(self._models.selection.now.step) or record.num_bytes
        if self.choice == OVER_STEPS:
            timeline, pointed = self._models.timeline, self.plot.pointed_key
            newest = timeline.latest
            described = (timeline.record(pointed) if pointed is not None else None) or record
            return LedgerView(record, newest=newest, selected=self._selected(), described=described)
        if self.choice == LAYERS:
            return LedgerView(record, cells=layer_cells(held))
        is_shared = any(pool.num_shared for pool in record.page_maps)
        return LedgerView(record, ledger_lines(held, is_shared), layer_bars(held))

    def provenance(self, state: LedgerView) -> Provenance:
        record = state.described or state.record
        return source_of(self._models, "recorded", record.dtype, record.step, is_of_cache_now=True)

    def show_state(self, state: LedgerView) -> None:
        self._sheets.setCurrentIndex(2 if state.described is not None else int(state.cells is not None))
        if state.described is not None:
            self.plot.show_made((state.newest, state.selected), partial(self._chart, state.selected))
            self.plot.show_words(step_words(state.described))
            return
        if state.cells is not None:
            self.table.show_cells(*state.cells)
            return
        self.facts.show_facts(state.lines)
        self._bars.show_bars(state.bars)
        self._space()

    def _chart(self, selected: int | None) -> Chart:
        timeline = self._models.timeline
        rows = self._series.follow(timeline.records)
        self.key.show_keys(names_of(ROLES, key_names(rows)))
        return memory_chart(rows, StepAxis(timeline.steps), selected)

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
