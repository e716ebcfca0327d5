"""Every cache mode on the same tokens: what each holds, how fast it is, and what it changes."""

from __future__ import annotations

from PySide6.QtWidgets import QComboBox, QSpinBox, QWidget

from app.draw.format import thousands
from app.kit.boxes import row
from app.kit.changes import on_change
from app.kit.provenance import Provenance
from app.kit.rows_view import PLOT, TABLE, RowsView, ShownRows
from app.kit.small_box import SmallBox
from app.kit.theme import font_text
from app.kit.units import inset
from app.models import Models
from app.panels.sweep import draw, words
from app.panels.sweep.chart import sweep_chart
from app.panels.sweep.draw import Row
from engine.predict.capacity import context_length
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS, cache_name
from engine.spec.sampling import Prompt
from engine.spec.tuning import fitted
from engine.wire.commands import Sweep
from engine.wire.measurements import Swept

LIVE, PROMPT = "live", "prompt"
MAX_STEPS = 512
BUDGETS = (("preset budgets", None, ""), ("budget ½", 0.5, ""), ("budget ¼", 0.25, ""), ("budget ⅛", 0.125, ""))
BUDGETS_TIP = (
    "Rows kept by the modes that drop rows: as their presets say (256), or a share of all tokens; "
    "with a share, KIVI's exact residual is one group"
)


class SweepView(RowsView):
    """Every preset, and the cache in use, on the tokens of the selected sequence."""

    title, measures = "Sweep", "sweep"
    abilities = frozenset(("view.reset",))
    button_words, button_name = "Measure all", "Measure every cache mode"
    columns, descending, file_name = (*draw.COLUMNS, "max_abs_logit_diff"), (2, 4), "sweep.csv"
    table_name, plot_name = "Cache modes side by side", "Bytes against KL of every cache mode"
    choices = (
        (TABLE, "table", "Every mode in numbers; a heading sorts"),
        (PLOT, "plot", "Bytes against KL, both logarithmic"),
    )

    def __init__(self, models: Models, parent: QWidget | None = None) -> None:
        super().__init__(models, parent)
        self._cloud_of: tuple[Swept, ...] = ()
        self._cloud = draw.cloud(())
        self._source = SmallBox(
            "Tokens to start from",
            "Which tokens of the selected sequence every mode is given first",
            (("all tokens", LIVE, ""), ("prompt", PROMPT, "")),
        )
        self._budgets = SmallBox("Budgets", BUDGETS_TIP, BUDGETS)
        self.steps = QSpinBox()
        self._build()
        self.follow(models)

    def _build(self) -> None:
        self.steps.setRange(2, MAX_STEPS)
        self.steps.setValue(24)
        self.steps.setAccessibleName("Steps")
        self.steps.setToolTip("How many tokens follow: those that the exact model chooses")
        self.steps.setObjectName("small")
        self.steps.setFont(font_text(11.5))
        self.steps.setFixedHeight(20)
        self._budgets.setCurrentIndex(2)
        inset(self.steps, "steps")
        self._source.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.build(row(self._source, self.steps, self._budgets, None), words.MEANING)
        self.steps.lineEdit().returnPressed.connect(self.ask)
        on_change(self.refresh, self._source, self.steps)

    # ---- intents -------------------------------------------------------------------------------------------------

    def request(self) -> Sweep:
        """Every mode on the chosen tokens."""
        ids, steps, share = self.token_ids(), self.steps.value(), self._budgets.currentData()
        caches = tuple((name, fitted(spec, len(ids) + steps, share)) for name, spec in self._modes().items())
        return Sweep(Prompt(token_ids=ids), steps, caches)

    # ---- showing -------------------------------------------------------------------------------------------------

    def key_of(self, row: Row) -> str:
        return row.cache

    def token_ids(self) -> tuple[int, ...]:
        """The tokens to start from: all that are in the cache of the selected sequence, or its prompt; as many of them
        as leave the steps room in the model's context."""
        tokens = self._models.timeline.tokens(self._models.selection.now.seq_id)
        if self._source.currentData() == PROMPT:
            tokens = tuple(token for token in tokens if token.is_prompt)
        return tuple(token.token_id for token in tokens[: max(1, self._most_tokens())])

    def _most_tokens(self) -> int:
        status = self._models.status.now
        model = status.model if status is not None else None
        return context_length(model.geometry) - self.steps.value() if model is not None else MAX_STEPS

    def problem(self) -> str:
        status = self._models.status.now
        if status is None or status.model is None:
            return "A model is needed first."
        if not self._models.timeline.num_tokens(self._models.selection.now.seq_id):
            return "Send a prompt first: every cache mode is measured on its tokens."
        return ""

    def provenance(self, state: ShownRows) -> Provenance | None:
        sentence = words.source_words(state.answers, state.is_waiting)
        return Provenance("measured", "recomputed", sentence) if state.answers else None

    def show_rows(self, state: ShownRows) -> None:
        swept, modes = state.answers, self._swept_modes()
        cells = [words.cells(each, modes[each.cache], swept, state.marked) for each in self.sorted_rows()]
        waiting = words.waiting_cells(modes, state.rows) if not swept or state.is_waiting else []
        self.table.show_cells(words.heads(state.sort), cells + waiting)
        if not state.has_plot:
            return
        if swept is not self._cloud_of:
            self._cloud_of, self._cloud = swept, draw.cloud(state.rows)
            self.point_keys = self._cloud.names
        self.plot.show_chart(sweep_chart(self._cloud, words.labels(modes), state.mark, words.rests_on(swept)))
        found = next((each for each in state.rows if each.cache == state.mark), None)
        self.plot.show_words(words.point_words(found, modes[state.mark]) if found is not None else "")

    def _modes(self) -> dict[str, CacheSpec]:
        """What a sweep tries: every preset, and the cache in use under its own name where no preset has it."""
        modes = {name: preset.spec for name, preset in PRESETS.items()}
        status = self._models.status.now
        if status is not None:
            modes.setdefault(cache_name(status.cache), status.cache)
        return modes

    def _swept_modes(self) -> dict[str, CacheSpec]:
        """The modes of the sweep that is shown, as they were sized; before one, those that it will try."""
        swept = self.measurement.answers
        return dict(swept[0].request.caches) if swept else self._modes()

    def words_below(self, swept: tuple[Swept, ...], has_plot: bool) -> str:
        count = len(self.token_ids())
        if not swept and not self.measurement.is_waiting:
            held = self._models.timeline.num_tokens(self._models.selection.now.seq_id)
            first = "the first " if count == self._most_tokens() < held else ""
            return f"from {first}{thousands(count)} tokens, {len(self._modes())} modes: measure them all"
        if not swept or has_plot:  # the plot says itself how much it rests on
            return words.PPL
        return f"over {words.rests_on(swept)}; {words.PPL}"
