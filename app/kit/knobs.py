"""A number with its name, a slider over sensible values, and a field for any other value; and the choice of two
codecs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSignalBlocker, QSize, Qt, Signal
from PySide6.QtGui import QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QPushButton, QSizePolicy, QSlider, QWidget

from app.kit.boxes import row
from app.kit.changes import on_change
from app.kit.fields import DecimalNumber, SmallBox, inset
from app.kit.labels import plain_tip
from app.kit.theme import current_theme, font_fixed, font_text
from engine.spec.codec import CODECS, CodecRow, CodecSpec, coding_of

ROW_HEIGHT = 22
_RADIUS = 5.5
NAME_WIDTH, FIELD_WIDTH = 62, 58


class SliderTrack(QSlider):
    """A slider drawn as a thin line with a round handle; a click jumps to the place."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(Qt.Orientation.Horizontal, parent)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setMinimumWidth(40)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        return QSize(90, ROW_HEIGHT)

    def _room(self) -> tuple[float, float]:
        return _RADIUS + 1, self.width() - _RADIUS - 1

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        left, right = self._room()
        span = max(1, self.maximum() - self.minimum())
        x = left + (self.value() - self.minimum()) / span * (right - left)
        middle = self.height() / 2
        is_on = self.isEnabled()
        painter.setBrush(current_theme().color("hairline"))
        painter.drawRoundedRect(QRectF(left, middle - 1.5, right - left, 3), 1.5, 1.5)
        painter.setBrush(current_theme().color("accent" if is_on else "faint"))
        painter.drawRoundedRect(QRectF(left, middle - 1.5, x - left, 3), 1.5, 1.5)
        if self.hasFocus():
            painter.setBrush(current_theme().color("accent", 70))
            painter.drawEllipse(QPointF(x, middle), _RADIUS + 2.5, _RADIUS + 2.5)
        painter.setBrush(current_theme().color("accent" if is_on else "faint"))
        painter.drawEllipse(QPointF(x, middle), _RADIUS, _RADIUS)
        painter.setBrush(current_theme().color("panel"))
        painter.drawEllipse(QPointF(x, middle), 2, 2)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self.setFocus(Qt.FocusReason.MouseFocusReason)
            self._drag_to(event.position().x())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if event.buttons() & Qt.MouseButton.LeftButton:
            self._drag_to(event.position().x())

    def _drag_to(self, x: float) -> None:
        left, right = self._room()
        share = min(max((x - left) / max(1.0, right - left), 0.0), 1.0)
        self.setValue(self.minimum() + round(share * (self.maximum() - self.minimum())))


class Knob(QWidget):
    """A named slider with a field. Signals: `moved()`, the user changed the value (setting it in code emits nothing);
    `renamed()`, the name was clicked where it offers a second meaning."""

    moved = Signal()
    renamed = Signal()

    def __init__(self, name: str, tip: str, decimals: int) -> None:
        super().__init__()
        self._stops: tuple[float, ...] = (0.0, 1.0)
        self._name = QPushButton()
        self._name.setFlat(True)
        self._name.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._name.setFont(font_text(11.5))
        self._name.setFixedSize(NAME_WIDTH, ROW_HEIGHT)
        self._name.setStyleSheet("text-align: left; padding: 0; border: none; background: transparent;")
        self.track = SliderTrack()
        self.field = DecimalNumber()
        self.field.setObjectName("small")
        self.field.setDecimals(decimals)
        self.field.setSingleStep(10.0**-decimals)
        self.field.setFont(font_fixed(11.5))
        inset(self.field)
        self.field.setFixedSize(FIELD_WIDTH, 20)
        self.field.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.field.setKeyboardTracking(False)
        row(self._name, self.track, self.field, on=self)
        self.setFixedHeight(ROW_HEIGHT)
        self.name(name, tip)
        on_change(self._on_track, self.track)
        on_change(self._on_field, self.field)
        self._name.clicked.connect(self.renamed)

    def name(self, name: str, tip: str, *, can_rename: bool = False) -> None:
        self._name.setText(f"{name} ⇄" if can_rename else name)
        self._name.setCursor(Qt.CursorShape.PointingHandCursor if can_rename else Qt.CursorShape.ArrowCursor)
        for part in (self._name, self.track, self.field):
            part.setToolTip(plain_tip(tip))
            part.setAccessibleName(name)

    def set_stops(self, stops: Sequence[float], least: float, most: float, auto: str = "") -> None:
        """Set the slider's values, ascending, and the field's range; `auto` is shown instead of the field's least
        value."""
        value = self.value
        self.field.blockSignals(True)
        self.field.setRange(least, most)
        self.field.setSpecialValueText(auto)
        self.field.blockSignals(False)
        if tuple(stops) != self._stops:
            self._stops = tuple(stops)
            self.track.blockSignals(True)
            self.track.setRange(0, max(1, len(self._stops) - 1))
            self.track.setPageStep(max(1, len(self._stops) // 10))
            self.track.blockSignals(False)
        self.set_value(min(max(value, least), most))

    @property
    def value(self) -> float:
        return round(self.field.value(), 4)

    @property
    def number(self) -> int:
        return round(self.field.value())

    def set_value(self, value: float) -> None:
        with QSignalBlocker(self.field):
            self.field.setValue(value)
        self._show()

    def _show(self) -> None:
        """Move the slider to the stop nearest to the field's value."""
        index = bisect_left(self._stops, self.value)
        if index == len(self._stops) or (
            index and self.value - self._stops[index - 1] < self._stops[index] - self.value
        ):
            index -= 1
        with QSignalBlocker(self.track):
            self.track.setValue(index)
        self.track.update()

    def _on_track(self, index: int) -> None:
        if index < len(self._stops):
            with QSignalBlocker(self.field):
                self.field.setValue(self._stops[index])
            self.moved.emit()

    def _on_field(self, _value: float) -> None:
        self._show()
        self.moved.emit()


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
