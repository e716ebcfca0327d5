"""The Bench panel: cache modes compared in decode speed, time to first token, bytes and the rest of a step, by
context."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from app.draw.axis import ByteTicks, Floats, LinearTicks
from app.draw.format import byte_size, decimal, milliseconds, percent, thousands, tick_size
from app.kit.cells import ColumnHead, TableCell
from app.kit.chart import Chart, ChartMark, Curve, Dots, Painted
from app.kit.fields import SmallBox, small_steps
from app.kit.plot import PointNames
from app.kit.rows_view import PLOT, TABLE, Column, ModeName, RowsView, ShownRows
from app.kit.widgets import row
from app.models import Models
from app.models.places import geometry_of
from engine.counted import counted
from engine.predict.capacity import context_length
from engine.spec.cache import FAMILIES, PRESETS, CacheSpec, Family, cache_label, cache_summary, family_of
from engine.wire.measurements import Bench, Benched, BenchRefused, BenchRow

BenchOutcome = BenchRow | BenchRefused
OTHERS = ("ms_per_step", "reserved_bytes", "base", "ratio_spread", "num_steps", "num_turns", "device", "dtype")
_ROOM = 0.08  # margin beside the points, as a fraction of the range


class Quantity(Struct, frozen=True):
    """A field of a row that the plot can show: its name and tip in the list, the title above the plot, and how a number
    at the axis is written. A share has a linear axis, others a logarithmic one."""

    field: str
    label: str
    tip: str
    title: str
    words: Callable[[Any], str]
    is_share: bool = False


QUANTITIES: Mapping[str, Quantity] = {
    each.field: each
    for each in (
        Quantity("tok_per_s", "tok/s", "Decode speed", "tokens a second", thousands),
        Quantity("ttft_ms", "first token", "Time to the first token", "milliseconds to the first token", thousands),
        Quantity("kv_bytes", "KV", "Bytes of K and V", "bytes of K and V", tick_size),
        Quantity("overhead_ratio", "outside forward", "Part of a step that is not spent in the model's forward",
                 "part of a step outside the forward", percent, is_share=True),
    )
}  # fmt: skip


class Curves(Struct, frozen=True, eq=False):
    """The points `[N]` of measured rows, given by the rows' `keys`: `x` is log2 of the context, `y` log2 of the
    quantity, or a fraction as it is (`is_share`). A series is its mode, its batch, and the indices of its points by
    ascending context."""

    keys: tuple[str, ...]
    x: Floats
    y: Floats
    series: tuple[tuple[str, int, tuple[int, ...]], ...]
    is_share: bool = False

    @property
    def home(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The ranges of both axes that show everything."""
        return _range_of(self.x), (-0.02, 1.03) if self.is_share else _range_of(self.y)

    @property
    def named(self) -> tuple[int, ...]:
        """For each series the point beside which its name is written: all at the first or all at the last points,
        wherever these are further apart."""
        first, last = (np.array([points[at] for _, _, points in self.series], dtype=np.int64) for at in (0, -1))
        is_first = len(first) > 0 and float(np.std(self.y[first])) > float(np.std(self.y[last]))
        return tuple((first if is_first else last).tolist())


def _range_of(values: Floats) -> tuple[float, float]:
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    side = max(0.5, (high - low) * _ROOM)
    return low - side, high + side


def key_of(row: BenchOutcome) -> str:
    """What identifies a row: mode, context, batch."""
    return f"{row.cache} {row.context} {row.batch}"


def curves_of(rows: Sequence[BenchOutcome], quantity: str) -> Curves:
    """The curves of a quantity. Refused rows have no point, nor have zeros on a logarithmic axis."""
    is_share = QUANTITIES[quantity].is_share
    shown = [row for row in rows if isinstance(row, BenchRow) and (is_share or getattr(row, quantity) > 0)]
    names = dict.fromkeys((row.cache, row.batch) for row in shown)
    series = tuple((cache, batch, _points_of(shown, cache, batch)) for cache, batch in names)
    return Curves(
        keys=tuple(key_of(row) for row in shown),
        x=np.array([math.log2(row.context) for row in shown], dtype=np.float64),
        y=np.array([_place(getattr(row, quantity), is_share) for row in shown], dtype=np.float64),
        series=series,
        is_share=is_share,
    )


def _points_of(rows: Sequence[BenchRow], cache: str, batch: int) -> tuple[int, ...]:
    found = [index for index, row in enumerate(rows) if (row.cache, row.batch) == (cache, batch)]
    return tuple(sorted(found, key=lambda index: rows[index].context))


def _place(value: float, is_share: bool) -> float:
    return value if is_share else math.log2(value)


# ---- the panel -------------------------------------------------------------------------------------------------------


_DOT, _RING = 6.0, 13.0
ROLES: Mapping[Family, str] = {"lossless": "good", "quantised": "accent", "evicting": "warning"}


def bench_chart(
    curves: Curves,
    quantity: str,
    families: Mapping[str, Family],
    labels: Mapping[str, str],
    marked: str,
    rests_on: str,
) -> Chart:
    """Make the chart. `labels` are the names of modes; the row `marked` has a ring; `rests_on` says how much was
    measured."""
    is_marked = np.array([key == marked for key in curves.keys], dtype=np.bool_)
    marks: list[ChartMark] = []
    for cache, batch, points in curves.series:
        x, y = curves.x[list(points)], curves.y[list(points)]
        role = "selected" if is_marked[list(points)].any() else ROLES[families[cache]]
        marks += [Curve(x, y, role, 1.3, is_dashed=batch > 1), Dots(x, y, role, size=_DOT, fill=role)]
    marks.append(Dots(curves.x[is_marked], curves.y[is_marked], "text", size=_RING))
    ends = list(curves.named)
    texts = [labels.get(cache, cache) + (f" × {batch}" if batch > 1 else "") for cache, batch, _ in curves.series]
    first = [n for n, (_, _, points) in enumerate(curves.series) if is_marked[list(points)].any()]
    marks.append(Painted(PointNames(curves.x[ends], curves.y[ends], texts, first, first).paint))
    shown = QUANTITIES[quantity]
    return Chart(
        tuple(marks),
        np.column_stack([curves.x, curves.y]),
        curves.keys,
        curves.home,
        ByteTicks(thousands),
        (LinearTicks if shown.is_share else ByteTicks)(shown.words),
        f"{shown.title}, by tokens of context",
        rests_on,
        reach=9.0,
        can_zoom_y=True,
    )


USUAL = "usual"
LAYOUTS = ("none", "dynamic", "static", "growing", "paged")
MODES = (
    ("layouts", USUAL, "None, dynamic, static, growing and paged, and the cache in use"),
    *((family, family, words) for family, words in FAMILIES),
    ("all modes", "all", "Every preset, and the cache in use"),
)
CONTEXTS = (
    ("128", "128", ""),
    ("128 · 512", "128,512", ""),
    ("128 · 512 · 2,048", "128,512,2048", "A mode or a model that has no room for a context says so"),
    ("16 … 960", "16,64,256,960", ""),
)
BATCHES = (("batch 1", "1", ""), ("batch 1 · 4", "1,4", "In pages four decode together, else in turn"))
MEANING = (
    "Modes take turns, a few decode steps each, the order swapped every round: medians, and the difference of the "
    "quartiles as spread. The ratio is the speed over that of the first mode, turn by turn. Overhead is the "
    "part of a step that is not spent in the model's forward. Nothing is observed meanwhile."
)


COLUMNS = (
    Column("context", ColumnHead("tokens", "Tokens of each sequence before the first step"),
           lambda row, _: TableCell(thousands(row.context)), of_all=True),
    Column("batch",
           ColumnHead("batch", "Sequences; in pages they decode together, in other caches one after the other"),
           lambda row, _: TableCell(str(row.batch)), of_all=True),
    Column("tok_per_s", ColumnHead("tok/s", "Tokens of all sequences a second, the median of the turns"),
           lambda row, _: TableCell(decimal(row.tok_per_s, 1)), downwards=True),
    Column("spread", ColumnHead("±", "The difference of the quartiles of the turns, in tokens a second"),
           lambda row, _: TableCell(decimal(row.spread, 1), "muted")),
    Column("ratio", ColumnHead("ratio", "Speed over that of the first mode that ran to the end, turn by turn"),
           lambda row, _: TableCell(f"{decimal(row.ratio)}×", tip=f"over {row.base}, ± {decimal(row.ratio_spread)}"),
           downwards=True),
    Column("ttft_ms", ColumnHead("first", "Time until every sequence has its first token"),
           lambda row, _: TableCell(milliseconds(row.ttft_ms))),
    Column("kv_bytes", ColumnHead("KV", "Bytes of K and V stored at the end, of all sequences"),
           lambda row, _: TableCell(byte_size(row.kv_bytes) if row.kv_bytes else "–", tip=(
               f"{counted(row.kv_bytes, 'byte')}, {thousands(row.reserved_bytes)} reserved"))),
    Column("overhead_ratio", ColumnHead("outside forward", "Part of a step that is not spent in the model's forward"),
           lambda row, _: TableCell(percent(row.overhead_ratio))),
)  # fmt: skip


class BenchView(RowsView):
    """The engine measures modes in turns, on sequences of its own, while the live session waits."""

    name, measures = "bench", "bench"
    button_words, button_name = "Measure speed", "Measure the speed of cache modes"
    columns, others, file_name, name_width = COLUMNS, OTHERS, "bench.csv", 124.0
    key_of = staticmethod(key_of)
    table_name, plot_name = "Speed of cache modes", "Speed of cache modes over the context"
    choices = (
        (TABLE, "table", "Every mode and context in numbers; a heading sorts"),
        (PLOT, "plot", "A curve a mode, over the tokens of context; both axes are logarithmic"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.modes_box = SmallBox("Modes to compare", "Which cache modes take turns", MODES)
        self.contexts = SmallBox("Contexts", "Tokens of each sequence before the first step", CONTEXTS)
        self.batches = SmallBox("Batch", "Sequences that decode side by side", BATCHES)
        self.quantity = SmallBox(
            "Quantity", "What the plot shows", [(q.label, q.field, q.tip) for q in QUANTITIES.values()]
        )
        self.steps = small_steps(32, "Decode steps of every mode at every context, in turns")
        self.contexts.setCurrentIndex(1)
        self.boxes = (self.modes_box, self.contexts, self.batches, self.quantity)
        for box in self.boxes:
            box.let_shrink(4)
        self.build(row(*((box, 3) for box in self.boxes[:3]), self.steps, None, (self.quantity, 1)), MEANING)
        self.follow(models)

    def request(self) -> Bench:
        caches = tuple(self._modes().items())
        return Bench(caches, counts(self.contexts), self.steps.value(), counts(self.batches))

    def num_wanted(self, request: Bench) -> int:
        return len(request.caches) * len(request.contexts) * len(request.batches)

    def problem(self) -> str:
        return "" if self._models.status.now.model is not None else "A model is needed first."

    def words_below(self, benched: tuple[Benched, ...], has_plot: bool) -> str:
        if benched or self.measurement.is_waiting:
            return f"over {self.rests_on(benched)}" if benched else "the prompts are read first, three times"
        longest, geometry = max(counts(self.contexts)), geometry_of(self._models)
        context = context_length(geometry) if geometry is not None else 0
        beyond = f"; this model's context is {thousands(context)}" if longest + self.steps.value() >= context else ""
        return f"{counted(len(self._modes()), 'mode')}, in turns{beyond}: measure their speed"

    def rests_on(self, benched: Sequence[Benched]) -> str:
        row = next((each.row for each in benched if isinstance(each.row, BenchRow)), None)
        where = f", {counted(row.num_turns, 'turn')}, {row.dtype} on {row.device}" if row is not None else ""
        return f"{counted(benched[0].request.num_steps, 'step')}{where}"

    def names(self) -> dict[str, ModeName]:
        benched = self.measurement.answers
        modes = dict(benched[0].request.caches) if benched else self._modes()
        return {name: ModeName(cache_label(spec), cache_summary(spec)) for name, spec in modes.items()}

    def chart(self, state: ShownRows, marked: BenchOutcome | None, labels: Mapping[str, str]) -> Chart:
        quantity = self.quantity.currentData()
        curves = curves_of(state.rows, quantity)
        families = {name: family_of(spec) for name, spec in state.answers[0].request.caches}
        return bench_chart(curves, quantity, families, labels, state.mark, self.rests_on(state.answers))

    def point_words(self, row: BenchRow, label: str) -> str:
        place = counted(row.context, "token") + (f" × {row.batch}" if row.batch > 1 else "")
        return (
            f"{label} · {place} · {decimal(row.tok_per_s, 1)} ± {decimal(row.spread, 1)} tok/s · "
            f"{decimal(row.ratio)}× {row.base}"
        )

    def _modes(self) -> dict[str, CacheSpec]:
        """The modes to measure: the chosen presets, and the mode in use."""
        choice = self.modes_box.currentData()
        return self.with_mode_in_use(
            {
                name: preset.spec
                for name, preset in PRESETS.items()
                if choice in ("all", preset.family) or (choice == USUAL and name in LAYOUTS)
            }
        )


def counts(box: SmallBox) -> tuple[int, ...]:
    """The numbers of a box's choice."""
    return tuple(map(int, box.currentData().split(",")))
