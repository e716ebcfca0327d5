"""The Sweep panel: cache modes × budgets × codecs on the same texts, with bytes, speed and damage of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from app.draw.axis import ByteTicks, Floats, LogScale, log_scale
from app.draw.format import brief, byte_size, decimal, percent, tick_size
from app.kit.cells import ColumnHead, TableCell
from app.kit.chart import Band, Chart, ChartMark, Curve, Dots, Painted
from app.kit.fields import MOST_STEPS, SmallBox, small_steps
from app.kit.plot import PointNames
from app.kit.provenance import Provenance
from app.kit.rows_view import PLOT, TABLE, Column, ModeName, RowsView, ShownRows
from app.kit.widgets import on_change, row
from app.models import Models
from engine.counted import counted
from engine.predict.capacity import context_length
from engine.spec.cache import PRESETS, CacheSpec, cache_summary, size_words
from engine.spec.codec import parse_codec
from engine.spec.grid import SweepMode, SweepText, TextKind, grid
from engine.spec.sampling import Prompt
from engine.wire.measurements import LEAST_KL, Sweep, SweepRow, Swept, Unavailable, front

SweepOutcome = SweepRow | Unavailable
OTHERS = ("max_abs_logit_diff", "kind", "num_prompt_tokens", "num_steps")


class Quality(Struct, frozen=True):
    """A damage that the plot can set against bytes: its name and tip in the list, the title above the plot, the decades
    that are always shown (lowest, highest) with the floor, and its number of a row, less being better; None if it was
    not measured. `has_none`: some modes do no damage of this kind, and are marked at the floor."""

    name: str
    label: str
    tip: str
    title: str
    decades: tuple[int, int, int]
    of: Callable[[SweepRow], float | None]
    has_none: bool = True


# A KL that rounding explains counts as zero.
QUALITIES: Mapping[str, Quality] = {
    each.name: each
    for each in (
        Quality("kl", "KL", "KL of the next token against the model without a cache", "mean KL in nats", (-5, 0, -8),
                lambda row: row.mean_kl if row.mean_kl >= LEAST_KL else 0.0),
        Quality("disagreement", "top-1", "Steps whose most probable token is another",
                "steps with another most probable token", (-2, 0, -3), lambda row: 1 - row.top1_agreement),
        Quality("perplexity", "perplexity", "Perplexity of the tokens that followed", "perplexity", (0, 1, 0),
                lambda row: row.perplexity, has_none=False),
        Quality("forgotten", "forgotten", "The part of a planted fact that does not come out",
                "part of the fact forgotten", (-2, 0, -3), lambda row: None if row.recall is None else 1 - row.recall),
    )
}  # fmt: skip


class Cloud(Struct, frozen=True, eq=False):
    """The points of the rows of one text that store bytes, by `keys` of rows and `names` of modes: `x` is log2 of the
    bytes, `y` the damage, 0 … 1 on `scale`. `front`: the points of the Pareto front, by ascending bytes."""

    keys: tuple[str, ...]
    names: tuple[str, ...]
    x: Floats
    y: Floats
    is_lossless: npt.NDArray[np.bool_]
    front: tuple[int, ...]
    scale: LogScale


def key_of(row: SweepOutcome) -> str:
    """What identifies a row."""
    return f"{row.cache} on {row.text}"


def cloud_of(rows: Sequence[SweepOutcome], text: str = "", quality: str = "kl") -> Cloud:
    """The points of a text. A mode that stores nothing has no place on an axis of bytes, and is left out."""
    shown = QUALITIES[quality]
    all_of_it = [row for row in rows if isinstance(row, SweepRow) and row.text == text and row.kv_bytes > 0]
    found = [(row, cost) for row in all_of_it if (cost := shown.of(row)) is not None]
    num_bytes = np.array([row.kv_bytes for row, _ in found], dtype=np.float64)
    costs = [cost for _, cost in found]
    scale = log_scale(costs, *shown.decades)
    return Cloud(
        keys=tuple(key_of(row) for row, _ in found),
        names=tuple(row.cache for row, _ in found),
        x=np.log2(num_bytes),
        y=scale.at(costs),
        is_lossless=np.array([row.lossless for row, _ in found], dtype=np.bool_),
        front=front(num_bytes.tolist(), costs),
        scale=scale,
    )


def steps_of(cloud: Cloud) -> tuple[Floats, Floats]:
    """The front as a step line: between two points, no mode with fewer bytes than the second does less damage than the
    first."""
    x = np.repeat(cloud.x[list(cloud.front)], 2)[1:]
    y = np.repeat(cloud.y[list(cloud.front)], 2)[:-1]
    return x, y


# ---- the panel -------------------------------------------------------------------------------------------------------


_DOT, _RING = 8.0, 15.0
_MARGIN, _FLOOR = 0.45, -0.06


def sweep_chart(cloud: Cloud, quality: str, labels: Mapping[str, str], marked: str, rests_on: str) -> Chart:
    """Make the chart. `labels` are the names of modes; the one `marked` has a ring; `rests_on` says how much was
    measured."""
    is_marked = np.array([name == marked for name in cloud.names], dtype=np.bool_)
    texts = [labels.get(name, name) for name in cloud.names]
    marks: list[ChartMark] = [
        *([Band(_FLOOR, 0.045, "good")] if QUALITIES[quality].has_none else []),
        Curve(*steps_of(cloud), "selected", 1.3),
        _dots(cloud, cloud.is_lossless, "good", "panel"),
        _dots(cloud, ~cloud.is_lossless, "accent", "accent"),
        Painted(PointNames(cloud.x, cloud.y, texts, cloud.front, np.flatnonzero(is_marked).tolist()).paint),
    ]
    marks.append(Dots(cloud.x[is_marked], cloud.y[is_marked], "text", size=_RING))
    low, high = (float(cloud.x.min()), float(cloud.x.max())) if len(cloud.x) else (0.0, 1.0)
    return Chart(
        tuple(marks),
        np.column_stack([cloud.x, cloud.y]),
        cloud.keys,
        ((low - _MARGIN, high + _MARGIN), (_FLOOR, 1.03)),
        ByteTicks(tick_size),
        cloud.scale,
        f"{QUALITIES[quality].title}, by KV bytes",
        f"— best for its bytes, over {rests_on}",
        reach=9.0,
        can_zoom_y=True,
    )


def _dots(cloud: Cloud, which: np.ndarray, role: str, fill: str) -> Dots:
    return Dots(cloud.x[which], cloud.y[which], role, size=_DOT, fill=fill)


LIVE, PROMPT, GIVEN, RECALL = "all tokens", "prompt", "last tokens", "planted fact"
BESIDE = 28  # pixels of a box in addition to its text
SOURCES = (
    ("all tokens", LIVE, "All tokens so far, then those that the exact model chooses"),
    ("prompt", PROMPT, "The prompt, then the tokens that the exact model chooses"),
    ("last tokens", GIVEN, "All tokens but the last, then the last as they are: perplexity is of the text itself"),
    ("planted fact", RECALL, "A fact in the middle of all tokens, which is asked for at the end"),
    ("all of these", ",".join((LIVE, PROMPT, GIVEN, RECALL)), "One after the other"),
)
BUDGETS = (
    ("preset budgets", "", ""),
    ("budget ½", "0.5", ""),
    ("budget ¼", "0.25", ""),
    ("budget ⅛", "0.125", ""),
    ("½ · ¼ · ⅛", "0.5,0.25,0.125", "Every mode that evicts rows in three sizes"),
)
BUDGETS_TIP = (
    "Rows kept by the modes that evict rows: as their presets say (256), or a share of all tokens; "
    "with a share, KIVI's exact residual is one group"
)
CODECS = (
    ("own codecs", "", "Rows as each mode writes them"),
    ("× INT8", "exact,int8", "Exact modes once more with INT8 rows"),
    ("× K, V apart", "exact,int8,int8/kivi-2,kivi-2/int8", "Exact modes once more with K and V in codecs of their own"),
)
MEANING = (
    "Every mode is given the same tokens: those the exact model chooses greedily, the last ones of the text itself, or "
    "a fact that was planted in it. KL and top-1 compare each step with the model without a cache. Perplexity is of "
    "those very tokens, so that of greedy ones it says how sure a mode is of what the exact model says, not of a text "
    "that people wrote. Told: the part of the fact's tokens that come out."
)
PPL: Mapping[TextKind, str] = {
    "greedy": "ppl is of tokens that the exact model chose",
    "given": "ppl is of the text's own last tokens",
    "recall": "a fact was planted and asked for: recall is the part that comes out",
}


def _mode_tip(spec: CacheSpec) -> str:
    return "\n".join(part for part in (cache_summary(spec), ", ".join(size_words(spec))) if part)


def _perplexity(value: float) -> str:
    return brief(value, 2) if value >= 1e5 else decimal(value, 2 if value < 1e3 else 0)


def _kl(row: SweepRow) -> str:
    return "0" if row.mean_kl < LEAST_KL else brief(row.mean_kl)


def _loss(row: SweepRow, rows: Sequence[SweepOutcome]) -> TableCell:
    """A tick for a lossless mode, a dash for a lossy one, or (✓) if it lost nothing because its budget or residual
    holds every token."""
    if row.lossless:
        return TableCell("✓", "good", "lossless")
    of_text = (each for each in rows if isinstance(each, SweepRow) and each.text == row.text)
    exact = next((other for other in of_text if other.cache == "growing"), None)
    if exact is not None and row.kv_bytes == exact.kv_bytes and row.mean_kl < LEAST_KL:
        return TableCell("(✓)", "muted", "lossy, but nothing is lost yet: it holds every token exactly")
    return TableCell("–", "muted", "lossy")


COLUMNS = (
    Column("kv_bytes", ColumnHead("KV", "Bytes of K and V stored at the end"),
           lambda row, _: TableCell(byte_size(row.kv_bytes), tip=counted(row.kv_bytes, "byte")) if row.kv_bytes
           else TableCell("–", tip="It keeps nothing.")),
    Column("tok_per_s", ColumnHead("tok/s", "Decode steps a second, nothing observed"),
           lambda row, _: TableCell(decimal(row.tok_per_s, 0)), downwards=True),
    Column("mean_kl", ColumnHead("mean KL", "Nats, against the model without a cache, mean of all steps"),
           lambda row, _: TableCell(_kl(row))),
    Column("top1_agreement", ColumnHead("top-1", "Steps whose most probable token is the same"),
           lambda row, _: TableCell(percent(row.top1_agreement)), downwards=True),
    Column("perplexity", ColumnHead("ppl", MEANING), lambda row, _: TableCell(_perplexity(row.perplexity))),
    Column("lossless", ColumnHead("exact", "Whether it hands attention exactly what was computed"), _loss),
    Column("recall", ColumnHead("recall", "The part of a planted fact that comes out"),
           lambda row, _: TableCell("–" if row.recall is None else percent(row.recall)), downwards=True),
    Column("text", ColumnHead("text", "The text that the mode was given", is_words=True, most=90),
           lambda row, _: TableCell(row.text, "muted")),
)  # fmt: skip
_OF_TEXTS = 2  # the last columns, which distinguish several texts


class SweepView(RowsView):
    """Measures every preset, and the mode in use, on the tokens of the selected sequence. A sweep that was stopped
    continues where it stopped."""

    name, measures = "sweep", "sweep"
    button_words, button_name = "Measure all", "Measure every cache mode"
    columns, others, file_name = COLUMNS, OTHERS, "sweep.csv"
    key_of = staticmethod(key_of)
    table_name, plot_name = "Cache modes side by side", "Bytes against damage of every cache mode"
    choices = (
        (TABLE, "table", "Every mode in numbers; a heading sorts"),
        (PLOT, "plot", "Bytes against damage, both logarithmic"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.source = SmallBox(
            "Texts", "Which tokens of the selected sequence every mode is given, and which follow", SOURCES
        )
        self.budgets = SmallBox("Budgets", BUDGETS_TIP, BUDGETS)
        self.codecs = SmallBox("Codecs", "How the modes that keep exact rows write K and V", CODECS)
        qualities = [(each.label, each.name, each.tip) for each in QUALITIES.values()]
        self.quality = SmallBox("Damage", "What the plot sets against bytes", qualities)
        self.steps = small_steps(24, "How many tokens follow; a planted fact has as many as it has")
        self.budgets.setCurrentIndex(2)
        self.boxes = (self.source, self.budgets, self.codecs, self.quality)
        for box in self.boxes:
            box.let_shrink(1)
        self._top = row(self.source, self.steps, self.budgets, self.codecs, None, self.quality, spacing=2)
        self.build(self._top, MEANING)
        on_change(self._share_room, *self.boxes)
        self._share_room()
        self.follow(models)

    def _share_room(self) -> None:
        """Give each box width according to its present text, and before any free space, so that a narrow panel cuts
        least."""
        for box in self.boxes:
            self._top.setStretchFactor(box, box.fontMetrics().horizontalAdvance(box.currentText()) + BESIDE)

    # ---- intents -------------------------------------------------------------------------------------------------

    def request(self) -> Sweep:
        """The question: every mode on the chosen texts; rows that a stopped sweep of the same has measured are left
        out."""
        request = self._whole_request()
        swept = self.measurement.answers
        if not swept or swept[-1].is_last:
            return request
        before = swept[0].request
        if (before.texts, before.num_steps, before.modes) != (request.texts, request.num_steps, request.modes):
            return request
        return replace(request, done=tuple((each.row.cache, each.row.text) for each in swept))

    def texts(self) -> tuple[SweepText, ...]:
        """The chosen texts, made of the tokens of the selected sequence."""
        tokens = self._models.timeline.tokens(self._models.selection.now.seq_id)
        ids = tuple(token.token_id for token in tokens)
        prompt = tuple(token.token_id for token in tokens if token.is_prompt)
        room = max(1, self._most_tokens())
        every = {
            LIVE: SweepText(LIVE, Prompt(token_ids=ids[:room])),
            PROMPT: SweepText(PROMPT, Prompt(token_ids=prompt[:room])),
            GIVEN: SweepText(GIVEN, Prompt(token_ids=ids), "given"),
            RECALL: SweepText(RECALL, Prompt(token_ids=ids), "recall"),
        }
        return tuple(every[name] for name in self.source.currentData().split(","))

    def _grid(self) -> tuple[SweepMode, ...]:
        """Modes × budgets × codecs; with a single budget each mode keeps its plain name."""
        shares = [float(part) for part in self.budgets.currentData().split(",") if part]
        codecs = [parse_codec(part) for part in self.codecs.currentData().split(",") if part]
        found = grid(
            self.with_mode_in_use({name: preset.spec for name, preset in PRESETS.items()}),
            shares or (None,),
            codecs or (None,),
        )
        if len(shares) > 1:
            return found
        return tuple(replace(mode, name=mode.name.rpartition("@")[0] or mode.name) for mode in found)

    # ---- showing -------------------------------------------------------------------------------------------------

    def _whole_request(self) -> Sweep:
        return Sweep(self.texts(), self.steps.value(), self._grid())

    @property
    def _asked(self) -> Sweep:
        """The question of the sweep shown; before there is one, the one that would be asked."""
        answers = self.measurement.answers
        request: Sweep = answers[0].request if answers else self._whole_request()
        return request

    def num_wanted(self, request: Sweep) -> int:
        return request.num_rows

    def _most_tokens(self) -> int:
        model = self._models.status.now.model
        return context_length(model.geometry) - self.steps.value() if model is not None else MOST_STEPS

    def problem(self) -> str:
        if self._models.status.now.model is None:
            return "A model is needed first."
        if not self._models.timeline.num_tokens(self._models.selection.now.seq_id):
            return "Send a prompt first: every cache mode is measured on its tokens."
        return ""

    def names(self) -> dict[str, ModeName]:
        """With the sizes that modes had for the first text."""
        request = self._asked
        first = next((each for each in self.rows() if isinstance(each, SweepRow)), None)
        ids = request.texts[0].prompt.token_ids or ()
        num_tokens = len(ids) + request.num_steps if first is None else first.num_prompt_tokens + first.num_steps
        return {mode.name: ModeName(mode.label, _mode_tip(mode.fitted(num_tokens))) for mode in request.modes}

    def shown_columns(self) -> tuple[Column, ...]:
        texts = self._asked.texts
        return COLUMNS if len(texts) > 1 or texts[0].kind == "recall" else COLUMNS[:-_OF_TEXTS]

    def waiting(self, state: ShownRows) -> list[list[TableCell]]:
        """The rows of modes that were not measured yet, with their descriptions."""
        if state.rows and not state.is_waiting:
            return []
        request, has_texts = self._asked, len(self.shown_columns()) == len(COLUMNS)
        done = {key_of(row) for row in state.rows}
        missing = [(m, t.name) for t in request.texts for m in request.modes if f"{m.name} on {t.name}" not in done]
        return [
            self.row_of_words(TableCell(mode.label, "muted", waits), f"{text}: {waits}" if has_texts else waits, waits)
            for mode, text in missing
            for waits in (cache_summary(mode.cache),)
        ]

    def chart(self, state: ShownRows, marked: SweepOutcome | None, labels: Mapping[str, str]) -> Chart:
        """The plot for the text of the marked row, or of the first row."""
        text = marked.text if marked is not None else state.rows[0].text
        quality = self.quality.currentData()
        cloud = cloud_of(state.rows, text, quality)
        source = rests_on(state.answers, text) + self._whose(state.answers)
        if len(state.answers[0].request.texts) > 1:
            source += f" · {text}"
        return sweep_chart(cloud, quality, labels, marked.cache if marked is not None else "", source)

    def point_words(self, row: SweepRow, label: str) -> str:
        recall = "" if row.recall is None else f" · recall {percent(row.recall)}"
        ppl = f" · ppl {decimal(row.perplexity)}" if row.kind == "given" else ""
        return f"{label} · {byte_size(row.kv_bytes)} · KL {_kl(row)} · top-1 {percent(row.top1_agreement)}{recall}{ppl}"

    def rests_on(self, swept: Sequence[Swept]) -> str:
        return rests_on(swept) + self._whose(swept)

    def provenance(self, state: ShownRows) -> Provenance | None:
        """Measured; and if that was on other tokens than the present ones, on which."""
        source = super().provenance(state)
        if source is None or not (whose := self._whose(state.answers)):
            return source
        return replace(source, words=f"{source.words}{whose}", kind="past", brief=whose.removeprefix(", "))

    def _whose(self, swept: Sequence[Swept]) -> str:
        """`, of another prompt or branch`, unless the selected sequence begins with what was measured."""
        request = swept[0].request
        tokens = self._models.timeline.tokens(self._models.selection.now.seq_id)
        for text in request.texts:
            ids = text.prompt.token_ids or ()
            if ids != tuple(token.token_id for token in tokens[: len(ids)]):
                return ", of another prompt or branch"
        return ""

    def words_below(self, swept: tuple[Swept, ...], has_plot: bool) -> str:
        if not swept and not self.measurement.is_waiting:
            return self._invitation()
        if swept and not swept[-1].is_last and not self.measurement.is_waiting:
            return (
                f"stopped after {len(swept)} of {swept[0].request.num_rows}: asked for the same, it goes on from there"
            )
        if not swept or has_plot:  # the plot shows by itself how much was measured
            return ppl_words(swept)
        return f"over {rests_on(swept)}; {ppl_words(swept)}"  # the title says whose tokens

    def _invitation(self) -> str:
        texts, modes = self.texts(), self._grid()
        count = len(texts[0].prompt.token_ids or ())
        held = self._models.timeline.num_tokens(self._models.selection.now.seq_id)
        first = "the first " if count == self._most_tokens() < held else ""
        several = f"{counted(len(texts), 'text')} × " if len(texts) > 1 else ""
        return f"from {first}{counted(count, 'token')}, {several}{counted(len(modes), 'mode')}: measure them all"


def rests_on(swept: Sequence[Swept], text: str | None = None) -> str:
    """How much was measured, of one text or of all: the best mode after a few tokens may not be the best after many."""
    rows = [s.row for s in swept if isinstance(s.row, SweepRow) and text in (None, s.row.text)]
    if not rows:
        return ""
    if text is None and len({row.text for row in rows}) > 1:
        return counted(len(swept[0].request.texts), "text")
    row = rows[0]
    return f"{counted(row.num_steps, 'step')} after {counted(row.num_prompt_tokens, 'token')}"


def ppl_words(swept: Sequence[Swept]) -> str:
    """Which tokens the perplexity is about."""
    kinds: tuple[TextKind, ...] = tuple(text.kind for text in swept[0].request.texts) if swept else ("greedy",)
    return "; ".join(dict.fromkeys(PPL[kind] for kind in kinds))
