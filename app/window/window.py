"""The window: it puts the parts together and knows nobody who acts."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QByteArray, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QCloseEvent,
    QDragEnterEvent,
    QDropEvent,
    QImage,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import (
    QApplication,
    QHBoxLayout,
    QMainWindow,
    QMenu,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.control.action_table import MENUS
from app.control.actions import Actions, native
from app.kit.panel import Panel
from app.kit.theme import Theme
from app.models import Models
from app.panels.attention.view import AttentionView
from app.panels.bytes.view import BytesView
from app.panels.head.view import HeadView
from app.panels.inspector.view import InspectorView
from app.panels.next_token.view import NextTokenView
from app.panels.pages.view import PagesView
from app.panels.prompt.view import PromptPanel
from app.panels.sequences.view import SequencesView
from app.panels.timeline.view import TimelineBar
from app.panels.timings.view import TimingsView
from app.panels.tokens.view import TokensPanel
from app.panels.wall.view import WallView
from app.window.banner import Banner
from app.window.docks import DockHost
from app.window.remedies import Remedies
from app.window.selectors import CacheSelector, ModelSelector
from app.window.status_line import StatusLine
from app.window.transport import PastButtons, StepCounter, TransportBar, bar_role
from engine.spec.model import SHAPE_PREFIX, ModelSpec

TOP_BAR_HEIGHT = 46
SMALL_SCREEN, TITLE_BAR = 1280, 36
ROOM_FOR_KEYS = 1500  # pixels of the top bar from which on Step and Run are named
PICTURES = ("wall", "head", "attention", "next_token", "pages", "sequences", "timings", "bytes", "inspector")
TRUTH_MARK = "what_if".encode("utf-16-be")  # a saved arrangement has the names of its docks


class TopBar(QWidget):
    """Selectors, transport, and the step on the right."""

    def __init__(self, models: Models, actions: Actions, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self.model = ModelSelector(models, actions, theme)
        self.cache = CacheSelector(models, actions, theme)
        self._transport = TransportBar(models, actions, theme)
        self._counter = StepCounter(models, theme)
        self._past = PastButtons(models, actions)
        self.remedies = Remedies(models, actions)
        self.setFixedHeight(TOP_BAR_HEIGHT)
        before, after = self._side(self.model, self.cache), self._side(None, self._past, self.remedies, self._counter)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 0, 14, 1)
        layout.setSpacing(22)
        # The transport keeps its place whatever stands beside it: hands learn where a button is.
        layout.addWidget(before, 5)
        layout.addWidget(self._transport)
        layout.addWidget(after, 4)

    @staticmethod
    def _side(*parts: QWidget | None) -> QWidget:
        """What stands on one side of the transport; None is the room that is left. It asks for no width itself."""
        side = QWidget()
        side.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        layout = QHBoxLayout(side)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(9)
        for part in parts:
            layout.addWidget(part) if part is not None else layout.addStretch(1)
        if parts[0] is not None:
            layout.addStretch(1)
        return side

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._transport.show_keys(event.size().width() >= ROOM_FOR_KEYS)

    def set_theme(self, theme: Theme) -> None:
        self._theme = theme
        for part in (self.model, self.cache, self._transport, self._counter):
            part.set_theme(theme)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), self._theme.color(bar_role(self._theme)))
        painter.setPen(QPen(self._theme.color("hairline"), 1))
        painter.drawLine(0, self.height() - 1, self.width(), self.height() - 1)


class Footer(QWidget):
    """The timeline and the status line on one surface."""

    def __init__(self, timeline: TimelineBar, status: StatusLine, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._timeline = timeline
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 1, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(timeline)
        layout.addWidget(status)

    def set_theme(self, theme: Theme) -> None:
        self._theme = theme
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), self._theme.color("panel"))
        painter.setPen(QPen(self._theme.color("hairline"), 1))
        painter.drawLine(0, 0, self.width(), 0)
        edge = self._timeline.geometry().bottom() + 1
        painter.drawLine(0, edge, self.width(), edge)


class MainWindow(QMainWindow):
    """Intents of the window itself: `dropped(ModelSpec)`, `closing()`, and those of the truth panels; `first_painted()`
    once it is on the screen."""

    truth_asked = Signal(object)
    cache_applied = Signal(object)
    cancelled = Signal()
    rebuild_wanted = Signal()
    dropped = Signal(object)
    closing = Signal()
    first_painted = Signal()

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("KV Loupe")
        self.setAcceptDrops(True)
        self.setMinimumSize(QSize(980, 640))
        self._theme = theme
        self._is_painted = False
        self._has_truth = False
        self.models = models
        self.actions_ = Actions(models, self)
        self.prompt = PromptPanel(models, theme)
        self.tokens = TokensPanel(models, theme)
        self.wall = WallView(models, theme)
        self.head = HeadView(models, theme)
        self.attention = AttentionView(models, theme)
        self.next_token = NextTokenView(models, theme)
        self.pages = PagesView(models, theme)
        self.sequences = SequencesView(models, theme)
        self.timings = TimingsView(models, theme)
        self.bytes = BytesView(models, theme)
        self.inspector = InspectorView(models, theme)
        self.head.hovered.connect(self.inspector.show_value)
        self.panels: dict[str, Panel] = {
            name: getattr(self, name) for name in ("prompt", "tokens", *PICTURES)
        }  # in the order in which Tab walks them
        self.docks = DockHost(self.panels)
        self.top = TopBar(models, self.actions_, theme)
        self.banner = Banner(models, theme, self.docks)
        self.timeline = TimelineBar(models, theme)
        self.status = StatusLine(models, theme, self.actions_["run.cancel"])
        self._footer = Footer(self.timeline, self.status, theme)
        self._last_picture: Panel = self.wall
        self._build()
        self._build_menus()
        self._connect()
        self.prompt.edit.setFocus()

    def _build(self) -> None:
        middle = QVBoxLayout()
        middle.setContentsMargins(0, 0, 0, 0)
        middle.setSpacing(0)
        middle.addWidget(self.top)
        middle.addWidget(self.docks, 1)
        middle.addWidget(self._footer)
        middle.setStretchFactor(self.docks, 1)
        holder = QWidget()
        holder.setLayout(middle)
        self.setCentralWidget(holder)
        self.docks.arrange("inspect")

    def _build_menus(self) -> None:
        bar = self.menuBar()
        bar.setNativeMenuBar(False)
        for title in MENUS:
            menu = bar.addMenu(title)
            menu.setToolTipsVisible(True)
            self._fill_menu(menu, title)
        find = QPushButton("Find any action   {}".format(native("Ctrl+Shift+P")), bar)
        find.setObjectName("find")
        find.setFlat(True)
        find.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        find.clicked.connect(self.actions_["help.palette"].trigger)
        bar.setCornerWidget(find)
        find.show()

    def _fill_menu(self, menu: QMenu, title: str) -> None:
        group = ""
        for key in self.actions_.keys():  # noqa: SIM118
            entry = self.actions_.entry(key)
            if entry.menu != title or entry.key.startswith("timeline."):
                continue
            if entry.group != group:
                menu.addSeparator()
                group = entry.group
            menu.addAction(self.actions_[key])
            if key == "layout.truth":
                self._panel_menu = menu.addMenu("Panels")
                self._panel_menu.addActions([dock.toggleViewAction() for dock in self.docks.docks.values()])
                self._panel_menu.aboutToShow.connect(self.need_truth)

    def need_truth(self) -> None:
        """Build the panels that measure, if they are not there yet."""
        if self._has_truth:
            return
        from app.window.truth import truth_panels

        self._has_truth = True
        panels = truth_panels(self.models, self._theme)
        for panel in panels.values():
            panel.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
            panel.told.connect(self.status.notify)
            panel.asked.connect(self.truth_asked)
            panel.applied.connect(self.cache_applied)
            panel.cancelled.connect(self.cancelled)
            panel.rebuild_wanted.connect(self.rebuild_wanted)
        self.panels.update(panels)
        self.docks.add(panels)
        self._panel_menu.addActions([self.docks.docks[name].toggleViewAction() for name in panels])

    def arrange(self, layout: str) -> None:
        """Put the panels where a named layout has them."""
        if layout == "truth":
            self.need_truth()
        self.docks.arrange(layout)
        status = self.models.status.now
        if layout == "truth" and status is not None and not status.cache.retention.keeps_all:
            self.docks.docks["evicted"].raise_()  # first of all, why rows went

    def _connect(self) -> None:
        for name in PICTURES:
            self.panels[name].setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        for picture in (self.wall, self.head, self.attention):
            self.actions_.attach("picture", picture)
        self.actions_.attach("timeline", self.timeline)
        for panel in self.panels.values():
            panel.told.connect(self.status.notify)
        self.top.remedies.prompt_wanted.connect(self.prompt.begin)
        self.prompt.set_add_action(self.actions_["prompt.add"])
        self.prompt.set_send_action(self.actions_["prompt.send"], native("Ctrl+Return").replace("Return", "↵"))
        QApplication.instance().focusChanged.connect(self._on_focus)  # type: ignore[union-attr]
        self.wall.outliers_wanted.connect(self.actions_["view.outliers"].trigger)
        self.models.selection.changed.connect(self._refresh)
        self._bar_views()
        self._refresh()

    # ---- looks ---------------------------------------------------------------------------------------------------

    @property
    def theme(self) -> Theme:
        return self._theme

    def set_theme(self, theme: Theme) -> None:
        """Give every part other colours."""
        self._theme = theme
        for panel in self.panels.values():
            panel.set_theme(theme)
        for part in (self.top, self.banner, self.timeline, self.status, self._footer):
            part.set_theme(theme)

    def _refresh(self) -> None:
        now = self.models.selection.now
        self.actions_.check("view.keys", now.tensor == "keys")
        self.actions_.check("view.values", now.tensor == "values")
        self.actions_.check("view.change", now.change)

    @property
    def picture(self) -> Panel:
        """The picture that had the focus last: what copying and zooming mean."""
        return self._last_picture

    def grab_window(self) -> QImage:
        return self.grab().toImage()

    def toggle_full_screen(self) -> None:
        self.setWindowState(self.windowState() ^ Qt.WindowState.WindowFullScreen)
        self.actions_.check("view.full", self.isFullScreen())

    def save_state(self) -> tuple[bytes, bytes]:
        """Geometry and arrangement, for the settings."""
        return bytes(self.saveGeometry().data()), self.docks.save()

    def restore_state(self, geometry: bytes, docks: bytes, layout: str) -> None:
        """Take what was saved; nonsense changes nothing."""
        if not geometry or not self.restoreGeometry(QByteArray(geometry)):
            self.resize(_first_size(self))
        if TRUTH_MARK in docks:
            self.need_truth()
        self.arrange(layout)
        self.docks.restore(docks)

    # ---- what a window is told -----------------------------------------------------------------------------------

    def _on_focus(self, _old: QWidget | None, now: QWidget | None) -> None:
        while now is not None and not isinstance(now, Panel):
            now = now.parentWidget()
        if now is not None and now not in (self.prompt, self.tokens):
            self._last_picture = now
            self._bar_views()

    def _bar_views(self) -> None:
        """Grey what the panel in use cannot do."""
        reasons = {
            "view.reset": "this panel always shows everything",
            "view.zoom": "this panel does not zoom",
            "view.colors": "the colours of this panel have a fixed range",
        }
        self.actions_.bar({key: "" if key in self._last_picture.abilities else why for key, why in reasons.items()})

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if not self._is_painted:
            self._is_painted = True
            QTimer.singleShot(0, self.first_painted.emit)

    def closeEvent(self, event: QCloseEvent) -> None:
        self.closing.emit()
        event.accept()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if self._dropped_model(event) is not None:
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        spec = self._dropped_model(event)
        if spec is not None:
            event.acceptProposedAction()
            self.dropped.emit(spec)

    @staticmethod
    def _dropped_model(event: QDropEvent) -> ModelSpec | None:
        """A folder is a model, a config.json its shape."""
        urls = event.mimeData().urls()
        path = Path(urls[0].toLocalFile()) if len(urls) == 1 and urls[0].isLocalFile() else None
        if path is None:
            return None
        if path.is_dir():
            return ModelSpec(str(path))
        return ModelSpec(f"{SHAPE_PREFIX}{path}") if path.suffix == ".json" else None


def _first_size(window: QMainWindow) -> QSize:
    """A comfortable window on the first start, inside whatever screen there is."""
    room = window.screen().availableSize()
    if room.width() <= SMALL_SCREEN:  # no pixel to spare: only the window's own title bar stays free
        return QSize(room.width(), room.height() - TITLE_BAR)
    return QSize(min(1600, round(room.width() * 0.94)), min(1000, round(room.height() * 0.92)))
