"""Form fields, each constructed with one call: numbers with units, lines of text, choices, sliders, two codecs.

A number's text has the same inset as that of the other fields, followed by its unit in a muted colour.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import TypeVar

from PySide6.QtCore import QEvent, QLocale, QObject, QPoint, QPointF, QRectF, QSignalBlocker, QSize, Qt, Signal
from PySide6.QtGui import QMouseEvent, QPainter, QPaintEvent, QValidator
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QLabel,
    QLineEdit,
    QPushButton,
    QSizePolicy,
    QSlider,
    QSpinBox,
    QStyleOptionComboBox,
    QToolTip,
    QWidget,
)

from app.kit.theme import current_theme, font_fixed, font_text
from app.kit.widgets import on_change, plain_tip, row
from engine.spec.codec import CODECS, CodecRow, CodecSpec, coding_of

FRAME = 26  # pixels of borders and paddings of a field and of the line edit in it, as set by the style sheet
INSET = 6  # pixels: the style sheet's padding of line edits, which does not apply to the one in a spin box


MOST = 2**31 - 1
F = TypeVar("F", QSpinBox, QDoubleSpinBox)


class RefusingNumber(QObject):
    """A number that a field cannot have is not turned into another one: while it is typed it stays on the screen, and
    when the field is left, or Enter is pressed, the former number comes back and `problem` says why. Signal:
    `refused(problem)`."""

    refused = Signal(str)

    def __init__(self, field: QSpinBox | QDoubleSpinBox) -> None:
        super().__init__(field)
        self._field, self._former = field, field.value()
        self.problem = ""
        field.valueChanged.connect(self._on_value)
        field.editingFinished.connect(self._on_finished)

    def forget(self) -> None:
        self.problem = ""

    def _on_value(self) -> None:
        """Each digit typed changes the value: only a finished number is one to come back to."""
        if self._field.value() != self._former:
            self.forget()
        if not self._field.lineEdit().isModified():
            self._on_finished()

    def _on_finished(self) -> None:
        self._former = self._field.value()

    def validated(self, state: QValidator.State, text: str) -> QValidator.State:
        """Accept for now what is a number, though beyond the limits."""
        is_number = state == QValidator.State.Invalid and self._typed(text) is not None
        return QValidator.State.Intermediate if is_number else state

    def fixed(self, text: str) -> str:
        """The former number, and why the typed one is not taken."""
        field, number = self._field, self._typed(text)
        former = field.prefix() + field.textFromValue(self._former)  # type: ignore[arg-type]
        if number is None or field.minimum() <= number <= field.maximum():
            return former
        name, least, most = field.accessibleName(), field.minimum(), field.maximum()
        what = f"at most {most:z,.12g}" if number > most else f"at least {least:z,.12g}"
        problem = (
            f"{name} is {what}, so {text.strip()} was not taken: it is {field.textFromValue(self._former)} as before."  # type: ignore[arg-type]
        )
        field.setValue(self._former)  # type: ignore[arg-type]
        self.problem = problem
        QToolTip.showText(field.mapToGlobal(QPoint(0, field.height())), problem, field)
        self.refused.emit(problem)
        return former

    def _typed(self, text: str) -> float | None:
        digits = text.removeprefix(self._field.prefix()).replace(self._field.locale().groupSeparator(), "").strip()
        try:
            number = float(digits)
        except ValueError:
            return None
        return number if isfinite(number) else None


class Refuses:
    """Mixin, named before the field's class, of a field that refuses a number beyond its limits in a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.refusing = RefusingNumber(self)  # type: ignore[arg-type]
        self.setLocale(QLocale.c())  # type: ignore[attr-defined]  # as all numbers of the window: 1,024 and 0.5

    def validate(self, text: str, cursor: int) -> tuple[QValidator.State, str, int]:
        state, text, cursor = super().validate(text, cursor)  # type: ignore[misc]
        return self.refusing.validated(state, text), text, cursor

    def fixup(self, text: str) -> str:
        return self.refusing.fixed(text)


class WholeNumber(Refuses, QSpinBox):
    """A field for a whole number."""


class DecimalNumber(Refuses, QDoubleSpinBox):
    """The same for a number with decimals: Qt has a class for each. A comma is a point, as on many keypads: Qt would
    read `0,7` as 7."""

    def validate(self, text: str, cursor: int) -> tuple[QValidator.State, str, int]:
        return super().validate(text.replace(",", "."), cursor)


def whole_field(
    name: str,
    value: int,
    least: int = 0,
    most: int = MOST,
    *,
    unit: str = "",
    automatic: str = "",
    tip: str = "",
    is_grouped: bool = False,
) -> QSpinBox:
    """A field for a whole number; `automatic` is shown instead of the least value; `is_grouped`: `1,024`."""
    field = WholeNumber()
    field.setGroupSeparatorShown(is_grouped)
    return _number(field, name, value, least, most, unit, automatic, tip)


def count_field(name: str, value: int, unit: str = "", least: int = 1, automatic: str = "") -> QSpinBox:
    """A field for how many there are, with commas between thousands."""
    return whole_field(name, value, least, unit=unit, automatic=automatic, is_grouped=True)


def decimal_field(
    name: str,
    value: float,
    least: float,
    most: float,
    *,
    decimals: int = 4,
    step: float = 0.1,
    unit: str = "",
    automatic: str = "",
    tip: str = "",
) -> QDoubleSpinBox:
    """A field for a number with `decimals` digits after the point."""
    field = DecimalNumber()
    field.setDecimals(decimals)
    field.setSingleStep(step)
    return _number(field, name, value, least, most, unit, automatic, tip)


def gib_field(name: str, value: float, automatic: str = "") -> QDoubleSpinBox:
    """A field for the size of a memory."""
    return decimal_field(name, value, 0, 1e7, decimals=3, step=1, unit=" GiB", automatic=automatic)


def _number(
    field: F, name: str, value: float, least: float, most: float, unit: str, automatic: str = "", tip: str = ""
) -> F:
    field.setRange(least, most)  # type: ignore[arg-type]
    _describe(field, name, tip, automatic)
    field.setValue(value)  # type: ignore[arg-type]
    inset(field, unit)
    return field


def small_number(
    field: F, name: str, value: float, least: float, most: float, *, unit: str = "", prefix: str = "", tip: str = ""
) -> F:
    """Make a number field low enough for the first row of a panel, which takes a number when it is finished."""
    field.setObjectName("small")
    field.setPrefix(prefix)
    field.setFixedHeight(20)
    field.setKeyboardTracking(False)
    return _number(field, name, value, least, most, unit, tip=tip)


MOST_STEPS = 512  # of a measurement


def small_steps(value: int, tip: str) -> QSpinBox:
    """A field for the number of steps of a measurement."""
    return small_number(WholeNumber(), "Steps", value, 2, MOST_STEPS, unit="steps", tip=tip)


def line_field(name: str, text: str = "", hint: str = "", tip: str = "") -> QLineEdit:
    """A line of text in the monospaced font; `hint` is shown while it is empty."""
    field = QLineEdit(text)
    field.setPlaceholderText(hint)
    _describe(field, name, tip)
    return field


def filter_field(name: str, width: int, hint: str = "Filter") -> QLineEdit:
    """A field that filters a list, at most `width` pixels wide, with a button that empties it."""
    field = QLineEdit()
    field.setPlaceholderText(hint)
    field.setAccessibleName(name)
    field.setClearButtonEnabled(True)
    field.setMaximumWidth(width)
    return field


def choice_field(name: str, choices: Iterable[tuple[object, str]], chosen: object = None) -> QComboBox:
    """A list of `(value, text)` choices."""
    field = QComboBox()
    for value, text in choices:
        field.addItem(text, value)
    field.setCurrentIndex(max(0, field.findData(chosen)))
    field.setAccessibleName(name)
    return field


def check_field(text: str, is_on: bool = False) -> QCheckBox:
    """A box to tick."""
    field = QCheckBox(text)
    field.setChecked(is_on)
    return field


def _describe(field: QWidget, name: str, tip: str, automatic: str = "") -> None:
    field.setAccessibleName(name)
    field.setToolTip(tip)
    field.setFont(font_text(11) if field.objectName() == "small" else font_fixed())
    if automatic and isinstance(field, QSpinBox | QDoubleSpinBox):
        field.setSpecialValueText(automatic)


def inset(field: QSpinBox | QDoubleSpinBox, unit: str = "") -> None:
    """Set the inset of a number field, and show its unit, if it has one."""
    if unit:
        NumberUnit(field, unit)
    else:
        field.lineEdit().setTextMargins(INSET, 0, INSET, 0)
        Room(field, 2 * INSET)


class Room(QObject):
    """Keeps a field as wide as its number: Qt's size hint leaves the margins out, and a cut number reads as another
    one."""

    def __init__(self, field: QSpinBox | QDoubleSpinBox, margins: int) -> None:
        super().__init__(field)
        self._field, self._margins = field, margins
        field.textChanged.connect(self._on_text)
        self._on_text(field.text())

    def _on_text(self, text: str) -> None:
        field = self._field
        needed = field.fontMetrics().horizontalAdvance(text) + self._margins + FRAME
        if field.minimumWidth() < needed <= field.maximumWidth():
            field.setMinimumWidth(needed)


class NumberUnit(QLabel):
    """A unit at the right end of a field; hidden while the field shows a word instead of its number."""

    def __init__(self, field: QSpinBox | QDoubleSpinBox, text: str) -> None:
        super().__init__(text.strip(), field)
        self._field = field
        self.setObjectName("unit")
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setFont(field.font())
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.adjustSize()
        field.lineEdit().setTextMargins(INSET, 0, self.width() + 2 * INSET, 0)
        field.setAccessibleDescription(text.strip())
        Room(field, self.width() + 3 * INSET)
        field.installEventFilter(self)
        field.valueChanged.connect(self._refresh)
        self._refresh()

    def _refresh(self) -> None:
        field = self._field
        self.setVisible(not field.specialValueText() or field.value() != field.minimum())
        self.move(field.width() - self.width() - INSET - 1, (field.height() - self.height()) // 2)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.Resize, QEvent.Type.Show):
            self._refresh()
        return False


Option = tuple[str, object, str]  # (text, value, tool tip)


BESIDE_TEXT = 28  # pixels of a small list's border, padding and arrow in the style sheet


class SmallBox(QComboBox):
    """A small list of options. `characters`: the width it requests, instead of that of the longest entry. An entry that
    is cut ends with an ellipsis."""

    def __init__(
        self, name: str, tip: str = "", options: Iterable[Option] = (), *, height: int = 20, characters: int = 0
    ) -> None:
        super().__init__()
        self.setObjectName("small")
        self.setAccessibleName(name)
        self.setToolTip(plain_tip(tip or name))
        self.setFixedHeight(height)
        self.setMaxVisibleItems(20)
        if characters:
            self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
            self.setMinimumContentsLength(characters)
        else:
            self.setFont(font_text(11.5))
        for text, value, explained in options:
            self.addItem(text, value)
            self.setItemData(self.count() - 1, plain_tip(explained), Qt.ItemDataRole.ToolTipRole)

    def let_shrink(self, characters: int) -> None:
        """Be as wide as the longest entry if there is room, and at least `characters` wide: in a narrow window the text
        is cut, and the neighbours keep their places."""
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        widest = self.sizeHint().width()
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setMinimumContentsLength(characters)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMaximumWidth(widest)

    def initStyleOption(self, option: QStyleOptionComboBox) -> None:
        super().initStyleOption(option)
        room = self.width() - BESIDE_TEXT
        option.currentText = self.fontMetrics().elidedText(option.currentText, Qt.TextElideMode.ElideRight, room)

    def choose(self, value: object) -> None:
        """Select the entry with this value."""
        self.setCurrentIndex(self.findData(value))


ROW_HEIGHT = 22
_RADIUS = 5.5
NAME_WIDTH, FIELD_WIDTH = 62, 58


class SliderTrack(QSlider):
    """A slider drawn as a thin line with a round handle; a click jumps to the place."""

    def __init__(self) -> None:
        super().__init__(Qt.Orientation.Horizontal)
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
    `renamed()`, the name was clicked where it offers a second meaning. `was_moved`: whether the user has changed it."""

    moved = Signal()
    renamed = Signal()

    def __init__(self, name: str, tip: str, decimals: int) -> None:
        super().__init__()
        self._stops: tuple[float, ...] = (0.0, 1.0)
        self.was_moved = False
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
            self._tell()

    def _on_field(self, _value: float) -> None:
        self._show()
        self._tell()

    def _tell(self) -> None:
        self.was_moved = True
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
