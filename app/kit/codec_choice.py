"""Selects the codecs of K and V: two lists of all codecs, where V follows K until the user chooses another one."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Signal
from PySide6.QtWidgets import QWidget

from app.kit.boxes import row
from app.kit.changes import on_change
from app.kit.fields import SmallBox
from engine.spec.codec import CodecSpec, coding_of
from engine.spec.codecs import CODECS, CodecRow

SAME, EXACT = "", "exact"


class CodecChoice(QWidget):
    """Two lists of codecs, identified by the names of their rows (KIVI is one codec, whatever its bits). Signal:
    `changed()`."""

    changed = Signal()

    def __init__(self, height: int = 20) -> None:
        super().__init__()
        codecs = CODECS.values()
        options = [(codec.label, codec.name, _tip(codec)) for codec in codecs]
        self._keys = SmallBox("Codec of K, and of V", options=options, height=height, characters=3)
        options = [("V as K", SAME, "The codec of K writes V too")]
        options += [(f"V {codec.label}", codec.name, _tip(codec)) for codec in codecs]
        self._values = SmallBox("Codec of V", options=options, height=height, characters=3)
        row((self._keys, 3), (self._values, 2), on=self)
        on_change(self.changed, self._keys, self._values)

    @property
    def keys(self) -> str:
        return str(self._keys.currentData())

    @property
    def values(self) -> str:
        return str(self._values.currentData() or self.keys)

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the parameters that the two codecs have."""
        return frozenset(p.name for name in (self.keys, self.values) for p in CODECS[name].parameters)

    def choose(self, keys: str, values: str = SAME) -> None:
        """Set both codecs; `changed` is emitted once."""
        before = (self.keys, self.values)
        for box, name in ((self._keys, keys), (self._values, values)):
            with QSignalBlocker(box):
                box.choose(name)
        if (self.keys, self.values) != before:
            self.changed.emit()

    def spec(self, bits: int, group: int, residual: int) -> CodecSpec:
        """The two codecs with those parameters, where they have them. Raises `InputError` for impossible values."""
        keys, values = (coding_of(name, bits, group, residual) for name in (self.keys, self.values))
        return CodecSpec(keys, values)

    @property
    def words(self) -> str:
        """The formula and the paper of each chosen codec."""
        rows = [CODECS[name] for name in dict.fromkeys((self.keys, self.values)) if name != EXACT]
        return "   ".join(f"{codec.label}: {codec.formula} · {codec.paper}" for codec in rows)


def _tip(codec: CodecRow) -> str:
    return "\n".join(words for words in (codec.summary, codec.formula, codec.paper) if words)
