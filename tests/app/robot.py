"""Tries everything that can be done to a panel: every button, keys, and the mouse at places all over what is painted by
hand. Each becomes a line: what was done, and what came of it: signals with their arguments, the selection, a tip."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from msgspec import structs
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt, QTimer, Signal
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
    QGraphicsView,
    QMenu,
    QPlainTextEdit,
    QToolButton,
    QToolTip,
    QWidget,
)
from shiboken6 import isValid

from app.draw.token_range import TokenRange
from app.kit.segments import Segments
from app.models import Models
from tests.app.on_screen import assert_repainted
from tests.app.shown import _TAG, changes, kind_of, painted, paints_itself

Key = Qt.Key
KEYS = (
    Key.Key_Left, Key.Key_Right, Key.Key_Up, Key.Key_Down, Key.Key_Home, Key.Key_End, Key.Key_PageUp, Key.Key_PageDown,
    Key.Key_Return, Key.Key_Delete, Key.Key_Escape, Key.Key_Plus, Key.Key_Minus, Key.Key_Space, Key.Key_F,
)  # fmt: skip
SHIFT = Qt.KeyboardModifier.ShiftModifier
_LONG = re.compile(r"(?<=low=|igh=)\d+\.\d+")  # ends of what is visible: of another font somewhat elsewhere
LETTERS = string.ascii_letters + string.digits + "*+-/=<>#@&%$!?~^|"
PLACES = [(0.06, 0.12), (0.31, 0.12), (0.57, 0.5), (0.31, 0.83), (0.86, 0.83)]


class Robot:
    """Presses, points and types, and tells what came of it; afterwards the selection is as it was."""

    def __init__(self, view: QWidget, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
        self._view, self._models = view, models
        self._opened: list[str] = []
        self._offered: list[QAction] = []  # by menus that were opened
        self._chosen = {"Copy picture", "Save picture…"}
        self._told: list[str] = []
        self._said: dict[int, str] = {}
        self._saying: set[int] = set()  # the labels that tell of what is pointed at
        for name in _signals(view):
            getattr(view, name).connect(lambda *found, name=name: self._told.append(f"{name}{found}"))
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
            self._opened.append(f"tip {_TAG.sub('', str(arguments[1]))!r}")

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

    def pictures(self) -> Iterator[str]:
        """What is said all over the pictures, and what a click in the middle of each does."""
        for widget in filter(isValid, self._view.findChildren(QWidget)):
            is_area = isinstance(widget, QAbstractScrollArea) and type(widget).__module__.startswith("app.")
            surface = widget.viewport() if isinstance(widget, QAbstractScrollArea) and is_area else widget
            is_seen = widget.isVisible() and widget.isEnabled() and not isinstance(widget, Segments | QAbstractItemView)
            if is_seen and (is_area or paints_itself(widget)):
                yield from self._under_the_mouse(kind_of(widget), surface, (12, 6))
                middle = surface.rect().center()
                click = lambda s=surface, at=middle: QTest.mouseClick(s, Qt.MouseButton.LeftButton, pos=at)  # noqa: E731
                yield from self._try(f"{kind_of(widget)} clicked in the middle", click)

    def _in_list(self, widget: QAbstractItemView) -> Iterator[str]:
        for number in range(min(4, widget.model().rowCount())):
            place = widget.visualRect(widget.model().index(number, 0)).center()
            yield from self._mouse(widget.viewport(), place, f"{kind_of(widget)} row {number}")
        for key in (Key.Key_Return, Key.Key_Delete):
            yield from self._try(f"{kind_of(widget)} {key.name}", lambda w=widget, k=key: QTest.keyClick(w, k))  # type: ignore[misc]

    def _in_picture(self, widget: QWidget, surface: QWidget) -> Iterator[str]:
        name = kind_of(widget)
        yield from self._under_the_mouse(name, surface)
        for x, y in PLACES:
            place = QPoint(round(x * surface.width()), round(y * surface.height()))
            yield from self._mouse(surface, place, f"{name} at {x}, {y}")
        QApplication.sendEvent(surface, QEvent(QEvent.Type.Leave))
        if not isinstance(widget, QGraphicsView):  # how far a plot goes with a drag hangs on the drags before
            yield from self._dragged(name, surface)
        if widget.focusPolicy() != Qt.FocusPolicy.NoFocus:
            for key in KEYS:
                yield from self._try(f"{name} {key.name}", lambda k=key: QTest.keyClick(widget, k))  # type: ignore[misc]

    def _dragged(self, name: str, surface: QWidget) -> Iterator[str]:
        """A drag and the wheel where all is visible, and in a part that is moved; at the end, the picture."""
        x, y, none, shift = surface.width(), surface.height(), Qt.KeyboardModifier.NoModifier, SHIFT
        start, end = QPoint(x * 3 // 10, y * 3 // 10), QPoint(x * 6 // 10, y * 7 // 10)
        before, whole = list(painted(surface)), self._looking
        for looking_at in (whole, {"head_range": TokenRange(2, 8), "attention_range": TokenRange(3, 9)}):
            self._looking = looking_at
            self._models.viewport.update(**looking_at)
            for keys in (none, shift):
                dragged = lambda k=keys: self._drag(surface, start, end, k)  # noqa: E731
                yield from self._try(f"{name} dragged {keys.name}", dragged)
            for turns, keys in ((3, none), (-1, none), (1, shift)):
                turned = lambda t=turns, k=keys: _wheel(surface, end, t, k)  # noqa: E731
                yield from self._try(f"{name} wheel {turns} {keys.name}", turned)
        marks = changes(before, list(painted(surface)))
        if marks:
            yield f"{name} after all that: {' '.join(marks[:4])}"
        self._looking = whole
        self._models.viewport.update(**whole)

    def _drag(self, surface: QWidget, start: QPoint, end: QPoint, keys: Qt.KeyboardModifier) -> None:
        QTest.mousePress(surface, Qt.MouseButton.LeftButton, keys, start)
        self._move(surface, end, Qt.MouseButton.LeftButton, keys)
        QTest.mouseRelease(surface, Qt.MouseButton.LeftButton, keys, end)

    def _under_the_mouse(self, name: str, surface: QWidget, most: tuple[int, int] = (24, 8)) -> Iterator[str]:
        """What is said at places all over it: a letter for each text, and where it is said."""
        self._said, self._saying = said(self._view), set()
        columns, rows = max(1, min(most[0], surface.width() // 12)), max(1, min(most[1], surface.height() // 12))
        texts: dict[str, str] = {}
        lines = []
        for y in range(rows):
            line = ""
            for x in range(columns):
                place = QPoint(int((x + 0.5) * surface.width() / columns), int((y + 0.5) * surface.height() / rows))
                text = self._said_at(surface, place)
                line += texts.setdefault(text, LETTERS[len(texts) % len(LETTERS)]) if text else "."
            lines.append(f"    {line}")
        QApplication.sendEvent(surface, QEvent(QEvent.Type.Leave))
        self._told.clear()
        if texts:
            yield f"{name} all over:"
            yield from (f"  {letter} {text}" for text, letter in texts.items())
            yield from lines

    def _said_at(self, surface: QWidget, place: QPoint) -> str:
        """The tool tip of a place and what the panel says beside it."""
        self._point(surface, place)
        now = said(self._view)
        self._saying |= {key for key, text in now.items() if self._said.get(key) != text}
        self._said = now
        found = [plain(text) for text in (*self._opened, *(now[key] for key in now if key in self._saying))]
        self._opened.clear()
        return " ; ".join(found)

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

        before = list(painted(widget))
        yield from self._try(f"{name} pointed at", lambda: self._point(widget, place))
        marks = changes(before, list(painted(widget)))
        if marks:
            yield f"{name} pointed at: paints {len(marks)} lines anew, {marks[0]}"
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
        found = [f"{key} → {value}" for key, value in asdict_of(self._models).items() if before[key] != value]
        found += [*self._told, *self._opened]
        self._told.clear()
        self._opened.clear()
        if found or name.endswith("pointed at"):
            now = said(self._view)
            found += [f"“{plain(text)}”" for place, text in now.items() if texts.get(place) != text]
        if found:
            yield f"{name}: {_LONG.sub(lambda n: f'{float(n[0]):.1f}', ' ; '.join(found))}"
            assert_repainted(self._view, name)
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


def plain(text: str) -> str:
    return _TAG.sub("", text).replace(chr(10), " / ")


def asdict_of(models: Models) -> dict[str, Any]:
    """What is selected, and which positions the maps show."""
    return structs.asdict(models.selection.now) | looking(models)


def looking(models: Models) -> dict[str, Any]:
    now = models.viewport.now
    return {"head_range": now.head_range, "attention_range": now.attention_range}


def _signals(view: QWidget) -> list[str]:
    kinds = [kind for kind in type(view).__mro__ if kind.__module__.startswith("app.")]
    return sorted({name for kind in kinds for name, value in vars(kind).items() if isinstance(value, Signal)})
