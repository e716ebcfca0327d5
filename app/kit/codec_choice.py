"""Which codec writes K and which V: two lists of every codec, V following K until a person says otherwise."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QWidget

from app.kit.labels import plain_tip
from engine.spec.codec import CodecSpec, coding_of
from engine.spec.codecs import CODECS

SAME = ""


class CodecChoice(QWidget):
    """`changed()` whenever another codec is chosen. Codecs go by the names of their rows: KIVI is one, whatever its
    bits."""

    changed = Signal()

    def __init__(self, height: int = 20, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._keys = self._box("Codec of K, and of V", height)
        self._values = self._box("Codec of V", height)
        for row in CODECS.values():
            self._add(self._keys, row.label, row.name, row.summary)
        self._add(self._values, "V as K", SAME, "The codec of K writes V too")
        for row in CODECS.values():
            self._add(self._values, f"V {row.label}", row.name, row.summary)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(6)
        layout.addWidget(self._keys, 3)
        layout.addWidget(self._values, 2)
        self._keys.currentIndexChanged.connect(self.changed)
        self._values.currentIndexChanged.connect(self.changed)

    def _box(self, name: str, height: int) -> QComboBox:
        box = QComboBox()
        box.setObjectName("small")
        box.setAccessibleName(name)
        box.setToolTip(name)
        box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        box.setMinimumContentsLength(5)
        box.setFixedHeight(height)
        box.setMaxVisibleItems(20)
        return box

    def _add(self, box: QComboBox, label: str, name: str, tip: str) -> None:
        box.addItem(label, name)
        box.setItemData(box.count() - 1, plain_tip(tip), Qt.ItemDataRole.ToolTipRole)

    @property
    def keys(self) -> str:
        return str(self._keys.currentData())

    @property
    def values(self) -> str:
        return str(self._values.currentData() or self.keys)

    @property
    def parameters(self) -> frozenset[str]:
        """What the two codecs can be given."""
        return frozenset(p.name for name in (self.keys, self.values) for p in CODECS[name].parameters)

    def choose(self, keys: str, values: str = SAME) -> None:
        """Another codec for both at once: one change is told, not two."""
        before = (self.keys, self.values)
        for box, name in ((self._keys, keys), (self._values, values)):
            box.blockSignals(True)
            box.setCurrentIndex(box.findData(name))
            box.blockSignals(False)
        if (self.keys, self.values) != before:
            self.changed.emit()

    def spec(self, bits: int, group: int, residual: int) -> CodecSpec:
        """The codec with those numbers, each where K or V has it; `InputError` says what they cannot be."""
        keys, values = (coding_of(name, bits, group, residual) for name in (self.keys, self.values))
        return CodecSpec(keys, values)
