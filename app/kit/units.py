"""Number fields: their text stands in from the edge as that of every other field, and a unit behind it in dim ink."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QDoubleSpinBox, QLabel, QSpinBox

FRAME = 26  # pixels of borders and paddings of a field and of the line in it, as the style sheet has them
INSET = 6  # pixels, as the style sheet has it for lines of text: it reaches no spin box


def inset(field: QSpinBox | QDoubleSpinBox, unit: str = "") -> None:
    """Give a field its margin and, where it has one, its unit."""
    if unit:
        Unit(field, unit)
    else:
        field.lineEdit().setTextMargins(INSET, 0, INSET, 0)
        Room(field, 2 * INSET)


class Room(QObject):
    """Keeps a field as wide as its number: Qt leaves margins out of what it asks for, and half a number is another."""

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


class Unit(QLabel):
    """At the right end of a field; not there while a word stands in place of its number."""

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
