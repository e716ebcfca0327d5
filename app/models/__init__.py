"""The window's state: each model has one writer, and all views read it; and the queue of views that have to refresh."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from PySide6.QtCore import QObject, QTimer
from shiboken6 import isValid

from app.models.bookmarks import Bookmarks
from app.models.breakpoints import Breakpoints
from app.models.comparison import Comparison
from app.models.draft import Draft
from app.models.history import Edits, HistoryTree, MadeEdit, Token
from app.models.kept_sessions import KeptSession, KeptSessions, Recovery, UnclosedSession
from app.models.logs import EvictionLog, PageFacts, PageLog, RowEviction
from app.models.measurement import Measurements
from app.models.pictures import Pictures
from app.models.selection import Selected, Selection, Viewport, WantedPictures
from app.models.status import Phases, Servers, Status
from app.models.timeline import Timeline

__all__ = [
    "Bookmarks",
    "Breakpoints",
    "Comparison",
    "Draft",
    "Edits",
    "EvictionLog",
    "HistoryTree",
    "KeptSession",
    "KeptSessions",
    "MadeEdit",
    "Measurements",
    "Models",
    "PageFacts",
    "PageLog",
    "Phases",
    "Pictures",
    "Recovery",
    "RefreshQueue",
    "RowEviction",
    "Selected",
    "Selection",
    "Servers",
    "Status",
    "Timeline",
    "Token",
    "UnclosedSession",
    "Viewport",
    "WantedPictures",
]  # fmt: skip


TURN_S = 0.003  # time for refreshes in one turn of the event loop; painting them takes further time in the same turn


class RefreshQueue(QObject):
    """A refresh asked for inside a `frame()` is queued, once per slot, and done when the frame ends, so that a view
    reads once, whatever changed. After a frame that is spread, it is done in one of the next turns of the event loop.
    Outside of a frame a refresh is done at once."""

    def __init__(self) -> None:
        super().__init__()
        self._due: dict[Callable[[], None], None] = {}
        self._is_frame = False
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.on_turn)

    @property
    def is_empty(self) -> bool:
        """Whether no refresh is queued."""
        return not self._due

    @contextmanager
    def frame(self, *, is_spread: bool = False) -> Iterator[None]:
        if self._is_frame:  # of a frame inside another one, the outer one counts
            yield
            return
        self._is_frame = True
        try:
            yield
        finally:
            self._is_frame = False
            if not is_spread:
                self._refresh_until(math.inf)
            elif self._due and not self._timer.isActive():
                self._timer.start(0)

    def ask(self, refresh: Callable[[], None]) -> None:
        """Refresh a view, now or queued; `refresh` is a bound method of a QObject."""
        if self._is_frame:
            self._due[refresh] = None
        else:
            self._due.pop(refresh, None)
            refresh()

    def on_turn(self) -> None:
        """Do what is queued for as long as a turn of the event loop may last, at least one refresh."""
        self._refresh_until(time.perf_counter() + TURN_S)

    def _refresh_until(self, end: float) -> None:
        self._is_frame = True  # what a refresh asks for comes after those that are asked for already
        try:
            while self._due:
                refresh = next(iter(self._due))
                del self._due[refresh]
                if isValid(refresh.__self__):  # type: ignore[attr-defined]
                    refresh()
                if time.perf_counter() >= end:
                    break
        finally:
            self._is_frame = False
        if not self._due:
            self._timer.stop()


@dataclass(frozen=True)
class Models:
    """All state of the window, given to views and controller, and the queue of the views that have to refresh."""

    timeline: Timeline = field(default_factory=Timeline)
    selection: Selection = field(default_factory=Selection)
    status: Status = field(default_factory=Status)
    pictures: Pictures = field(default_factory=Pictures)
    viewport: Viewport = field(default_factory=Viewport)
    pages: PageLog = field(default_factory=PageLog)
    phases: Phases = field(default_factory=Phases)
    evictions: EvictionLog = field(default_factory=EvictionLog)
    measurements: Measurements = field(default_factory=Measurements)
    comparison: Comparison = field(default_factory=Comparison)
    draft: Draft = field(default_factory=Draft)
    bookmarks: Bookmarks = field(default_factory=Bookmarks)
    recovery: Recovery = field(default_factory=Recovery)
    kept_sessions: KeptSessions = field(default_factory=KeptSessions)
    edits: Edits = field(default_factory=Edits)
    servers: Servers = field(default_factory=Servers)
    refreshes: RefreshQueue = field(default_factory=RefreshQueue)
    history: HistoryTree = field(init=False)  # the whole tree; the timeline is one path of it
    breakpoints: Breakpoints = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "history", self.timeline.history)
        object.__setattr__(self, "breakpoints", Breakpoints(self.timeline, self.comparison))
        self.edits.follow(self.history)
        self.selection.follow(self.history)
        self.selection.frame = self.viewport.frame = self.refreshes.frame
        self.selection.changed.connect(self.timeline.on_selected)  # connected first, so that views read the new path
