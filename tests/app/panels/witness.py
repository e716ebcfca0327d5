"""Notes down, as lines of text, what a panel says moment by moment and what can be done to it: a person approves the
lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.kit.theme import DARK, LIGHT, apply_theme
from app.models import Models
from tests.app.on_screen import assert_repainted
from tests.app.robot import Robot
from tests.app.shown import kind_of, shown
from tests.approve import changes

PanelOfSize = tuple[Callable[[Models], QWidget], tuple[int, int]]
NO_ROLE = re.compile(r"#[0-9a-f]{6}")
APPROVED = Path(__file__).parent / "approved"
# of these, a heat map, pages, a plot, bars and a line of steps, what is painted is told; of all others what they say
PAINTED = ("WallView", "PagesView", "TimingsView", "AttentionView", "TimelineBar")


class Witness:
    """Notes down what a panel shows, moment by moment, and what can be done to it."""

    def __init__(self, view: Any, models: Models, answer: Callable[[], None]) -> None:
        self.view, self.models, self.start, self._answer = view, models, models.selection.now, answer
        self.lines: list[str] = []
        self._seen: list[str] = []
        self._told: set[str] = set()
        view.show()

    def look(self, moment: str) -> None:
        """Note all that is shown, or what differs from the last moment."""
        self._wait_until_idle()
        assert_repainted(self.view, moment)
        found = self._shown()
        lines = changes(self._seen, found, self._told) if self._seen else found
        self._told |= {*found}
        self.lines += ["", f"== {moment}", *lines] if lines else [f"== {moment}: the same"]
        self._seen = found

    def select(self, moments: dict[str, dict[str, Any]]) -> None:
        start = self._seen
        for moment, change in moments.items():
            self.models.selection.update(**change)
            self.look(moment)
            self.back(start)

    def choose(self) -> None:
        """Every segment of the strip."""
        choices = [choice for choice, *_ in getattr(self.view, "choices", ())]
        for choice in choices[1:]:
            self.view.choose(choice)
            self.look(f"segment {choice}")
            self.models.selection.update(layer=1, kv_head=2, position=4)
            self.look(f"segment {choice}, elsewhere")
            self.back()
        if choices:
            self.view.choose(choices[0])
        self.back()

    def exercise(self) -> None:
        """Do all that can be done, then show the panel in little room and in the light theme, where no colour may be
        left of the dark one."""
        with pytest.MonkeyPatch.context() as patched:
            self.lines += ["", "== what can be done", *Robot(self.view, self.models, patched).lines()]
        self.back()
        wide, high = self.view.width(), self.view.height()
        for size in ((wide // 2, high), (wide, high // 2), (wide, high)):
            self.view.resize(*size)
            self._wait_until_idle()
            assert_repainted(self.view, f"its size is {size}")
        self.back()
        self._focus()
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        dark = self._colors()
        apply_theme(app, LIGHT)
        self._wait_until_idle()
        assert not dark & self._colors(), "colours of the dark theme in the light one"
        apply_theme(app, DARK)
        self.back()
        assert_repainted(self.view, "dark again")

    def _colors(self) -> set[str]:
        """The colours of what is shown that are no role of the theme."""
        return {code for line in shown(self.view) for code in NO_ROLE.findall(line)}

    def _focus(self) -> None:
        """Each widget of a class of ours takes the keyboard focus, gives it away, and is repainted both times."""
        for widget in self.view.findChildren(QWidget):
            is_ours = type(widget).__module__.startswith("app.") and widget.focusPolicy() & Qt.FocusPolicy.TabFocus
            if is_ours and widget.isVisible() and widget.isEnabled():
                for has_keys in (True, False):
                    widget.setFocus() if has_keys else widget.clearFocus()
                    assert widget.hasFocus() == has_keys
                    assert_repainted(self.view, f"{kind_of(widget)} {'has' if has_keys else 'lost'} the keyboard")

    def back(self, seen: list[str] | None = None) -> None:
        """Where it began, which shows what was `seen` there: what of it does not come back is told of the next moment.
        None: whatever it shows then is where the next moment begins."""
        self.models.selection.update(**structs.asdict(self.start))
        self._wait_until_idle()
        self._seen = self._shown() if seen is None else seen

    def _shown(self) -> list[str]:
        is_told = type(self.view).__name__ in PAINTED
        return [line for line in shown(self.view) if is_told or not line.startswith("  paints")]

    def _wait_until_idle(self) -> None:
        for _ in range(2):
            QApplication.processEvents()
            self._answer()
        QApplication.processEvents()


def witness_of(qtbot: QtBot, panel: PanelOfSize, models: Models, answer: Callable[[], None]) -> Witness:
    build, size = panel
    view = build(models)
    qtbot.addWidget(view)
    view.resize(*size)
    return Witness(view, models, answer)
