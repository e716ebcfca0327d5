"""The window's bars: the top bar with selectors, transport and step, and the footer with timeline and status line."""

from __future__ import annotations

from msgspec import Struct
from PySide6.QtCore import QEvent, QPoint, QPointF, QSize, Qt, Signal
from PySide6.QtGui import QAction, QFont, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QMenu, QPushButton, QSizePolicy, QToolButton, QWidget

from app.control.actions import Actions
from app.control.requests import PACES, Pace
from app.draw.format import byte_size, percent, thousands
from app.kit.painting import TextPainter
from app.kit.reader import EACH_STEP, SELECTION, STATUS, STEPS, Reader
from app.kit.theme import Themed, current_theme, font_fixed, font_text, icon
from app.kit.widgets import ActionButton, Opaque, column, plain_tip, row, steady
from app.models import Models
from app.models.sequence_status import selected_info, sequence_status
from app.panels.timeline import TimelineBar
from app.window.phase_bar import PhaseBar
from app.window.selectors import CacheSelector, ModelSelector
from app.window.status_line import StatusLine
from engine.counted import counted
from engine.spec.cache import cache_label
from engine.wire.records import EditMade

BACK, WINDOW, GROWING = "run.back", "cache.streamingllm", "cache.growing"


class Remedies(QPushButton):
    """What can be done with a sequence that is full. Signal: `prompt_wanted()`; the other entries are actions."""

    prompt_wanted = Signal()

    def __init__(self, models: Models, actions: Actions) -> None:
        super().__init__()
        self._models, self._actions = models, actions
        self._menu = QMenu(self)
        self._menu.setToolTipsVisible(True)
        self.setText("Go on…")
        self.setAccessibleName("What to do now that it is full")
        self.clicked.connect(self._on_clicked)

    def fill(self) -> QMenu:
        """Fill the menu with what is possible now; returns it."""
        self._menu.clear()
        self._add("Look back, then go on from a step of your choice", BACK)
        info, model = selected_info(self._models), self._models.status.now.model
        if info is not None and model is not None:
            if info.stop == "cache full":
                self._add("Go on in a growing cache: every row moves over", GROWING)
            elif model.goes_beyond_context:
                self._add("Go on with StreamingLLM: keep the first tokens and the latest", WINDOW)
        self._menu.addAction("Write a new prompt", self.prompt_wanted.emit)
        return self._menu

    def _add(self, text: str, key: str) -> None:
        entry = self._menu.addAction(text, self._actions[key].trigger)
        entry.setToolTip(self._actions[key].toolTip())
        entry.setEnabled(self._actions[key].isEnabled())

    def _on_clicked(self) -> None:
        self.fill().popup(self.mapToGlobal(QPoint(0, self.height() + 3)))


class SizeShown(Struct, frozen=True):
    """The texts, from long to short, of which the first that fits is shown; and the sum in full."""

    texts: tuple[str, ...]
    tip: str


class CacheSize(Reader[SizeShown], Opaque, QWidget):
    """`468.6 KiB · 26.6 % of exact`, of the step that is shown. Where space is scarce it is shortened, then left out:
    it takes none from the selectors' names. `fit` sets the space."""

    follows = (STEPS, SELECTION, STATUS)
    reads_while_hidden = True  # so that its width is right when it is shown

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._room = self._free = 0
        self._text = TextPainter(font_text(12.5))
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
        self.set_background("bar")
        self.follow(models)

    def sizeHint(self) -> QSize:
        return QSize(self._room, 28)

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    @property
    def text(self) -> str:
        """The text as it is shown: the longest that fits; empty if none does."""
        return self._fitting(self._free)

    def _fitting(self, free: float) -> str:
        texts = self.state.texts if self.state is not None else ()
        return next((text for text in texts if self._text.width(text) <= free), "")

    def fit(self, free: int) -> None:
        """Use at most `free` pixels."""
        self._free = free
        text = self.text
        needed = round(self._text.width(text)) + 1 if text else 0
        room = min(steady(self._room, needed), free) if needed else 0
        if room != self._room:
            self._room = room
            self.updateGeometry()
        self.update()

    def read(self) -> SizeShown:
        models = self._models
        step = models.selection.now.step
        held, record = models.timeline.num_bytes(step), models.timeline.at(step)
        if held is None or not held.stored or models.status.why_no_rows:
            return SizeShown((), "")
        size, sequences = byte_size(held.stored), "K and V of all sequences together take"
        if step is not None and record is not None and record.cache != models.status.now.cache:
            mode = f"in {cache_label(record.cache)}"  # the selector beside it names another one
            tip = f"At step {thousands(step)}, {mode}: {sequences} {counted(held.stored, 'byte')}"
            return SizeShown((f"{size} {mode}",), tip)
        if not held.exact:
            return SizeShown((size,), f"{sequences} {counted(held.stored, 'byte')}")
        share = f"{percent(held.stored / held.exact)} of exact"
        tip = f"{sequences} {counted(held.stored, 'byte')}; with every row exact they would take"
        return SizeShown((f"{size} · {share}", share), f"{tip} {thousands(held.exact)}: {share}")

    def show_state(self, state: SizeShown) -> None:
        self.setToolTip(plain_tip(state.tip))
        self.setAccessibleName(f"Size of the cache: {state.texts[0]}" if state.texts else "Size of the cache")
        self.fit(self._free)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        painter.setPen(current_theme().color("muted"))
        self._text.left(painter, 0, self.height() / 2, self.text)


TOP_BAR_HEIGHT = 46
SPACING = 9
# pixels: what the right side takes while an earlier step is shown, with its two buttons; the same in a narrow bar
MOST_AFTER, BRIEF_AFTER = 440, 300
NARROW = 1150  # pixels: below this width the bar's words are short, so that the selectors can name what is chosen
MODEL_ROOM = 160  # pixels that the model's selector keeps beside the size of the cache
ROOM_FOR_KEYS = 1500  # pixels: from this width of the top bar on, Step and Run show their names and keys


class Selectors(QWidget):
    """The selectors of model and cache, and the size of the cache where there is room for it."""

    def __init__(self, model: ModelSelector, cache: CacheSelector, size: CacheSize) -> None:
        super().__init__()
        self._cache, self._size = cache, size
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)  # it requests no width
        row(model, cache, size, None, spacing=SPACING, on=self)

    def event(self, event: QEvent) -> bool:
        """Fit the size of the cache into what the selectors leave, when their space or their texts change."""
        answer = super().event(event)
        if event.type() in (QEvent.Type.Resize, QEvent.Type.LayoutRequest):
            self._size.fit(self.width() - self._cache.minimumSizeHint().width() - MODEL_ROOM - 2 * SPACING)
        return answer


class TopBar(QWidget):
    """The selectors on the left, the transport in the middle, the step on the right."""

    def __init__(self, models: Models, actions: Actions) -> None:
        super().__init__()
        self.model = ModelSelector(models, actions)
        self.cache = CacheSelector(models, actions)
        self.size_of_cache = CacheSize(models)
        self.transport = TransportBar(models, actions)
        self.earlier = EarlierStepButtons(actions)
        self.remedies = Remedies(models, actions)
        self.counter = StepCounter(models, self.earlier, self.remedies)
        self.setFixedHeight(TOP_BAR_HEIGHT)
        before = Selectors(self.model, self.cache, self.size_of_cache)
        after = self._after(self.earlier, self.remedies, self.counter)
        after.setMaximumWidth(MOST_AFTER)  # the selectors, whose texts are longer, get the rest
        # The transport keeps its place whatever the sides contain, so that the buttons can be found without looking.
        self._layout = row(before, self.transport, after, margins=(12, 0, 14, 1), on=self)

    @staticmethod
    def _after(*parts: QWidget) -> QWidget:
        """The widgets to the right of the transport, at the end of the bar. The side itself requests no width."""
        side = QWidget()
        side.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        row(None, *parts, spacing=SPACING, on=side)
        return side

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        width = event.size().width()
        self.transport.show_keys(width >= ROOM_FOR_KEYS)
        is_narrow = width < NARROW
        self.transport.pace.setHidden(is_narrow)  # which is under Run · Pace too
        self.earlier.show_brief(is_narrow)
        self._layout.setSpacing(12 if is_narrow else 22)
        shares = 5, 4
        if is_narrow:
            edges = self._layout.contentsMargins()
            taken = self.transport.sizeHint().width() + 2 * self._layout.spacing() + edges.left() + edges.right()
            shares = max(1, width - taken - BRIEF_AFTER), BRIEF_AFTER
        for side, share in zip((0, 2), shares, strict=True):
            self._layout.setStretch(side, share)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), current_theme().color("bar"))
        painter.setPen(QPen(current_theme().color("hairline"), 1))
        painter.drawLine(0, self.height() - 1, self.width(), self.height() - 1)


class Footer(QWidget):
    """The timeline and the status line on one background. While a step is taken in phases, the phase bar takes the
    status line's place: an additional line would move every panel."""

    def __init__(self, timeline: TimelineBar, status: StatusLine, phases: PhaseBar) -> None:
        super().__init__()
        self._timeline = timeline
        column(timeline, status, phases, spacing=0, margins=(0, 1, 0, 0), on=self)
        phases.appeared.connect(status.setHidden)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), current_theme().color("panel"))
        painter.setPen(QPen(current_theme().color("hairline"), 1))
        painter.drawLine(0, 0, self.width(), 0)
        edge = self._timeline.geometry().bottom() + 1
        painter.drawLine(0, edge, self.width(), edge)


ICON = 17
PACE_MARGIN = 10  # pixels on either side of the widest pace
SMALL, NAMED = 34, 92  # width in pixels of a button with its icon alone, and with its name and key
BUTTONS = (
    ("run.first", "rewind"),
    ("run.back", "step-back"),
    ("run.step", "step"),
    ("run.run", "run"),
    ("run.cancel", "stop"),
)


# the actions from an earlier step, with their words on a button, and those in a narrow bar
RETURNS = ("run.go_on", "Go on here", "Go on"), ("run.live", "Back to live", "Live")


class TransportButton(QToolButton):
    """A button of one action: icon, text for screen readers, and a tool tip with the key."""

    def __init__(self, action: QAction) -> None:
        super().__init__()
        self.setObjectName("transport")
        self.setDefaultAction(action)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonIconOnly)
        self.setIconSize(QSize(ICON, ICON))
        self.setFixedSize(SMALL, 28)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAccessibleName(action.text())

    def show_key(self, is_shown: bool) -> None:
        """Show the name and key beside the icon, or the icon alone. The width is fixed, as the name Run becomes
        Pause."""
        style = Qt.ToolButtonStyle
        self.setToolButtonStyle(style.ToolButtonTextBesideIcon if is_shown else style.ToolButtonIconOnly)
        self.setFixedWidth(NAMED if is_shown else SMALL)


class PaceButton(QToolButton):
    """The chosen pace, with a menu of all paces; their tool tips explain them."""

    def __init__(self, actions: Actions) -> None:
        super().__init__()
        self.setObjectName("transport")
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._fit()
        menu = QMenu(self)
        menu.setToolTipsVisible(True)
        menu.addActions([actions[f"pace.{name}"] for name in PACES])
        self.setMenu(menu)

    def _fit(self) -> None:
        """Set the width for the widest pace, so that another one moves nothing."""
        widest = max(self.fontMetrics().horizontalAdvance(pace.label) for pace in PACES.values())
        self.setFixedSize(widest + 2 * PACE_MARGIN, 28)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self._fit()

    def show_pace(self, pace: Pace) -> None:
        """Show a pace's label, and explain it in the tool tip."""
        self.setText(pace.label)
        self.setToolTip(plain_tip(f"Pace: {pace.text}\n{pace.tip}"))
        self.setAccessibleName(f"Pace: {pace.text}")


class TransportBar(Reader[bool], Themed, QWidget):
    """The buttons First, Back, Step, Run or Pause, Stop, and the pace. The Run button is filled, and becomes Pause
    while the engine runs."""

    follows = (STATUS,)
    reads_while_hidden = True

    def __init__(self, models: Models, actions: Actions) -> None:
        super().__init__()
        self._actions = actions
        self._buttons = {key: TransportButton(actions[key]) for key, _ in BUTTONS}
        self._buttons["run.run"].setProperty("primary", True)
        for key in self._buttons:
            # The icon of the filled button has that button's text colour, which would be wrong in a menu.
            actions[key].setIconVisibleInMenu(False)
        self.pace = PaceButton(actions)
        row(*self._buttons.values(), self.pace, spacing=7, on=self)
        self.follow(models)
        self.take_theme()

    def take_theme(self) -> None:
        theme = current_theme()
        for key, name in BUTTONS:
            self._actions[key].setIcon(icon(name, theme.text, disabled=theme.faint, size=ICON))
        self.show_again()

    def show_keys(self, is_shown: bool) -> None:
        """Show the names and keys of Step and Run, if there is room."""
        for key in ("run.step", "run.run"):
            self._actions[key].setIconText(self._named(key))
            self._buttons[key].show_key(is_shown)

    def _named(self, key: str) -> str:
        action = self._actions[key]
        return f"{action.text()} {action.shortcut().toString()}"

    def read(self) -> bool:
        """Whether the engine runs."""
        return self._models.status.now.running

    def show_state(self, state: bool) -> None:
        run, theme = self._actions["run.run"], current_theme()
        run.setIcon(icon("pause" if state else "run", theme.on_accent, disabled=theme.faint, size=ICON))
        run.setText("Pause" if state else "Run")
        run.setIconText(self._named("run.run"))


class StepShown(Struct, frozen=True):
    """Step `shown` of `total`, and the sequence's status: its words, the colour role of its dot, why, and whether it is
    full. `is_earlier`: the step is not the live one."""

    shown: str
    total: str
    words: str
    role: str
    why: str
    is_full: bool
    is_earlier: bool

    @property
    def pieces(self) -> tuple[str, str, str, str]:
        """The texts, from left to right."""
        return ("step" if self.shown else "", self.shown, f" / {self.total}" if self.total else "", self.words)


class StepCounter(Reader[StepShown], Opaque, QWidget):
    """Shows "step n / m" and a dot with the sequence's status: live, running, full, looking back. It never moves. The
    buttons beside it are visible only while an earlier step is shown, or the sequence is full."""

    follows = (STATUS, SELECTION, EACH_STEP, STEPS)
    reads_while_hidden = True  # so that its width is right when it is shown

    def __init__(self, models: Models, earlier: QWidget, remedies: QWidget) -> None:
        super().__init__()
        self._earlier, self._remedies = earlier, remedies
        self._room = 0
        self._number, self._text = TextPainter(font_fixed(13.5, QFont.Weight.DemiBold)), TextPainter(font_text(12.5))
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Preferred)
        self.set_background("bar")
        self.follow(models)

    def sizeHint(self) -> QSize:
        return QSize(self._room, 28)

    def read(self) -> StepShown:
        tip, step = self._models.timeline.tip, self._models.selection.now.step
        now = sequence_status(self._models)
        total = "" if tip is None or now.role == "faint" else thousands(tip)
        shown = tip if step is None else step
        words = now.words
        if self._is_edit(shown):
            words = {"live": "live · edited", "looking back": "at an edit"}.get(words, words)
        number = total if step is None else thousands(step)
        return StepShown(number, total, words, now.role, now.why, now.is_full, step is not None)

    def _is_edit(self, node: int | None) -> bool:
        """Whether a node is that of an edit, which has a number of its own."""
        added = self._models.history.added(node) if node is not None else None
        return added is not None and any(isinstance(change, EditMade) for change in added.node.changes)

    def show_state(self, state: StepShown) -> None:
        for each in (self, self._remedies):
            each.setToolTip(plain_tip(state.why))
        self.setAccessibleName(" ".join(piece for piece in state.pieces if piece))
        self._earlier.setVisible(state.is_earlier)
        self._remedies.setVisible(state.is_full)
        self._fit(state)
        self.update()

    def _fit(self, state: StepShown) -> None:
        """Set the width for what is shown; the layout changes only when that does not fit."""
        step, shown, total, words = state.pieces
        digits = self._number.width("0") * len(shown + total)  # of a fixed face
        width = self._text.width(step) + self._text.width(words) + digits + 40
        room = steady(self._room, max(round(width), 150))
        if room != self._room:
            self._room = room
            self.updateGeometry()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if (state := self.state) is None:
            return
        step, shown, total, words = state.pieces
        x = float(self.width())
        # Written from the right end, so that growing numbers do not move the rest.
        x = self._write(painter, x, words, self._text, "text" if state.role != "faint" else "muted")
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(current_theme().color(state.role))
        painter.drawEllipse(QPointF(x - 9, self.height() / 2), 4, 4)
        x -= 24
        x = self._write(painter, x, total, self._number, "muted")
        x = self._write(painter, x, shown, self._number, "selected" if state.role == "selected" else "text")
        # In a narrow bar the word "step" is left out as a whole: a cut one would read like another word.
        if x - 6 >= self._text.width(step):
            self._write(painter, x - 6, step, self._text, "muted")

    def _write(self, painter: QPainter, right: float, text: str, ink: TextPainter, role: str) -> float:
        painter.setPen(current_theme().color(role))
        return ink.right(painter, right, self.height() / 2, text)


class EarlierStepButtons(QWidget):
    """The buttons Go on here and Back to live."""

    def __init__(self, actions: Actions) -> None:
        super().__init__()
        self._buttons = [ActionButton(words, actions[name]) for name, words, _ in RETURNS]
        for button in self._buttons:
            # A click hides the button; without this the focus would move to some other widget.
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        row(*self._buttons, spacing=7, on=self)

    def show_brief(self, is_brief: bool) -> None:
        """Show the short words on the buttons, or the whole ones."""
        for button, (_, words, brief) in zip(self._buttons, RETURNS, strict=True):
            button.setText(brief if is_brief else words)
