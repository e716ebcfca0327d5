"""Fields that a slot waits for: each kind has a signal of another name that says it holds another value."""

from __future__ import annotations

from PySide6.QtCore import QObject, SignalInstance
from PySide6.QtWidgets import QAbstractSlider, QCheckBox, QComboBox, QDoubleSpinBox, QLineEdit, QSpinBox


def on_change(slot: object, *fields: QObject) -> None:
    """Call a slot (or emit a signal) when any of the fields holds another value."""
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
    signal: SignalInstance = field.changed  # type: ignore[attr-defined]  # of our own
    return signal
