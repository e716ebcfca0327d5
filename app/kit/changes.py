"""Connects signals to slots: several at once, and the change signals of form fields, which differ by class."""

from __future__ import annotations

from PySide6.QtCore import QObject, SignalInstance
from PySide6.QtWidgets import QAbstractSlider, QCheckBox, QComboBox, QDoubleSpinBox, QLineEdit, QSpinBox

from app.kit.segments import Segments


def connect_all(*pairs: tuple[SignalInstance, object]) -> None:
    """Connect each signal to its slot (or to a signal that forwards it), in this order."""
    for signal, slot in pairs:
        signal.connect(slot)


def on_change(slot: object, *fields: QObject) -> None:
    """Call a slot (or emit a signal) when the value of any of the fields changes."""
    for field in fields:
        _changed(field).connect(slot)


def _changed(field: QObject) -> SignalInstance:
    match field:
        case QComboBox():
            return field.currentIndexChanged
        case QSpinBox() | QDoubleSpinBox() | QAbstractSlider():
            return field.valueChanged
        case QLineEdit():
            return field.textChanged
        case QCheckBox():
            return field.toggled
        case Segments():
            return field.chosen
    signal: SignalInstance = field.changed  # type: ignore[attr-defined]  # of our own
    return signal
