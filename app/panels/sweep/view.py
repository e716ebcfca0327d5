"""The Sweep panel: cache modes × budgets × codecs on the same texts, with bytes, speed and damage of each."""

from __future__ import annotations

from msgspec.structs import replace

from app.draw.format import counted
from app.kit.boxes import row
from app.kit.changes import on_change
from app.kit.fields import SmallBox, small_steps
from app.kit.provenance import Provenance
from app.kit.rows_view import PLOT, TABLE, RowsView, ShownRows
from app.models import Models
from app.panels.sweep import draw, words
from app.panels.sweep.chart import sweep_chart
from app.panels.sweep.draw import SweepOutcome
from engine.predict.capacity import context_length
from engine.spec.cache import CacheSpec
from engine.spec.codec_names import parse_codec
from engine.spec.grid import SweepMode, grid
from engine.spec.presets import PRESETS, cache_name
from engine.spec.sampling import Prompt
from engine.spec.texts import SweepText
from engine.wire.measurements import SweepRow, Swept
from engine.wire.measuring import Sweep

LIVE, PROMPT, GIVEN, RECALL = "all tokens", "prompt", "last tokens", "planted fact"
MAX_STEPS = 512
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
    ("½ · ¼ · ⅛", "0.5,0.25,0.125", "Every mode that drops rows in three sizes"),
)
BUDGETS_TIP = (
    "Rows kept by the modes that drop rows: as their presets say (256), or a share of all tokens; "
    "with a share, KIVI's exact residual is one group"
)
CODECS = (
    ("own codecs", "", "Rows as each mode writes them"),
    ("× INT8", "exact,int8", "Exact modes once more with INT8 rows"),
    ("× K, V apart", "exact,int8,int8/kivi-2,kivi-2/int8", "Exact modes once more with K and V in codecs of their own"),
)
QUALITIES = (
    ("KL", "kl", "KL of the next token against the model without a cache"),
    ("top-1", "disagreement", "Steps whose most probable token is another"),
    ("perplexity", "perplexity", "Perplexity of the tokens that followed"),
    ("forgotten", "forgotten", "The part of a planted fact that does not come out"),
)


class SweepView(RowsView):
    """Measures every preset, and the mode in use, on the tokens of the selected sequence. A sweep that was stopped
    continues where it stopped."""

    title, measures = "Sweep", "sweep"
    button_words, button_name = "Measure all", "Measure every cache mode"
    columns, descending, file_name = (*draw.COLUMNS, *draw.OTHERS), (2, 4, 7), "sweep.csv"
    table_name, plot_name = "Cache modes side by side", "Bytes against damage of every cache mode"
    choices = (
        (TABLE, "table", "Every mode in numbers; a heading sorts"),
        (PLOT, "plot", "Bytes against damage, both logarithmic"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._source = SmallBox(
            "Texts", "Which tokens of the selected sequence every mode is given, and which follow", SOURCES
        )
        self._budgets = SmallBox("Budgets", BUDGETS_TIP, BUDGETS)
        self._codecs = SmallBox("Codecs", "How the modes that keep exact rows write K and V", CODECS)
        self.quality = SmallBox("Damage", "What the plot sets against bytes", QUALITIES)
        self.steps = small_steps(24, MAX_STEPS, "How many tokens follow; a planted fact has as many as it has")
        self._build()
        self.follow(models)

    def _build(self) -> None:
        self._budgets.setCurrentIndex(2)
        self._boxes = (self._source, self._budgets, self._codecs, self.quality)
        for box in self._boxes:
            box.let_shrink(1)
        self._top = row(self._source, self.steps, self._budgets, self._codecs, None, self.quality, spacing=3)
        self.build(self._top, words.MEANING)
        self.steps.lineEdit().returnPressed.connect(self.ask)
        on_change(self.refresh, self.steps, *self._boxes)
        on_change(self._share_room, *self._boxes)
        self._share_room()

    def _share_room(self) -> None:
        """Give each box width according to its present text, and before any free space, so that a narrow panel cuts
        least."""
        for box in self._boxes:
            self._top.setStretchFactor(box, box.fontMetrics().horizontalAdvance(box.currentText()) + BESIDE)

    # ---- intents -------------------------------------------------------------------------------------------------

    def request(self) -> Sweep:
        """The question: every mode on the chosen texts; rows that a stopped sweep of the same has measured are left
        out."""
        request = Sweep(self.texts(), self.steps.value(), self._grid())
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
        return tuple(every[name] for name in self._source.currentData().split(","))

    def _grid(self) -> tuple[SweepMode, ...]:
        """Modes × budgets × codecs; with a single budget each mode keeps its plain name."""
        shares = [float(part) for part in self._budgets.currentData().split(",") if part]
        codecs = [parse_codec(part) for part in self._codecs.currentData().split(",") if part]
        found = grid(self._modes(), shares or (None,), codecs or (None,))
        if len(shares) > 1:
            return found
        return tuple(replace(mode, name=mode.name.rpartition("@")[0] or mode.name) for mode in found)

    # ---- showing -------------------------------------------------------------------------------------------------

    def key_of(self, row: SweepOutcome) -> str:
        return draw.key_of(row)

    def chosen(self) -> tuple[object, ...]:
        return (*(box.currentData() for box in self._boxes), self.steps.value())

    def _most_tokens(self) -> int:
        model = self._models.status.model
        return context_length(model.geometry) - self.steps.value() if model is not None else MAX_STEPS

    def problem(self) -> str:
        if self._models.status.model is None:
            return "A model is needed first."
        if not self._models.timeline.num_tokens(self._models.selection.now.seq_id):
            return "Send a prompt first: every cache mode is measured on its tokens."
        return ""

    def provenance(self, state: ShownRows) -> Provenance | None:
        sentence = words.source_words(state.answers, state.is_waiting)
        return Provenance("measured", "recomputed", sentence) if state.answers else None

    def show_rows(self, state: ShownRows) -> None:
        request = state.answers[0].request if state.answers else Sweep(self.texts(), self.steps.value(), self._grid())
        has_texts = len(request.texts) > 1 or request.texts[0].kind == "recall"
        labels = {mode.name: words.label_of(mode) for mode in request.modes}
        specs = self._fitted(request, state.rows)
        cells = [
            words.cells(each, labels[each.cache], specs[each.cache], state.answers, state.marked, has_texts)
            for each in self.sorted_rows()
        ]
        waiting = words.waiting_cells(request, state.rows, has_texts) if not cells or state.is_waiting else []
        self.table.show_cells(words.heads(state.sort, has_texts), cells + waiting)
        if state.has_plot:
            self._show_plot(state, labels)

    def _show_plot(self, state: ShownRows, labels: dict[str, str]) -> None:
        """Show the plot for the text of the marked row, or of the first row."""
        found = next((each for each in state.rows if self.key_of(each) == state.mark), None)
        text = found.text if found is not None else state.rows[0].text
        cloud = draw.cloud(state.rows, text, self.quality.currentData())
        self.point_keys = tuple(f"{name} on {text}" for name in cloud.names)
        rests_on = words.rests_on(state.answers, text)
        if len(state.answers[0].request.texts) > 1:
            rests_on += f" · {text}"
        marked = found.cache if found is not None else ""
        self.plot.show_chart(sweep_chart(cloud, self.quality.currentData(), labels, marked, rests_on))
        self.plot.show_words(words.point_words(found, labels[found.cache]) if found is not None else "")

    @staticmethod
    def _fitted(request: Sweep, rows: tuple[SweepOutcome, ...]) -> dict[str, CacheSpec]:
        """The modes with the sizes they had for the first text."""
        first = next((each for each in rows if isinstance(each, SweepRow)), None)
        ids = request.texts[0].prompt.token_ids or ()
        num_tokens = len(ids) + request.num_steps if first is None else first.num_prompt_tokens + first.num_steps
        return {mode.name: mode.fitted(num_tokens) for mode in request.modes}

    def _modes(self) -> dict[str, CacheSpec]:
        """The modes of a sweep: every preset, and the mode in use under its own name if it is no preset."""
        modes = {name: preset.spec for name, preset in PRESETS.items()}
        status = self._models.status.now
        if status is not None:
            modes.setdefault(cache_name(status.cache), status.cache)
        return modes

    def words_below(self, swept: tuple[Swept, ...], has_plot: bool) -> str:
        if not swept and not self.measurement.is_waiting:
            return self._invitation()
        if swept and not swept[-1].is_last and not self.measurement.is_waiting:
            return (
                f"stopped after {len(swept)} of {swept[0].request.num_rows}: asked for the same, it goes on from there"
            )
        if not swept or has_plot:  # the plot shows by itself how much was measured
            return words.ppl_words(swept)
        return f"over {words.rests_on(swept)}; {words.ppl_words(swept)}"

    def _invitation(self) -> str:
        texts, modes = self.texts(), self._grid()
        count = len(texts[0].prompt.token_ids or ())
        held = self._models.timeline.num_tokens(self._models.selection.now.seq_id)
        first = "the first " if count == self._most_tokens() < held else ""
        several = f"{counted(len(texts), 'text')} × " if len(texts) > 1 else ""
        return f"from {first}{counted(count, 'token')}, {several}{counted(len(modes), 'mode')}: measure them all"
