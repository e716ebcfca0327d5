"""Why a row went: the rule, when, and its score beside those that stayed; and whether the rule was right."""

from __future__ import annotations

import numpy as np
from PySide6.QtGui import QFont, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QStackedWidget, QVBoxLayout, QWidget

from app.draw.format import brief, thousands
from app.kit.labels import ElidedLabel, plain_tip, tint
from app.kit.measurement import AskButton, MeasuringPanel
from app.kit.provenance import shown_record, tell_source, token_name
from app.kit.theme import Theme, font_text
from app.models import Models
from app.panels.evicted import draw
from app.panels.evicted.canvas import HeadGrid, RankCanvas
from app.panels.evicted.draw import HELD, Drop, Drops
from app.panels.evicted.regret import RegretSheet
from engine.spec.presets import cache_label
from engine.wire.records import StepRecord

WHY, REGRETTED = "why", "regret"
_NAMED = 3


class EvictedView(MeasuringPanel):
    """Follows the selected token, layer and kv head; without a token it shows what was dropped last."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Why evicted", parent)
        self._models = models
        self._view = WHY
        self._drops = Drops()
        self._taken: list[StepRecord] = []
        self._pointed: int | None = None
        self._drawn: tuple[object, ...] = ()
        self._headline, self._rule, self._formula = ElidedLabel(), ElidedLabel(), ElidedLabel()
        self._grid, self._canvas = HeadGrid(theme), RankCanvas(theme)
        self.regret = RegretSheet(models, theme)
        self._button = AskButton(self.regret.measurement, theme, "Measure")
        self._button.setAccessibleName("Measure policy regret")
        self._build()
        models.selection.changed.connect(self._refresh)
        models.status.changed.connect(self._refresh)
        models.timeline.legible.connect(self._refresh)
        models.timeline.reset.connect(self._on_reset)
        self.set_theme(theme)

    def _build(self) -> None:
        self._headline.setFont(font_text(12.5, QFont.Weight.DemiBold))
        self._rule.setFont(font_text(12))
        self._formula.setFont(font_text(11.5))
        both = QHBoxLayout()
        both.setContentsMargins(0, 2, 0, 0)
        both.setSpacing(14)
        both.addWidget(self._grid)
        both.addWidget(self._canvas, 1)
        why = QWidget()
        column = QVBoxLayout(why)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(3)
        column.addWidget(self._headline)
        column.addWidget(self._rule)
        column.addWidget(self._formula)
        column.addLayout(both, 1)
        self._sheets = QStackedWidget()
        self._sheets.addWidget(why)
        self._sheets.addWidget(self.regret)
        self.set_body(self._sheets)
        self.set_choices(
            (
                (WHY, "why", "The rule, and the scores of what went and what stayed"),
                (REGRETTED, "regret", "What removing each row really does, against the rule's score"),
            )
        )
        self.set_choice(WHY)
        self.add_to_strip(self._button)
        self.chosen.connect(self.choose)
        self._button.asked.connect(self.regret.ask)
        self._button.stopped.connect(self.cancelled)
        self.regret.asked.connect(self.asked)
        self.regret.rebuild_wanted.connect(self.rebuild_wanted)
        self.regret.measurement.changed.connect(self._on_measurement)
        self._grid.picked.connect(self._on_head)
        self._canvas.picked.connect(self._on_picked)
        self._canvas.pointed.connect(self._on_pointed)

    # ---- intents -------------------------------------------------------------------------------------------------

    def choose(self, view: str) -> None:
        """Show why rows went, or what each row is worth."""
        self._view = view
        self.set_choice(view)
        self._drawn = ()
        self._refresh()

    def measure(self) -> None:
        """Show the regret, and measure it."""
        self.choose(REGRETTED)
        self.regret.ask()

    def _on_head(self, layer: int, kv_head: int) -> None:
        self._models.selection.update(layer=layer, kv_head=kv_head)

    def _on_picked(self, position: int) -> None:
        self._models.selection.update(position=position)

    def _on_pointed(self, position: int | None) -> None:
        if position != self._pointed:
            self._pointed = position
            self._refresh()

    def _on_measurement(self) -> None:
        self._drawn = ()
        self._refresh()

    def _on_reset(self) -> None:
        self._drops, self._taken, self._pointed = Drops(), [], None
        self._refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._button.set_theme(theme)
        self.regret.set_theme(theme)
        self._drawn = ()
        self._refresh()

    def _take_new(self) -> None:
        records = self._models.timeline.records
        if len(self._taken) > len(records) or (self._taken and records[len(self._taken) - 1] is not self._taken[-1]):
            self._drops, self._taken = Drops(), []
        new = list(records[len(self._taken) :])
        self._drops.take(new)
        self._taken += new

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        self._button.setVisible(self._view == REGRETTED)
        if self._view == REGRETTED:
            self._show_regret()
        else:
            self._show_why()

    def _show_regret(self) -> None:
        problem, regret = self.regret.problem(), self.regret.regret()
        self._button.set_reason(problem)
        self._button.refresh()
        self.set_empty(problem if regret is None and problem else None)
        self._sheets.setCurrentIndex(1)
        self.regret.refresh()
        self.set_detail(self.regret.summary())
        if regret is None:
            self.set_provenance("")
        else:
            tell_source(self, self._models, "recomputed", "", regret.step)

    def _show_why(self) -> None:
        self._take_new()
        record, now = shown_record(self._models), self._models.selection.now
        self.set_detail("")
        is_old = self._models.timeline.is_before_change
        key = (record, len(self._drops), now, self._pointed, self.theme, self._models.status.now, is_old)
        if key == self._drawn:
            return
        self._drawn = key
        step = record.step if record is not None else 0
        latest = self._drops.latest(now.seq_id, step)
        self._sheets.setCurrentIndex(0)
        if record is None or not latest:
            self.set_empty(self._nothing(record))
            self.set_provenance("")
            return
        self.set_empty(None)
        tell_source(self, self._models, "recorded", "", step)
        mine = self._drops.of(now.seq_id, now.position, step) if now.position is not None else []
        shown = mine or latest
        layers = self._layers(shown)
        # of a token that is selected the heads that let it go, even if none did; else of what went last
        of_token = mine if now.position is not None else latest
        steps = draw.when_dropped(of_token, layers, self._num_heads(shown))
        drop = draw.drop_in(shown, now.layer, now.kv_head)
        self._headline.setText(self._head_words(record, mine, latest, steps))
        self._headline.setToolTip(plain_tip(self._headline.text()))
        self._show_rule(shown[0])
        self._grid.show_heads(self.theme, layers, steps, (now.layer, now.kv_head), not self._gap(record))
        marked = now.position if mine else self._pointed
        self._canvas.show_drop(self.theme, drop, marked, self._score_words(drop, mine))

    def _nothing(self, record: StepRecord | None) -> str:
        status = self._models.status.now
        is_now = record is None or self._models.selection.now.step is None
        spec = status.cache if is_now and status is not None else record.cache if record is not None else None
        if record is None or spec is None:
            return "Which rows a cache drops, and why, appears here with the first step."
        label = cache_label(spec)
        if spec.retention.keeps_all:
            return f"Nothing was dropped: {label} keeps every row. Modes that drop rows are in the cache selector."
        if gap := self._gap(record):
            return f"No recorded step dropped a row, but {gap}."
        return f"Nothing was dropped yet: the budget of {label} still holds every row."

    def _layers(self, shown: list[Drop]) -> tuple[int, ...]:
        status = self._models.status.now
        if status is not None and status.model is not None:
            return tuple(layer.index for layer in status.model.geometry.attention_layers)
        return tuple(sorted({drop.eviction.layer for drop in shown}))

    def _num_heads(self, shown: list[Drop]) -> int:
        status = self._models.status.now
        if status is not None and status.model is not None:
            layers = status.model.geometry.attention_layers
            return max((layer.num_kv_heads for layer in layers), default=1)
        return 1 + max((drop.eviction.kv_head or 0 for drop in shown), default=0)

    def _head_words(self, record: StepRecord, mine: list[Drop], latest: list[Drop], steps: np.ndarray) -> str:
        now = self._models.selection.now
        if mine and now.position is not None:
            gone, when = int((steps != HELD).sum()), sorted({drop.step for drop in mine})
            name = self._name(now.position)
            at = f"step {when[0]}" if len(when) == 1 else f"steps {when[0]} to {when[-1]}"
            count = thousands(gone) if not self._gap(record) else f"at least {gone}"
            return f"{name} ({now.position}) went from {count} of {steps.size} heads at {at}"
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
        """Where the records do not tell all that was dropped; empty where they do."""
        now, status = self._models.selection.now, self._models.status.now
        changed_at = self._drops.changed_at(record.step)
        if changed_at is None and status is not None and status.cache != record.cache and now.step is None:
            changed_at = record.step + 1
        if changed_at is not None:
            return f"the change of mode before step {changed_at} may have"
        if not self._drops.is_whole(now.seq_id):
            return "the sequence that it was forked from may have"
        return ""

    def _show_rule(self, drop: Drop) -> None:
        record = self._models.timeline.record(drop.step)
        row = record.cache.retention.row if record is not None else None
        if record is None or row is None:
            self._rule.setText(drop.eviction.rule)
            self._formula.setText("")
            return
        self._rule.setText(f"{row.label}: {record.cache.retention.summary}")
        self._formula.setText(f"{row.formula}, the lowest go first · {row.paper}")
        for label in (self._rule, self._formula):
            label.setToolTip(plain_tip(f"{self._rule.text()}\n{self._formula.text()}"))
            tint(label, self.theme, "muted")

    def _score_words(self, drop: Drop | None, mine: list[Drop]) -> str:
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

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh()
