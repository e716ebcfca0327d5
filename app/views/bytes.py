"""The memory ledger: predicted, stored, reserved, held for looking, and a name for every difference."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QScrollArea, QSizePolicy, QWidget

from app.draw import bytes as draw
from app.draw.bytes import Entry, Key, LayerBar
from app.draw.format import byte_size, thousands
from app.models import Models
from app.theme import Theme, font_fixed, font_text
from app.views.facts import PITCH, Fact, Facts
from app.views.looking import shown_record, tell_source
from app.views.pace import Pace
from app.views.panel import Panel
from engine.geometry import DTYPE_BYTES
from engine.records import StepRecord

_WIDE = 420


class LayerBars(QWidget):
    """One bar per layer: stored, inside what is reserved; a stroke where the formula says."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._bars: tuple[LayerBar, ...] = ()
        self.setAccessibleName(self.tr("Bytes per layer"))
        self.setMinimumSize(60, 46)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    def show_bars(self, theme: Theme, bars: tuple[LayerBar, ...]) -> None:
        if theme is self._theme and bars == self._bars:
            return
        self._theme, self._bars = theme, bars
        self.setToolTip(
            "\n".join(
                self.tr("layer {0} ({1}): {2} stored of {3} reserved").format(
                    bar.layer, bar.kind, byte_size(bar.num_stored), byte_size(bar.num_reserved)
                )
                for bar in bars[:40]
            )
        )
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._bars:
            return
        painter = QPainter(self)
        plot = QRectF(0, 15, self.width(), max(1, self.height() - 30))
        painter.setFont(font_text(11))
        painter.setPen(self._theme.color("muted"))
        painter.drawText(QRectF(0, -1, self.width(), 14), 0, self.tr("stored / reserved"))
        pitch = min(plot.width() / len(self._bars), 30.0)
        gap = 4 if pitch > 12 else 1 if pitch > 3 else 0
        painter.setFont(font_fixed(10))
        every = max(1, -(-26 // int(max(pitch, 1))))
        for index, bar in enumerate(self._bars):
            column = QRectF(plot.left() + index * pitch, plot.top(), max(pitch - gap, 1), plot.height())
            self._paint_bar(painter, column, bar)
            if index % every == 0:
                painter.setPen(self._theme.color("muted"))
                place = QRectF(column.left() - 10, plot.bottom() + 2, column.width() + 20, 13)
                painter.drawText(
                    place, int(Qt.AlignmentFlag.AlignHCenter), f"L{bar.layer}" if pitch > 22 else str(bar.layer)
                )

    def _paint_bar(self, painter: QPainter, column: QRectF, bar: LayerBar) -> None:
        def part(share: float) -> QRectF:
            height = column.height() * share
            return QRectF(column.left(), column.bottom() - height, column.width(), height)

        painter.fillRect(part(bar.reserved), self._theme.color("page_free"))
        painter.fillRect(part(bar.stored), self._theme.color("page_used"))
        painter.setPen(QPen(self._theme.color("text"), 1))
        y = round(column.bottom() - column.height() * bar.predicted) + 0.5
        painter.drawLine(QPointF(column.left(), y), QPointF(column.right() - 1, y))


class BytesView(Panel):
    """The ledger of the step that is looked at."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, self.tr("Bytes"), parent)
        self._models = models
        self._drawn: tuple[object, ...] = ()
        self._facts = Facts(theme)
        self._facts.setAccessibleName(self.tr("Memory ledger"))
        self._bars = LayerBars(theme)
        body = QWidget()
        self._split = QBoxLayout(QBoxLayout.Direction.TopToBottom, body)
        self._split.setContentsMargins(0, 0, 0, 0)
        self._split.setSpacing(12)
        self._split.addWidget(self._facts)
        self._split.addWidget(self._bars, 2)
        scroll = QScrollArea()
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setWidgetResizable(True)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setWidget(body)
        scroll.viewport().setAutoFillBackground(False)
        body.setAutoFillBackground(False)  # setWidget switches it on
        self.set_body(scroll)
        models.selection.changed.connect(self._refresh)
        self._pace = Pace(self)
        self._pace.due.connect(self._refresh)
        models.timeline.appended.connect(self._pace.request)
        models.timeline.reset.connect(self._refresh)
        self._refresh()

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._drawn = ()
        self._refresh()

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        record = shown_record(self._models)
        if record is None:
            self.set_empty(self.tr("What the cache takes, and why, appears here with the first step."))
            self.set_provenance("")
            self._drawn = ()
            return
        self.set_empty(None)
        tell_source(self, self._models, "recorded", record.dtype, record.step)
        key = (record.num_bytes, self.theme)
        if key == self._drawn:
            return
        self._drawn = key
        self._facts.show_facts(self.theme, tuple(self._fact(entry, record) for entry in draw.ledger(record.num_bytes)))
        self._bars.show_bars(self.theme, draw.layer_bars(record.num_bytes))

    def _fact(self, entry: Entry, record: StepRecord) -> Fact:
        label = self._label(entry.key, record)
        if entry.num_bytes is None:
            return Fact(label, self.tr("cannot be asked here"), role="faint")
        size = byte_size(entry.num_bytes) if abs(entry.num_bytes) >= 1024 else ""
        role = "muted" if entry.is_gap else "text"
        has_rule = entry.key in ("looking", "allocator")
        return Fact(label, thousands(entry.num_bytes), size, role, int(entry.is_gap), has_rule=has_rule)

    def _label(self, key: Key, record: StepRecord) -> str:
        labels = {
            "predicted": self._formula(record.dtype),
            "beyond_formula": self.tr("stored beyond the formula"),
            "below_formula": self._below(record),
            "stored": self.tr("stored in tensors"),
            "slack": self.tr("slack, no token yet"),
            "reserved": self.tr("reserved in storage"),
            "looking": self.tr("held for looking"),
            "other": self.tr("other: weights, activations"),
            "allocator": self.tr("held by the allocator"),
            "process": self.tr("process, resident"),
        }
        return labels[key]

    def _below(self, record: StepRecord) -> str:
        """Why less is stored than the formula says: sequences share rows, or rows were let go."""
        is_shared = any(pool.num_shared for pool in record.page_maps)
        return self.tr("shared, stored once") if is_shared else self.tr("left the window, or not kept")

    def _formula(self, dtype: str) -> str:
        """The formula itself, where every layer is the same."""
        status = self._models.status.now
        is_uniform = status is not None and status.model is not None and status.model.geometry.is_uniform
        if not is_uniform or dtype not in DTYPE_BYTES:
            return self.tr("predicted by formula")
        return self.tr("formula 2·L·H_kv·D·S·{0}").format(DTYPE_BYTES[dtype])

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        is_wide = self.width() > _WIDE and self.height() < 10 * PITCH + 130
        direction = QBoxLayout.Direction.LeftToRight if is_wide else QBoxLayout.Direction.TopToBottom
        if direction != self._split.direction():
            self._split.setDirection(direction)
            self._split.setStretch(0, 5 if is_wide else 0)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh()
