"""Policy regret: what removing each row, or page of rows, does, against what a rule thinks of it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QVBoxLayout, QWidget

from app.draw.format import brief, decimal, milliseconds, thousands
from app.kit.chart.plot import Plot
from app.kit.labels import ElidedLabel, plain_label, plain_tip, set_text_role
from app.kit.measurement import RebuildOffer, out_of_date_words, rebuilt_words
from app.kit.provenance import token_name
from app.kit.theme import font_text
from app.models import Models
from app.panels.evicted import regret_draw as draw
from app.panels.evicted.regret_chart import MEANING, regret_chart
from engine.spec.presets import PRESETS
from engine.wire.commands import MeasureRegret
from engine.wire.measurements import Regret

PAGE_SIZES = (1, 2, 4, 8, 16, 32)


class RegretSheet(QWidget):
    """Emits `asked(command)` and `rebuild_wanted()`. A click on a dot selects its token everywhere."""

    asked = Signal(object)
    rebuild_wanted = Signal()

    def __init__(self, models: Models, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self._pointed: int | None = None
        self._is_chosen = False
        self._is_following = False
        self.measurement = models.measurements.regret
        self._rule, self._size = QComboBox(), QComboBox()
        self.note = ElidedLabel()
        self.plot = Plot("Effect of removing each row against the rule's score")
        self.plot.setToolTip(plain_tip(MEANING))
        self._build()

    def _build(self) -> None:
        for preset in PRESETS.values():
            retention = preset.spec.retention
            if not retention.keeps_all and retention.schedule == "uniform":  # a pyramid scores as its rule does
                self._rule.addItem(preset.label, preset.name)
        self._rule.setCurrentIndex(self._rule.findData("h2o"))
        self._rule.setAccessibleName("Rule")
        self._rule.setToolTip("Whose score is compared with the measured effect")
        for size in PAGE_SIZES:
            words = "each row" if size == 1 else f"pages of {size}"
            self._size.addItem(words, size)
        self._size.setAccessibleName("What is removed at a time")
        self._size.setToolTip("Removed at a time, from every layer and head at once; all others stay")
        row = QHBoxLayout()
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(6)
        for box in (self._rule, self._size):
            box.setObjectName("small")
            box.setFont(font_text(11.5))
            box.setFixedHeight(20)
            row.addWidget(box)
        self.note.setFont(font_text(11.5))
        row.addWidget(self.note, 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(5)
        column.addLayout(row)
        self.invitation = plain_label()
        self.invitation.setWordWrap(True)
        self.invitation.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.invitation.setMinimumSize(1, 1)
        column.addWidget(self.invitation, 1)
        self._offer = RebuildOffer(self.measurement)
        column.addWidget(self._offer, 0, Qt.AlignmentFlag.AlignHCenter)
        self._offer.clicked.connect(self._on_offer)
        column.addWidget(self.plot, 1)
        self._rule.currentIndexChanged.connect(self._on_rule)
        self.plot.picked.connect(self._on_picked)
        self.plot.pointed.connect(self._on_pointed)

    # ---- intents -------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Measure; a measurement that is going on goes on."""
        if self.measurement.is_waiting or self.problem():
            return
        seq_id = self._models.selection.now.seq_id
        self.asked.emit(MeasureRegret(seq_id, PRESETS[self._rule.currentData()].spec, self._size.currentData()))

    def _on_offer(self) -> None:
        self.rebuild_wanted.emit()
        self.ask()

    def choose(self, rule: str, page_size: int) -> None:
        self._rule.setCurrentIndex(self._rule.findData(rule))
        self._size.setCurrentIndex(self._size.findData(page_size))

    def _on_rule(self) -> None:
        if not self._is_following:
            self._is_chosen = True
        self.refresh()

    def _on_picked(self, index: int) -> None:
        regret = self.regret()
        if regret is not None:
            self._models.selection.update(
                seq_id=regret.request.seq_id, position=int(regret.positions[index]), step=None
            )

    def _on_pointed(self, index: int | None) -> None:
        if index != self._pointed:
            self._pointed = index
            self.refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def regret(self) -> Regret | None:
        """The answer about the selected sequence."""
        return self.measurement.answer_of(self._models.selection.now.seq_id)

    def problem(self) -> str:
        """Why nothing can be asked now."""
        if self._models.timeline.num_tokens(self._models.selection.now.seq_id) < 2:
            return "Send a prompt first: regret is measured on the rows of its cache."
        return ""

    def refresh(self) -> None:
        self._follow_cache()
        regret = self.regret()
        marked = self._marked(regret)
        rows = 0 if regret is None else self._models.timeline.num_tokens(regret.request.seq_id, regret.step)
        self.plot.setVisible(regret is not None)
        if regret is not None:
            self.plot.show_chart(regret_chart(regret, rows, marked))
            self.plot.show_words(self._words(regret, marked))
        self.invitation.setVisible(regret is None)
        self.invitation.setText(self.measurement.refusal or self._invitation_words())
        rebuilt = rebuilt_words(self._models, regret is not None and regret.request.rebuild)
        self.note.setText("  ".join(part for part in (rebuilt, self._score_words(regret)) if part))
        self.note.setToolTip(plain_tip(self.note.text()))
        for label in (self.note, self.invitation):
            set_text_role(label, "muted")

    def _invitation_words(self) -> str:
        words = "Measure: each row is removed in turn, and the change of the next token stands beside the rule's score."
        return out_of_date_words(self.measurement) + words

    def _follow_cache(self) -> None:
        """Until a person chooses, the rule of the cache in use."""
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
        """What exactly the score is: of the answer shown, else of the rule that is chosen."""
        cache = regret.request.cache if regret is not None else PRESETS[self._rule.currentData()].spec
        row = cache.retention.row
        return f"score: {row.score}; its rank, mean of layers and heads" if row is not None else ""

    def summary(self) -> str:
        """The answer in a few words, for the strip."""
        regret = self.regret()
        if regret is None:
            return ""
        row = regret.request.cache.retention.row
        latest = self._models.timeline.latest
        newer = latest.step - regret.step if latest is not None else 0
        parts = [
            row.label if row is not None else "",
            f"rank correlation {decimal(regret.rank_correlation, is_signed=True)}",
        ]
        if newer > 0:
            parts.append(f"at step {regret.step}")
        return " · ".join(parts)

    def _words(self, regret: Regret | None, marked: int | None) -> str:
        """The dot that is pointed at, else the selected one, else how it was measured."""
        if regret is None:
            return ""
        index = self._pointed if self._pointed is not None else marked
        if index is None or index >= len(regret.positions):
            return f"{thousands(len(regret.positions))} removals in {milliseconds(regret.took_ms)}"
        first, size = int(regret.positions[index]), regret.request.page_size
        name = f"“{token_name(self._models, regret.request.seq_id, first)}”"
        where = f"{name} {first}" if size == 1 else f"{name} {first}…{first + size - 1}"
        return f"{where} · KL {brief(float(regret.kl[index]))} · rank {decimal(float(regret.scores[index]))}"
