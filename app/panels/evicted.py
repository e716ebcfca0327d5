"""The Why evicted panel: by which rule and when a row was evicted, its score beside those that were kept, and the
policy regret: each row's score against the effect of removing it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from PySide6.QtCore import QPointF, QRectF, QSignalBlocker, QSize, Qt
from PySide6.QtGui import QFont, QPainter, QPen
from PySide6.QtWidgets import QSizePolicy

from app.draw.axis import FixedTicks, Floats, LinearTicks, Tick, log_scale
from app.draw.format import brief, decimal, milliseconds, thousands, tick_number
from app.kit.asking import AskingView
from app.kit.bars import Surface
from app.kit.chart import Chart, ChartMark, Curve, Dots, ShadedSpan
from app.kit.fields import SmallBox
from app.kit.painting import RIGHT
from app.kit.provenance import Provenance, shown_record, source_of, token_name
from app.kit.theme import Theme, font_fixed, font_text
from app.kit.widgets import ElidedLabel, column, holder, on_change, plain_label, plain_tip, row, stack
from app.models import Models, Selected
from app.models.logs import HELD, EvictionLog, LoggedEviction, logged_in, when_evicted
from app.models.measurement import MeasurementState
from app.models.places import geometry_of
from engine.counted import counted
from engine.spec.cache import PRESETS, cache_label
from engine.wire.measurements import MeasureRegret, Regret
from engine.wire.records import Eviction, StepRecord
from engine.wire.status import EngineStatus


def stacked(places: Floats, width: float) -> npt.NDArray[np.int64]:
    """The height of each dot in its stack, so that dots of that width on one line do not cover each other."""
    heights = np.zeros(len(places), dtype=np.int64)
    counts: dict[int, int] = {}
    for index in np.argsort(places, kind="stable"):
        cell = int(places[index] / max(width, 1e-9))
        heights[index] = counts.get(cell, 0)
        counts[cell] = heights[index] + 1
    return heights


def rank_of(eviction: Eviction, position: int) -> int | None:
    """The rank of an evicted row in its eviction, 1 for the lowest score; None for other rows."""
    score = eviction.score_of(position)
    return None if score is None else int((eviction.scores < score).sum()) + 1


def page_of(regret: Regret, position: int) -> int | None:
    """The index of the removed page that contains a position; None if it was not removed."""
    index = position // regret.request.page_size
    if not 0 <= index < len(regret.positions):
        return None
    return index


# ---- the panel -------------------------------------------------------------------------------------------------------


_LABEL, _HEAD = 26, 15
_MOST_CELL, _LEAST_CELL = 22.0, 4.0

LayerHead = tuple[int, int]


class HeadGrid(Surface):
    """Items are `(layer, kv_head)`. A cell has the warning colour where that head evicted the row."""

    def __init__(self) -> None:
        super().__init__("Which heads let it go")
        self._layers: tuple[int, ...] = ()
        self._steps: npt.NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._selected: LayerHead = (0, 0)
        self._is_certain = True
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Expanding)
        self.can_be_walked()

    def show_heads(
        self, layers: tuple[int, ...], steps: npt.NDArray[np.int64], selected: LayerHead, *, is_certain: bool
    ) -> None:
        """`steps` `[L, H_kv]`: the step that evicted the row, or HELD; unless `is_certain`, HELD means unknown."""
        is_resized = steps.shape != self._steps.shape
        self._layers, self._steps, self._selected, self._is_certain = layers, steps, selected, is_certain
        gone = int((steps != HELD).sum())
        self.setAccessibleDescription(f"evicted from {gone} of {counted(steps.size, 'head')}")
        if is_resized:
            self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        heads = self._steps.shape[1] if self._steps.size else 4
        return QSize(_LABEL + int(min(heads * _MOST_CELL, 200)), 100)

    # ---- items ---------------------------------------------------------------------------------------------------

    def cell_of(self, layer: int, head: int) -> QRectF:
        """The rectangle of a head."""
        wide, high = self._cell_size()
        return QRectF(_LABEL + head * wide, _HEAD + self._layers.index(layer) * high, wide, high)

    def _cell_size(self) -> tuple[float, float]:
        layers, heads = self._steps.shape
        wide, high = (self.width() - _LABEL) / max(1, heads), (self.height() - _HEAD) / max(1, layers)
        return min(_MOST_CELL, max(_LEAST_CELL, wide)), min(_MOST_CELL, max(_LEAST_CELL, high))

    def item_at(self, place: QPointF) -> LayerHead | None:
        if not self._steps.size:
            return None
        wide, high = self._cell_size()
        head, row = int((place.x() - _LABEL) // wide), int((place.y() - _HEAD) // high)
        is_there = 0 <= row < len(self._layers) and 0 <= head < self._steps.shape[1]
        return (self._layers[row], head) if is_there else None

    def items(self) -> Sequence[LayerHead]:
        return [(layer, head) for layer in self._layers for head in range(self._steps.shape[1])]

    def words(self, item: LayerHead) -> str:
        layer, head = item
        step = int(self._steps[self._layers.index(layer), head])
        held = "held" if self._is_certain else "not known: no recorded step evicted it"
        return f"layer {layer}, kv head {head}: {held if step == HELD else f'evicted at step {step}'}"

    # ---- painting ------------------------------------------------------------------------------------------------

    def paint(self, painter: QPainter, theme: Theme) -> None:
        if not self._steps.size:
            return
        self._paint_names(painter, theme)
        for layer, head in self.items():
            place = self.cell_of(layer, head)
            gap = 2.0 if min(place.width(), place.height()) > 8 else 1.0
            self._paint_cell(painter, theme, place.adjusted(0, 0, -gap, -gap), (layer, head))

    def _paint_names(self, painter: QPainter, theme: Theme) -> None:
        wide, high = self._cell_size()
        painter.setFont(font_fixed(10))
        painter.setPen(theme.color("muted"))
        painter.drawText(QRectF(0, 0, _LABEL, _HEAD), int(Qt.AlignmentFlag.AlignLeft), "head")
        for head in range(0, self._steps.shape[1], max(1, int(np.ceil(16 / wide)))):
            place = QRectF(_LABEL + head * wide, 0, wide, _HEAD)
            painter.drawText(place, int(Qt.AlignmentFlag.AlignHCenter), str(head))
        for line in range(0, len(self._layers), max(1, int(np.ceil(12 / high)))):
            place = QRectF(0, _HEAD + line * high, _LABEL - 5, high)
            painter.drawText(place, RIGHT, f"L{self._layers[line]}")

    def _paint_cell(self, painter: QPainter, theme: Theme, cell: QRectF, item: LayerHead) -> None:
        """A filled cell: held or evicted; a hollow one: unknown."""
        step = int(self._steps[self._layers.index(item[0]), item[1]])
        if step == HELD and not self._is_certain:
            painter.setPen(QPen(theme.color("faint"), 1, Qt.PenStyle.DotLine))
            painter.drawRect(cell.adjusted(0.5, 0.5, -0.5, -0.5))
        else:
            painter.fillRect(cell, theme.color("page_used" if step == HELD else "warning"))
        if step != HELD and cell.width() >= 14 and cell.height() >= 10:  # a cross, so that it is not only the colour
            painter.setPen(QPen(theme.color("panel"), 1.3))
            for slope in (3, -3):
                painter.drawLine(cell.center() - QPointF(3, slope), cell.center() + QPointF(3, slope))
        if item in (self._selected, self.pointed_item):
            painter.setPen(QPen(theme.color("selected" if item == self._selected else "text"), 1.5))
            painter.drawRect(cell.adjusted(-0.5, -0.5, 0.5, 0.5))


_DOT = 6.0
_BINS = 80  # dots within one of so many parts of the axis are stacked
_LEAST_HIGH = 8


def rank_chart(eviction: Eviction, position: int | None) -> Chart:
    """The scores of the evicted rows, stacked where they are alike, with `position` marked, and of those that stayed
    (quantiles, if these are many). NaN and -Inf are at the low end."""
    scores = eviction.scores.astype(np.float64)
    kept = eviction.survivors.quantiles.astype(np.float64)
    everything = np.concatenate([scores, kept])
    finite = everything[np.isfinite(everything)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    victims = np.clip(np.nan_to_num(scores, nan=low, posinf=high, neginf=low), low, high)
    heights = stacked((victims - low) / (high - low), 1 / _BINS).astype(np.float64) + 0.6
    top = max(_LEAST_HIGH, float(heights.max(initial=0)) + 1)
    marks: list[ChartMark] = []
    if eviction.lowest_kept is not None:
        marks.append(ShadedSpan(low, float(eviction.lowest_kept), "warning", "lowest kept"))
    for score in np.clip(kept, low, high):
        marks.append(Curve(np.array([score, score]), np.array([0.0, 0.85 * top]), "page_used", 2.0, 190))
    marks.append(Dots(victims, heights, "warning", size=_DOT, fill="warning"))
    chosen = eviction.positions == position if position is not None else np.zeros(len(heights), np.bool_)
    if chosen.any():
        marks.append(Dots(victims[chosen], heights[chosen], "text", size=_DOT + 3, fill="selected"))
    margin = 0.03 * (high - low)
    return Chart(
        tuple(marks),
        np.column_stack([victims, heights]),
        eviction.positions.tolist(),
        ((low - margin, high + margin), (0.0, top)),
        LinearTicks(tick_number),
        FixedTicks(()),
        "score",
        "● evicted · | kept" if kept.size else "● evicted",
        reach=9.0,
    )


MEANING = (
    "Each mark is a row, or a page of rows. Rank correlation is Spearman's, over all marks.\n"
    "○ kept whatever the score: sinks and the latest\n■ a low score, and yet among those that matter most"
)
_MANY = 200
_FLOOR = -10
_ENDS = FixedTicks((Tick(0.08, "← goes first"), Tick(0.86, "the rule keeps it longest →")))


def protected(regret: Regret, num_rows: int) -> npt.NDArray[np.bool_]:
    """Sinks and recent rows, which the rule keeps whatever their score, where the cache has `num_rows`."""
    retention = regret.request.cache.retention
    recent = num_rows - retention.recent(retention.num_kept(num_rows))
    found: npt.NDArray[np.bool_] = regret.positions < retention.sinks
    if retention.is_by_position:  # it scores recent rows highest already
        return found
    return found | (regret.positions + regret.request.page_size > recent)


def regret_chart(regret: Regret, num_rows: int, marked: int | None) -> Chart:
    """The rule's rank of each row against the KL of removing it; the dot `marked` has a ring. A row that the rule would
    evict before most others, although it matters more than most, is a square of its own colour."""
    kl, scores = regret.kl.astype(np.float64), regret.scores.astype(np.float64)
    scale = log_scale(kl.tolist(), -5, -1, _FLOOR)
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 1.0)
    x, y = (scores - low) / max(high - low, 1e-12), scale.at(kl)
    kept = protected(regret, num_rows)
    missed = np.zeros(len(kl), dtype=np.bool_)
    if len(kl) >= 8:
        missed = (scores <= np.quantile(scores, 0.5)) & (kl >= np.quantile(kl, 0.9)) & (kl > 0) & ~kept
    size, plain = 6.0 if len(x) < _MANY else 4.5, ~missed & ~kept
    marks: list[ChartMark] = [
        Dots(x[kept], y[kept], "muted", size=size),
        Dots(x[plain], y[plain], "accent", size=size, fill="accent", alpha=200),
        Dots(x[missed], y[missed], "bad", "s", size, fill="bad"),
    ]
    if marked is not None and marked < len(x):
        marks.append(Dots(x[marked : marked + 1], y[marked : marked + 1], "selected", size=size + 7))
    note = f"rank correlation {decimal(regret.rank_correlation, is_signed=True)}"
    if kept.any():
        note += f" · ○ {int(kept.sum())} never evicted"
    return Chart(
        tuple(marks),
        np.column_stack([x, y]),
        regret.positions.tolist(),
        ((-0.03, 1.03), (-0.05, 1.05)),
        _ENDS,
        scale,
        "KL without it, nats",
        note,
        reach=9.0,
        can_zoom_y=True,
    )


PAGE_SIZES = (1, 2, 4, 8, 16, 32)
SIZE_TIP = "Removed at a time, from every layer and head at once; all others stay"
INVITATION = "Each row is left out in turn: the change of the next token (KL) stands beside the rule's score."


WHY, REGRETTED = "why", "regret"
_NAMED = 3


class EvictedState(Struct, frozen=True):
    """What both sheets depend on: the record shown, the number of known evictions, the selection, the row pointed at,
    the engine's status; and for the regret the chosen rule, the answer and its state."""

    is_regret: bool
    record: StepRecord | None
    num_evictions: int
    selected: Selected
    pointed: int | None
    status: EngineStatus | None
    rule: str
    regret: Regret | None
    state: MeasurementState


class EvictedView(AskingView[EvictedState]):
    """Follows the selected token, layer and kv head; without a token it shows the latest eviction. A click on a dot
    selects its token."""

    name, measures = "evicted", "regret"
    button_name = "Leave each row out"
    choices = (
        (WHY, "why", "The rule, and the scores of what it evicted and what it kept"),
        (REGRETTED, "leave one out", "What the next token loses (KL) without each row, against the rule's score"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.headline = ElidedLabel(font_text(12.5, QFont.Weight.DemiBold))
        self.rule, self.formula = ElidedLabel(font_text(12), "muted"), ElidedLabel(font_text(11.5), "muted")
        self.heads = HeadGrid()
        self.plot = self.new_plot("Scores of evicted rows and of kept rows", self.select_position)
        rules = (
            (preset.label, preset.name, "")
            for preset in PRESETS.values()
            if not preset.spec.retention.keeps_all and preset.spec.retention.schedule == "uniform"
        )  # a pyramid schedule scores as its rule does, so it is left out
        self.measured_rule = SmallBox("Rule", "Whose score is compared with the measured effect", rules)
        self.measured_rule.choose("h2o")
        self._is_rule_chosen = False
        sizes = (("each row" if size == 1 else f"pages of {size}", size, "") for size in PAGE_SIZES)
        self.page_size = SmallBox("What is removed at a time", SIZE_TIP, sizes)
        self.note = ElidedLabel(font_text(11.5), "muted")
        self.effects = self.new_plot("Effect of removing each row against the rule's score", self._on_effect)
        self.effects.setToolTip(plain_tip(MEANING))
        self.invitation = plain_label(role="muted", wraps=True)
        self.invitation.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.invitation.setMinimumSize(1, 1)
        self._build()
        self.follow(models)

    def _build(self) -> None:
        both = row(self.heads, (self.plot, 1), spacing=14, margins=(0, 2, 0, 0))
        why = holder(column(self.headline, self.rule, self.formula, (both, 1)))
        top = row(self.measured_rule, self.page_size, (self.note, 1))
        self._sheets = stack(why, holder(column(top, (self.invitation, 1), (self.effects, 1), spacing=5)))
        self.set_body(self._sheets)
        self.add_to_strip(self.button)
        self.heads.picked.connect(self._on_head)
        on_change(self._on_rule, self.measured_rule)

    # ---- intents -------------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """Show the regret, and measure it."""
        self.choose(REGRETTED)
        super().measure()

    def request(self) -> MeasureRegret:
        """The question: the effect of each row of the selected sequence, and the chosen rule's score of it."""
        seq_id, spec = self._models.selection.now.seq_id, PRESETS[self.measured_rule.currentData()].spec
        return MeasureRegret(seq_id, spec, self.page_size.currentData())

    def problem(self) -> str:
        if self._models.timeline.num_tokens(self._models.selection.now.seq_id) < 2:
            return "Send a prompt first: each row of its cache is left out in turn."
        return ""

    def _on_head(self, head: LayerHead) -> None:
        self._models.selection.update(layer=head[0], kv_head=head[1])

    def _on_effect(self, position: int) -> None:
        if self.answer is not None:
            self._models.selection.update(seq_id=self.answer.request.seq_id, position=position, step=None)

    def _on_rule(self) -> None:
        self._is_rule_chosen = True
        self.refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    @property
    def _log(self) -> EvictionLog:
        return self._models.evictions.follow(self._models.timeline.records)

    def refresh(self) -> None:
        self.button.setVisible(self.choice == REGRETTED)
        self._follow_cache()
        super().refresh()

    def _follow_cache(self) -> None:
        """Until the user chooses a rule, follow that of the cache in use."""
        retention = self._models.status.now.cache.retention
        if not self._is_rule_chosen and not retention.keeps_all:
            names = (preset.name for preset in PRESETS.values() if preset.spec.retention.name == retention.name)
            if (index := self.measured_rule.findData(next(names, ""))) >= 0:
                with QSignalBlocker(self.measured_rule):
                    self.measured_rule.setCurrentIndex(index)

    def read(self) -> EvictedState | str:
        record, now = shown_record(self._models), self._models.selection.now
        regret, state = self.answer, self.measurement.state
        is_regret = self.choice == REGRETTED
        if is_regret and regret is None and (problem := self.problem()):
            return problem
        if not is_regret and (record is None or not self._log.latest(now.seq_id, record.step)):
            return self._nothing(record)
        status, pointed = self._models.status.now, (self.effects if is_regret else self.plot).pointed_key
        rule = self.measured_rule.currentData()
        return EvictedState(is_regret, record, len(self._log), now, pointed, status, rule, regret, state)

    def provenance(self, state: EvictedState) -> Provenance | None:
        if not state.is_regret and state.record is not None:
            return source_of(self._models, "recorded", "", state.record.step)
        return source_of(self._models, "recomputed", "", state.regret.step) if state.regret is not None else None

    def show_state(self, state: EvictedState) -> None:
        self._sheets.setCurrentIndex(int(state.is_regret))
        self.set_detail(self._summary(state.regret) if state.is_regret and state.regret is not None else "")
        if state.is_regret:
            self._show_regret(state)
        elif state.record is not None:
            self._show_why(state.record, state.pointed)

    def _show_regret(self, state: EvictedState) -> None:
        regret, now = state.regret, state.selected
        self.effects.setVisible(regret is not None)
        if regret is not None:
            is_mine = now.position is not None and now.seq_id == regret.request.seq_id
            marked = page_of(regret, now.position) if is_mine and now.position is not None else None
            rows = self._models.timeline.num_tokens(regret.request.seq_id, regret.step)
            self.effects.show_made((regret, rows, marked), partial(regret_chart, regret, rows, marked))
            self.effects.show_words(
                self._effect_words(regret, marked if state.pointed is None else page_of(regret, state.pointed))
            )
        self.invitation.setVisible(regret is None)
        self.invitation.setText(self.measurement.refusal or self.invited(INVITATION))
        rule = (regret.request.cache if regret is not None else PRESETS[state.rule].spec).retention.row
        score = f"score: {rule.score}; its rank, mean of layers and heads" if rule is not None else ""
        self.note.setText("  ".join(filter(None, (self.rebuilt_words(regret), score))))

    def _summary(self, regret: Regret) -> str:
        """A short form of the answer, for the title strip."""
        rule, latest = regret.request.cache.retention.row, self._models.timeline.live_path.latest
        correlation = f"rank correlation {decimal(regret.rank_correlation, is_signed=True)}"
        when = f"at step {regret.step}" if latest is not None and latest.step > regret.step else ""
        return " · ".join(filter(None, (rule.label if rule is not None else "", correlation, when)))

    def _effect_words(self, regret: Regret, index: int | None) -> str:
        """What leaving out a row or a page does; without one, how it was measured."""
        if index is None:
            return f"{thousands(len(regret.positions))} removals in {milliseconds(regret.took_ms)}"
        first, size = int(regret.positions[index]), regret.request.page_size
        name = f"“{token_name(self._models, regret.request.seq_id, first)}”"
        where = f"{name} {first}" if size == 1 else f"{name} {first}…{first + size - 1}"
        return f"{where} · KL {brief(float(regret.kl[index]))} · rank {decimal(float(regret.scores[index]))}"

    def _show_why(self, record: StepRecord, pointed: int | None) -> None:
        now, step = self._models.selection.now, record.step
        latest = self._log.latest(now.seq_id, step)
        mine = self._log.of(now.seq_id, now.position, step) if now.position is not None else []
        shown = mine or latest
        layers = self._layers(shown)
        # for a selected token the heads that evicted it, even if none did; else the latest eviction
        of_token = mine if now.position is not None else latest
        steps = when_evicted(of_token, layers, self._num_heads(shown))
        logged = logged_in(shown, now.layer, now.kv_head)
        self.headline.setText(self._head_words(record, mine, latest, steps))
        self._show_rule(shown[0])
        self.heads.show_heads(layers, steps, (now.layer, now.kv_head), is_certain=not self._gap(record))
        selected = now.position if mine else None
        if logged is None:
            self.plot.hide_chart()
        else:
            self.plot.show_chart(rank_chart(logged.eviction, selected))
        self.plot.show_words(self._score_words(logged, selected if pointed is None else pointed))

    def _nothing(self, record: StepRecord | None) -> str:
        status = self._models.status.now
        is_now = record is None or self._models.selection.now.step is None
        spec = status.cache if is_now else record.cache if record is not None else None
        if record is None or spec is None:
            how = self.how_to_begin
            return f"Which rows a cache evicts, and why, appears here with the first step: {how}."
        label = cache_label(spec)
        if spec.retention.keeps_all:
            return f"Nothing was evicted: {label} keeps every row. Modes that evict rows are in the cache selector."
        if gap := self._gap(record):
            return f"No recorded step evicted a row, but {gap}."
        return f"Nothing was evicted yet: the budget of {label} still holds every row."

    def _layers(self, shown: list[LoggedEviction]) -> tuple[int, ...]:
        if (geometry := geometry_of(self._models)) is not None:
            return tuple(layer.index for layer in geometry.attention_layers)
        return tuple(sorted({logged.eviction.layer for logged in shown}))

    def _num_heads(self, shown: list[LoggedEviction]) -> int:
        if (geometry := geometry_of(self._models)) is not None:
            return max((layer.num_kv_heads for layer in geometry.attention_layers), default=1)
        return 1 + max(logged.eviction.kv_head or 0 for logged in shown)

    def _head_words(
        self, record: StepRecord, mine: list[LoggedEviction], latest: list[LoggedEviction], steps: np.ndarray
    ) -> str:
        now = self._models.selection.now
        if mine and now.position is not None:
            gone, when = int((steps != HELD).sum()), sorted({logged.step for logged in mine})
            name = self._name(now.position)
            at = f"step {when[0]}" if len(when) == 1 else f"steps {when[0]} to {when[-1]}"
            count = thousands(gone) if not self._gap(record) else f"at least {gone}"
            return f"{name} ({now.position}) was evicted from {count} of {counted(steps.size, 'head')} at {at}"
        positions = sorted({int(p) for logged in latest for p in logged.eviction.positions})
        names = [f"{self._name(p)} ({p})" for p in positions[:_NAMED]]
        more = f" and {thousands(len(positions) - _NAMED)} more" if len(positions) > _NAMED else ""
        evicted = "step {} evicted {}{}".format(latest[0].step, ", ".join(names), more)
        if now.position is None:
            return f"The latest: {evicted}"
        name = self._name(now.position)
        if gap := self._gap(record):
            return f"{name} ({now.position}): no recorded step evicted it, but {gap}"
        return f"{name} ({now.position}) is held by every head; {evicted}"

    def _name(self, position: int) -> str:
        return f"“{token_name(self._models, self._models.selection.now.seq_id, position)}”"

    def _gap(self, record: StepRecord) -> str:
        """Why the records may not contain all evictions; empty if they do."""
        now, status = self._models.selection.now, self._models.status.now
        changed_at = self._log.changed_at(record.step)
        if changed_at is None and status.cache != record.cache and now.step is None:
            return f"the change of mode after step {record.step} may have"
        if changed_at is not None:
            return f"the change of mode before step {changed_at} may have"
        if not self._log.is_whole(now.seq_id):
            return "the sequence that it was forked from may have"
        return ""

    def _show_rule(self, logged: LoggedEviction) -> None:
        record = self._models.timeline.record(logged.step)
        rule = record.cache.retention.row if record is not None else None
        if record is None or rule is None:
            self.rule.setText(logged.eviction.rule)
            self.formula.setText("")
        else:
            self.rule.setText(f"{rule.label}: {record.cache.retention.summary}")
            self.formula.setText(f"{rule.formula}, the lowest go first · {rule.paper}")

    def _score_words(self, logged: LoggedEviction | None, position: int | None) -> str:
        now = self._models.selection.now
        if logged is None:
            return f"layer {now.layer}, kv head {now.kv_head} holds it"
        eviction, survivors = logged.eviction, logged.eviction.survivors
        count = thousands(len(eviction.positions))
        score = eviction.score_of(position) if position is not None else None
        parts = []
        if score is not None and position is not None:
            rank = rank_of(eviction, position)
            name = f"{self._name(position)} {position}: " if position != now.position else ""
            parts.append(f"{name}score {brief(score)}")
            if len(eviction.positions) > 1:
                place = f"lowest but {rank - 1}" if rank and rank > 1 else "lowest"
                parts.append(f"{place} of {count}")
        else:
            parts.append(f"L{now.layer} h{now.kv_head}: {count} evicted")
        if eviction.lowest_kept is not None:
            parts.append(f"lowest kept {brief(eviction.lowest_kept)}")
        if not survivors.on_merit and survivors.protected:
            parts.append(f"{survivors.protected} kept, protected")
        elif survivors.on_merit:
            parts.append(f"{survivors.on_merit} kept on merit + {survivors.protected} protected")
        return " · ".join(parts)
