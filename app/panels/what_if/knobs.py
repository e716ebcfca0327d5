"""What to try: a rule for dropping rows, a codec, and their numbers."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QVBoxLayout, QWidget

from app.kit.knobs import Knob
from app.kit.labels import plain_tip
from app.kit.theme import Theme
from app.kit.trials import (
    ALL_ROWS,
    CODECS,
    EXACT,
    KIVI,
    KIVI_BITS,
    RULES,
    Trial,
    codec_of,
    fitting_group,
    retention_of,
    spec_of,
    takes_ratio,
)
from engine.geometry.dimensions import CacheGeometry
from engine.spec.cache import CacheSpec

GROUPS = (8, 16, 32, 64, 128)
_LARGEST = 1_000_000


class WhatIfKnobs(QWidget):
    """Says `moved()` on every change a person makes; `spec()` is what it all means."""

    moved = Signal()

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._num_rows = 0
        self._by_ratio = False
        self._own: set[str] = set()  # sizes that a person has set: the others follow the rows
        self.rule = self._combo(RULES, "Rule for dropping rows")
        self.codec = self._combo(CODECS, "Codec of K and V")
        self.knobs = {
            "budget": Knob(theme, "budget", ""),
            "ratio": Knob(theme, "ratio", "", 2),
            "sinks": Knob(theme, "sinks", "The first rows, which are always kept"),
            "window": Knob(theme, "window", ""),
            "bits": Knob(theme, "bits", "Bits of a KIVI code: 8, 4 or 2"),
            "group": Knob(theme, "group", "Numbers that share a scale: must divide head_dim"),
            "residual": Knob(
                theme,
                "residual",
                "Keys are coded a whole residual at a time; of values the latest so many stay exact",
            ),
        }
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(2)
        column.addWidget(self.rule)
        column.addSpacing(1)
        column.addWidget(self.codec)
        column.addSpacing(2)
        for knob in self.knobs.values():
            column.addWidget(knob)
        column.addStretch(1)
        for name in ("budget", "ratio"):
            self.knobs[name].renamed.connect(self._on_renamed)
        self.knobs["budget"].moved.connect(self._on_budget)
        self.knobs["window"].moved.connect(self._on_window)
        for knob in self.knobs.values():  # last, so that what follows reads what a person has set
            knob.moved.connect(self.moved)
        self.rule.setCurrentIndex(self.rule.findData("streamingllm"))
        self.rule.currentIndexChanged.connect(self._on_rule)
        self.codec.currentIndexChanged.connect(self._on_codec)
        self.knobs["bits"].set_stops(sorted(KIVI_BITS), 1, 8)
        self.knobs["bits"].set_value(4)
        self.knobs["group"].set_stops(GROUPS, 1, 4096)
        self.knobs["group"].set_value(32)
        self._size()
        self.knobs["residual"].set_value(32)
        self._show_rows()

    def _combo(self, trials: dict[str, Trial], name: str) -> QComboBox:
        box = QComboBox()
        box.setObjectName("small")
        box.setAccessibleName(name)
        box.setToolTip(name)
        for trial in trials.values():
            box.addItem(trial.label, trial.name)
            box.setItemData(box.count() - 1, plain_tip(trial.summary), 3)  # ToolTipRole
        box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        box.setMinimumContentsLength(8)
        box.setFixedHeight(22)
        box.setMaxVisibleItems(20)
        return box

    def set_theme(self, theme: Theme) -> None:
        for knob in self.knobs.values():
            knob.set_theme(theme)

    # ---- what it means -------------------------------------------------------------------------------------------

    @property
    def is_identity(self) -> bool:
        """Nothing is chosen that would change anything."""
        return (self._rule, self._codec) == (ALL_ROWS, EXACT)

    @property
    def _rule(self) -> str:
        return str(self.rule.currentData())

    @property
    def _codec(self) -> str:
        return str(self.codec.currentData())

    def spec(self) -> CacheSpec:
        """The cache to try; raises `InputError` with the reason where the numbers cannot be."""
        knobs, shown = self.knobs, self._shown()
        codec = codec_of(self._codec, knobs["bits"].number, knobs["group"].number, knobs["residual"].number)
        sizes: dict[str, int | float] = {}
        for name in ("budget", "sinks", "window"):
            if name in shown and knobs[name].number >= 0:
                sizes[name] = knobs[name].number
        if "ratio" in shown:
            sizes["ratio"] = knobs["ratio"].value
        return spec_of(self._rule, codec, **sizes)

    def choose(self, rule: str, codec: str) -> None:
        """Try another rule and codec, as a person would."""
        self.rule.setCurrentIndex(self.rule.findData(rule))
        self.codec.setCurrentIndex(self.codec.findData(codec))

    # ---- what fits the sequence and the model --------------------------------------------------------------------

    def set_num_rows(self, num_rows: int) -> None:
        """How many rows there are to keep: half of them, however many come, until a person sets a size."""
        if num_rows == self._num_rows or num_rows < 1:
            return
        is_first, self._num_rows = not self._num_rows, num_rows
        self._size()
        if is_first:
            self._preset()
        self._follow()

    def set_geometry(self, geometry: CacheGeometry) -> None:
        """Another model: a group that divides its channels."""
        self.knobs["group"].set_value(fitting_group(geometry))
        self.knobs["residual"].set_value(fitting_group(geometry))

    def _size(self) -> None:
        rows = max(1, self._num_rows)
        scored = retention_of(self._rule).name not in ("window", "sinks+window", "all")
        self.knobs["budget"].set_stops(range(1, rows + 1), 0, _LARGEST)
        self.knobs["ratio"].set_stops([n / 100 for n in range(100)], 0, 1)
        self.knobs["sinks"].set_stops(range(min(rows, 32) + 1), 0, _LARGEST)
        first = -1 if scored else 0
        self.knobs["window"].set_stops(range(first, rows + 1), first, _LARGEST, "own" if scored else "")
        step = max(1, min(self.knobs["group"].number, 128))
        self.knobs["residual"].set_stops(range(step, max(128, rows) + step, step), 1, 65_536)

    def _preset(self) -> None:
        """The numbers that a rule comes with."""
        self._own.discard("window")
        self.knobs["sinks"].set_value(retention_of(self._rule).sinks)
        self.knobs["ratio"].set_value(0.5)

    def _follow(self) -> None:
        """Sizes that nobody has set are half of what is held."""
        retention, half = retention_of(self._rule), max(1, self._num_rows // 2)
        by_window = retention.name in ("window", "sinks+window")
        if "budget" not in self._own:
            self.knobs["budget"].set_value(half)
        if "window" not in self._own:
            self.knobs["window"].set_value(max(1, half - self.knobs["sinks"].number) if by_window else -1)

    def _on_budget(self) -> None:
        self._own.add("budget")

    def _on_window(self) -> None:
        self._own.add("window")

    # ---- showing -------------------------------------------------------------------------------------------------

    def _shown(self) -> set[str]:
        shown = {*RULES[self._rule].parameters, *CODECS[self._codec].parameters}
        by_ratio = self._by_ratio and takes_ratio(self._rule)
        return shown - {"budget" if by_ratio else "ratio"}

    def _show_rows(self) -> None:
        shown = self._shown()
        for name, knob in self.knobs.items():
            knob.setVisible(name in shown)
        can_rename = takes_ratio(self._rule)
        swap = "\nclick the name for the other one" if can_rename else ""
        budget = "Rows kept per layer and head"
        if retention_of(self._rule).schedule == "pyramid":
            budget = "Rows kept per head, in the mean of the layers"
        self.knobs["budget"].name("budget", budget + swap, can_rename=can_rename)
        self.knobs["ratio"].name("ratio", "Part of the rows that is dropped" + swap, can_rename=can_rename)
        by_position = retention_of(self._rule).name in ("window", "sinks+window")
        tip = "The latest rows, which are kept"
        self.knobs["window"].name("window", tip if by_position else "The latest rows kept whatever their score")

    def _on_renamed(self) -> None:
        if takes_ratio(self._rule):
            self._by_ratio = not self._by_ratio
            self._show_rows()
            self.moved.emit()

    def _on_rule(self) -> None:
        self._size()
        self._preset()
        self._follow()
        if self._rule != ALL_ROWS and self._codec == KIVI:  # they exclude each other: what was chosen last counts
            self.codec.setCurrentIndex(self.codec.findData(EXACT))
        self._show_rows()
        self.moved.emit()

    def _on_codec(self) -> None:
        if self._codec == KIVI and self._rule != ALL_ROWS:
            self.rule.setCurrentIndex(self.rule.findData(ALL_ROWS))
        self._show_rows()
        self.moved.emit()
