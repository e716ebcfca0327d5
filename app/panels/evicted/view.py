"""The Why evicted panel: by which rule and when a row was dropped, its score beside those that stayed, and the
regret."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QStackedWidget

from app.draw.format import brief, counted, thousands
from app.kit.boxes import column, holder, row
from app.kit.chart.plot import Plot
from app.kit.labels import ElidedLabel, plain_tip
from app.kit.measurement import AskingView
from app.kit.provenance import Provenance, shown_record, source_of, token_name
from app.kit.theme import font_text
from app.models import Models, Selected
from app.models.eviction_log import HELD, EvictionLog, LoggedEviction, drop_in, when_dropped
from app.models.loaded import geometry_of
from app.models.measurement import MeasurementState
from app.panels.evicted import draw
from app.panels.evicted.chart import rank_chart
from app.panels.evicted.heads import HeadGrid, LayerHead
from app.panels.evicted.regret import RegretSheet
from engine.spec.presets import cache_label
from engine.wire.measurements import Regret
from engine.wire.measuring import MeasureRegret
from engine.wire.records import StepRecord
from engine.wire.status import EngineStatus

WHY, REGRETTED = "why", "regret"
_NAMED = 3


class Shown(Struct, frozen=True):
    """What both sheets depend on: the record shown, the number of known evictions, the selection, the engine's status;
    and for the regret the answer and its state."""

    is_regret: bool
    record: StepRecord | None
    num_drops: int
    selected: Selected
    pointed: int | None
    status: EngineStatus | None
    regret: Regret | None
    state: MeasurementState


class EvictedView(AskingView[Shown]):
    """Follows the selected token, layer and kv head; without a token it shows the latest eviction."""

    title, measures = "Why evicted", "regret"
    abilities = frozenset(("view.reset",))
    button_name = "Leave each row out"
    choices = (
        (WHY, "why", "The rule, and the scores of what went and what stayed"),
        (REGRETTED, "leave one out", "What the next token loses (KL) without each row, against the rule's score"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._pointed: int | None = None
        self._drop: LoggedEviction | None = None
        self.headline = ElidedLabel(font_text(12.5, QFont.Weight.DemiBold))
        self.rule, self.formula = ElidedLabel(font_text(12), "muted"), ElidedLabel(font_text(11.5), "muted")
        self.heads = HeadGrid()
        self.plot = Plot("Scores of rows that went and rows that stayed")
        self.regret = RegretSheet(models, self)
        self._build()
        self.follow(models)

    def _build(self) -> None:
        both = row(self.heads, (self.plot, 1), spacing=14)
        both.setContentsMargins(0, 2, 0, 0)
        why = holder(column(self.headline, self.rule, self.formula, (both, 1)))
        self._sheets = QStackedWidget()
        self._sheets.addWidget(why)
        self._sheets.addWidget(self.regret)
        self.set_body(self._sheets)
        self.add_to_strip(self.button)
        self.heads.picked.connect(self._on_head)
        self.plot.connect_to(self._on_pointed, self._on_picked, self.told)

    # ---- intents -------------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """Show the regret, and measure it."""
        self.choose(REGRETTED)
        self.ask()

    def request(self) -> MeasureRegret:
        return self.regret.request()

    def problem(self) -> str:
        if self._models.timeline.num_tokens(self._models.selection.now.seq_id) < 2:
            return "Send a prompt first: each row of its cache is left out in turn."
        return ""

    def _on_head(self, head: LayerHead) -> None:
        self._models.selection.update(layer=head[0], kv_head=head[1])

    def _on_picked(self, index: int) -> None:
        if self._drop is not None:
            self._models.selection.update(position=int(self._drop.eviction.positions[index]))

    def _on_pointed(self, index: int | None) -> None:
        self._pointed = None
        if index is not None and self._drop is not None:
            self._pointed = int(self._drop.eviction.positions[index])
        self.refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    @property
    def _log(self) -> EvictionLog:
        return self._models.evictions.follow(self._models.timeline.records)

    def refresh(self) -> None:
        self.button.setVisible(self.choice == REGRETTED)
        super().refresh()

    def read(self) -> Shown | str:
        record, now = shown_record(self._models), self._models.selection.now
        regret, state = self.answer, self.measurement.state
        is_regret = self.choice == REGRETTED
        if is_regret and regret is None and (problem := self.problem()):
            return problem
        if not is_regret and (record is None or not self._log.latest(now.seq_id, record.step)):
            return self._nothing(record)
        status = self._models.status.now
        return Shown(is_regret, record, len(self._log), now, self._pointed, status, regret, state)

    def provenance(self, state: Shown) -> Provenance | None:
        if not state.is_regret and state.record is not None:
            return source_of(self._models, "recorded", "", state.record.step)
        return source_of(self._models, "recomputed", "", state.regret.step) if state.regret is not None else None

    def show_state(self, state: Shown) -> None:
        self._sheets.setCurrentIndex(int(state.is_regret))
        self.set_detail(self.regret.summary(state.regret) if state.is_regret else "")
        if state.is_regret:
            self.regret.show_regret(state.regret)
        elif state.record is not None:
            self._show_why(state.record)

    def _show_why(self, record: StepRecord) -> None:
        now, step = self._models.selection.now, record.step
        latest = self._log.latest(now.seq_id, step)
        mine = self._log.of(now.seq_id, now.position, step) if now.position is not None else []
        shown = mine or latest
        layers = self._layers(shown)
        # for a selected token the heads that dropped it, even if none did; else the latest eviction
        of_token = mine if now.position is not None else latest
        steps = when_dropped(of_token, layers, self._num_heads(shown))
        drop = drop_in(shown, now.layer, now.kv_head)
        self.headline.setText(self._head_words(record, mine, latest, steps))
        self.headline.setToolTip(plain_tip(self.headline.text()))
        self._show_rule(shown[0])
        self.heads.show_heads(layers, steps, (now.layer, now.kv_head), is_certain=not self._gap(record))
        self._drop = drop
        if drop is None:
            self.plot.hide_chart()
        else:
            self.plot.show_chart(rank_chart(drop.eviction, now.position if mine else None))
        self.plot.show_words(self._score_words(drop, mine))

    def _nothing(self, record: StepRecord | None) -> str:
        status = self._models.status.now
        is_now = record is None or self._models.selection.now.step is None
        spec = status.cache if is_now and status is not None else record.cache if record is not None else None
        if record is None or spec is None:
            return "Which rows a cache drops, and why, appears here with the first step: press F10."
        label = cache_label(spec)
        if spec.retention.keeps_all:
            return f"Nothing was dropped: {label} keeps every row. Modes that drop rows are in the cache selector."
        if gap := self._gap(record):
            return f"No recorded step dropped a row, but {gap}."
        return f"Nothing was dropped yet: the budget of {label} still holds every row."

    def _layers(self, shown: list[LoggedEviction]) -> tuple[int, ...]:
        if (geometry := geometry_of(self._models)) is not None:
            return tuple(layer.index for layer in geometry.attention_layers)
        return tuple(sorted({drop.eviction.layer for drop in shown}))

    def _num_heads(self, shown: list[LoggedEviction]) -> int:
        if (geometry := geometry_of(self._models)) is not None:
            return max((layer.num_kv_heads for layer in geometry.attention_layers), default=1)
        return 1 + max(drop.eviction.kv_head or 0 for drop in shown)

    def _head_words(
        self, record: StepRecord, mine: list[LoggedEviction], latest: list[LoggedEviction], steps: np.ndarray
    ) -> str:
        now = self._models.selection.now
        if mine and now.position is not None:
            gone, when = int((steps != HELD).sum()), sorted({drop.step for drop in mine})
            name = self._name(now.position)
            at = f"step {when[0]}" if len(when) == 1 else f"steps {when[0]} to {when[-1]}"
            count = thousands(gone) if not self._gap(record) else f"at least {gone}"
            return f"{name} ({now.position}) went from {count} of {counted(steps.size, 'head')} at {at}"
        positions = sorted({int(p) for drop in latest for p in drop.eviction.positions})
        names = [f"{self._name(p)} ({p})" for p in positions[:_NAMED]]
        more = f" and {thousands(len(positions) - _NAMED)} more" if len(positions) > _NAMED else ""
        dropped = "step {} dropped {}{}".format(latest[0].step, ", ".join(names), more)
        if now.position is None:
            return f"The latest: {dropped}"
        name = self._name(now.position)
        if gap := self._gap(record):
            return f"{name} ({now.position}): no recorded step dropped it, but {gap}"
        return f"{name} ({now.position}) is held by every head; {dropped}"

    def _name(self, position: int) -> str:
        return f"“{token_name(self._models, self._models.selection.now.seq_id, position)}”"

    def _gap(self, record: StepRecord) -> str:
        """Why the records may not contain all evictions; empty if they do."""
        now, status = self._models.selection.now, self._models.status.now
        changed_at = self._log.changed_at(record.step)
        if changed_at is None and status is not None and status.cache != record.cache and now.step is None:
            return f"the change of mode after step {record.step} may have"
        if changed_at is not None:
            return f"the change of mode before step {changed_at} may have"
        if not self._log.is_whole(now.seq_id):
            return "the sequence that it was forked from may have"
        return ""

    def _show_rule(self, drop: LoggedEviction) -> None:
        record = self._models.timeline.record(drop.step)
        rule = record.cache.retention.row if record is not None else None
        if record is None or rule is None:
            self.rule.setText(drop.eviction.rule)
            self.formula.setText("")
        else:
            self.rule.setText(f"{rule.label}: {record.cache.retention.summary}")
            self.formula.setText(f"{rule.formula}, the lowest go first · {rule.paper}")
        for label in (self.rule, self.formula):
            label.setToolTip(plain_tip(f"{self.rule.text()}\n{self.formula.text()}".rstrip()))

    def _score_words(self, drop: LoggedEviction | None, mine: list[LoggedEviction]) -> str:
        now = self._models.selection.now
        if drop is None:
            return f"layer {now.layer}, kv head {now.kv_head} holds it"
        eviction = drop.eviction
        survivors = eviction.survivors
        position = self._pointed if self._pointed is not None else now.position if mine else None
        score = eviction.score_of(position) if position is not None else None
        parts = []
        if score is not None and position is not None:
            rank = draw.rank_of(eviction, position)
            name = f"{self._name(position)} {position}: " if position != now.position else ""
            parts.append(f"{name}score {brief(score)}")
            if len(eviction.positions) > 1:
                parts.append(
                    f"lowest but {rank - 1} of {thousands(len(eviction.positions))}"
                    if rank and rank > 1
                    else f"lowest of {thousands(len(eviction.positions))}"
                )
        else:
            parts.append(f"L{now.layer} h{now.kv_head}: {thousands(len(eviction.positions))} went")
        if eviction.lowest_kept is not None:
            parts.append(f"lowest kept {brief(eviction.lowest_kept)}")
        if not survivors.on_merit and survivors.protected:
            parts.append(f"{survivors.protected} stay, protected")
        elif survivors.on_merit:
            parts.append(f"{survivors.on_merit} stay on merit + {survivors.protected} protected")
        return " · ".join(parts)
