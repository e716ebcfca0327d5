"""The steps that were taken, against another way to the same tokens: no cache at all, or any other cache mode."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QFont, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QPushButton, QVBoxLayout, QWidget

from app.draw.format import brief, milliseconds, thousands, token_label
from app.kit.chart.plot import Plot
from app.kit.labels import ElidedLabel, plain_tip, prose, tint
from app.kit.measurement import AskButton, MeasuringPanel, out_of_date_words
from app.kit.theme import TextRole, Theme, font_text
from app.models import Models
from app.panels.parity.chart import parity_chart
from app.panels.parity.draw import Quantity
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS, cache_label, preset_of
from engine.wire.commands import CheckParity
from engine.wire.records import ParityReport

UNCACHED = "uncached"
_STACKED = 290
_LINK = """
QPushButton {{ text-align: left; padding: 0 0 2px 0; border: none; background: transparent; color: {0}; }}
QPushButton:disabled {{ color: {1}; background: transparent; }}
QPushButton:hover:enabled, QPushButton:focus {{ text-decoration: underline; }}
"""


class ParityView(MeasuringPanel):
    """Clicking a dot looks at that step; clicking the first row that departs selects it."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Parity", parent)
        self._models = models
        self._quantity: Quantity = "logits"
        self._pointed: int | None = None
        self._drawn: tuple[object, ...] = ()
        self._measurement = models.measurements.parity
        self._button = AskButton(self._measurement, theme, "Check")
        self._button.setAccessibleName("Check parity")
        self._against = QComboBox()
        self._verdict = ElidedLabel()
        self._numbers = ElidedLabel()
        self._place = QPushButton()
        self._plots: dict[Quantity, Plot] = {
            "logits": Plot(theme, "Difference of the logits at every step"),
            "kl": Plot(theme, "KL divergence at every step"),
        }
        self._build()
        self._measurement.changed.connect(self._on_measurement)
        models.selection.changed.connect(self._refresh)
        models.status.changed.connect(self._refresh)
        models.timeline.legible.connect(self._refresh)
        models.timeline.reset.connect(self._refresh)
        self.set_theme(theme)

    def _build(self) -> None:
        self._against.setObjectName("small")
        self._against.setAccessibleName("Compare with")
        self._against.setToolTip("What the same tokens are computed with for comparison")
        self._against.addItem("no cache", UNCACHED)
        for preset in PRESETS.values():
            if preset.name != "none":
                self._against.addItem(preset.label, preset.name)
        self._against.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self._against.setMinimumContentsLength(9)
        self._against.setFixedHeight(20)
        self._against.setMaxVisibleItems(20)
        self._verdict.setFont(font_text(12.5, QFont.Weight.DemiBold))
        self._place.setObjectName("small")
        self._place.setFlat(True)
        self._place.setCursor(Qt.CursorShape.PointingHandCursor)
        self._numbers.setFont(font_text(12))
        self._place.setFont(font_text(12))
        body = QWidget()
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(3)
        column.addWidget(self._verdict)
        column.addWidget(self._numbers)
        column.addWidget(self._place)
        for plot in self._plots.values():
            column.addWidget(plot, 1)
        self.set_body(body)
        self.add_to_strip(self._against)
        self.add_to_strip(self._button)
        self._button.asked.connect(self.ask)
        self._button.stopped.connect(self.cancelled)
        self._place.clicked.connect(self._on_place)
        for plot in self._plots.values():
            plot.picked.connect(self._on_picked)
            plot.pointed.connect(self._on_pointed)
            plot.told.connect(self.told)
        self.chosen.connect(self.choose_quantity)

    # ---- intents -------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Compare the selected sequence with what is chosen; a comparison that is going on goes on."""
        if self._measurement.is_waiting or self._problem():
            return
        self.asked.emit(CheckParity(self._models.selection.now.seq_id, self._other()))

    def measure(self) -> None:
        self.ask()

    def choose(self, name: str) -> None:
        """Compare with another mode from now on, by its name; `uncached` is no cache at all."""
        self._against.setCurrentIndex(self._against.findData(name))

    def _other(self) -> CacheSpec | None:
        """The mode to compare with; the one in use keeps its own parameters."""
        name = self._against.currentData()
        if name == UNCACHED:
            return None
        status = self._models.status.now
        if status is not None and preset_of(status.cache).name == name and status.cache.codec.is_uniform:
            return status.cache
        return PRESETS[name].spec

    def choose_quantity(self, choice: str) -> None:
        """Show the difference of the logits, or the KL."""
        self._quantity = "kl" if choice == "kl" else "logits"
        self._refresh()

    def _on_measurement(self) -> None:
        self._pointed = None
        self._refresh()

    def _report(self) -> ParityReport | None:
        """The answer about the selected sequence."""
        return self._measurement.answer_of(self._models.selection.now.seq_id)

    def _on_picked(self, index: int) -> None:
        report = self._report()
        if report is not None and index < len(report.steps):
            step = int(report.steps[index])
            latest = self._models.timeline.latest
            is_newest = latest is not None and latest.step == step
            self._models.selection.update(step=None if is_newest else step)

    def _on_pointed(self, index: int | None) -> None:
        if index != self._pointed:
            self._pointed = index
            self._show_words()

    def _on_place(self) -> None:
        report = self._report()
        if report is not None and report.layer is not None and report.tensor is not None:
            self._models.selection.update(
                step=None,
                seq_id=report.request.seq_id,
                layer=report.layer,
                position=report.position,
                tensor=report.tensor,
                change=False,
            )

    # ---- showing -------------------------------------------------------------------------------------------------

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._button.set_theme(theme)
        self._place.setStyleSheet(_LINK.format(theme.accent, theme.muted))
        self._drawn = ()
        self._refresh()

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        problem = self._problem()
        self._button.set_reason(problem)
        report = self._report()
        selected = self._selected(report)
        num_newer = self._num_newer(report)
        key = (report, self._quantity, selected, num_newer, problem, self._measurement.state, self.theme)
        if key == self._drawn and not self._measurement.is_waiting:
            return
        self._drawn = key
        self._button.refresh()
        if report is None:
            self.set_empty(self._measurement.refusal or problem or self._invitation())
            self.set_choices(())
            self.set_provenance("")
            return
        self.set_empty(None)
        self._show_choices()
        first, last = (int(report.steps[0]), int(report.steps[-1])) if len(report.steps) else (0, 0)
        whole = f"recomputed · steps {first}–{last}"
        self.set_provenance("recomputed", "recomputed", whole)
        self._verdict.setText(self._verdict_words(report))
        self._numbers.setText(self._number_words(report, num_newer))
        self._numbers.setToolTip(plain_tip(self._numbers.text()))
        roles: dict[str, TextRole] = {"within rounding": "good", "lossy, as asked": "warning", "departs": "bad"}
        tint(self._verdict, self.theme, roles[report.verdict])
        tint(self._numbers, self.theme, "muted")
        self._show_place(report)
        for quantity, plot in self._plots.items():
            plot.setVisible(self.is_stacked or quantity == self._quantity)
            if plot.isVisibleTo(self):
                plot.show_chart(self.theme, parity_chart(report, quantity, self._models.selection.now.step))
        self._show_words()

    def _show_words(self) -> None:
        words = self._step_words()
        for quantity, plot in self._plots.items():
            plot.show_words("" if self.is_stacked and quantity == "logits" else words)

    @property
    def plot(self) -> Plot:
        """The plot of the chosen quantity."""
        return self._plots[self._quantity]

    @property
    def is_stacked(self) -> bool:
        """Whether there is room for both plots, one above the other."""
        return self.height() >= _STACKED

    def _show_choices(self) -> None:
        if self.is_stacked:
            self.set_choices(())
            return
        self.set_choices(
            (
                ("logits", "Δ logit", "The largest difference of a logit, at every step"),
                ("kl", "KL", "KL divergence of the next token, in nats, at every step"),
            )
        )
        self.set_choice(self._quantity)

    def _invitation(self) -> str:
        return (
            out_of_date_words(self._measurement)
            + "Check: are the steps what they would be without a cache, or in another mode?"
        )

    def _problem(self) -> str:
        """Why nothing can be asked now."""
        status = self._models.status.now
        if status is None or status.model is None:
            return "A model is needed first."
        if not len(self._models.timeline):
            return "Send a prompt first: parity compares the steps that were taken."
        return ""

    def _selected(self, report: ParityReport | None) -> int | None:
        step = self._models.selection.now.step
        if report is None or step is None:
            return None
        found = np.flatnonzero(report.steps == step)
        return int(found[0]) if found.size else None

    def _num_newer(self, report: ParityReport | None) -> int:
        latest = self._models.timeline.latest
        if report is None or latest is None or not len(report.steps):
            return 0
        return max(0, latest.step - int(report.steps[-1]))

    def _verdict_words(self, report: ParityReport) -> str:
        mine, other = cache_label(report.cache), "no cache"
        if report.request.against is not None:
            other = cache_label(report.request.against)
        verdict = {
            "within rounding": "Within rounding",
            "lossy, as asked": "Lossy, as asked",
            "departs": "Departs",
        }[report.verdict]
        taken, compared = self._num_taken(report.request.seq_id), len(report.steps)
        if compared < taken:  # a verdict on a few steps must not read like one on all
            words = "{0} at {1} of {2} steps: {3} against {4}"
            return words.format(verdict, thousands(compared), thousands(taken), mine, other)
        return f"{verdict}: {mine} against {other}"

    def _num_taken(self, seq_id: int) -> int:
        """Steps that fed this sequence, those of the one it was forked from included."""
        return len({token.step for token in self._models.timeline.tokens(seq_id)})

    def _number_words(self, report: ParityReport, num_newer: int) -> str:
        count, most = len(report.steps), float(np.max(report.max_abs_logit_diff, initial=0.0))
        words = [
            f"|Δ logit| up to {brief(most)}",
            f"top-1 {int(report.top1_agrees.sum())} of {count}, {self._step_range(report)}",
        ]
        if num_newer:
            words.append(f"{num_newer} newer steps not compared")
        return " · ".join(words)

    def _step_range(self, report: ParityReport) -> str:
        if len(report.steps) == 1:
            return f"step {thousands(int(report.steps[0]))} alone"
        first, last = (thousands(int(step)) for step in (min(report.steps), max(report.steps)))
        return f"steps {first} … {last}"

    def _show_place(self, report: ParityReport) -> None:
        is_there = report.layer is not None and report.position is not None
        self._place.setEnabled(is_there)
        if report.layer is None or report.position is None:
            words = "All rows of K and V that both hold are the same within rounding"
            tip = ""
        else:
            tokens = self._models.timeline.tokens(report.request.seq_id)
            text = f" “{token_label(tokens[report.position].text)}”" if report.position < len(tokens) else ""
            name = "K" if report.tensor == "keys" else "V"
            words = f"First row beyond rounding: layer {report.layer}, {name}, token {report.position}{text}  →"
            tip = "Select this layer, tensor and token"
        metrics = self._place.fontMetrics()
        self._place.setText(
            metrics.elidedText(words, Qt.TextElideMode.ElideRight, max(60, self.width() - 26)).replace("&", "&&")
        )
        self._place.setAccessibleName(prose(words))
        self._place.setToolTip(tip)

    def _step_words(self) -> str:
        """The step that is pointed at, else the one that is looked at, else what the comparison took."""
        report = self._report()
        if report is None or not len(report.steps):
            return ""
        index = self._pointed if self._pointed is not None else self._selected(report)
        if index is None or index >= len(report.steps):
            return f"compared in {milliseconds(report.took_ms)}"
        same = "same top token" if report.top1_agrees[index] else "another top token"
        largest, kl = brief(float(report.max_abs_logit_diff[index])), brief(float(report.kl[index]))
        return f"step {int(report.steps[index])} · |Δ| {largest} · KL {kl} · {same}"

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._drawn = ()
        self._refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh()
