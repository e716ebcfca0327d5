"""Two runs compared step by step: how far apart they are, what each would generate next, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import Qt

from app.draw.axis import UNJUDGED, StepPoints, kinds_of, step_points
from app.draw.format import brief, byte_size, exact, milliseconds, percent, thousands, token_label
from app.kit.cells import CellTable, ColumnHead, TableCell
from app.kit.chart import Chart, SelectedLine
from app.kit.plot import pointed_key, step_chart
from app.kit.provenance import Provenance
from app.kit.reader import SELECTION, STATUS, STEPS, SignalSource
from app.kit.theme import TextRole, current_theme, font_text
from app.kit.view import View
from app.kit.widgets import ElidedLabel, column, connect_all, row
from app.models import Models
from app.models.places import layer_label
from engine.wire.comparison import ComparedStep, ComparisonStarted
from engine.wire.records import Candidate, Floats


class Quantity(Struct, frozen=True):
    """What is compared at every step: its title and name, its segment with what that explains, the decade
    below which everything counts as zero, and a step's number, the largest over layers, None if a side does not have
    it."""

    title: str
    name: str
    label: str
    tip: str
    floor: int
    value: Callable[[ComparedStep], float | None]


def _of_attention(step: ComparedStep) -> float | None:
    return largest_of_layers(step.attention)


def _of_rows(step: ComparedStep) -> float | None:
    return largest_of_layers(np.concatenate([step.keys, step.values]))


QUANTITIES = {
    "kl": Quantity(
        "KL(A ‖ B), nats", "KL divergence",
        "KL", "KL divergence of the next token, in nats, at every step", -12, attrgetter("kl"),
    ),
    "logits": Quantity(
        "max |Δ logit|", "Difference of the logits",
        "Δ logit", "The largest difference of a logit, at every step", -9, attrgetter("max_abs_logit_diff"),
    ),
    "attention": Quantity(
        "attention: total variation", "Distance of attention", "Attention",
        "Total variation distance of the newest query's attention, largest of all heads", -9, _of_attention,
    ),
    "rows": Quantity(
        "newest token: error of K or V", "Difference of the newest K and V", "Rows",
        "By how much K or V of the newest token differs, as a part of its own size, largest of all heads", -9, _of_rows,
    ),
}  # fmt: skip


def largest_of_layers(values: Floats) -> float | None:
    """The largest over layers; NaN entries (a side has none) are ignored. None if there is no other."""
    known = values[~np.isnan(values)]
    return float(known.max()) if known.size else None


def points(steps: Sequence[ComparedStep], compared: ComparisonStarted, quantity: str) -> StepPoints:
    """A point for each step that has the number. The line is interrupted at steps without it."""
    values = ((at, step, QUANTITIES[quantity].value(step)) for at, step in enumerate(steps))
    found = [(at, step, value) for at, step, value in values if value is not None]
    breaks = tuple(n for n, (one, other) in enumerate(pairwise(found), 1) if other[0] != one[0] + 1)
    numbers = [step.step for _, step, _ in found]
    may_differ = [compared.is_lossy or compared.is_edited(step.num_tokens) for _, step, _ in found]
    kinds = kinds_of(np.array([step.is_beyond_rounding for _, step, _ in found], np.bool_), may_differ)
    kinds[[step.is_beyond_rounding is None for _, step, _ in found]] = UNJUDGED
    disagrees = [step.top1_agrees is False and step.divergence is None for _, step, _ in found]
    extra = (compared.tolerance,) if quantity == "logits" else ()
    floor, known = QUANTITIES[quantity].floor, [value for _, _, value in found]
    return step_points(numbers, known, kinds, disagrees, floor=floor, extra=extra, breaks=breaks)


def compare_chart(
    steps: Sequence[ComparedStep], compared: ComparisonStarted, quantity: str, selected: int | None
) -> Chart:
    """The plot of a quantity; `selected` is a step."""
    found = points(steps, compared, quantity)
    if quantity == "logits":
        note = f"rounding: up to {exact(compared.tolerance)}"
        chart = step_chart(found, QUANTITIES[quantity].title, selected, tolerance=compared.tolerance, note=note)
    else:
        chart = step_chart(found, QUANTITIES[quantity].title, selected)
    if (line := parting_line(steps)) is not None:
        return replace(chart, marks=(*chart.marks, line))
    return chart


def parting_line(steps: Sequence[ComparedStep]) -> SelectedLine | None:
    """A line between the last step with the same tokens and the first with others; None if the tokens never differ."""
    others = next((at for at, step in enumerate(steps) if step.divergence is not None), 0)
    return SelectedLine((steps[others - 1].step + steps[others].step) / 2, "muted") if others else None


_TABLES, _PLOT = 560, 225  # pixels
COMPARISON = SignalSource("comparison", ("changed",))


class StepsShown(Struct, frozen=True):
    """How many steps were compared; the step selected (`viewed`), and the one to describe, which may be under the
    mouse; which plots fit; the selected layer; and whether the run goes on."""

    compared: ComparisonStarted
    num_steps: int
    viewed: int | None
    shown: ComparedStep | None
    quantities: tuple[str, ...]
    layer: int
    is_running: bool


class CompareStepsView(View[StepsShown]):
    """Clicking a point selects its step, clicking a row of the table its layer."""

    name = "compared_steps"
    follows = (SELECTION, STATUS, STEPS, COMPARISON)
    choices_when_empty = False
    reads_size = True
    choices = tuple((name, each.label, each.tip) for name, each in QUANTITIES.items())

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._drawn: object = None
        self._num_drawn = 0
        self.plots = {
            name: self.new_plot(f"{quantity.name} of both sides at every step", self.select_step)
            for name, quantity in QUANTITIES.items()
        }
        self.layers, self.top = CellTable("Differences by layer"), CellTable("Next tokens of both sides")
        self.numbers, self.cost = (ElidedLabel(font_text(12), "muted") for _ in range(2))
        self._build()
        self.follow(models)

    def _build(self) -> None:
        self.cost.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.layers.setFixedWidth(262)
        self.top.setFixedWidth(266)
        for table in (self.layers, self.top):
            table.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        plots = row(*((plot, 1) for plot in self.plots.values()), spacing=12)
        both = row((plots, 1), self.layers, self.top, spacing=14)
        self.set_body(column((both, 1), row((self.numbers, 1), (self.cost, 1), spacing=12)))
        connect_all(
            (self.layers.chosen, self.select_layer),
            (self._models.comparison.stepped, self._on_stepped),
        )

    # ---- intents -------------------------------------------------------------------------------------------------

    def _on_stepped(self) -> None:
        if not self._models.status.now.running:  # while running, `texts_due` refreshes often enough
            self.refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def read(self) -> StepsShown | str:
        comparison, now = self._models.comparison, self._models.selection.now
        if comparison.now is None:
            return "What differs at every step is drawn here as soon as two runs are compared."
        if not comparison.num_steps:
            return "No step of both sides has been compared yet."
        viewed = comparison.at(now.step)
        pointed = pointed_key(self.plots.values())
        shown = comparison.at(pointed) if pointed is not None else viewed
        step = viewed.step if viewed is not None else None
        is_running = self._models.status.now.running and now.step is None
        return StepsShown(comparison.now, comparison.num_steps, step, shown, self._quantities(), now.layer, is_running)

    def _quantities(self) -> tuple[str, ...]:
        """As many quantities as plots fit, the chosen one among them."""
        room = (self.width() - _TABLES) // _PLOT
        others = [name for name in QUANTITIES if name != self.choice][: max(0, room - 1)]
        return tuple(name for name in QUANTITIES if name == self.choice or name in others)

    def provenance(self, state: StepsShown) -> Provenance:
        sentence = "from the logits and the newest token (K, V, attention) of both sides, at the same number of tokens"
        return Provenance("difference", "difference", sentence)

    def show_state(self, state: StepsShown) -> None:
        self.show_choices(len(state.quantities) < len(QUANTITIES))
        for quantity, plot in self.plots.items():
            plot.setVisible(quantity in state.quantities)
        self._draw_plots(state)
        self._show_step(state)

    def _draw_plots(self, state: StepsShown) -> None:
        """Draw the plots; while running only once there are a twentieth more steps, as plots of many take time."""
        drawn = state.compared, state.quantities, current_theme()
        if state.is_running and drawn == self._drawn and 0 <= state.num_steps - self._num_drawn < self._num_drawn // 20:
            return
        self._drawn, self._num_drawn = drawn, state.num_steps
        steps, of = self._models.comparison.steps, (state.num_steps, state.viewed, state.compared)
        for quantity in state.quantities:
            make = partial(compare_chart, steps, state.compared, quantity, state.viewed)
            self.plots[quantity].show_made(of, make)

    def _show_step(self, state: StepsShown) -> None:
        step = state.shown
        if step is None:
            self.numbers.setText(NOT_COMPARED)
            self.cost.setText("")
            self.layers.show_cells((), ())
            self.top.show_cells((), ())
            return
        self.numbers.setText(step_words(step, not state.compared.no_rows))
        self.cost.setText(cost_words(self._models, state.compared, step))
        cells = layer_cells(self._models, state.compared, step, state.layer)
        self.layers.show_cells(LAYER_HEADS, cells, state.compared.layers)
        self.top.show_cells(TOP_HEADS, top_cells(step))


NOT_COMPARED = "This step was not compared: both sides have later ones in common"
LAYER_HEADS = (
    ColumnHead("layer", "Layer of the model"),
    ColumnHead(
        "K", "By how much K of the newest token differs, as a part of its own size, in the head where it is most"
    ),
    ColumnHead(
        "V", "By how much V of the newest token differs, as a part of its own size, in the head where it is most"
    ),
    ColumnHead("attention", "Total variation distance of the newest query's attention, in the head where it is most"),
)
TOP_HEADS = (
    ColumnHead("A", "The most probable next tokens of side A", is_words=True, most=84),
    ColumnHead("p", "The probability that side A gives it"),
    ColumnHead("  ", is_words=True),
    ColumnHead("B", "The most probable next tokens of side B", is_words=True, most=84),
    ColumnHead("p", "The probability that side B gives it"),
)


def step_words(step: ComparedStep, has_rows: bool) -> str:
    """`step 12 · KL 0.002 · |Δ logit| 0.1 · same top token`."""
    words = [f"step {thousands(step.step)}"]
    if step.divergence is not None:
        words.append(f"other tokens since position {thousands(step.divergence.num_tokens)}")
    elif step.is_beyond_rounding is None:
        return f"{words[0]} · nothing of the step itself is compared, only the rows as they are held now"
    if step.kl is None or step.max_abs_logit_diff is None:
        words.append("a side kept no logits of it")
    else:
        words += [f"KL {brief(step.kl)} nats", f"|Δ logit| {brief(step.max_abs_logit_diff)}"]
        words.append("same top token" if step.top1_agrees else "another top token")
    return " · ".join(words if has_rows else [*words, "logits alone"])


Cost = tuple[float | None, int | None]


def costs(models: Models, compared: ComparisonStarted, step: ComparedStep) -> tuple[Cost, Cost]:
    """(milliseconds of the step, bytes of K and V after it) of A and of B, None where unknown. Those of side A are also
    taken from the window's records, unless the step was taken in another cache mode than side A has now."""
    path = models.timeline.live_path
    record, part = path.record(step.step), path.part(compared.seq_id, step.step)
    (a_ms, b_ms), (a_bytes, b_bytes) = step.ms, step.kv_bytes
    if record is not None and part is not None and record.cache == models.status.now.cache:
        a_ms = record.timings.total_ms if a_ms is None else a_ms
        a_bytes = part.stored_bytes if a_bytes is None else a_bytes
    return (a_ms, a_bytes), (b_ms, b_bytes)


def cost_words(models: Models, compared: ComparisonStarted, step: ComparedStep) -> str:
    """`A  3.0 ms · 4.0 KiB     B  4.0 ms · 1.0 KiB`."""
    sides = []
    for name, (ms, num_bytes) in zip("AB", costs(models, compared, step), strict=True):
        words = [milliseconds(ms)] if ms is not None else []
        words += [byte_size(num_bytes)] if num_bytes is not None else []
        if words:
            sides.append(f"{name}  {' · '.join(words)}")
    return "     ".join(sides)


def layer_cells(
    models: Models, compared: ComparisonStarted, step: ComparedStep, selected: int
) -> list[tuple[TableCell, ...]]:
    """A row per layer; the selected one is coloured."""
    lines: list[tuple[TableCell, ...]] = []
    for number, layer in enumerate(compared.layers):
        role: TextRole = "selected" if layer == selected else "text"
        values = (float(array[number]) for array in (step.keys, step.values, step.attention))
        cells = (TableCell(_part(value), role, "" if value == value else "Not known of both sides") for value in values)
        lines.append((TableCell(layer_label(models, layer).removeprefix("L"), role), *cells))
    return lines


def _part(value: float) -> str:
    return brief(value) if value == value else "–"


def top_cells(step: ComparedStep) -> list[tuple[TableCell, ...]]:
    """The most probable tokens of both sides by rank; ranks with different tokens are coloured."""
    a, b = step.top
    lines: list[tuple[TableCell, ...]] = []
    for rank in range(max(len(a), len(b))):
        mine, theirs = _at(a, rank), _at(b, rank)
        is_same = mine is not None and theirs is not None and mine.token_id == theirs.token_id
        role: TextRole = "text" if is_same else "warning"
        lines.append((*_candidate(mine, role), TableCell(""), *_candidate(theirs, role)))
    return lines


def _at(candidates: Sequence[Candidate], rank: int) -> Candidate | None:
    return candidates[rank] if rank < len(candidates) else None


def _candidate(found: Candidate | None, role: TextRole) -> tuple[TableCell, TableCell]:
    if found is None:
        return TableCell("–", "muted"), TableCell("", "muted")
    return TableCell(token_label(found.text), role, f"token {found.token_id}"), TableCell(percent(found.prob))
