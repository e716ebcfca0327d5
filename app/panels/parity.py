"""The Parity panel: the steps taken, compared with the same tokens computed without a cache or in another mode."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
from msgspec import Struct
from PySide6.QtCore import Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QMenu

from app.draw.axis import Ints, StepPoints, kinds_of, step_points
from app.draw.format import brief, exact, milliseconds, thousands, token_label
from app.kit.asking import AskingView, mode_named
from app.kit.chart import Chart
from app.kit.fields import SmallBox
from app.kit.plot import Plot, pointed_key, step_chart
from app.kit.provenance import Provenance
from app.kit.theme import TextRole, font_text
from app.kit.widgets import ElidedLabel, LinkButton, column, set_text_role
from app.models import Models
from engine.counted import counted
from engine.spec.cache import PRESETS, CacheSpec, cache_label
from engine.wire.comparison import OtherRun
from engine.wire.measurements import CheckParity, ParityReport

ParityQuantity = Literal["logits", "kl"]
TITLES: dict[ParityQuantity, str] = {"logits": "max |Δ logit|", "kl": "KL, nats"}
_FLOOR = {"logits": -9, "kl": -12}


def parity_chart(report: ParityReport, quantity: ParityQuantity, selected: int | None) -> Chart:
    """The plot of a quantity; `selected` is a step."""
    found = points(report, quantity)
    if quantity == "kl":
        return step_chart(found, TITLES[quantity], selected)
    note = f"rounding, {report.dtype}: up to {exact(report.tolerance)}"
    return step_chart(found, TITLES[quantity], selected, tolerance=report.tolerance, note=note)


def points(report: ParityReport, quantity: ParityQuantity) -> StepPoints:
    """The points of all steps of the report; NaN and Inf are at the top."""
    values = report.max_abs_logit_diff if quantity == "logits" else report.kl
    extra = (report.tolerance,) if quantity == "logits" else ()
    other = report.top1_agrees == 0
    return step_points(report.steps, values, kinds(report), other, floor=_FLOOR[quantity], extra=extra)


def kinds(report: ParityReport) -> Ints:
    """Each step's kind: within rounding, lossy, or a departure."""
    return kinds_of(~(report.max_abs_logit_diff <= report.tolerance), report.may_differ == 1)


UNCACHED = "uncached"
INVITATION = "Check: are the steps what they would be without a cache, or in another mode?"
_STACKED = 290


class ParityShown(Struct, frozen=True):
    """A report about the selected sequence; the selected step and the newest; the chosen plot, or both if they fit
    (`is_stacked`); and the description of a step."""

    report: ParityReport
    step: int | None
    newest: int
    quantity: str
    is_stacked: bool
    words: str


class ParityView(AskingView[ParityShown]):
    """Clicking a dot selects its step; clicking the link selects the first row that departs. Signal:
    `compared(OtherRun)`, show the comparison with it."""

    compared = Signal(object)

    name, measures = "parity", "parity"
    reads_size = True
    button_words, button_name = "Check", "Check parity"
    choices_when_empty = False
    choices = (
        ("logits", "Δ logit", "The largest difference of a logit, at every step"),
        ("kl", "KL", "KL divergence of the next token, in nats, at every step"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._against = SmallBox(
            "Compare with",
            "What the same tokens are computed with for comparison",
            (("no cache", UNCACHED, ""), *((p.label, p.name, "") for p in PRESETS.values() if p.name != "none")),
            characters=9,
        )
        self.verdict = ElidedLabel(font_text(12.5, QFont.Weight.DemiBold))
        self.numbers = ElidedLabel(font_text(12), "muted")
        self.place = LinkButton()
        self._plots: dict[ParityQuantity, Plot] = {
            "logits": self.new_plot("Difference of the logits at every step", self.select_step),
            "kl": self.new_plot("KL divergence at every step", self.select_step),
        }
        self._build()
        self.follow(models)

    def _build(self) -> None:
        self.set_body(column(self.verdict, self.numbers, self.place, *((plot, 1) for plot in self._plots.values())))
        self.add_to_strip(self._against)
        self.add_to_strip(self.button)
        self.place.clicked.connect(self._on_place)

    # ---- intents -------------------------------------------------------------------------------------------------

    def request(self) -> CheckParity:
        return CheckParity(self._models.selection.now.seq_id, self._other())

    def add_to_menu(self, menu: QMenu) -> None:
        if not self.problem():
            menu.addAction("Compare side by side", self.compare_side_by_side)
            menu.addSeparator()

    def compare_side_by_side(self) -> None:
        """Ask to compare with the run that parity is checked against, side by side."""
        self.compared.emit(OtherRun(self._other() or PRESETS["none"].spec))

    def compare_with(self, name: str) -> None:
        """Choose the mode to compare with, by name; `uncached` is no cache at all."""
        self._against.choose(name)

    def _other(self) -> CacheSpec | None:
        """The mode to compare with; if it is the one in use, with its present parameters. None: no cache."""
        name = self._against.currentData()
        if name == UNCACHED:
            return None
        return mode_named(self._models, name)

    def _on_place(self) -> None:
        report: ParityReport | None = self.answer
        if report is not None and report.layer is not None and report.tensor is not None:
            self._models.selection.update(
                step=None,
                seq_id=report.request.seq_id,
                layer=report.layer,
                position=report.position,
                lens=report.tensor,
                change=False,
            )

    # ---- showing -------------------------------------------------------------------------------------------------

    def read(self) -> ParityShown | str:
        report, latest = self.answer, self._models.timeline.live_path.latest
        if report is None or latest is None:
            return self.measurement.refusal or self.problem() or self.invited(INVITATION)
        step = self._models.selection.now.step
        return ParityShown(report, step, latest.step, self.choice, self.is_stacked, self._step_words(report))

    def provenance(self, state: ParityShown) -> Provenance:
        steps = state.report.steps
        first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)
        return Provenance("recomputed", "recomputed", f"recomputed · steps {first}–{last}")

    def show_state(self, state: ParityShown) -> None:
        report = state.report
        self.show_choices(not state.is_stacked)
        self.verdict.setText(self._verdict_words(report))
        self.numbers.setText(self._number_words(report, self._num_newer(report)))
        roles: dict[str, TextRole] = {"within rounding": "good", "departs": "bad"}
        set_text_role(self.verdict, roles.get(report.verdict, "warning"))
        self._show_place(report)
        for quantity, plot in self._plots.items():
            is_shown = state.is_stacked or quantity == state.quantity
            plot.setVisible(is_shown)
            if is_shown:
                plot.show_made((report, state.step), partial(parity_chart, report, quantity, state.step))
                plot.show_words("" if state.is_stacked and quantity == "logits" else state.words)

    @property
    def plot(self) -> Plot:
        """The plot of the chosen quantity."""
        return self._plots["kl" if self.choice == "kl" else "logits"]

    @property
    def is_stacked(self) -> bool:
        """Whether both plots fit, one above the other."""
        return self.height() >= _STACKED

    def problem(self) -> str:
        if self._models.status.now.model is None:
            return "A model is needed first."
        if not len(self._models.timeline):
            return "Send a prompt first: parity compares the steps that were taken."
        return ""

    def _num_newer(self, report: ParityReport) -> int:
        """The number of steps that computed this sequence after the last one compared."""
        last = int(report.steps[-1]) if len(report.steps) else -1
        return sum(step > last for step in self._steps_taken(report.request.seq_id))

    def _verdict_words(self, report: ParityReport) -> str:
        mine, other = cache_label(report.cache), "no cache"
        if report.request.against is not None:
            other = cache_label(report.request.against)
        if report.verdict in ("edited by hand", "lossy and edited"):
            other = f"{other} without the edits"
        if report.is_edited:
            other = f"{'growing' if report.request.against is None else other} with the same edits"
        are_exact = report.cache.is_exact and (report.request.against is None or report.request.against.is_exact)
        if report.verdict in ("lossy, as asked", "lossy and edited") and are_exact:
            mine = f"{mine}, and lossy modes before it,"
        verdict = {
            "within rounding": "Within rounding",
            "lossy, as asked": "Lossy, so it differs",
            "edited by hand": "Edited by hand",
            "lossy and edited": "Edited by hand, and lossy",
            "departs": "Departs",
        }[report.verdict]
        taken, compared = len(self._steps_taken(report.request.seq_id)), len(report.steps)
        if compared < taken:  # a verdict on a few steps must not read like one on all
            words = "{0} at {1} of {2}: {3} against {4}"
            return words.format(verdict, thousands(compared), counted(taken, "step"), mine, other)
        return f"{verdict}: {mine} against {other}"

    def _steps_taken(self, seq_id: int) -> set[int]:
        """The steps that computed this sequence, including those of the sequence it was forked from."""
        return {token.step for token in self._models.timeline.live_path.tokens(seq_id)}

    def _number_words(self, report: ParityReport, num_newer: int) -> str:
        count, most = len(report.steps), float(np.max(report.max_abs_logit_diff, initial=0.0))
        words = [
            f"|Δ logit| up to {brief(most)}",
            f"top-1 {int(report.top1_agrees.sum())} of {count}, {self._step_range(report)}",
        ]
        if num_newer:
            words.append(f"{counted(num_newer, 'newer step')} not compared")
        return " · ".join(words)

    def _step_range(self, report: ParityReport) -> str:
        if len(report.steps) == 1:
            return f"step {thousands(int(report.steps[0]))} alone"
        first, last = (thousands(int(step)) for step in (min(report.steps), max(report.steps)))
        return f"steps {first} … {last}"

    def _show_place(self, report: ParityReport) -> None:
        if report.layer is None or report.position is None:
            self.place.show_link("All rows of K and V that both hold are the same within rounding", "", leads=False)
            return
        tokens = self._models.timeline.live_path.tokens(report.request.seq_id)
        text = f" “{token_label(tokens[report.position].text)}”" if report.position < len(tokens) else ""
        name = "K" if report.tensor == "keys" else "V"
        words = f"First row beyond rounding: layer {report.layer}, {name}, token {report.position}{text}  →"
        self.place.show_link(words, "Select this layer, tensor and token", leads=True)

    def _step_words(self, report: ParityReport) -> str:
        """The step under the mouse, else the selected one, else how long the comparison took."""
        pointed = pointed_key(self._plots.values())
        found = np.flatnonzero(report.steps == (self._models.selection.now.step if pointed is None else pointed))
        if not found.size:
            return f"compared in {milliseconds(report.took_ms)}" if len(report.steps) else ""
        index = int(found[0])
        same = "same top token" if report.top1_agrees[index] else "another top token"
        largest, kl = brief(float(report.max_abs_logit_diff[index])), brief(float(report.kl[index]))
        return f"step {int(report.steps[index])} · |Δ| {largest} · KL {kl} · {same}"
