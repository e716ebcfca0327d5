"""Tries everything that can be done to a panel: every button, keys, and the mouse at places all over what is painted by
hand. Each becomes a line: what was done, and what came of it: signals with their arguments, the selection, a tip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest
from msgspec import structs
from PySide6.QtCore import QEvent, QPoint, QPointF, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QContextMenuEvent, QHelpEvent, QMouseEvent, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractScrollArea,
    QAbstractSpinBox,
    QApplication,
    QDialog,
    QFileDialog,
    QMenu,
    QPlainTextEdit,
    QToolButton,
    QToolTip,
    QWidget,
)
from shiboken6 import isValid

from app.draw.grid import TokenRange
from app.kit.heatmap import HeatMap
from app.kit.widgets import Segments
from app.models import Models
from tests.app.painted import paints_itself
from tests.app.shown import kind_of, plain, value_words
from tests.approve import short

Key = Qt.Key
KEYS = (
    Key.Key_Left, Key.Key_Right, Key.Key_Up, Key.Key_Down, Key.Key_Home, Key.Key_End, Key.Key_PageUp, Key.Key_PageDown,
    Key.Key_Return, Key.Key_Delete, Key.Key_Escape, Key.Key_Plus, Key.Key_Minus, Key.Key_Space, Key.Key_F,
)  # fmt: skip
SHIFT = Qt.KeyboardModifier.ShiftModifier
PLACES = [(0.06, 0.12), (0.31, 0.12), (0.57, 0.5), (0.31, 0.83), (0.86, 0.83)]
CLICKED = PLACES[1], PLACES[4]


class Robot:
    """Presses, points and types, and tells what came of it; afterwards the selection is as it was."""

    def __init__(self, view: QWidget, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
        self._view, self._models = view, models
        self._opened: list[str] = []
        self._offered: list[QAction] = []  # by menus that were opened
        self._chosen = {"Copy picture", "Save picture…"}
        self._told: list[str] = []
        for name in signals_of(view):
            getattr(view, name).connect(lambda *found, name=name: self._told.append(f"{name}{value_words(found)}"))
        self._start, self._looking = asdict_of(models), looking(models)
        for kind, name in ((QDialog, "exec"), (QMenu, "exec"), (QMenu, "popup"), (QDialog, "open")):
            monkeypatch.setattr(kind, name, lambda opened, *_: self._open(opened))
        monkeypatch.setattr(QFileDialog, "getSaveFileName", self._ask_file)
        monkeypatch.setattr(QFileDialog, "getOpenFileName", self._ask_file)
        monkeypatch.setattr(QToolTip, "showText", self._show_tip)

    def _open(self, opened: QWidget) -> None:
        actions = [action for action in opened.actions() if action.text()]
        texts = [f"{action.text()}{'' if action.isEnabled() else ' (disabled)'}" for action in actions]
        self._opened.append(f"opens {kind_of(opened)} {', '.join(texts)}".rstrip())
        self._offered += [
            one for one in actions if one.isEnabled() and one.menu() is None and one.text() not in self._chosen
        ]

    def _ask_file(self, *arguments: object, **_: object) -> tuple[str, str]:
        self._opened.append("asks for a file")
        return "", ""

    def _show_tip(self, *arguments: Any) -> None:
        if arguments[1]:
            self._opened.append(f"tip {plain(str(arguments[1]))!r}")

    def lines(self) -> Iterator[str]:
        for widget in filter(isValid, (self._view, *self._view.findChildren(QWidget))):
            if not (widget.isVisible() and widget.isEnabled()):
                continue
            if isinstance(widget, QAbstractButton):
                if not (isinstance(widget, QToolButton) and widget.menu() is not None):
                    yield from self._try(f"press {widget.text() or widget.accessibleName()!r}", widget.click)
            elif isinstance(widget, QAbstractItemView):
                yield from self._in_list(widget)
            elif isinstance(widget, QAbstractScrollArea) and type(widget).__module__.startswith("app."):
                yield from self._in_picture(widget, widget.viewport())
            elif paints_itself(widget) and not isinstance(widget, Segments):
                yield from self._in_picture(widget, widget)

    def _in_list(self, widget: QAbstractItemView) -> Iterator[str]:
        for number in range(min(4, widget.model().rowCount())):
            place = widget.visualRect(widget.model().index(number, 0)).center()
            name, surface = f"{kind_of(widget)} row {number}", widget.viewport()
            yield from self._try(name, partial(self._point, surface, place))
            yield from self._mouse(surface, place, name)
        for key in (Key.Key_Return, Key.Key_Delete):
            yield from self._try(f"{kind_of(widget)} {key.name}", lambda w=widget, k=key: QTest.keyClick(w, k))  # type: ignore[misc]

    def _in_picture(self, widget: QWidget, surface: QWidget) -> Iterator[str]:
        name = kind_of(widget)
        for x, y in PLACES:
            yield from self._try(f"{name} at {x}, {y}", partial(self._point, surface, _place(widget, x, y)))
        for x, y in CLICKED:
            yield from self._mouse(surface, _place(widget, x, y), f"{name} at {x}, {y}")
        QApplication.sendEvent(surface, QEvent(QEvent.Type.Leave))
        if isinstance(widget, HeatMap):
            yield from self._dragged(widget)
        if widget.focusPolicy() != Qt.FocusPolicy.NoFocus:
            for key in KEYS:
                yield from self._try(f"{name} {key.name}", lambda k=key: QTest.keyClick(widget, k))  # type: ignore[misc]

    def _dragged(self, widget: HeatMap) -> Iterator[str]:
        """A drag and the wheel where all is visible, and in a part that is moved."""
        start, end, none = _place(widget, 0.3, 0.3), _place(widget, 0.6, 0.7), Qt.KeyboardModifier.NoModifier
        whole = self._looking
        for looking_at in (whole, {"head_range": TokenRange(2, 8), "attention_range": TokenRange(3, 9)}):
            self._looking = looking_at
            self._models.viewport.update(**looking_at)
            for keys in (none, SHIFT):
                yield from self._try(f"dragged {keys.name}", lambda k=keys: self._drag(widget, start, end, k))  # type: ignore[misc]
            for turns, keys in ((3, none), (-1, none), (1, SHIFT)):
                turned = lambda t=turns, k=keys: _wheel(widget, end, t, k)  # noqa: E731
                yield from self._try(f"wheel {turns} {keys.name}", turned)
        self._looking = whole
        self._models.viewport.update(**whole)

    def _drag(self, surface: QWidget, start: QPoint, end: QPoint, keys: Qt.KeyboardModifier) -> None:
        QTest.mousePress(surface, Qt.MouseButton.LeftButton, keys, start)
        self._move(surface, end, Qt.MouseButton.LeftButton, keys)
        QTest.mouseRelease(surface, Qt.MouseButton.LeftButton, keys, end)

    def _point(self, widget: QWidget, place: QPoint) -> None:
        self._move(widget, place, Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier)
        QApplication.sendEvent(widget, QHelpEvent(QEvent.Type.ToolTip, place, widget.mapToGlobal(place)))

    def _move(self, widget: QWidget, place: QPoint, held: Qt.MouseButton, keys: Qt.KeyboardModifier) -> None:
        at, there = QPointF(place), QPointF(widget.mapToGlobal(place))
        moved = QMouseEvent(QEvent.Type.MouseMove, at, there, Qt.MouseButton.NoButton, held, keys)
        QApplication.sendEvent(widget, moved)

    def _mouse(self, widget: QWidget, place: QPoint, name: str) -> Iterator[str]:
        def menu() -> None:
            event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, place, widget.mapToGlobal(place))
            QApplication.sendEvent(widget, event)

        yield from self._try(f"{name} clicked", lambda: QTest.mouseClick(widget, Qt.MouseButton.LeftButton, pos=place))
        twice = QMouseEvent(
            QEvent.Type.MouseButtonDblClick, QPointF(place), QPointF(widget.mapToGlobal(place)),
            Qt.MouseButton.LeftButton, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier,
        )  # fmt: skip
        yield from self._try(f"{name} twice", lambda: QApplication.sendEvent(widget, twice))
        around: QWidget | None = widget
        policy = Qt.ContextMenuPolicy.DefaultContextMenu
        while around is not None and policy == Qt.ContextMenuPolicy.DefaultContextMenu:
            policy, around = around.contextMenuPolicy(), around.parentWidget()
        if policy != Qt.ContextMenuPolicy.ActionsContextMenu:  # Qt's own menu would wait for a person
            yield from self._try(f"{name} menu", menu)

    def _end_pauses(self) -> None:
        """What waits for a pause in typing is not told of whatever a slow machine does when it is over."""
        for editor in self._view.findChildren(QPlainTextEdit):
            for timer in editor.findChildren(QTimer):
                if timer.isActive():
                    timer.stop()
                    timer.timeout.emit()
                    self._told.clear()

    def _try(self, name: str, do: Callable[[], object]) -> Iterator[str]:
        self._end_pauses()
        before = asdict_of(self._models)
        texts = said(self._view)
        do()
        QApplication.processEvents()
        after = asdict_of(self._models).items()
        found = [f"{key} → {_value(value)}" for key, value in after if before[key] != value]
        found += [*self._told, *self._opened]
        self._told.clear()
        self._opened.clear()
        now = (plain(text) for place, text in said(self._view).items() if texts.get(place) != text)
        found += [f"“{text}”" for text in now if not any(repr(text) in line for line in found)]
        if found:
            yield short(f"{name}: {' ; '.join(found)}")
        chosen = {name: value for name, value in self._start.items() if name not in self._looking}
        self._models.selection.update(**chosen)
        self._models.viewport.update(**self._looking)
        QApplication.processEvents()
        offered, self._offered = self._offered, []
        for action in offered:
            if action.text() not in self._chosen and isValid(action):
                self._chosen.add(action.text())
                yield from self._try(f"{name}, {action.text()!r}", action.trigger)


def _wheel(widget: QWidget, place: QPoint, turns: int, keys: Qt.KeyboardModifier) -> None:
    at, there = QPointF(place), QPointF(widget.mapToGlobal(place))
    none = Qt.MouseButton.NoButton
    turned = QWheelEvent(at, there, QPoint(), QPoint(0, 120 * turns), none, keys, Qt.ScrollPhase.NoScrollPhase, False)
    QApplication.sendEvent(widget, turned)


def said(view: QWidget) -> dict[int, str]:
    """The labels and descriptions of a view, by widget."""
    found: dict[int, str] = {}
    for widget in view.findChildren(QWidget):
        if _says(type(widget)) and widget.isVisible():
            found[id(widget)] = str(widget.text())  # type: ignore[attr-defined]
    return found


@cache
def _says(kind: type[QWidget]) -> bool:
    return callable(getattr(kind, "text", None)) and not issubclass(kind, QAbstractButton | QAbstractSpinBox)


def _place(widget: QWidget, x: float, y: float) -> QPoint:
    """A place in parts of the picture's area, which starts where names that depend on fonts end."""
    area = widget.plot_rect if isinstance(widget, HeatMap) else QRectF(widget.rect())
    return QPoint(round(area.left() + x * area.width()), round(area.top() + y * area.height()))


def _value(value: object) -> str:
    """What a model has: where one has zoomed to, roughly."""
    if isinstance(value, TokenRange):
        return f"tokens ~{value.low:.0f} … ~{value.high:.0f}"
    return value_words(value)


def asdict_of(models: Models) -> dict[str, Any]:
    """What is selected, and which positions the maps show."""
    return structs.asdict(models.selection.now) | looking(models)


def looking(models: Models) -> dict[str, Any]:
    now = models.viewport.now
    return {"head_range": now.head_range, "attention_range": now.attention_range}


def signals_of(view: QWidget) -> list[str]:
    kinds = [kind for kind in type(view).__mro__ if kind.__module__.startswith("app.")]
    return sorted({name for kind in kinds for name, value in vars(kind).items() if isinstance(value, Signal)})
