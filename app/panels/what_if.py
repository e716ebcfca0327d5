"""The What if panel: the next token as another cache mode would predict it, updated while a slider moves. The live
cache is not changed."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QFont, QHideEvent, QResizeEvent
from PySide6.QtWidgets import QWidget

from app.draw.format import (
    brief,
    byte_share,
    bytes_words,
    divergence_words,
    exact,
    milliseconds,
    percent,
    probable,
    token_text,
)  # fmt: skip
from app.kit.asking import MeasuringView, why_nothing
from app.kit.bars import Bar, BarRow, BarRows, BarTable
from app.kit.facts import FactBar, Reading
from app.kit.fields import CodecChoice, Knob, SmallBox
from app.kit.provenance import Provenance
from app.kit.theme import font_text
from app.kit.widgets import (
    ElidedLabel,
    column,
    connect_all,
    holder,
    on_change,
    plain_label,
    push_button,
    row,
    set_text_role,
    stack,
)
from app.models import Models
from app.models.measurement import MeasurementState
from app.models.places import geometry_of
from engine.counted import counted
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.spec.cache import CacheSpec, fitted, mode_words, rule_spec, tuned
from engine.spec.codec import BITS, CODEC_PARAMETERS, DEFAULT_GROUP, GROUP, GROUPS, RESIDUAL, fitting_group
from engine.spec.parameter import Parameter
from engine.spec.retention import BUDGET, RATIO, RECENT, RULES, SINKS, RetentionSpec, RuleRow
from engine.wire.commands import SetCache
from engine.wire.measurements import Shift, WhatIf, WhatIfAnswer

ALL_ROWS, EXACT, KIVI = "all", "exact", "kivi"
SHARE = 0.5  # fraction of the rows that is kept, until the user sets a size
SIZES = ("budget", "sinks", "window")


class WhatIfKnobs(QWidget):
    """Signal: `moved()`, the user changed something. `spec()` is the cache to try."""

    moved = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._num_rows = 0
        self._by_ratio = False
        self.rule = self._rules()
        self.codec = CodecChoice(22)
        self.knobs = {
            parameter.name: Knob(parameter.name, parameter.tip, 2 if parameter.kind == "share" else 0)
            for parameter in (BUDGET, RATIO, SINKS, RECENT, *CODEC_PARAMETERS)
        }
        column(self.rule, 1, self.codec, 2, *self.knobs.values(), None, spacing=2, on=self)
        for name in ("budget", "ratio"):
            self.knobs[name].renamed.connect(self._on_renamed)
        for knob in self.knobs.values():
            knob.moved.connect(self.moved)
        self.rule.choose("streamingllm")
        on_change(self._on_rule, self.rule)
        on_change(self._on_codec, self.codec)
        self.knobs["bits"].set_stops((2, 4, 8), 1, BITS.most)
        self.knobs["bits"].set_value(4)
        self.knobs["group"].set_stops(GROUPS, 1, GROUP.most)
        self.knobs["group"].set_value(DEFAULT_GROUP)
        self._size()
        self.knobs["residual"].set_value(DEFAULT_GROUP)
        self._show_rows()

    def _rules(self) -> SmallBox:
        options = [("keep all rows", ALL_ROWS, ""), *((rule.label, rule.name, _tip(rule)) for rule in RULES.values())]
        return SmallBox("Eviction rule", options=options, height=22, characters=8)

    # ---- the chosen cache ----------------------------------------------------------------------------------------

    @property
    def is_identity(self) -> bool:
        """Whether the choice would change nothing."""
        return self._rule == ALL_ROWS and self.codec.keys == self.codec.values == EXACT

    @property
    def _rule(self) -> str:
        return str(self.rule.currentData())

    @property
    def _retention(self) -> RetentionSpec:
        """The chosen rule with its default parameters."""
        return rule_spec(RULES[self._rule]) if self._rule in RULES else RetentionSpec()

    @property
    def _parameters(self) -> dict[str, Parameter]:
        """The parameters of the chosen rule, by name."""
        return {p.name: p for p in RULES[self._rule].parameters} if self._rule in RULES else {}

    @property
    def _takes_ratio(self) -> bool:
        """Whether a ratio can replace the budget; a pyramid schedule distributes a budget."""
        return "ratio" in self._parameters and self._retention.schedule == "uniform"

    def spec(self) -> CacheSpec:
        """The cache to try. Raises `InputError` if the numbers are impossible."""
        knobs, shown = self.knobs, self._shown()
        codec = self.codec.spec(knobs["bits"].number, knobs["group"].number, knobs["residual"].number)
        sizes: dict[str, int | float] = {}
        for name in SIZES:
            if name in shown and knobs[name].number >= 0:
                sizes[name] = knobs[name].number
        if "ratio" in shown:
            sizes["ratio"] = knobs["ratio"].value
        return tuned(CacheSpec(retention=self._retention, codec=codec), **sizes)

    def choose(self, rule: str, codec: str, values: str = "") -> None:
        """Choose another rule and codec."""
        self.rule.setCurrentIndex(self.rule.findData(rule))
        self.codec.choose(codec, values)

    # ---- fitting to the sequence and the model -------------------------------------------------------------------

    def set_num_rows(self, num_rows: int) -> None:
        """Set how many rows there are: sizes that the user has not set keep half of them."""
        if num_rows == self._num_rows or num_rows < 1:
            return
        is_first, self._num_rows = not self._num_rows, num_rows
        self._size()
        if is_first:
            self._preset()
        self._follow()

    def set_geometry(self, geometry: CacheGeometry) -> None:
        """Set group and residual to a size that divides the head dimension of another model."""
        self.knobs["group"].set_value(fitting_group(geometry))
        self.knobs["residual"].set_value(fitting_group(geometry))

    def _size(self) -> None:
        rows = max(1, self._num_rows)
        scored = "budget" in self._parameters
        self.knobs["budget"].set_stops(range(1, rows + 1), 0, BUDGET.most)
        self.knobs["ratio"].set_stops([n / 100 for n in range(100)], 0, 1)
        self.knobs["sinks"].set_stops(range(min(rows, 32) + 1), 0, BUDGET.most)
        first = -1 if scored else 0
        self.knobs["window"].set_stops(range(first, rows + 1), first, BUDGET.most, "auto" if scored else "")
        step = max(1, min(self.knobs["group"].number, 128))
        self.knobs["residual"].set_stops(range(step, max(128, rows) + step, step), 1, RESIDUAL.most)

    def _preset(self) -> None:
        """Set the default parameters of the rule."""
        self.knobs["window"].was_moved = False
        self.knobs["sinks"].set_value(self._retention.sinks)
        self.knobs["ratio"].set_value(SHARE)

    def _follow(self) -> None:
        """Set budget and window to half of the rows, unless the user has set them."""
        retention = self._retention
        if retention.is_by_position:
            retention = replace(retention, sinks=self.knobs["sinks"].number if "sinks" in self._parameters else 0)
        half = fitted(CacheSpec(retention=retention), self._num_rows, SHARE).retention
        if not self.knobs["budget"].was_moved:
            self.knobs["budget"].set_value(half.budget or 1)
        if not self.knobs["window"].was_moved:
            self.knobs["window"].set_value(-1 if half.window is None else half.window)

    # ---- showing -------------------------------------------------------------------------------------------------

    def _shown(self) -> set[str]:
        shown = {*self._parameters, *self.codec.parameters}
        return shown - {"budget" if self._by_ratio and self._takes_ratio else "ratio"}

    def _show_rows(self) -> None:
        shown = self._shown()
        for name, knob in self.knobs.items():
            knob.setVisible(name in shown)
        for name, parameter in self._parameters.items():
            if name in self.knobs:
                can_rename = self._takes_ratio and name in ("budget", "ratio")
                swap = "\nclick the name for the other one" if can_rename else ""
                self.knobs[name].name(name, parameter.tip + swap, can_rename=can_rename)

    def _on_renamed(self) -> None:
        if self._takes_ratio:
            self._by_ratio = not self._by_ratio
            self._show_rows()
            self.moved.emit()

    def _on_rule(self) -> None:
        self._size()
        self._preset()
        self._follow()
        if self._rule != ALL_ROWS and self._has_kivi:  # they exclude each other: the latest choice counts
            self.codec.choose(EXACT)
        self._show_rows()
        self.moved.emit()

    def _on_codec(self) -> None:
        if self._has_kivi and self._rule != ALL_ROWS:
            self.rule.choose(ALL_ROWS)
        self._show_rows()
        self.moved.emit()

    @property
    def _has_kivi(self) -> bool:
        return KIVI in (self.codec.keys, self.codec.values)


def _tip(rule: RuleRow) -> str:
    return f"{rule.summary}\n{rule.formula}\n{rule.paper}"


# ---- the panel -------------------------------------------------------------------------------------------------------


MOST_ROWS = 12


def shift_table(answer: WhatIfAnswer, tried: str, room: int, *, is_faded: bool) -> BarTable:
    """The top candidates, as many as fit. `tried` names the other cache; `is_faded`: the answer is to an older question
    than the newest."""
    after = f"after · {tried}" if tried else "after"
    rows = tuple(_row(shift, is_faded) for shift in highest(answer, min(room, MOST_ROWS)))
    return BarTable(("", "before", after, "rank"), rows)


def _row(shift: Shift, is_faded: bool) -> BarRow:
    """Ranks count from 1: `2`, or `2 → 1` if the rank changed."""
    text, before, after = token_text(shift.text), probable(shift.prob_before), probable(shift.prob_after)
    old, new = shift.rank_before + 1, shift.rank_after + 1
    is_new_top = new == 1 and old != new
    tip = (
        f"{text}  id {shift.token_id}",
        f"before: probability {exact(before)}, rank {old}",
        f"after: probability {exact(after)}, rank {new}",
    )
    bars = (
        Bar(before, percent(shift.prob_before), "page_used"),
        Bar(after, percent(shift.prob_after), "selected" if is_new_top else "accent", is_faded),
    )
    end = f"{old} → {new}" if old != new else str(new)
    role = "muted" if old == new else "selected" if is_new_top else "text"
    return BarRow(text, bars, "\n".join(tip), end=end, end_role=role, is_bold=1 in (old, new))


def highest(answer: WhatIfAnswer, most: int) -> list[Shift]:
    """The tokens that rank highest before or after, in their order before; the new top token is always among them."""
    best = sorted(answer.shifts, key=lambda shift: (min(shift.rank_before, shift.rank_after), shift.rank_before))
    return sorted(best[: max(0, most)], key=lambda shift: (shift.rank_before, shift.rank_after))


def winners(answer: WhatIfAnswer) -> tuple[str, str]:
    """The most probable token before and after, as shown; empty if none is listed."""
    before = min(answer.shifts, key=lambda shift: shift.rank_before, default=None)
    after = min(answer.shifts, key=lambda shift: shift.rank_after, default=None)
    return (token_text(before.text) if before is not None else "", token_text(after.text) if after is not None else "")


def numbers(answer: WhatIfAnswer) -> tuple[Reading, ...]:
    """The divergence, the largest change of a logit, the rows kept and the bytes."""
    full, kept = answer.exact_bytes, answer.kv_bytes
    share = byte_share(full, kept)
    kl_tip = f"KL(before ‖ after) of the next token, in nats: {exact(answer.kl)}"
    largest_tip = f"The largest change of any logit: {exact(answer.max_abs_logit_diff)}"
    rows_tip = "Rows kept, in all layers and heads, of those before the newest token"
    bytes_tip = f"{counted(full, 'byte')} of exact rows → {counted(kept, 'byte')}, the newest token's own rows aside"
    return (
        Reading("KL divergence", "KL", divergence_words(answer.kl), kl_tip),
        Reading("max |Δ logit|", "max |Δ|", brief(answer.max_abs_logit_diff), largest_tip),
        Reading("rows kept", "rows", percent(answer.kept_ratio), rows_tip),
        Reading(f"K and V, {share} of exact", share, bytes_words(full, kept), bytes_tip),
    )


# Least ms between two questions while the engine runs, because each costs it two forwards.
RUNNING_MS = 1000
KNOBS_WIDTH, BARS_WIDTH = 204, 150  # at least

# What a question is about: the sequence, its newest step, and the cache to try.
Topic = tuple[int, int, CacheSpec]


class Tried(Struct, frozen=True):
    """An answer about the selected sequence, or None until it comes; `refusal`: why the choice has none. `is_other`: it
    answers an older question; `room`: how many candidates fit; `is_coded`: the live cache is quantised."""

    answer: WhatIfAnswer | None
    refusal: str
    is_other: bool
    room: int
    is_coded: bool


class WhatIfView(MeasuringView[Tried]):
    """At most one question is unanswered; a newer one is sent when the answer has come."""

    name, measures = "what_if", "what_if"
    reads_size = True

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._geometry: object = None
        self.knobs = WhatIfKnobs()
        self.verdict = ElidedLabel(font_text(12.5, QFont.Weight.DemiBold))
        self.bars = BarRows("Candidates before and after", least=15.0)
        self.facts = FactBar()
        self.foot = ElidedLabel(font_text(11), "muted")
        self.refusal = plain_label(role="warning", wraps=True)
        self.use = push_button("Use this cache", self._on_use)
        self._soon = QTimer(self, singleShot=True)
        self._build()
        connect_all(
            (self._soon.timeout, self._ask), (self.knobs.moved, self._on_moved), (self.bars.resized, self.refresh)
        )
        self.follow(models)

    # ---- construction --------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self.refusal.setMinimumSize(1, 1)
        self.refusal.setContentsMargins(0, 4, 0, 0)
        self.use.setToolTip("Make this the live cache: converted where that is possible, else re-prefilled")
        self.add_to_strip(self.use)
        results = holder(column(self.verdict, (self.bars, 1)))
        results.setMinimumWidth(BARS_WIDTH)
        refused = holder(column(self.refusal, None))
        self._sheets = stack(results, refused)
        self.set_body(column((row(self.knobs, (self._sheets, 1), spacing=16), 1), self.facts, self.foot, spacing=4))
        self._arrange()

    def _arrange(self) -> None:
        self.knobs.setFixedWidth(min(280, max(KNOBS_WIDTH, self.width() * 38 // 100)))

    # ---- intents -------------------------------------------------------------------------------------------------

    def _on_moved(self) -> None:
        self._ask()
        self.refresh()

    def _on_use(self) -> None:
        try:
            self.wants.emit(SetCache(self.knobs.spec()))
        except InputError:
            self.refresh()

    # ---- what changes --------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Ask again if something changed, and show the state."""
        geometry = geometry_of(self._models)
        if geometry is not None and geometry != self._geometry:
            self._geometry = geometry
            self.knobs.set_geometry(geometry)
        self._ask_on()
        super().refresh()

    def _ask_on(self) -> None:
        """Ask if the topic is not the one asked about: at once at rest, every `RUNNING_MS` while running."""
        wanted, asked = self._topic(), self._asked()
        if not self.isVisible() or self.measurement.is_waiting or wanted is None or wanted == asked:
            return
        is_same_trial = asked is not None and wanted[2] == asked[2]
        if not (self._models.status.now.running and is_same_trial):
            self._soon.start(0)  # after the models have received everything of this tick
        elif not self._soon.isActive():
            self._soon.start(RUNNING_MS)

    def _ask(self) -> None:
        """Send the question, unless one is unanswered."""
        wanted = self._topic()
        if not self.isVisible() or self.problem() or self.measurement.is_waiting:
            return
        if wanted is not None and wanted != self._asked():
            self.wants.emit(WhatIf(wanted[0], wanted[2]))

    def _asked(self) -> Topic | None:
        """What the newest question was about; None if there is none."""
        question, answer = self.measurement.question, self.measurement.answer
        if not isinstance(question, WhatIf):
            return None
        is_answered = self.measurement.state is MeasurementState.ANSWERED and answer is not None
        step = answer.step if is_answered and answer is not None else self.measurement.step
        return (question.seq_id, step, question.cache) if step is not None else None

    def _topic(self) -> Topic | None:
        """What to ask about now; None if the numbers are impossible or there are no steps."""
        latest, seq_id = self._models.timeline.live_path.latest, self._models.selection.now.seq_id
        if latest is None:
            return None
        self.knobs.set_num_rows(self._models.timeline.num_tokens(seq_id) - 1)
        try:
            return seq_id, latest.step, self.knobs.spec()
        except InputError:
            return None

    # ---- showing -------------------------------------------------------------------------------------------------

    def problem(self) -> str:
        return why_nothing(
            self._models,
            "Send a prompt first: then another cache can be tried on the rows that it left.",
            "You are looking back at step {0}. Another cache is tried on the live rows: Ctrl+L goes there.",
            "There is nothing to try yet: a sequence needs two tokens in its cache.",
        )

    def _refused(self) -> str:
        """Why there is no answer for the choice; empty if there can be one."""
        if self.knobs.is_identity:
            return "Choose an eviction rule, or a codec with fewer bits."
        try:
            self.knobs.spec()
        except InputError as error:
            return str(error)
        return self.measurement.refusal

    def read(self) -> Tried | str:
        if problem := self.problem():
            return problem
        refusal, status = self._refused(), self._models.status.now
        answer = None if refusal else self.answer
        topic = self._topic()
        is_other = answer is not None and (topic is None or topic[2] != answer.request.cache)
        return Tried(answer, refusal, is_other, self.bars.room_for(), is_coded=not status.cache.codec.is_exact)

    def provenance(self, state: Tried) -> Provenance | None:
        answer = state.answer
        if answer is None:
            return None if state.refusal else Provenance("predicted · asked", "predicted")
        how = "estimate" if answer.is_estimate else "recomputed"
        is_old = self.is_old(answer)
        sentence = f"what if · {how} on a copy · step {answer.step}, live {self._models.history.live}"
        kind = "predicted" if answer.is_estimate else "recomputed"
        return Provenance(f"{how} · step {answer.step}" if is_old else how, "past" if is_old else kind, sentence)

    def show_nothing(self, why: str) -> None:
        super().show_nothing(why)
        self.use.setEnabled(False)

    def show_state(self, state: Tried) -> None:
        answer = state.answer
        self.use.setEnabled(not state.refusal)
        self.refusal.setText(state.refusal)
        self._sheets.setCurrentIndex(1 if state.refusal else 0)
        if answer is None:
            self.bars.show_table(BarTable())
            self.facts.show_facts(())
            self.verdict.setText("")
            self.foot.setText("" if state.refusal else self.invited("On its way …"))
            return
        tried = mode_words(answer.request.cache)
        self.bars.show_table(shift_table(answer, tried, state.room, is_faded=state.is_other))
        self.facts.show_facts(numbers(answer), is_faded=state.is_other)
        self._tell_winner(answer)
        coded = "The live cache is coded already: “before” is what it reads." if state.is_coded else ""
        rebuilt = self.rebuilt_words(answer)
        parts = (rebuilt, answer.note, coded, milliseconds(answer.took_ms))
        self.foot.setText("  ".join(part for part in parts if part))

    def _tell_winner(self, answer: WhatIfAnswer) -> None:
        before, after = winners(answer)
        text = f"⚑ another token wins: {before} → {after}" if answer.top1_changed else f"the same token wins: {before}"
        self.verdict.setText(text)
        set_text_role(self.verdict, "selected" if answer.top1_changed else "text")

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._arrange()
        super().resizeEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._soon.stop()
