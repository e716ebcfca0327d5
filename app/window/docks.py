"""The grid of panels: docks with gaps of 6 px, arranged by named layouts or by the user."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from PySide6.QtCore import QByteArray, QEvent, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QDockWidget, QMainWindow, QTabBar, QTabWidget, QWidget
from shiboken6 import isValid

from app.kit.view import View
from app.models.saved_view import Arrangement

# A grid is rows from top to bottom; a row is columns from left to right; a column is panels from top to bottom.
Grid = Sequence[Sequence[Sequence[str]]]
# Pages have a place, in front where it is shared, only while the cache has pages.
GRIDS: Mapping[str, Grid] = {
    "learn": ((("prompt", "tokens"), ("wall", "pages", "attention"), ("next_token", "inspector")),),
    "inspect": (
        (("prompt", "tokens"), ("wall", "head"), ("inspector", "next_token")),
        (("attention",), ("timings",), ("bytes",)),
    ),
    "compare": (
        (("prompt", "tokens"), ("compare",)),
        (("compared_steps",),),
    ),
    "servers": ((("prefixes",), ("reuse", "server")),),
    "truth": (
        (("prompt", "tokens"), ("wall", "sweep"), ("what_if", "damage")),
        (("parity",), ("bytes",)),
    ),
}
# Panels that share a place with another one, as tabs behind it.
Tabs = Mapping[str, tuple[str, ...]]
LISTS = ("sequences", "edits", "breakpoints", "notes")
TABS: Mapping[str, Tabs] = {
    "learn": {"attention": (*LISTS, "branches")},
    "inspect": {"bytes": LISTS, "timings": ("pages", "branches")},
    "truth": {"sweep": ("evicted", "bench"), "bytes": ("branches",)},
}
# How much room the panels have: wide from this width on, small below the width and height that a layout needs (pixels).
Room = Literal["small", "usual", "wide"]
WIDE = 2200
NEEDS: Mapping[str, tuple[int, int]] = {"inspect": (1112, 565), "truth": (1120, 580)}
# Layouts that have another grid in such a room. In a wide one attention has a column of its own; in a small one the
# bottom row is tabs, and the panels of Truth, which are large, share two places.
GRIDS_IN: Mapping[tuple[str, Room], Grid] = {
    ("inspect", "wide"): (
        (("prompt", "tokens"), ("wall", "head"), ("attention", "pages"), ("inspector", "next_token")),
        (("timings",), ("bytes",)),
    ),
    ("inspect", "small"): ((("prompt", "tokens"), ("wall", "attention"), ("inspector", "next_token")),),
    ("truth", "small"): ((("prompt", "tokens"), ("what_if", "sweep")),),
}
TABS_IN: Mapping[tuple[str, Room], Tabs] = {
    ("inspect", "wide"): {"bytes": LISTS, "timings": ("branches",)},
    ("inspect", "small"): {
        "wall": ("head", "timings", "bytes"),
        "attention": ("pages", *LISTS, "branches"),
    },
    ("truth", "small"): {"what_if": ("damage", "parity"), "sweep": ("evicted", "bench", "bytes", "branches", "wall")},
}
# Shares of the height of a column; `WEIGHT` for a panel that is not listed.
WEIGHT = 120
WEIGHTS: Mapping[str, int] = {
    "prompt": 150, "tokens": 460, "wall": 310, "head": 310, "inspector": 230, "next_token": 205, "attention": 190,
    "timings": 190, "bytes": 190,
    "what_if": 240, "damage": 300, "sweep": 410, "parity": 190,
    "compare": 600, "prefixes": 600, "reuse": 265, "server": 395, "compared_steps": 190,
}  # fmt: skip
SIDE_COLUMNS = {"prompt": (232, 290, 460), "inspector": (258, 320, 520), "next_token": (258, 320, 520)}
BOTTOM_SHARE = 0.25
BOTTOM_ROW = (190, 210, 400)
# Shares of the width between the side columns; 100 for a panel that is not listed.
WIDTHS: Mapping[str, int] = {"attention": 130, "prefixes": 170}


def room_of(layout: str, width: int, height: int) -> Room:
    """How much room the panels of a layout have in an area of so many pixels."""
    least_width, least_height = NEEDS.get(layout, (0, 0))
    if width < least_width or height < least_height:
        return "small"
    return "wide" if width >= WIDE else "usual"


def grid_of(layout: str, room: Room, *, has_pages: bool) -> Grid:
    grid = GRIDS_IN.get((layout, room), GRIDS[layout])
    return grid if has_pages else tuple(tuple(filter(None, map(_without_pages, row))) for row in grid)


def tabs_of(layout: str, room: Room, *, has_pages: bool) -> Tabs:
    tabs = TABS_IN.get((layout, room), TABS.get(layout, {}))
    return tabs if has_pages else {front: _without_pages(behind) for front, behind in tabs.items()}


def _without_pages(panels: Sequence[str]) -> tuple[str, ...]:
    return tuple(panel for panel in panels if panel != "pages")


def layout_with(panel: str) -> str:
    """Return the layout that shows a panel; if several do, Inspect or else the first one."""
    found = [name for name, grid in GRIDS.items() if any(panel in column for row in grid for column in row)]
    found += [name for name, tabs in TABS.items() if any(panel in behind for behind in tabs.values())]
    return "inspect" if "inspect" in found else found[0]


PROMPT_COLUMN = ("prompt", "tokens")
LEAST_TOKENS = 110  # pixels that the Tokens panel keeps beside a tall prompt
GAP = 6
AROUND = 138  # pixels of the window's height that the menu bar, the top bar and the footer take
STATE_VERSION = 1


class PanelDock(QDockWidget):
    """A dock whose title bar is the panel's own title strip."""

    def __init__(self, name: str, panel: View[Any], parent: QWidget) -> None:
        super().__init__(panel.accessibleName(), parent)
        self.setObjectName(name)
        self.setTitleBarWidget(panel.take_strip())
        self.setWidget(panel)
        self.setAllowedAreas(Qt.DockWidgetArea.AllDockWidgetAreas)
        hide = QAction("Hide this panel", self)
        hide.triggered.connect(self.close)
        panel.frame_actions.append(hide)
        self.panel = panel


class DockHost(QMainWindow):
    """Holds the panels. Until the user moves a gap or a panel, it keeps the proportions of its named layout. Signal:
    `rearranged()`, another panel is in front, or one was moved, shown or hidden, or another of its segments chosen."""

    rearranged = Signal()

    def __init__(self, panels: Mapping[str, View[Any]]) -> None:
        super().__init__()
        self.setWindowFlags(Qt.WindowType.Widget)
        self.setDockNestingEnabled(True)
        self.setDockOptions(self.dockOptions() | QMainWindow.DockOption.GroupedDragging)
        self.setContentsMargins(GAP, GAP, GAP, GAP)
        self.setTabPosition(Qt.DockWidgetArea.AllDockWidgetAreas, QTabWidget.TabPosition.North)
        self.setDocumentMode(True)
        self.docks = {name: PanelDock(name, panel, self) for name, panel in panels.items()}
        self.layout_name = "inspect"
        self._room: Room = "usual"
        self._has_pages = False
        self._is_untouched = True
        self._is_arranging = False
        self._tall = 0  # the height that the prompt wants; 0: the usual one
        self._usual_prompt = 0  # its height before it was made taller; 0: it was not
        for dock in self.docks.values():
            self._watch(dock)

    @property
    def _grid(self) -> Grid:
        """The named layout for the window's present size and the cache's pages."""
        return grid_of(self.layout_name, self._room, has_pages=self._has_pages)

    def _room_for(self, layout: str) -> Room:
        """How much room the window has for a layout. Panels that are scrolled take more, and a bar that appears above
        them leaves them less: neither gives them other places."""
        seen = self.window().size()
        return room_of(layout, seen.width(), seen.height() - AROUND)

    def add(self, panels: Mapping[str, View[Any]]) -> None:
        """Add panels that were built later; they stay hidden until a layout or the menu shows them."""
        for name, panel in panels.items():
            dock = self.docks[name] = PanelDock(name, panel, self)
            self.addDockWidget(Qt.DockWidgetArea.LeftDockWidgetArea, dock)
            dock.hide()
            self._watch(dock)

    def show_pages(self, has_pages: bool) -> None:
        """Give the page pool a place while the cache has pages, in front where others share it, and give the place back
        afterwards. What the user has arranged stays as it is."""
        fronts = self.arrangement.fronts
        before, self._has_pages = (self._grid, self._tabs), has_pages
        if not self._is_untouched or (self._grid, self._tabs) == before:
            return
        self.arrange(self.layout_name)
        self.bring_forward((*fronts, "pages") if has_pages else fronts)

    @property
    def _tabs(self) -> Tabs:
        return tabs_of(self.layout_name, self._room, has_pages=self._has_pages)

    def _is_front(self, dock: QDockWidget) -> bool:
        """Whether a dock is the one in front of others in its place."""
        return bool(self.tabifiedDockWidgets(dock)) and not dock.visibleRegion().isEmpty()

    def make_prompt_taller(self, pixels: int) -> None:
        """Give the prompt up to `pixels` of the height that it shares with the tokens, if it has less; 0 gives the
        tokens theirs back."""
        self._tall = pixels
        if pixels:
            self._fit_prompt()
        else:  # not yet: until the next layout the prompt's least height is still that of what it has shown
            QTimer.singleShot(0, self, self._fit_prompt)

    def _fit_prompt(self) -> None:
        """Share the height of prompt and tokens between them."""
        pair = [self.docks[name] for name in PROMPT_COLUMN]
        if not all(dock.isVisible() for dock in pair):
            return
        both = sum(dock.height() for dock in pair)
        if self._tall:
            wanted = min(self._tall, both - LEAST_TOKENS)
            if pair[0].height() >= wanted:
                return
            self._usual_prompt = self._usual_prompt or pair[0].height()
        else:
            usual, self._usual_prompt = self._usual_prompt, 0
            wanted = self._prompt_heights(both)[0] if self._is_untouched else usual
        if wanted:
            self.resizeDocks(pair, [wanted, both - wanted], Qt.Orientation.Vertical)

    def _prompt_heights(self, height: int) -> list[int]:
        """The heights of prompt and tokens: a prompt needs a few lines, not a share of a tall screen."""
        prompt = min(max(_shares(height, PROMPT_COLUMN)[0], 150), 260)
        prompt = max(prompt, min(self._tall, height - LEAST_TOKENS))
        return [prompt, max(1, height - prompt)]

    def _watch(self, dock: PanelDock) -> None:
        dock.topLevelChanged.connect(self._on_touched)
        dock.dockLocationChanged.connect(self._on_moved)
        dock.visibilityChanged.connect(self._on_moved)
        dock.panel.segments.chosen.connect(self._on_moved)

    def arrange(self, name: str) -> None:
        """Arrange the panels in a named layout."""
        self.layout_name = name if name in GRIDS else "inspect"
        self._is_arranging = True
        focused = self.focusWidget()  # its panel is hidden below, which would move the focus to another one
        for dock in self.docks.values():
            dock.setFloating(False)
            dock.hide()  # before removing it: otherwise a saved arrangement would list it as visible
            self.removeDockWidget(dock)
        self._room = self._room_for(self.layout_name)
        rows = self._grid
        heads = [row[0][0] for row in rows]
        self.addDockWidget(Qt.DockWidgetArea.LeftDockWidgetArea, self.docks[heads[0]])
        for above, below in pairwise(heads):
            self.splitDockWidget(self.docks[above], self.docks[below], Qt.Orientation.Vertical)
        for row in rows:
            self._split([column[0] for column in row], Qt.Orientation.Horizontal)
        for row in rows:
            for column in row:
                self._split(column, Qt.Orientation.Vertical)
        for front, others in self._tabs.items():
            self._tabify(front, others)
        self._is_untouched, self._is_arranging = True, False
        self._proportion(self.size())
        self._on_moved()
        if focused is not None and focused.isVisible():
            focused.setFocus()
        if self.layout_name in (
            "compare",
            "truth",
            "servers",
        ):  # the size hints of newly built panels are known only after they were laid out
            QTimer.singleShot(0, self, self._proportion_again)

    def _tabify(self, front: str, others: Sequence[str]) -> None:
        for name in others:
            self.tabifyDockWidget(self.docks[front], self.docks[name])
            self.docks[name].show()
        self.docks["pages" if "pages" in others else front].raise_()

    def _split(self, names: Sequence[str], orientation: Qt.Orientation) -> None:
        self.docks[names[0]].show()
        for before, after in pairwise(names):
            self.splitDockWidget(self.docks[before], self.docks[after], orientation)
            self.docks[after].show()

    def save(self) -> bytes:
        """The arrangement as bytes; empty if it is the unchanged named layout."""
        if not self._is_untouched:
            self._tall = 0  # a window begins with a text
            self._fit_prompt()
        return self.arrangement.state

    @property
    def arrangement(self) -> Arrangement:
        """How the panels stand now."""
        fronts = tuple(name for name, dock in self.docks.items() if self._is_front(dock))
        state = b"" if self._is_untouched else bytes(self.saveState(STATE_VERSION).data())
        choices = {name: dock.panel.choice for name, dock in self.docks.items() if dock.panel.choices}
        return Arrangement(self.layout_name, fronts, base64.b64encode(state).decode(), choices)

    def choose(self, choices: Mapping[str, str]) -> None:
        """Choose segments of panels by their names; what a panel does not offer is ignored."""
        for name, dock in self.docks.items():
            choice = choices.get(name, dock.panel.choice)
            if choice != dock.panel.choice and choice in (key for key, _, _ in dock.panel.choices):
                dock.panel.choose(choice)

    def bring_forward(self, names: Iterable[str]) -> None:
        """Put panels in front of those that share their places."""
        for name in names:
            if name in self.docks and self.docks[name].isVisible():
                self.docks[name].raise_()

    def restore(self, state: bytes) -> None:
        """Restore a saved arrangement; if it cannot be read, nothing changes."""
        if state and self.restoreState(QByteArray(state), STATE_VERSION):
            self._is_untouched = False
            QTimer.singleShot(0, self, self._name_once)  # Qt tells only then which docks are tabs

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        # Qt reports which docks are tabs only for a window that is shown, and of the last row only then
        QTimer.singleShot(0, self, self._name_once)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if not self._is_untouched or self._is_arranging:  # a size that was pending comes amid an arrangement
            return
        name = self.layout_name
        if grid_of(name, self._room_for(name), has_pages=self._has_pages) != self._grid:
            self.arrange(name)
        else:
            self._proportion(event.size())

    def event(self, event: QEvent) -> bool:
        # The only mouse presses that arrive here, and not in a panel, are those on the gaps.
        if event.type() == QEvent.Type.MouseButtonPress:
            self._is_untouched = False
        elif event.type() == QEvent.Type.MouseButtonRelease:
            self.rearranged.emit()
        return super().event(event)

    def _on_touched(self) -> None:
        self._is_untouched = False
        self._on_moved()

    def _on_moved(self) -> None:
        # When a program ends PySide deletes the docks one by one, and those that share their places move.
        if not self._is_arranging and all(map(isValid, self.docks.values())):
            self._name_once()
            self.rearranged.emit()

    def _name_once(self) -> None:
        """Hide a panel's title where its tab shows the name already."""
        for dock in self.docks.values():
            is_tabbed = bool(self.tabifiedDockWidgets(dock)) and not dock.isFloating()
            dock.panel.title_label.setVisible(not is_tabbed)  # the tab shows the name already
        for bar in self.findChildren(QTabBar, options=Qt.FindChildOption.FindDirectChildrenOnly):
            bar.setDrawBase(False)
            bar.setExpanding(False)
            bar.setAccessibleName("Panels that share this place")

    def _proportion(self, size: QSize) -> None:
        rows = self._grid
        height, width = size.height() - 2 * GAP, size.width() - 2 * GAP
        bottom = _clamped(BOTTOM_SHARE * height, BOTTOM_ROW) if len(rows) > 1 else 0
        heights = [height - bottom - GAP, bottom] if bottom else [height]
        if bottom:
            self.resizeDocks([self.docks[row[0][0]] for row in rows], heights, Qt.Orientation.Vertical)
        for row, row_height in zip(rows, heights, strict=True):
            heads = [column[0] for column in row]
            self.resizeDocks([self.docks[name] for name in heads], _widths(heads, width), Qt.Orientation.Horizontal)
            for column in row:
                self._proportion_column(column, row_height)

    def _proportion_again(self) -> None:
        if self._is_untouched:
            self._proportion(self.size())
            lowest = [self.docks[row[0][0]] for row in self._grid[1:]]
            bottom = _clamped(BOTTOM_SHARE * (self.height() - 2 * GAP), BOTTOM_ROW)
            self.resizeDocks(lowest, [bottom] * len(lowest), Qt.Orientation.Vertical)

    def _proportion_column(self, column: Sequence[str], height: int) -> None:
        free = height - GAP * (len(column) - 1)
        heights = self._prompt_heights(free) if tuple(column) == PROMPT_COLUMN else _shares(free, column)
        self.resizeDocks([self.docks[name] for name in column], heights, Qt.Orientation.Vertical)


def _shares(height: int, names: Sequence[str]) -> list[int]:
    total = sum(WEIGHTS.get(name, WEIGHT) for name in names)
    return [round(height * WEIGHTS.get(name, WEIGHT) / total) for name in names]


def _clamped(value: float, limits: tuple[int, int, int]) -> int:
    least, _, most = limits
    return round(min(max(value, least), most))


def _widths(heads: Sequence[str], width: int) -> list[int]:
    """Widths of a row's columns: side columns within their limits, and the rest shared by those between them."""
    free = width - GAP * (len(heads) - 1)
    is_side = [name in SIDE_COLUMNS and len(heads) > 1 and index in (0, len(heads) - 1)
               for index, name in enumerate(heads)]  # fmt: skip
    sides = [_clamped(width * SIDE_COLUMNS[name][1] / 1588, SIDE_COLUMNS[name]) if side else 0
             for name, side in zip(heads, is_side, strict=True)]  # fmt: skip
    shares = [0 if side else WIDTHS.get(name, 100) for name, side in zip(heads, sides, strict=True)]
    return [side or (free - sum(sides)) * share // sum(shares) for side, share in zip(sides, shares, strict=True)]
