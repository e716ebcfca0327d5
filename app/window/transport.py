"""The buttons that step and run the engine, and the counter that shows the step and the sequence's status."""

from __future__ import annotations

from msgspec import Struct
from PySide6.QtCore import QEvent, QPointF, QSize, Qt
from PySide6.QtGui import QAction, QFont, QPainter, QPaintEvent
from PySide6.QtWidgets import QMenu, QSizePolicy, QToolButton, QWidget

from app.control.actions import Actions
from app.control.pace import PACES, Pace
from app.draw.format import thousands
from app.kit.boxes import row
from app.kit.buttons import ActionButton
from app.kit.icons import icon
from app.kit.labels import Opaque, plain_tip, steady
from app.kit.reader import EACH_STEP, SELECTION, STATUS, Reader
from app.kit.text_lines import TextPainter
from app.kit.theme import Themed, current_theme, font_fixed, font_text
from app.models import Models
from app.models.sequence_status import sequence_status
from engine.wire.records import EditMade

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
        return self._models.status.is_running

    def show_state(self, state: bool) -> None:
        run, theme = self._actions["run.run"], current_theme()
        run.setIcon(icon("pause" if state else "run", theme.on_accent, disabled=theme.faint, size=ICON))
        run.setText("Pause" if state else "Run")
        run.setIconText(self._named("run.run"))


class StepShown(Struct, frozen=True):
    """Step `shown` of `total`, and the sequence's status: its words, the colour role of its dot, and why."""

    shown: str
    total: str
    words: str
    role: str
    why: str

    @property
    def pieces(self) -> tuple[str, str, str, str]:
        """The texts, from left to right."""
        return ("step" if self.shown else "", self.shown, f" / {self.total}" if self.total else "", self.words)


class StepCounter(Reader[StepShown], Opaque, QWidget):
    """Shows "step n / m" and a dot with the sequence's status: live, running, full, looking back. It never moves."""

    follows = (STATUS, SELECTION, EACH_STEP)
    reads_while_hidden = True  # so that its width is right when it is shown

    def __init__(self, models: Models) -> None:
        super().__init__()
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
        return StepShown(total if step is None else thousands(step), total, words, now.role, now.why)

    def _is_edit(self, node: int | None) -> bool:
        """Whether a node is that of an edit, which has a number of its own."""
        added = self._models.history.added(node) if node is not None else None
        return added is not None and any(isinstance(change, EditMade) for change in added.node.changes)

    def show_state(self, state: StepShown) -> None:
        self.setToolTip(plain_tip(state.why))
        self.setAccessibleName(" ".join(piece for piece in state.pieces if piece))
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


class EarlierStepButtons(Reader[bool], QWidget):
    """The buttons Go on here and Back to live; visible only while an earlier step is shown."""

    follows = (SELECTION,)
    reads_while_hidden = True

    def __init__(self, models: Models, actions: Actions) -> None:
        super().__init__()
        self._buttons = [ActionButton(words, actions[name]) for name, words, _ in RETURNS]
        for button in self._buttons:
            # A click hides the button; without this the focus would move to some other widget.
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        row(*self._buttons, spacing=7, on=self)
        self.follow(models)

    def show_brief(self, is_brief: bool) -> None:
        """Show the short words on the buttons, or the whole ones."""
        for button, (_, words, brief) in zip(self._buttons, RETURNS, strict=True):
            button.setText(brief if is_brief else words)

    def read(self) -> bool:
        """Whether an earlier step is shown."""
        return self._models.selection.now.step is not None

    def show_state(self, state: bool) -> None:
        self.setVisible(state)
