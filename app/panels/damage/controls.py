"""The choice of the codec to measure, with its parameters."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Signal
from PySide6.QtWidgets import QSpinBox, QWidget

from app.kit.boxes import row
from app.kit.changes import on_change
from app.kit.codec_choice import CodecChoice
from app.kit.fields import INSET, Room, SmallBox, WholeNumber
from app.kit.theme import font_fixed
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.spec.codec import CodecSpec, fitting_group
from engine.spec.codecs import BITS, DEFAULT_GROUP, GROUP, RESIDUAL
from engine.spec.parameters import Parameter

_FIRST = "int8"  # loses something from the first token on, where KIVI leaves a short prompt exact


class CodecControls(QWidget):
    """Signal: `changed()` on every choice. `chosen` is the codec, or why the choice is impossible."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._geometry: CacheGeometry | None = None
        self._codec = CodecChoice()
        bits = ((words, number, "") for number, words in BITS.choices)
        self._bits = SmallBox(BITS.label, BITS.tip, bits)
        self._group, self._residual = _spin(GROUP), _spin(RESIDUAL)
        self._bits.choose(BITS.default)
        self._codec.choose(_FIRST)
        for field in (self._bits, self._group, self._residual):
            policy = field.sizePolicy()
            policy.setRetainSizeWhenHidden(True)  # so that a codec with more fields pushes no other panel aside
            field.setSizePolicy(policy)
        row(self._codec, self._bits, self._group, self._residual, None, spacing=4, on=self)
        on_change(self._on_changed, self._codec, self._bits, self._group, self._residual)
        self._show_fields()

    @property
    def chosen(self) -> CodecSpec | str:
        """The codec, or why the choice is impossible."""
        try:
            return self.codec()
        except InputError as error:
            return str(error)

    @property
    def words(self) -> str:
        """The formula and the paper of each chosen codec."""
        return self._codec.words

    def codec(self) -> CodecSpec:
        """The codec. Raises `InputError` if the choice is impossible."""
        bits = int(self._bits.currentData())
        codec = self._codec.spec(bits, self._group.value(), self._residual.value())
        if codec.is_exact:
            raise InputError("Exact numbers lose nothing: choose a codec for K or for V.")
        return codec

    def choose(self, codec: str, bits: int = 4, values: str = "") -> None:
        """Choose another codec."""
        self._codec.choose(codec, values)
        self._bits.choose(bits)

    def set_geometry(self, geometry: CacheGeometry) -> None:
        """Set group and residual to a size that divides the head dimension of another model."""
        if geometry != self._geometry:
            self._geometry = geometry
            for field in (self._group, self._residual):
                with QSignalBlocker(field):
                    field.setValue(fitting_group(geometry))

    def _on_changed(self) -> None:
        self._show_fields()
        self.changed.emit()

    def _show_fields(self) -> None:
        parameters = self._codec.parameters
        for name, part in ((BITS.name, self._bits), (GROUP.name, self._group), (RESIDUAL.name, self._residual)):
            part.setVisible(name in parameters)


def _spin(parameter: Parameter) -> QSpinBox:
    field = WholeNumber()
    field.setObjectName("small")
    field.setRange(1, parameter.most)
    field.setValue(DEFAULT_GROUP)  # a residual of one group, so that even a short text has coded rows
    field.setPrefix(f"{parameter.name} ")
    field.setFont(font_fixed(11))
    field.lineEdit().setTextMargins(INSET, 0, 0, 0)
    Room(field, 0)
    field.setFixedHeight(20)
    field.setMaximumWidth(112)
    field.setKeyboardTracking(False)
    field.setToolTip(parameter.tip)
    field.setAccessibleName(parameter.name)
    return field
