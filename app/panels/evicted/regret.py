"""Policy regret: the effect of removing each row, or page of rows, against the score that a rule gives it."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from app.draw.format import brief, decimal, milliseconds, thousands
from app.kit.boxes import column, row
from app.kit.changes import on_change
from app.kit.chart.plot import Plot
from app.kit.fields import SmallBox
from app.kit.labels import ElidedLabel, plain_label, plain_tip
from app.kit.measurement import MeasuringView
from app.kit.provenance import token_name
from app.kit.theme import font_text
from app.models import Models
from app.panels.evicted import draw
from app.panels.evicted.chart import MEANING, regret_chart
from engine.spec.presets import PRESETS
from engine.wire.measurements import Regret
from engine.wire.measuring import MeasureRegret

PAGE_SIZES = (1, 2, 4, 8, 16, 32)
SIZE_TIP = "Removed at a time, from every layer and head at once; all others stay"
INVITATION = "Each row is left out in turn: the change of the next token (KL) stands beside the rule's score."


class RegretSheet(QWidget):
    """The choices, and the answer as a plot. A click on a dot selects its token."""

    def __init__(self, models: Models, view: MeasuringView[Any]) -> None:
        super().__init__()
        self._models = models
        self._view = view
        self._regret: Regret | None = None
        self._pointed: int | None = None
        self._is_chosen = False
        self._is_following = False
        rules = (
            (preset.label, preset.name, "")
            for preset in PRESETS.values()
            if not preset.spec.retention.keeps_all and preset.spec.retention.schedule == "uniform"
        )  # a pyramid schedule scores as its rule does, so it is left out
        self._rule = SmallBox("Rule", "Whose score is compared with the measured effect", rules)
        self._rule.choose("h2o")
        sizes = (("each row" if size == 1 else f"pages of {size}", size, "") for size in PAGE_SIZES)
        self._size = SmallBox("What is removed at a time", SIZE_TIP, sizes)
        self.note = ElidedLabel(font_text(11.5), "muted")
        self.plot = Plot("Effect of removing each row against the rule's score")
        self.plot.setToolTip(plain_tip(MEANING))
        self.invitation = plain_label(role="muted", wraps=True)
        self.invitation.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.invitation.setMinimumSize(1, 1)
        top = row(self._rule, self._size, (self.note, 1))
        column(top, (self.invitation, 1), (self.plot, 1), spacing=5, on=self)
        on_change(self._on_rule, self._rule)
        self.plot.connect_to(self._on_pointed, self._on_picked, view.told)

    # ---- intents -------------------------------------------------------------------------------------------------

    def request(self) -> MeasureRegret:
        """The question: the effect of each row of the selected sequence, and the chosen rule's score of it."""
        seq_id = self._models.selection.now.seq_id
        return MeasureRegret(seq_id, PRESETS[self._rule.currentData()].spec, self._size.currentData())

    def choose(self, rule: str, page_size: int) -> None:
        self._rule.choose(rule)
        self._size.choose(page_size)

    def _on_rule(self) -> None:
        if not self._is_following:
            self._is_chosen = True
        self._refresh()

    def _on_picked(self, index: int) -> None:
        regret = self._regret
        if regret is not None:
            self._models.selection.update(
                seq_id=regret.request.seq_id, position=int(regret.positions[index]), step=None
            )

    def _on_pointed(self, index: int | None) -> None:
        if index != self._pointed:
            self._pointed = index
            self._refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def show_regret(self, regret: Regret | None) -> None:
        """Show the answer about the selected sequence; None if there is none."""
        self._regret = regret
        self._refresh()

    def _refresh(self) -> None:
        self._follow_cache()
        regret = self._regret
        marked = self._marked(regret)
        rows = 0 if regret is None else self._models.timeline.num_tokens(regret.request.seq_id, regret.step)
        self.plot.setVisible(regret is not None)
        if regret is not None:
            self.plot.show_chart(regret_chart(regret, rows, marked))
            self.plot.show_words(self._words(regret, marked))
        self.invitation.setVisible(regret is None)
        self.invitation.setText(self._view.measurement.refusal or self._view.invited(INVITATION))
        parts = (self._view.rebuilt_words(regret), self._score_words(regret))
        self.note.setText("  ".join(part for part in parts if part))
        self.note.setToolTip(plain_tip(self.note.text()))

    def _follow_cache(self) -> None:
        """Until the user chooses a rule, follow that of the cache in use."""
        status = self._models.status.now
        if self._is_chosen or status is None or status.cache.retention.keeps_all:
            return
        names = (p.name for p in PRESETS.values() if p.spec.retention.name == status.cache.retention.name)
        index = self._rule.findData(next(names, ""))
        if index >= 0 and index != self._rule.currentIndex():
            self._is_following = True
            self._rule.setCurrentIndex(index)
            self._is_following = False

    def _marked(self, regret: Regret | None) -> int | None:
        now = self._models.selection.now
        if regret is None or now.position is None or now.seq_id != regret.request.seq_id:
            return None
        return draw.page_of(regret, now.position)

    def _score_words(self, regret: Regret | None) -> str:
        """How the score is defined: for the answer shown, else for the chosen rule."""
        cache = regret.request.cache if regret is not None else PRESETS[self._rule.currentData()].spec
        rule = cache.retention.row
        return f"score: {rule.score}; its rank, mean of layers and heads" if rule is not None else ""

    def summary(self, regret: Regret | None) -> str:
        """A short form of the answer, for the title strip."""
        if regret is None:
            return ""
        rule = regret.request.cache.retention.row
        latest = self._models.timeline.live_path.latest
        newer = latest.step - regret.step if latest is not None else 0
        parts = [
            rule.label if rule is not None else "",
            f"rank correlation {decimal(regret.rank_correlation, is_signed=True)}",
        ]
        if newer > 0:
            parts.append(f"at step {regret.step}")
        return " · ".join(parts)

    def _words(self, regret: Regret | None, marked: int | None) -> str:
        """The dot under the mouse, else the selected one, else how it was measured."""
        if regret is None:
            return ""
        index = self._pointed if self._pointed is not None else marked
        if index is None or index >= len(regret.positions):
            return f"{thousands(len(regret.positions))} removals in {milliseconds(regret.took_ms)}"
        first, size = int(regret.positions[index]), regret.request.page_size
        name = f"“{token_name(self._models, regret.request.seq_id, first)}”"
        where = f"{name} {first}" if size == 1 else f"{name} {first}…{first + size - 1}"
        return f"{where} · KL {brief(float(regret.kl[index]))} · rank {decimal(float(regret.scores[index]))}"
