"""The window's state: each model has one writer, and all views read it."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.models.bookmarks import Bookmarks
from app.models.breakpoints import Breakpoints
from app.models.comparison import Comparison
from app.models.draft import Draft
from app.models.edits import Edits, MadeEdit
from app.models.eviction_log import EvictionLog, RowEviction
from app.models.history import Branch, HistoryTree
from app.models.kept_sessions import KeptSession, KeptSessions, Recovery, UnclosedSession
from app.models.measurement import Measurements
from app.models.page_log import PageFacts, PageLog
from app.models.phases import Phases
from app.models.pictures import Pictures
from app.models.refresh_queue import RefreshQueue
from app.models.selection import Selected, Selection, Viewport, WantedPictures
from app.models.sequence_tokens import Token
from app.models.servers import Servers
from app.models.status import Status
from app.models.timeline import Timeline

__all__ = [
    "Bookmarks",
    "Branch",
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
    breakpoints: Breakpoints = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "breakpoints", Breakpoints(self.timeline, self.comparison))
        self.edits.follow(self.history)
        self.selection.follow(self.timeline)
        self.selection.changed.connect(self.timeline.on_selected)  # connected first, so that views read the new path

    @property
    def history(self) -> HistoryTree:
        """The whole history tree; the timeline is one path of it."""
        return self.timeline.history
