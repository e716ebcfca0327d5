"""The main window: it builds and arranges the bars, panels and menus, and knows nothing of controller or engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from PySide6.QtCore import QByteArray, QEvent, QObject, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QAction,
    QCloseEvent,
    QDragEnterEvent,
    QDropEvent,
    QKeyEvent,
    QKeySequence,
    QPaintEvent,
)
from PySide6.QtWidgets import QAbstractSpinBox, QApplication, QLineEdit, QMainWindow, QWidget

from app.control.actions import Actions, native
from app.draw.format import thousands
from app.kit.asking import AskingView
from app.kit.view import ATTACH, COMPARE, GO_THERE, LOAD, MEASURE, PAGED, View
from app.kit.widgets import ActionButton, column, connect_all, holder, prose, scrolled
from app.kit.words import HEAD, PAGE, STEP, TOKEN
from app.models import Models, Selected
from app.models.places import chosen_rows
from app.models.saved_view import Arrangement, SavedView, show_place
from app.panels.attention import AttentionView
from app.panels.branches.view import BranchesView
from app.panels.breakpoints import BreakpointsView
from app.panels.bytes import BytesView
from app.panels.edits import EditsView
from app.panels.head import HeadView
from app.panels.inspector import InspectorView
from app.panels.next_token import NextTokenView
from app.panels.notes import NotesView
from app.panels.pages.view import PagesView
from app.panels.prompt.view import PromptPanel
from app.panels.sequences import SequencesView
from app.panels.timeline import TimelineBar
from app.panels.timings import TimingsView
from app.panels.tokens import TokensPanel
from app.panels.wall.view import WallView
from app.window.bars import Footer, TopBar, TransportButton
from app.window.docks import GRIDS, DockHost, layout_with
from app.window.menus import EditMenu, NoteMenu, RecentFiles, TimelineMenu, fill_menu_bar
from app.window.notice_bar import Banner, OpenedBar, RecoveryBar
from app.window.phase_bar import PhaseBar
from app.window.status_line import SELECTED, StatusLine
from engine.saved.document import is_session
from engine.spec.model import SHAPE_PREFIX, ModelSpec
from engine.wire.comparison import Opponent
from engine.wire.status import EngineStatus

if TYPE_CHECKING:
    from app.panels.compare.view import CompareView


class BarredKeys(QObject):
    """Listens to keys that no widget handled, and to buttons that are disabled. Signals: `message(text)`, why the
    action is not possible; `lifted(text)`, that this reason no longer holds."""

    message = Signal(str)
    lifted = Signal(str)

    def __init__(self, actions: Actions, window: QWidget) -> None:
        super().__init__(window)
        self._actions = actions
        self._name = self._why = ""
        self._buttons: dict[QObject, str] = {}  # the name of the action that each triggers
        actions.refreshed.connect(self._on_refreshed)
        window.installEventFilter(self)

    def watch(self, button: QWidget, action: QAction | None) -> None:
        """Say why, when this button is clicked while its action is disabled; nothing, if that has no name."""
        if action is not None and action.data() in self._actions.names():
            self._buttons[button] = action.data()
            button.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.MouseButtonPress:
            self._tell(self._buttons.get(watched, ""))
        elif isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress and not event.isAutoRepeat():
            self._tell(self._actions.disabled_by(QKeySequence(event.keyCombination())))
        return super().eventFilter(watched, event)

    def _tell(self, name: str) -> None:
        if name and (why := self._actions.why_not(name)):
            self._name, self._why = name, why
            self.message.emit(why)

    def _on_refreshed(self) -> None:
        if self._why and self._actions.why_not(self._name) != self._why:
            self.lifted.emit(self._why)
            self._why = ""


class LineKeys(QObject):
    """Gives the window back the keys of its actions that a line of text would take: on X11, Qt moves to the end of a
    line with Ctrl+E. The keys that edit text stay the line's."""

    def __init__(self, actions: Actions, window: QWidget) -> None:
        super().__init__(window)
        acting = (actions[name] for name in actions.names() if name not in ("edit.undo", "edit.redo"))
        keys = (key.toString() for action in acting for key in action.shortcuts())
        self._keys = {key for key in keys if key.startswith("Ctrl+")}
        cast(QApplication, QApplication.instance()).focusChanged.connect(self._on_focus)

    def _on_focus(self, old: QWidget | None, new: QWidget | None) -> None:
        if isinstance(old, _LINES):
            old.removeEventFilter(self)
        if isinstance(new, _LINES):
            new.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() != QEvent.Type.ShortcutOverride:
            return False
        is_taken = QKeySequence(cast(QKeyEvent, event).keyCombination()).toString() in self._keys
        event.setAccepted(event.isAccepted() and not is_taken)
        return is_taken


_LINES = QLineEdit, QAbstractSpinBox
SNAPSHOTS = (".safetensors", ".npz", ".bin", ".gguf")  # the last two are llama.cpp's
WHAT_CAN_BE_DROPPED = (
    "Drop one thing: a model's folder, its config.json, a snapshot, a session, or a state of llama.cpp"
)
SMALL_SCREEN, TITLE_BAR = 1280, 36
LEAST_SIZE = QSize(760, 500)  # within a screen of 800 × 600; panels that need more are scrolled
# Late panels are built when a saved arrangement contains this name of one of their docks (as Qt writes it).
LATE_MARKS = {"truth": "what_if".encode("utf-16-be"), "compare": "compared_steps".encode("utf-16-be"),
              "servers": "prefixes".encode("utf-16-be")}  # fmt: skip


class MainWindow(QMainWindow):
    """Signals of the user: `wants(Command or Question)`, of the engine; `dropped(ModelSpec)`, `file_dropped(Path)`,
    `closing()`. Another: `first_painted()`, the window is on the screen."""

    prompt: PromptPanel
    tokens: TokensPanel
    wants = Signal(object)
    dropped = Signal(object)
    file_dropped = Signal(object)
    closing = Signal()
    first_painted = Signal()

    def __init__(self, models: Models, actions: Actions) -> None:
        super().__init__()
        self.setWindowTitle("KV Loupe")
        self.setAcceptDrops(True)
        self.setMinimumSize(LEAST_SIZE)
        self._is_painted = self._is_placing = False
        self._late: set[str] = set()
        self.models = models
        self.actions_ = actions
        actions.attach("window", self)
        # in the order in which Tab moves through them
        self.prompt = PromptPanel(models)
        self.tokens = TokensPanel(models)
        self.wall = WallView(models)
        self.head: HeadView = HeadView(models)
        self.attention = AttentionView(models)
        self.next_token = NextTokenView(models)
        self.pages = PagesView(models)
        self.sequences = SequencesView(models)
        self.timings = TimingsView(models)
        self.branches = BranchesView(models)
        self.bytes = BytesView(models)
        self.inspector = InspectorView(models)
        self.edits = EditsView(models)
        self.breakpoints = BreakpointsView(models)
        self.notes = NotesView(models)
        self.panels: dict[str, View[Any]] = {part.name: part for part in vars(self).values() if isinstance(part, View)}
        for button, action in (
            (self.notes.new, "note.add"), (self.edits.undo, "edit.undo"), (self.edits.redo, "edit.redo"),
            (self.breakpoints.previous, "breakpoints.previous"), (self.breakpoints.next, "breakpoints.next"),
        ):  # fmt: skip
            button.set_action(actions[action])
        self.docks = DockHost(self.panels)
        self.top = TopBar(models, self.actions_)
        self.opened = OpenedBar(models, self.actions_)
        self.recovery = RecoveryBar(models)
        self.phases = PhaseBar(models, self.actions_)
        self.banner = Banner(models)
        self.timeline = TimelineBar(models)
        self.status = StatusLine(models, self.actions_["run.cancel"], self.actions_["session.return"])
        self._footer = Footer(self.timeline, self.status, self.phases)
        self.picture: View[Any] = self.wall  # that had the focus last: copying and zooming apply to it
        self._build()
        self.recent = RecentFiles("Recent files", self)
        self.sessions = RecentFiles("Recent sessions", self)
        self._edit_menu = EditMenu(models, actions, self)
        self._timeline_menu = TimelineMenu(models, actions, self)
        marked = {HEAD: (self.wall, self.head), PAGE: (self.pages,), STEP: (self.timeline,), TOKEN: (self.tokens,)}
        self.note_menu = NoteMenu(models, actions, marked, self)
        self._panel_menu = fill_menu_bar(self.menuBar(), actions, (self.recent, self.sessions))
        self._panel_menu.addActions([dock.toggleViewAction() for dock in self.docks.docks.values()])
        self._connect()
        barred = BarredKeys(actions, self)
        barred.message.connect(self.status.notify)
        barred.lifted.connect(self.status.withdraw)
        for button in self.findChildren(ActionButton):
            barred.watch(button, button.action)
        for transport in self.findChildren(TransportButton):
            barred.watch(transport, transport.defaultAction())
        self._line_keys = LineKeys(actions, self)
        self.prompt.edit.setFocus()

    def _build(self) -> None:
        self._scroller = scrolled(self.docks)
        self._scroller.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self._scroller.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        bars = self.top, self.banner, self.recovery, self.opened
        self.setCentralWidget(holder(column(*bars, (self._scroller, 1), self._footer, spacing=0)))

    def need(self, layout: str) -> None:
        """Build the panels of a layout if they are built late and do not exist yet."""
        if layout not in LATE_MARKS or layout in self._late:
            return

        self._late.add(layout)
        panels: dict[str, Any] = {kind.name: kind(self.models) for kind in late_panels(layout)}
        self._listen_to(panels)
        self.panels.update(panels)
        self.docks.add(panels)
        self._panel_menu.addActions([self.docks.docks[name].toggleViewAction() for name in panels])
        if layout == "compare":
            self.actions_.attach("picture", panels["compare"])
            panels["compare"].set_remedy(COMPARE, "Compare with…", self.actions_["compare.with"])
        elif layout == "servers":
            panels["server"].set_remedy(ATTACH, "Attach to a server…", self.actions_["server.attach"])
        else:
            panels["parity"].compared.connect(self.compare_with)

    def need_all(self) -> None:
        """Build all panels."""
        for layout in LATE_MARKS:
            self.need(layout)

    def _listen_to(self, panels: Mapping[str, View[Any]]) -> None:
        """Show the messages of panels in the status line, pass on what they want of the engine, and let a click on a
        picture give it the focus."""
        for panel in panels.values():
            panel.message.connect(self.status.notify)
            panel.wants.connect(self.wants)
            if panel not in (self.prompt, self.tokens):
                panel.setFocusPolicy(Qt.FocusPolicy.ClickFocus)

    def arrange(self, layout: str) -> None:
        """Arrange the panels in a named layout."""
        self.need(layout)
        self.docks.arrange(layout)
        status = self.models.status.now
        if layout == "truth" and not status.cache.retention.keeps_all:
            self.docks.docks["evicted"].raise_()  # with an eviction rule, why rows were evicted comes first

    def measure(self, name: str) -> None:
        """Have a panel run its measurement, and show the panel; if it is hidden, in the Truth layout."""
        panel = self._show("truth", name)
        assert isinstance(panel, AskingView)
        panel.measure()

    def show_panel(self, name: str) -> None:
        """Show a panel and give it the focus."""
        self._show(layout_with(name), name).setFocus()

    def ask_sampling(self, name: str) -> None:
        """Put the cursor into a field of the sampling of the next token."""
        self._show("inspect", "prompt")
        self.prompt.ask_sampling(name)

    def show_place(self, names: Collection[str]) -> None:
        """Bring the head to the front, if it is on the screen or behind a tab, where a place in it was selected."""
        if {"lens", "channel"} & set(names) and self.docks.docks["head"].isVisible():
            self.docks.docks["head"].raise_()

    @property
    def focused_panel(self) -> str:
        """The name of the panel that has the focus, or had it last; "timeline" for the timeline."""
        focused = QApplication.focusWidget()
        places: dict[str, QWidget] = {**self.panels, "timeline": self.timeline}
        within = (name for name, place in places.items() if focused is not None and _holds(place, focused))
        return next(within, "") or next(name for name, panel in self.panels.items() if panel is self.picture)

    def begin_continuation(self) -> None:
        """Put the cursor where the user types what comes next."""
        self._show("inspect", "next_token")
        self.next_token.begin_continuation()

    def compare(self) -> CompareView:
        """Show the Compare panel and return it."""
        from app.panels.compare.view import CompareView

        panel = self._show("compare", "compare")
        assert isinstance(panel, CompareView)
        return panel

    def compare_with(self, against: Opponent) -> None:
        """Compare with another run in the Compare panel."""
        self.compare().compare_with(against)

    def show_breakpoints(self) -> BreakpointsView:
        """Show the Breakpoints panel and return it."""
        self._show("inspect", "breakpoints")
        return self.breakpoints

    def _show(self, layout: str, name: str) -> View[Any]:
        """Bring a panel to the front and return it; if it is hidden, arrange a layout that contains it."""
        self.need(layout)
        if not self.docks.docks[name].isVisible():
            self.arrange(layout)
        if name == "pages":
            self.docks.show_pages(True)
        self.docks.docks[name].raise_()
        return self.panels[name]

    def _connect(self) -> None:
        for picture in (self.wall, self.head, self.attention):
            self.actions_.attach("picture", picture)
        for panel in (self.wall, self.head, self.attention, self.tokens):
            self.actions_.attach("rows", panel)
            panel.menu_wanted.connect(self._edit_menu.open_at)
        self.actions_.attach("timeline", self.timeline)
        self._offer_remedies()
        self._listen_to(self.panels)
        connect_all(
            (self._panel_menu.aboutToShow, self.need_all),
            (self.pages.menu_wanted, self.note_menu.open_at),
            (self.timeline.menu_wanted, self._timeline_menu.open_at),
            (self.top.remedies.prompt_wanted, self.prompt.begin),
            (self.prompt.room_wanted, self.docks.make_prompt_taller),
            (QApplication.instance().focusChanged, self._on_focus),  # type: ignore[union-attr]
            (self.wall.outliers_wanted, self.actions_["view.outliers"].trigger),
            (self.models.selection.changed, self._on_selected),
            (self.models.status.changed, self._on_status),
            (self.models.status.changed, self._show_title),
            (self.models.timeline.texts_due, self._show_title),
            (self.models.selection.changed, self._show_title),
            (self.status.warnings_wanted, self.actions_["view.warnings"].trigger),
            (self.models.kept_sessions.changed, self._show_sessions),
        )
        key = native("Ctrl+Return").replace("Return", "↵")
        self.prompt.set_actions(self.actions_["prompt.send"], key, self.actions_["prompt.add"])
        self._bar_views()

    def _show_sessions(self) -> None:
        self.sessions.set_sessions(self.models.kept_sessions.all)

    def _offer_remedies(self) -> None:
        """Give panels the button to show when they have nothing to show."""
        for picture in (self.wall, self.head, self.attention):
            picture.set_remedy(GO_THERE, "Go there", self.actions_["run.go_on"])
            picture.set_remedy(LOAD, "Load it again", self.actions_["model.reload"])
        self.pages.set_remedy(PAGED, "Choose Paged", self.actions_["cache.paged"])
        self.attention.set_remedy(MEASURE, "Measure it from now on", self.actions_["capture.rows"])
        self.next_token.set_remedy(MEASURE, "Measure it from now on", self.actions_["capture.statistics"])

    def _on_status(self, old: EngineStatus, new: EngineStatus) -> None:
        """Show the page pool when a cache with pages is chosen, and hide it when another is."""
        if new.cache.is_paged != old.cache.is_paged:
            self.docks.show_pages(new.cache.is_paged)

    # ---- appearance ----------------------------------------------------------------------------------------------

    def _on_selected(self, old: Selected, new: Selected) -> None:
        """Show the size of a newly dragged area in the status line."""
        # of a file that is being opened, the place is known before its tokens
        is_dragged = new.area is not None and new.area != old.area and not self._is_placing
        if is_dragged and chosen_rows(self.models) is not None:
            self.status.notify(SELECTED + " · ".join(self._edit_menu.words()))

    def _show_title(self) -> None:
        """Name in the title what is open: a file, or the model and the step shown. During a run this is called whenever
        texts are due, a few times a second."""
        status, viewed = self.models.status.now, self.models.selection.now.step
        if status.model is None:
            return
        words = prose(status.opened.path.name) if status.opened is not None else prose(status.model.name)
        if status.opened is None and viewed is not None:
            words += f" · looking at step {thousands(viewed)}"
        elif status.opened is None and status.step is not None:
            words += f" · step {thousands(status.step)}"
        self.setWindowTitle(f"{words} — KV Loupe")

    def toggle_full_screen(self) -> None:
        self.setWindowState(self.windowState() ^ Qt.WindowState.WindowFullScreen)
        self.actions_.check("view.full", self.isFullScreen())

    def save_state(self) -> tuple[bytes, bytes]:
        """(geometry, arrangement of the docks), for the settings."""
        return bytes(self.saveGeometry().data()), self.docks.save()

    def restore_state(self, geometry: bytes, docks: bytes, layout: str) -> None:
        """Restore what `save_state` returned; what cannot be read is ignored."""
        if not self.restoreGeometry(QByteArray(geometry)):
            self.resize(first_size(self))
        self._arrange(layout, docks)

    def show_arrangement(self, wanted: Arrangement) -> None:
        """Arrange the panels as they stood; nothing if there is no such layout, or if they stand so."""
        if wanted.layout in GRIDS and wanted != self.docks.arrangement:
            self._arrange(wanted.layout, wanted.state)
            self.docks.bring_forward(wanted.fronts)
            self.docks.choose(wanted.choices)

    def show_selected(self, view: SavedView) -> None:
        """Select what was selected; no message says how large that is, as it might replace one that is news."""
        self._is_placing = True
        show_place(view, self.models)
        self._is_placing = False

    def _arrange(self, layout: str, docks: bytes) -> None:
        for late, mark in LATE_MARKS.items():
            if mark in docks:
                self.need(late)
        self.arrange(layout)
        self.docks.restore(docks)

    # ---- events of the window ------------------------------------------------------------------------------------

    def _on_focus(self, _old: QWidget | None, now: QWidget | None) -> None:
        while now is not None and not isinstance(now, View):
            now = now.parentWidget()
        if now is not None and now not in (self.prompt, self.tokens):
            self.picture = now
            self._bar_views()

    def _bar_views(self) -> None:
        """Disable the actions that the panel focused last does not support."""
        reasons = {
            "view.reset": "this panel always shows everything",
            "view.zoom": "this panel does not zoom",
            "view.colors": "the colours of this panel have a fixed range",
        }
        self.actions_.bar({key: "" if key in self.picture.abilities else why for key, why in reasons.items()})

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if not self._is_painted:
            self._is_painted = True
            QTimer.singleShot(0, self, self.first_painted.emit)

    def closeEvent(self, event: QCloseEvent) -> None:
        self.closing.emit()
        event.accept()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if self._dropped(event) is not None:
            event.acceptProposedAction()
        else:
            self.status.notify(WHAT_CAN_BE_DROPPED)

    def dropEvent(self, event: QDropEvent) -> None:
        found = self._dropped(event)
        if found is not None:
            event.acceptProposedAction()
            (self.dropped if isinstance(found, ModelSpec) else self.file_dropped).emit(found)

    @staticmethod
    def _dropped(event: QDropEvent) -> ModelSpec | Path | None:
        """What was dropped: a folder is a model, a config.json a shape, a file with an ending of `SNAPSHOTS` one that
        is opened; a session is recognised by its content. None: nothing usable."""
        urls = event.mimeData().urls()
        path = Path(urls[0].toLocalFile()) if len(urls) == 1 and urls[0].isLocalFile() else None
        if path is None:
            return None
        if path.is_dir():
            return ModelSpec(str(path))
        if path.suffix in SNAPSHOTS or is_session(path):
            return path
        return ModelSpec(f"{SHAPE_PREFIX}{path}") if path.suffix == ".json" else None


def _holds(place: QWidget, focused: QWidget) -> bool:
    return place is focused or place.isAncestorOf(focused)


def first_size(window: QMainWindow) -> QSize:
    """The window's size on the first start, within the screen."""
    room = window.screen().availableSize()
    if room.width() <= SMALL_SCREEN:  # use the whole screen but for the window's title bar
        return QSize(room.width(), room.height() - TITLE_BAR)
    return QSize(min(1600, round(room.width() * 0.94)), min(1000, round(room.height() * 0.92)))


def late_panels(layout: str) -> tuple[type[View[Any]], ...]:
    """The panels that are built when their layout is first shown."""
    match layout:
        case "truth":
            from app.panels.bench import BenchView
            from app.panels.damage import DamageView
            from app.panels.evicted import EvictedView
            from app.panels.parity import ParityView
            from app.panels.sweep import SweepView
            from app.panels.what_if import WhatIfView

            return WhatIfView, EvictedView, DamageView, ParityView, SweepView, BenchView
        case "servers":
            from app.panels.prefixes import PrefixesView
            from app.panels.reuse import ReuseView
            from app.panels.server import ServerView

            return PrefixesView, ReuseView, ServerView
    from app.panels.compare.steps import CompareStepsView
    from app.panels.compare.view import CompareView

    return CompareView, CompareStepsView
