"""The controls of What if: an eviction rule, a codec, and their parameters."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from app.kit.fields import CodecChoice, Knob, SmallBox
from app.kit.widgets import column, on_change
from engine.geometry.dimensions import CacheGeometry
from engine.spec.cache import CacheSpec, fitted, rule_spec, tuned
from engine.spec.codec import BITS, GROUP, RESIDUAL, fitting_group
from engine.spec.parameter import Parameter
from engine.spec.retention import BUDGET, RATIO, RECENT, RULES, SINKS, RetentionSpec, RuleRow

ALL_ROWS, EXACT, KIVI = "all", "exact", "kivi"
KIVI_BITS = (2, 4, 8)  # the slider's values
GROUPS = (8, 16, 32, 64, 128)
SHARE = 0.5  # fraction of the rows that is kept, until the user sets a size
SIZES = ("budget", "sinks", "window")


class WhatIfKnobs(QWidget):
    """Signal: `moved()`, the user changed something. `spec()` is the cache to try."""

    moved = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._num_rows = 0
        self._by_ratio = False
        self._own: set[str] = set()  # sizes that the user has set; the others follow the number of rows
        self.rule = self._rules()
        self.codec = CodecChoice(22)
        self.knobs = {
            parameter.name: Knob(parameter.name, parameter.tip, 2 if parameter.kind == "share" else 0)
            for parameter in (BUDGET, RATIO, SINKS, RECENT, BITS, GROUP, RESIDUAL)
        }
        column(self.rule, 1, self.codec, 2, *self.knobs.values(), None, spacing=2, on=self)
        for name in ("budget", "ratio"):
            self.knobs[name].renamed.connect(self._on_renamed)
        for name in ("budget", "window"):
            self.knobs[name].moved.connect(partial(self._own.add, name))
        for knob in self.knobs.values():  # connected last, so that listeners read the updated state
            knob.moved.connect(self.moved)
        self.rule.choose("streamingllm")
        on_change(self._on_rule, self.rule)
        on_change(self._on_codec, self.codec)
        self.knobs["bits"].set_stops(KIVI_BITS, 1, BITS.most)
        self.knobs["bits"].set_value(4)
        self.knobs["group"].set_stops(GROUPS, 1, GROUP.most)
        self.knobs["group"].set_value(32)
        self._size()
        self.knobs["residual"].set_value(32)
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
        self._own.discard("window")
        self.knobs["sinks"].set_value(self._retention.sinks)
        self.knobs["ratio"].set_value(SHARE)

    def _follow(self) -> None:
        """Set the sizes that the user has not set to half of the rows."""
        retention = self._retention
        if retention.is_by_position:
            retention = replace(retention, sinks=self.knobs["sinks"].number if "sinks" in self._parameters else 0)
        half = fitted(CacheSpec(retention=retention), self._num_rows, SHARE).retention
        if "budget" not in self._own:
            self.knobs["budget"].set_value(half.budget or 1)
        if "window" not in self._own:
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
