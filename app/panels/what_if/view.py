"""What if: the next token as another cache would have it, seen while a number is dragged. Nothing live is touched."""

from __future__ import annotations

from PySide6.QtCore import QTimer
from PySide6.QtGui import QFont, QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QPushButton, QStackedLayout, QVBoxLayout, QWidget

from app.draw.format import brief, byte_share, bytes_words, divergence_words, milliseconds, percent
from app.kit.fact_strip import FactStrip, Reading
from app.kit.labels import ElidedLabel, plain_label, tint
from app.kit.measurement import MeasuringPanel, RebuildOffer, out_of_date_words, rebuilt_words, why_nothing
from app.kit.panel import MARGIN
from app.kit.theme import Theme, font_text
from app.models import Models
from app.models.measurement import State
from app.panels.what_if import draw
from app.panels.what_if.canvas import ShiftBars
from app.panels.what_if.knobs import WhatIfKnobs
from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.presets import mode_words
from engine.wire.commands import WhatIf
from engine.wire.records import WhatIfAnswer

# While the engine runs, a question costs it two forwards: it is asked rarely.
RUNNING_MS = 1000
STACKED_WIDTH = 400
KNOBS_WIDTH = 204

# What is asked about: the sequence, its newest step, and the cache to try.
Topic = tuple[int, int, CacheSpec]


class WhatIfView(MeasuringPanel):
    """One question at a time is with the engine; the newest wish follows as soon as that is answered."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "What if", parent)
        self._models = models
        self._measurement = models.measurements.what_if
        self._geometry: object = None
        self._knobs = WhatIfKnobs(theme)
        self._verdict = ElidedLabel()
        self._bars = ShiftBars(theme)
        self._facts = FactStrip(theme)
        self._foot = ElidedLabel()
        self._refusal = plain_label()
        self._offer = RebuildOffer(self._measurement)
        self._use = QPushButton("Use this cache")
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.timeout.connect(self._ask)
        self._build()
        self._knobs.moved.connect(self._on_moved)
        self._use.clicked.connect(self._on_use)
        self._offer.clicked.connect(self.rebuild_wanted)
        self._measurement.changed.connect(self._on_measurement)
        models.selection.changed.connect(self._on_elsewhere)
        models.status.changed.connect(self._on_status)
        models.timeline.legible.connect(self._on_step)
        models.timeline.reset.connect(self._on_elsewhere)
        self.set_theme(theme)

    # ---- construction --------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._verdict.setFont(font_text(12.5, QFont.Weight.DemiBold))
        self._foot.setFont(font_text(11))
        self._refusal.setWordWrap(True)
        self._refusal.setMinimumSize(1, 1)
        self._refusal.setContentsMargins(0, 4, 0, 0)
        self._use.setObjectName("small")
        self._use.setToolTip("Make this the live cache: converted where that is possible, else re-prefilled")
        self.add_to_strip(self._use)
        results = QWidget()
        column = QVBoxLayout(results)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(3)
        column.addWidget(self._verdict)
        column.addWidget(self._bars, 1)
        refused = QWidget()
        line = QVBoxLayout(refused)
        line.setContentsMargins(0, 0, 0, 0)
        line.setSpacing(8)
        line.addWidget(self._refusal)
        line.addWidget(self._offer)
        line.addStretch(1)
        holder = QWidget()
        self._sheets = QStackedLayout(holder)
        self._sheets.addWidget(results)
        self._sheets.addWidget(refused)
        self._sides = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._sides.setContentsMargins(0, 0, 0, 0)
        self._sides.setSpacing(16)
        self._sides.addWidget(self._knobs)
        self._sides.addWidget(holder, 1)
        body = QWidget()
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(4)
        column.addLayout(self._sides, 1)
        column.addWidget(self._facts)
        column.addWidget(self._foot)
        self.set_body(body)
        self._arrange()

    def _arrange(self) -> None:
        """Knobs beside the bars, or above them where the panel is narrow."""
        is_stacked = self.width() < STACKED_WIDTH
        way = QBoxLayout.Direction.TopToBottom if is_stacked else QBoxLayout.Direction.LeftToRight
        self._sides.setDirection(way)
        self._sides.setSpacing(8 if is_stacked else 16)
        self._knobs.setFixedWidth(
            max(1, self.width() - 2 * MARGIN) if is_stacked else min(280, max(KNOBS_WIDTH, self.width() * 38 // 100))
        )

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._knobs.set_theme(theme)
        self._bars.set_theme(theme)
        self._facts.set_theme(theme)
        self._tint()
        self._refresh()

    def _tint(self) -> None:
        """A widget that comes under a style sheet gives up the colours that it had before."""
        tint(self._foot, self.theme, "muted")
        tint(self._refusal, self.theme, "warning")

    # ---- intents -------------------------------------------------------------------------------------------------

    @property
    def knobs(self) -> WhatIfKnobs:
        return self._knobs

    def _on_moved(self) -> None:
        self._ask()
        self._refresh()

    def _on_use(self) -> None:
        try:
            self.applied.emit(self._knobs.spec())
        except InputError:
            self._refresh()

    # ---- what changes --------------------------------------------------------------------------------------------

    def _on_measurement(self) -> None:
        self._ask_on()
        self._refresh()

    def _on_step(self) -> None:
        self._ask_on()
        self._refresh()

    def _on_status(self) -> None:
        status = self._models.status.now
        geometry = status.model.geometry if status is not None and status.model is not None else None
        if geometry is not None and geometry != self._geometry:
            self._geometry = geometry
            self._knobs.set_geometry(geometry)
        self._ask_on()
        self._refresh()

    def _on_elsewhere(self) -> None:
        self._soon.start()
        self._refresh()

    def _ask_on(self) -> None:
        """Ask again where something else is wanted than was asked: at once at rest, now and then while running."""
        wanted, asked = self._topic(), self._asked()
        if not self.isVisible() or self._measurement.is_waiting or wanted is None or wanted == asked:
            return
        is_same_trial = asked is not None and wanted[2] == asked[2]
        if not (self._models.status.is_running and is_same_trial):
            self._soon.start(0)  # after the models have taken all that arrived together
        elif not self._soon.isActive():
            self._soon.start(RUNNING_MS)

    def _ask(self) -> None:
        """Send the question, unless one is being answered: the newest wish is sent when that has come."""
        wanted = self._topic()
        if not self.isVisible() or self._problem() or self._measurement.is_waiting:
            return
        if wanted is not None and wanted != self._asked():
            self.asked.emit(WhatIf(wanted[0], wanted[2]))

    def _asked(self) -> Topic | None:
        """What the newest question was about."""
        question, answer = self._measurement.question, self._measurement.answer
        if not isinstance(question, WhatIf):
            return None
        is_answered = self._measurement.state is State.ANSWERED and answer is not None
        step = answer.step if is_answered and answer is not None else self._measurement.step
        return (question.seq_id, step, question.cache) if step is not None else None

    def _topic(self) -> Topic | None:
        """What the panel should answer now; None where the numbers cannot be or nothing is held."""
        latest, seq_id = self._models.timeline.latest, self._models.selection.now.seq_id
        if latest is None:
            return None
        self._knobs.set_num_rows(self._models.timeline.num_tokens(seq_id) - 1)
        try:
            return seq_id, latest.step, self._knobs.spec()
        except InputError:
            return None

    # ---- showing -------------------------------------------------------------------------------------------------

    def _problem(self) -> str | None:
        return why_nothing(
            self._models,
            "Send a prompt first: then another cache can be tried on the rows that it left.",
            "You are looking back at step {0}. Another cache is tried on the live rows: Ctrl+L goes there.",
            "There is nothing to try yet: a sequence needs two tokens in its cache.",
        )

    def _refused(self) -> str:
        """Why there is no answer to what is chosen."""
        if self._knobs.is_identity:
            return "Choose a rule that drops rows, or a codec with fewer bits."
        try:
            self._knobs.spec()
        except InputError as error:
            return str(error)
        return self._measurement.refusal

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        problem = self._problem()
        self.set_empty(problem)
        refusal = "" if problem else self._refused()
        self._use.setEnabled(not problem and not refusal)
        if problem:
            self.set_provenance("")
            self.set_detail("")
            return
        answer = self._measurement.answer_of(self._models.selection.now.seq_id)
        self._refusal.setText(refusal)
        self._sheets.setCurrentIndex(1 if refusal else 0)
        if refusal or answer is None:
            self._bars.show_answer(None, "", is_faded=False)
            self._facts.show_facts(())
            self._verdict.setText("")
            self._foot.setText("" if refusal else f"{out_of_date_words(self._measurement)}On its way …")
            self.set_provenance("" if refusal else "predicted · asked", "predicted")
            return
        self._show(answer)

    def _show(self, answer: WhatIfAnswer) -> None:
        topic, latest = self._topic(), self._models.timeline.latest
        is_other = topic is None or topic[2] != answer.request.cache
        self._bars.show_answer(answer, mode_words(answer.request.cache), is_faded=is_other)
        self._facts.show_facts(self._numbers(answer), is_faded=is_other)
        self._tell_winner(answer)
        live = latest.step if latest is not None else answer.step
        is_old = answer.step != live
        how = "estimate" if answer.is_estimate else "recomputed"
        source = f"{how} · step {answer.step}" if is_old else how
        whole = f"what if · {how} on a copy · step {answer.step}, live {live}"
        kind = "predicted" if answer.is_estimate else "recomputed"
        self.set_provenance(source, "past" if is_old else kind, whole)
        foot = [answer.note, "The live cache is untouched.", milliseconds(answer.took_ms)]
        if self._is_coded:
            foot.insert(1, "The live cache is coded already: “before” is what it reads.")
        foot.insert(0, rebuilt_words(self._models, answer.request.rebuild))
        self._foot.setText("  ".join(word for word in foot if word))
        self._foot.setToolTip(self._foot.text())

    @property
    def _is_coded(self) -> bool:
        status = self._models.status.now
        return status is not None and not status.cache.codec.is_exact

    def _tell_winner(self, answer: WhatIfAnswer) -> None:
        before, after = draw.winners(answer)
        text = f"⚑ another token wins: {before} → {after}" if answer.top1_changed else f"the same token wins: {before}"
        self._verdict.setText(text)
        tint(self._verdict, self.theme, "selected" if answer.top1_changed else "text")

    def _numbers(self, answer: WhatIfAnswer) -> tuple[Reading, ...]:
        exact, kept = answer.exact_bytes, answer.kv_bytes
        return (
            Reading(
                "KL divergence",
                "KL",
                divergence_words(answer.kl),
                f"KL(before ‖ after) of the next token, in nats: {brief(answer.kl, 9)}",
            ),
            Reading(
                "max |Δ logit|",
                "max |Δ|",
                brief(answer.max_abs_logit_diff),
                f"The largest change of any logit: {brief(answer.max_abs_logit_diff, 9)}",
            ),
            Reading(
                "rows kept",
                "rows",
                percent(answer.kept_ratio),
                "Rows that stay, in all layers and heads, of those before the newest token",
            ),
            Reading(
                f"K and V, {byte_share(exact, kept)} of exact",
                byte_share(exact, kept),
                bytes_words(exact, kept),
                f"{exact:,} bytes of exact rows → {kept:,} bytes, the newest token's own rows aside",
            ),
        )

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._tint()
        self._on_status()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._soon.stop()
