"""The Bench panel: cache modes compared in decode speed, time to first token, bytes and overhead, by context."""

from __future__ import annotations

from app.draw.format import counted, thousands
from app.kit.boxes import row
from app.kit.changes import on_change
from app.kit.fields import SmallBox, small_steps
from app.kit.provenance import Provenance
from app.kit.rows_view import PLOT, TABLE, RowsView, ShownRows
from app.models import Models
from app.models.loaded import geometry_of
from app.panels.bench import draw, words
from app.panels.bench.chart import bench_chart
from app.panels.bench.draw import BenchOutcome
from engine.predict.capacity import context_length
from engine.spec.cache import CacheSpec
from engine.spec.presets import FAMILIES, PRESETS, cache_name, family_of
from engine.wire.measurements import Benched
from engine.wire.measuring import Bench

MAX_STEPS = 512
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
QUANTITIES = (
    ("tok/s", "tok_per_s", "Decode speed"),
    ("first token", "ttft_ms", "Time to the first token"),
    ("KV", "kv_bytes", "Bytes of K and V"),
    ("overhead", "overhead_ratio", "Part of a step that is not spent in the model's forward"),
)


class BenchView(RowsView):
    """The engine measures modes in turns, on sequences of its own, while the live session waits."""

    title, measures = "Bench", "bench"
    button_words, button_name = "Measure speed", "Measure the speed of cache modes"
    columns, descending, file_name = (*draw.COLUMNS, *draw.OTHERS), (3, 5), "bench.csv"
    table_name, plot_name = "Speed of cache modes", "Speed of cache modes over the context"
    choices = (
        (TABLE, "table", "Every mode and context in numbers; a heading sorts"),
        (PLOT, "plot", "A curve a mode, over the tokens of context; both axes are logarithmic"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._modes_box = SmallBox("Modes to compare", "Which cache modes take turns", MODES)
        self.contexts = SmallBox("Contexts", "Tokens of each sequence before the first step", CONTEXTS)
        self.batches = SmallBox("Batch", "Sequences that decode side by side", BATCHES)
        self.quantity = SmallBox("Quantity", "What the plot shows", QUANTITIES)
        self.steps = small_steps(32, MAX_STEPS, "Decode steps of every mode at every context, in turns")
        self._build()
        self.follow(models)

    def _build(self) -> None:
        self.contexts.setCurrentIndex(1)
        boxes = (self._modes_box, self.contexts, self.batches, self.quantity)
        for box in boxes:
            box.let_shrink(4)
        self.build(row(*((box, 3) for box in boxes[:3]), self.steps, None, (self.quantity, 1)), words.MEANING)
        self.steps.lineEdit().returnPressed.connect(self.ask)
        on_change(self.refresh, *boxes, self.steps)

    def request(self) -> Bench:
        caches = tuple(self._modes().items())
        return Bench(caches, counts(self.contexts), self.steps.value(), counts(self.batches))

    def problem(self) -> str:
        return "" if self._models.status.model is not None else "A model is needed first."

    def key_of(self, row: BenchOutcome) -> str:
        return draw.key_of(row)

    def chosen(self) -> tuple[object, ...]:
        boxes = (self._modes_box, self.contexts, self.batches, self.quantity)
        return (*(box.currentData() for box in boxes), self.steps.value())

    def words_below(self, benched: tuple[Benched, ...], has_plot: bool) -> str:
        if benched or self.measurement.is_waiting:
            return f"over {words.rests_on(benched)}" if benched else "the prompts are read first, three times"
        longest, geometry = max(counts(self.contexts)), geometry_of(self._models)
        context = context_length(geometry) if geometry is not None else 0
        beyond = f"; this model's context is {thousands(context)}" if longest + self.steps.value() >= context else ""
        return f"{counted(len(self._modes()), 'mode')}, in turns{beyond}: measure their speed"

    def provenance(self, state: ShownRows) -> Provenance | None:
        sentence = words.source_words(state.answers, state.is_waiting)
        return Provenance("measured", "recomputed", sentence) if state.answers else None

    def show_rows(self, state: ShownRows) -> None:
        modes = self._benched_modes()
        cells = [words.cells(each, modes[each.cache], state.marked) for each in self.sorted_rows()]
        self.table.show_cells(words.heads(state.sort), cells)
        if not state.has_plot:
            return
        quantity = self.quantity.currentData()
        curves = draw.curves(state.rows, quantity)
        self.point_keys = curves.keys
        families = {name: family_of(spec) for name, spec in modes.items()}
        rests_on = words.rests_on(state.answers)
        chart = bench_chart(curves, quantity, families, words.labels(modes), state.mark, rests_on)
        self.plot.show_chart(chart)
        found = next((each for each in state.rows if self.key_of(each) == state.mark), None)
        self.plot.show_words(words.row_words(found, modes[found.cache]) if found is not None else "")

    def _modes(self) -> dict[str, CacheSpec]:
        """The modes to measure: the chosen presets, and the mode in use under its own name."""
        choice = self._modes_box.currentData()
        modes = {
            name: preset.spec
            for name, preset in PRESETS.items()
            if choice in ("all", preset.family) or (choice == USUAL and name in LAYOUTS)
        }
        status = self._models.status.now
        if status is not None:
            modes.setdefault(cache_name(status.cache), status.cache)
        return modes

    def _benched_modes(self) -> dict[str, CacheSpec]:
        """The modes of the bench shown; before there is one, those to be measured."""
        benched = self.measurement.answers
        return dict(benched[0].request.caches) if benched else self._modes()


def counts(box: SmallBox) -> tuple[int, ...]:
    """The numbers of a box's choice."""
    return tuple(map(int, box.currentData().split(",")))
