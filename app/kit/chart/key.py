"""What the colours of a chart mean: squares with names, in a line."""

from __future__ import annotations

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.kit.labels import Opaque, steady
from app.kit.text_lines import TextPainter
from app.kit.theme import current_theme, font_text


class ColorKey(Opaque, QWidget):
    """A coloured square and a name for each of some roles of the theme. Where room is scarce the first of
    `by_importance`, which counts the roles, stay."""

    def __init__(
        self, roles: tuple[str, ...], by_importance: tuple[int, ...] = (), parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._roles = roles
        self._by_importance = by_importance or tuple(range(len(roles)))
        self._names: tuple[str, ...] = ()
        self._room = 0
        self._painter = TextPainter(font_text(11.5))
        self.set_background("title_strip")
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)

    def set_names(self, names: tuple[str, ...]) -> None:
        """A name each, in the order of the roles; an empty one for a colour that is not there."""
        if names != self._names:
            self._names = names
            self.setAccessibleName(", ".join(filter(None, names)))
            self.setToolTip(", ".join(filter(None, names)))
            self._fit()

    def set_room(self, room: int) -> None:
        """The pixels that it may take."""
        self._room = room
        self._fit()

    def _fit(self) -> None:
        width = steady(self.width(), int(sum(self._width(name) for _, name in self._shown())))
        if width != self.width():
            self.setFixedSize(width, 18)
        self.update()

    def _width(self, name: str) -> float:
        return self._painter.width(name) + 19

    def _shown(self) -> list[tuple[str, str]]:
        """The colour roles and names that find room."""
        free, kept = float(self._room), []
        for index in self._by_importance:
            if index >= len(self._names) or not self._names[index]:
                continue
            if (width := self._width(self._names[index])) <= free:
                kept.append(index)
                free -= width
        return [(self._roles[index], self._names[index]) for index in sorted(kept)]

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        left = 0.0
        for role, name in self._shown():
            painter.fillRect(QRectF(left, 5, 8, 8), current_theme().color(role))
            painter.setPen(current_theme().color("muted"))
            left = self._painter.left(painter, left + 12, 9, name) + 7
