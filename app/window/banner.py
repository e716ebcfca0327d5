"""The banner that shows a failure until it is dismissed or cleared; the session goes on."""

from __future__ import annotations

from msgspec import Struct
from PySide6.QtCore import QEvent, QObject, QRectF, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QToolButton, QWidget

from app.kit.buttons import push_button
from app.kit.icons import icon, pixmap
from app.kit.labels import inert, plain_label
from app.kit.reader import Reader, SignalSource
from app.kit.theme import Themed, current_theme
from app.models import Models
from app.window.docks import GAP, DockHost

MAX_CHARS = 600
WIDEST, EDGE = 900, 12


class Failure(Struct, frozen=True):
    """What went wrong, whether the engine can be restarted, and whether it can be restarted on the CPU instead."""

    text: str
    can_restart: bool
    can_leave_gpu: bool


class Banner(Reader[Failure], Themed, QWidget):
    """Shows `Status.failure`, floating over the upper panels below their titles, so that nothing moves. While the
    engine is gone, which may last, the panels make room for it instead."""

    follows = (SignalSource("status", ("failed", "engine_changed")),)
    reads_while_hidden = True

    restart_wanted = Signal()
    cpu_wanted = Signal()

    def __init__(self, models: Models, over: DockHost) -> None:
        super().__init__(over)
        self._over = over
        self._label = plain_label(wraps=True)
        self._label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._label.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self._close = QToolButton()
        self._close.setToolTip("Dismiss")
        self._close.setAccessibleName("Dismiss")
        self._close.clicked.connect(self._on_close)
        self._restart = push_button("Restart engine", self.restart_wanted)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(34, 8, 8, 8)
        layout.addWidget(self._label, 1)
        self._leave_gpu = push_button(
            "Go on on the CPU", self.cpu_wanted, "Load the model there and do all steps once more"
        )
        layout.addWidget(self._leave_gpu, 0, Qt.AlignmentFlag.AlignTop)
        layout.addWidget(self._restart, 0, Qt.AlignmentFlag.AlignTop)
        layout.addWidget(self._close, 0, Qt.AlignmentFlag.AlignTop)
        over.installEventFilter(self)
        self.take_theme()
        self.follow(models)

    def take_theme(self) -> None:
        self._close.setIcon(icon("close", current_theme().muted))

    def _on_close(self) -> None:
        self._models.status.fail("")

    def read(self) -> Failure:
        status = self._models.status
        is_on_gpu = status.model is not None and status.model.device not in ("cpu", "file")
        return Failure(status.failure, status.is_engine_lost, status.is_engine_lost and is_on_gpu)

    def show_state(self, state: Failure) -> None:
        text = state.text
        self._label.setText(text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + "…")
        self.setAccessibleName(inert(text))
        self._restart.setVisible(state.can_restart)
        self._leave_gpu.setVisible(state.can_leave_gpu)
        self.setVisible(bool(text))
        self._place()

    def _place(self) -> None:
        status, width = self._models.status, min(self._over.width() - 2 * EDGE, WIDEST)
        height, has_place = self.heightForWidth(width), bool(status.failure) and status.is_engine_lost
        self._over.leave_room(height + GAP if has_place else 0)
        if status.failure:
            top = GAP if has_place else self._over.titles_end() + GAP
            self.setGeometry((self._over.width() - width) // 2, top, width, height)
            self.raise_()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self._place()
        return False

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        frame = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(current_theme().color("panel"))
        painter.drawRoundedRect(frame, 6, 6)
        painter.setPen(QPen(current_theme().color("bad", 190), 1))
        painter.setBrush(current_theme().color("bad", 34))
        painter.drawRoundedRect(frame, 6, 6)
        mark = pixmap("alert", current_theme().bad, 16, self.devicePixelRatioF())
        painter.drawPixmap(11, (self.height() - 16) // 2, mark)
