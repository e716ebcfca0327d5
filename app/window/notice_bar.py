"""Bars that appear above the panels, tinted by their kind: an open file, a session to recover, a failure."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QToolButton, QWidget

from app.control.actions import Actions
from app.draw.format import byte_size
from app.kit.reader import STATUS, STEPS, Reader, SignalSource, State
from app.kit.theme import Themed, current_theme, icon, pixmap
from app.kit.widgets import ElidedLabel, inert, plain_label, plain_tip, prose, push_button, row
from app.models import Models, UnclosedSession
from app.models.kept_sessions import first_words, session_counts
from app.window.menus import time_words
from engine.counted import counted, step_numbers
from engine.saved.session import SavedSession
from engine.wire.status import OpenedFile

ICON, HEIGHT = 14, 32
LONGEST = 400  # characters of a file's own text in a tool tip


def paint_bar(bar: QWidget, role: str, icon: str = "", alpha: int = 26) -> None:
    """Paint a bar's background: the bar colour tinted with the colour `role`, a hairline below, and an icon at the
    left."""
    painter, theme = QPainter(bar), current_theme()
    painter.fillRect(bar.rect(), theme.color("bar"))
    painter.fillRect(bar.rect(), theme.color(role, alpha))
    painter.setPen(QPen(theme.color("hairline"), 1))
    painter.drawLine(0, bar.height() - 1, bar.width(), bar.height() - 1)
    if icon:
        mark = pixmap(icon, theme.color(role).name(), ICON, bar.devicePixelRatioF())
        painter.drawPixmap(12, (bar.height() - ICON) // 2, mark)


class NoticeBar(Reader[State], QWidget):
    """An icon, a text, and buttons; visible as long as `read` returns a state."""

    reads_while_hidden = True
    role: ClassVar[str]
    icon: ClassVar[str]

    def build(self, *buttons: QWidget) -> None:
        """Lay out the text and these buttons."""
        self.words = ElidedLabel()
        for button in buttons:  # a click leaves the focus where it is: the bar goes away, and would pass it on
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        row(34, (self.words, 1), *buttons, 14, spacing=12, on=self)

    def show_state(self, state: State) -> None:
        """Show the bar; subclasses set their text first."""
        self.setVisible(True)

    def show_nothing(self, why: str) -> None:
        self.setVisible(False)

    def paintEvent(self, event: QPaintEvent) -> None:
        paint_bar(self, self.role, self.icon)


class OpenedShown(Struct, frozen=True):
    """The file, and the numbers of its steps in words."""

    file: OpenedFile
    steps: str


class OpenedBar(NoticeBar[OpenedShown]):
    """Visible as long as the engine holds a file, but for one that is only opened to restore its session."""

    follows = (STATUS, STEPS, SignalSource("recovery"))
    role, icon = "selected", "folder"

    def __init__(self, models: Models, actions: Actions) -> None:
        super().__init__()
        action = actions["snapshot.continue"]
        self._go_on = push_button(action.text(), action.trigger)
        close = actions["snapshot.close"]
        self._close = push_button("Close file", close.trigger)
        self._close.setToolTip(plain_tip(close.toolTip()))
        self.build(self._go_on, self._close)
        self.follow(models)

    def read(self) -> OpenedShown | str:
        file, timeline = self._models.status.now.opened, self._models.timeline
        if file is None or file.path == self._models.recovery.restoring:
            return "no file is open"
        if not file.num_steps:
            return OpenedShown(file, "no recorded steps")
        if timeline.first is None or timeline.latest is None:
            return OpenedShown(file, "")  # they are being read
        return OpenedShown(file, step_numbers(timeline.first.step, timeline.latest.step))

    def show_state(self, state: OpenedShown) -> None:
        file = state.file
        name = prose(file.path.name)
        model = prose(file.model) or "unknown model"
        kind = "file" if file.has_rows else "session"
        parts = [f"Opened {kind}: {name}, read-only", model, state.steps, byte_size(file.num_bytes)]
        if not file.has_rows:
            parts.append("K and V come with its model")
        if file.why_not:
            parts.append(f"cannot be gone on from: {prose(file.why_not)}")
        self.words.setText(" · ".join(filter(None, parts)), name)
        self._go_on.setEnabled(not file.why_not)
        about = [str(file.path), file.created, file.written_by, file.notes]
        tip = "\n".join(prose(words[:LONGEST]) for words in about if words)
        self.words.setToolTip(plain_tip(tip))
        why = f"Not possible: {prose(file.why_not)}" if file.why_not else f"Decode on with {model}"
        self._go_on.setToolTip(plain_tip(why))
        super().show_state(state)


class RecoveryBar(NoticeBar[UnclosedSession]):
    """Visible while a session is offered. Signals: `accepted()`, `dismissed()`."""

    follows = (SignalSource("recovery"),)
    role, icon = "accent", "alert"

    accepted = Signal()
    dismissed = Signal()

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._accept = push_button("Restore", self.accepted)
        self._dismiss = push_button("Not now", self.dismissed, "It stays under File · Recent sessions")
        self.build(self._accept, self._dismiss)
        self.follow(models)

    def read(self) -> UnclosedSession | str:
        return self._models.recovery.offered or "every window was closed"

    def show_state(self, state: UnclosedSession) -> None:
        words = offer_words(state)
        self.words.setText(words, "A session was not closed")
        self.setAccessibleName(words)
        self.words.setToolTip(plain_tip(_tip(state)))
        is_draft = not state.session.nodes
        self._accept.setText("Take it up" if is_draft else "Restore")
        self._accept.setToolTip(what_is_done(state.session))
        super().show_state(state)


def offer_words(left: UnclosedSession) -> str:
    """What is offered, in one line."""
    session = left.session
    when = time_words(left.written)
    if not session.nodes:
        what = "a prompt was taken and not read" if session.pending else "a prompt was being written"
        what = counted(len(session.stops), "breakpoint") if has_breakpoints_alone(session) else what
        return f"The window of {when} ended without being closed: {what}"
    parts = [f"The session {prose(first_words(session))} of {when} ended without being closed"]
    parts += [prose(session.model.name)] if session.model is not None else []
    parts.append(", ".join(session_counts(session)))
    return " · ".join(parts)


def what_is_done(session: SavedSession) -> str:
    """What accepting the offer does, in one line."""
    if session.nodes:
        return "Do its steps once more, and compare them with what they were"
    return "Set its breakpoints again" if has_breakpoints_alone(session) else "Put the prompt into the editor"


def has_breakpoints_alone(session: SavedSession) -> bool:
    """Whether the session contains nothing but breakpoints."""
    return bool(session.stops) and not (session.pending or session.draft or session.draft_chat)


def _tip(left: UnclosedSession) -> str:
    text = "".join(left.session.texts.get(token_id, "") for token_id in _newest_ids(left.session))
    parts = [str(left.path), left.problem, left.session.draft[:LONGEST], text[-LONGEST:]]
    return "\n".join(prose(words) for words in parts if words)


def _newest_ids(session: SavedSession) -> tuple[int, ...]:
    """The tokens that the first sequence of each step on the live path sampled, oldest first."""
    parts = [node.work.parts[0] for node in session.path if node.work is not None]
    return tuple(part.sampled for part in parts if part.sampled is not None)


MAX_CHARS = 600


class Failure(Struct, frozen=True):
    """What went wrong, whether the engine can be restarted, and whether it can be restarted on the CPU instead."""

    text: str
    can_restart: bool
    can_leave_gpu: bool


class Banner(Reader[Failure], Themed, QWidget):
    """Shows `Status.failure` in as many lines as it needs, above the panels: it covers none of them."""

    follows = (SignalSource("status", ("failed", "engine_changed")),)
    reads_while_hidden = True

    restart_wanted = Signal()
    cpu_wanted = Signal()

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._label = plain_label(wraps=True, can_select=True)
        self._label.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self._close = QToolButton()
        self._close.setToolTip("Dismiss")
        self._close.setAccessibleName("Dismiss")
        self._close.clicked.connect(self._on_close)
        self._restart = push_button("Restart engine", self.restart_wanted)
        self._leave_gpu = push_button(
            "Go on on the CPU", self.cpu_wanted, "Load the model there and do all steps once more"
        )
        buttons = self._leave_gpu, self._restart, self._close
        layout = row((self._label, 1), *buttons, margins=(34, 5, 8, 5), on=self)
        for button in buttons:
            layout.setAlignment(button, Qt.AlignmentFlag.AlignTop)
        self.take_theme()
        self.follow(models)

    def take_theme(self) -> None:
        self._close.setIcon(icon("close", current_theme().muted))

    def _on_close(self) -> None:
        self._models.status.fail("")

    def read(self) -> Failure:
        status = self._models.status
        is_on_gpu = status.now.model is not None and status.now.model.device not in ("cpu", "file")
        return Failure(status.failure, bool(status.loss), bool(status.loss) and is_on_gpu)

    def show_state(self, state: Failure) -> None:
        text = state.text
        self._label.setText(text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + "…")
        self.setAccessibleName(inert(text))
        self._restart.setVisible(state.can_restart)
        self._leave_gpu.setVisible(state.can_leave_gpu)
        self.setVisible(bool(text))

    def paintEvent(self, event: QPaintEvent) -> None:
        paint_bar(self, "bad", "alert", 34)
