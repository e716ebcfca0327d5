"""The window's two bars: the top bar with selectors, transport and step, and the footer with timeline and status
line."""

from __future__ import annotations

from PySide6.QtCore import QEvent
from PySide6.QtGui import QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from app.control.actions import Actions
from app.control.pace import Pace
from app.kit.boxes import row
from app.kit.theme import current_theme
from app.models import Models
from app.panels.timeline.view import TimelineBar
from app.window.cache_size import CacheSize
from app.window.phase_bar import PhaseBar
from app.window.remedies import Remedies
from app.window.selectors import CacheSelector, ModelSelector
from app.window.status_line import StatusLine
from app.window.transport import EarlierStepButtons, StepCounter, TransportBar

TOP_BAR_HEIGHT = 46
SPACING = 9
MOST_AFTER = 440  # pixels: what the right side takes while an earlier step is shown, with its two buttons
NARROW = 1150  # pixels: below this width the selectors leave the right side its two buttons
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
        self._transport = TransportBar(models, actions)
        self._counter = StepCounter(models)
        self._earlier = EarlierStepButtons(models, actions)
        self.remedies = Remedies(models, actions)
        self.setFixedHeight(TOP_BAR_HEIGHT)
        before, after = (
            Selectors(self.model, self.cache, self.size_of_cache),
            self._after(self._earlier, self.remedies, self._counter),
        )
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 0, 14, 1)
        layout.setSpacing(22)
        after.setMaximumWidth(MOST_AFTER)  # the selectors, whose texts are longer, get the rest
        # The transport keeps its place whatever the sides contain, so that the buttons can be found without looking.
        layout.addWidget(before)
        layout.addWidget(self._transport)
        layout.addWidget(after)
        self._layout = layout

    def show_pace(self, pace: Pace) -> None:
        """Show which pace is chosen."""
        self._transport.show_pace(pace)

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
        self._transport.show_keys(width >= ROOM_FOR_KEYS)
        for side, share in zip((0, 2), (4, 6) if width < NARROW else (5, 4), strict=True):
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
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 1, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(timeline)
        layout.addWidget(status)
        layout.addWidget(phases)
        phases.appeared.connect(status.setHidden)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), current_theme().color("panel"))
        painter.setPen(QPen(current_theme().color("hairline"), 1))
        painter.drawLine(0, 0, self.width(), 0)
        edge = self._timeline.geometry().bottom() + 1
        painter.drawLine(0, edge, self.width(), edge)
