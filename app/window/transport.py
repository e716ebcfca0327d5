"""The debugger's buttons, and the one place that says which step is shown and how things stand."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QSize, Qt
from PySide6.QtGui import QAction, QFont, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QMenu, QPushButton, QSizePolicy, QToolButton, QWidget

from app.control.actions import Actions, tool_tip
from app.control.pace import PACES, Pace
from app.draw.format import thousands
from app.kit.icons import icon
from app.kit.labels import Opaque, plain_tip, steady
from app.kit.text_lines import TextPainter
from app.kit.theme import Themed, current_theme, font_fixed, font_text
from app.models import Models
from app.models.sequence_status import sequence_status

ICON = 17
PACE_WIDTH = 58
SMALL, NAMED = 34, 92  # pixels of a button with its icon alone, and with its name and key
BUTTONS = (
    ("run.first", "rewind"),
    ("run.back", "step-back"),
    ("run.step", "step"),
    ("run.run", "run"),
    ("run.cancel", "stop"),
)


class TransportButton(QToolButton):
    """One button that is its action: text for screen readers, icon for eyes, tool tip with the key."""

    def __init__(self, action: QAction, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("transport")
        self.setDefaultAction(action)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonIconOnly)
        self.setIconSize(QSize(ICON, ICON))
        self.setFixedSize(SMALL, 28)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAccessibleName(action.text())

    def show_key(self, is_shown: bool) -> None:
        """Beside the icon the name and the key, or nothing. The width does not follow the name: Run becomes Pause."""
        style = Qt.ToolButtonStyle
        self.setToolButtonStyle(style.ToolButtonTextBesideIcon if is_shown else style.ToolButtonIconOnly)
        self.setFixedWidth(NAMED if is_shown else SMALL)


class PaceButton(QToolButton):
    """The chosen pace, and a menu of all; what each means stands in the tool tips."""

    def __init__(self, actions: Actions, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("transport")
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.setFixedSize(PACE_WIDTH, 28)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        menu = QMenu(self)
        menu.setToolTipsVisible(True)
        menu.addActions([actions[f"pace.{name}"] for name in PACES])
        self.setMenu(menu)

    def show_pace(self, pace: Pace) -> None:
        """Name it, and say what it means."""
        self.setText(pace.label)
        self.setToolTip(plain_tip(f"Pace: {pace.text}\n{pace.tip}"))
        self.setAccessibleName(f"Pace: {pace.text}")


class TransportBar(Themed, QWidget):
    """First, back, step, run or pause, stop, and the pace of a run. The run button is filled, and turns into a pause
    while running."""

    def __init__(self, models: Models, actions: Actions, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self._actions = actions
        self._buttons = {key: TransportButton(actions[key], self) for key, _ in BUTTONS}
        self._buttons["run.run"].setProperty("primary", True)
        self._is_running = False
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(7)
        for key, button in self._buttons.items():
            # The filled button's icon has the colour of its own ground, not of a menu's.
            actions[key].setIconVisibleInMenu(False)
            layout.addWidget(button)
        self._pace = PaceButton(actions, self)
        layout.addWidget(self._pace)
        models.status.changed.connect(self._refresh)
        self.take_theme()

    def take_theme(self) -> None:
        theme = current_theme()
        for key, name in BUTTONS:
            self._actions[key].setIcon(icon(name, theme.text, disabled=theme.faint, size=ICON))
        self._paint_run()

    def show_pace(self, pace: Pace) -> None:
        """Which pace is chosen."""
        self._pace.show_pace(pace)

    def show_keys(self, is_shown: bool) -> None:
        """Name Step and Run with their keys, where there is room."""
        for key in ("run.step", "run.run"):
            self._actions[key].setIconText(self._named(key))
            self._buttons[key].show_key(is_shown)

    def _named(self, key: str) -> str:
        action = self._actions[key]
        return f"{action.text()} {action.shortcut().toString()}"

    def _refresh(self) -> None:
        if self._models.status.is_running != self._is_running:
            self._is_running = self._models.status.is_running
            self._paint_run()

    def _paint_run(self) -> None:
        name, theme = "pause" if self._is_running else "run", current_theme()
        self._actions["run.run"].setIcon(icon(name, theme.on_accent, disabled=theme.faint, size=ICON))
        self._actions["run.run"].setText("Pause" if self._is_running else "Run")
        self._actions["run.run"].setIconText(self._named("run.run"))


class StepCounter(Opaque, QWidget):
    """Step n of m, and a dot with how things stand: live, running, full, looking back. Always in the same place."""

    def __init__(self, models: Models, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self._parts: tuple[str, str, str, str] = ("", "", "", "faint")
        self._room = 0
        self._number, self._text = TextPainter(font_fixed(13.5, QFont.Weight.DemiBold)), TextPainter(font_text(12.5))
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Preferred)
        self.set_background("bar")
        models.status.changed.connect(self._refresh)
        models.selection.changed.connect(self._refresh)
        models.timeline.appended.connect(self._refresh)
        models.timeline.reset.connect(self._refresh)
        self._refresh()

    def sizeHint(self) -> QSize:
        return QSize(self._room, 28)

    def _fit(self) -> None:
        """Room for what is shown; laid out anew only when it no longer fits."""
        step, shown, total, state = self._pieces()
        digits = self._number.width("0") * len(shown + total)  # of a fixed face
        width = self._text.width(step) + self._text.width(state) + digits + 40
        room = steady(self._room, max(round(width), 150))
        if room != self._room:
            self._room = room
            self.updateGeometry()

    def _pieces(self) -> tuple[str, str, str, str]:
        shown, total, state, _ = self._parts
        return ("step" if shown else "", shown, f" / {total}" if total else "", state)

    def _refresh(self) -> None:
        latest, step = self._models.timeline.latest, self._models.selection.now.step
        now = sequence_status(self._models)
        total = "" if latest is None or now.role == "faint" else thousands(latest.step)
        parts = (total if step is None else thousands(step), total, now.words, now.role)
        if parts != self._parts:
            self._parts = parts
            self.setToolTip(now.why)
            self.setAccessibleName(" ".join(piece for piece in self._pieces() if piece))
            self._fit()
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        step, shown, total, state = self._pieces()
        x = float(self.width())
        # From the right end, so that growing numbers move nothing else.
        x = self._write(painter, x, state, self._text, "text" if self._parts[3] != "faint" else "muted")
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(current_theme().color(self._parts[3]))
        painter.drawEllipse(QPointF(x - 9, self.height() / 2), 4, 4)
        x -= 24
        x = self._write(painter, x, total, self._number, "muted")
        x = self._write(painter, x, shown, self._number, "selected" if self._parts[3] == "selected" else "text")
        self._write(painter, x - 6, step, self._text, "muted")

    def _write(self, painter: QPainter, right: float, text: str, ink: TextPainter, role: str) -> float:
        painter.setPen(current_theme().color(role))
        return ink.right(painter, right, self.height() / 2, text)


class PastButtons(QWidget):
    """While looking back: rewind here, or back to live. Takes no room otherwise."""

    def __init__(self, models: Models, actions: Actions, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._models = models
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(7)
        for key in ("run.rewind", "run.live"):
            button = QPushButton(actions[key].text())
            button.setToolTip(tool_tip(actions.declared(key)))  # they stand there only while they are possible
            button.clicked.connect(actions[key].trigger)
            layout.addWidget(button)
        models.selection.changed.connect(self._refresh)
        self._refresh()

    def _refresh(self) -> None:
        self.setVisible(self._models.selection.now.step is not None)
