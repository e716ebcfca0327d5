"""The last line: speed, first token, bytes, what looking costs, work in progress, and where it all runs."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QFont
from PySide6.QtWidgets import QHBoxLayout, QLabel, QProgressBar, QPushButton, QWidget

from app.draw.format import byte_size, decimal, milliseconds, percent, thousands
from app.kit.labels import ElidedLabel, plain_label, plain_tip, prose, steady, tint
from app.kit.theme import Theme, font_text
from app.models import Models
from app.models.rates import RECENT_STEPS, rates
from engine.wire.records import CacheBytes, NonFinite, Work

MAX_LISTED = 6
LARGEST_COUNT = 10_000


class WorkLine(QWidget):
    """What takes a while, how far it is, and a way out."""

    def __init__(self, cancel: QAction, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.label = plain_label()
        self._bar = QProgressBar()
        self._bar.setTextVisible(False)
        self._bar.setFixedWidth(150)
        self._button = QPushButton("Cancel")
        self._button.setObjectName("small")
        self._button.clicked.connect(cancel.trigger)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        for widget in (self.label, self._bar, self._button):
            layout.addWidget(widget)
        self.hide()

    def show_work(self, work: Work | None) -> None:
        self.setVisible(work is not None)
        if work is None:
            return
        far = _far(work)
        self.label.setText(prose(work.label) + far)
        self._bar.setAccessibleName(work.label)
        # Progress bars count in 32 bits; a download has more bytes than that.
        self._bar.setRange(0, 0 if work.total is None else 1000)
        self._bar.setValue(0 if not work.total else min(1000, 1000 * work.done // work.total))
        self._button.setVisible(work.can_cancel)


class StatusLine(QWidget):
    """Reads timeline, slices and status."""

    def __init__(self, models: Models, theme: Theme, cancel: QAction, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self._theme = theme
        self._non_finite: list[NonFinite] = []
        self._num_seen = 0
        self._is_speed_now = False
        self._tinted: tuple[bool, Theme] | None = None
        self.setFixedHeight(25)
        self._speed, self._first, self._bytes, self._looking = (plain_label() for _ in range(4))
        self._note = ElidedLabel(Qt.TextElideMode.ElideRight)
        self._work = WorkLine(cancel)
        self._place, self._warnings = plain_label(), plain_label()
        self._labels = (self._first, self._bytes, self._looking, self._note, self._place)
        self._build()
        models.timeline.legible.connect(self._refresh)
        models.timeline.reset.connect(self._on_reset)
        models.selection.changed.connect(self._refresh)
        models.status.changed.connect(self._on_status)
        models.status.noticed.connect(self._on_notice)
        self.set_theme(theme)
        self._refresh()

    def set_theme(self, theme: Theme) -> None:
        self._theme = theme
        for label in self._labels:
            tint(label, theme, "muted")
        tint(self._work.label, theme, "text")
        self._tint_speed()
        self._refresh()

    def notify(self, text: str) -> None:
        """News from a panel: one line, no banner."""
        self._on_notice(text)

    def _build(self) -> None:
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 0, 12, 0)
        layout.setSpacing(20)
        for label in (self._speed, self._first, self._bytes, self._looking):
            layout.addWidget(label)
        layout.addWidget(self._note, 1)
        for widget in (self._work, self._place, self._warnings):
            layout.addWidget(widget)
        self._speed.setToolTip(f"Tokens per second of the engine, over the last {RECENT_STEPS} decode steps")
        self._first.setToolTip("Time to first token: the prefill of the selected sequence")
        self._bytes.setToolTip("Stored K and V of what the cache has reserved")
        self._looking.setToolTip(
            f"Share of the engine's work in the last {RECENT_STEPS} steps that went into statistics and pictures"
        )

    def _on_reset(self) -> None:
        self._non_finite, self._num_seen = [], 0
        self._refresh()

    def _on_status(self) -> None:
        status = self._models.status.now
        self._work.show_work(status.work if status is not None else None)
        self._refresh()

    def _on_notice(self, text: str) -> None:
        self._note.setText(prose(text[:400]))
        self._note.setToolTip(plain_tip(prose(text[:2000])))

    def _refresh(self) -> None:
        now = rates(self._models.timeline, self._models.slices, self._models.selection.now.seq_id)
        held = self._models.timeline.num_bytes(self._models.selection.now.step)
        self._show_speed(now.tokens_per_s)
        _show(self._first, "" if now.first_token_ms is None else f"TTFT {milliseconds(now.first_token_ms)}")
        _show(self._bytes, "" if held is None else _kv_bytes(held))
        looking = "" if now.looking_ratio is None else percent(now.looking_ratio)
        _show(self._looking, looking and f"looking costs {looking}")
        self._refresh_place()
        self._refresh_warnings()

    def _show_speed(self, tokens_per_s: float | None) -> None:
        """Bold while it is now; at rest what the last run had."""
        is_now = self._models.status.is_running
        if is_now != self._is_speed_now:
            self._is_speed_now = is_now
            self._tint_speed()
        text = "" if tokens_per_s is None else f"{decimal(tokens_per_s, 0)} tok/s"
        _show(self._speed, text if is_now or not text else f"last run {text}")

    def _tint_speed(self) -> None:
        weight = QFont.Weight.DemiBold if self._is_speed_now else QFont.Weight.Normal
        self._speed.setFont(font_text(12.5, weight))
        tint(self._speed, self._theme, "text" if self._is_speed_now else "muted")

    def _refresh_place(self) -> None:
        status = self._models.status.now
        model = status.model if status is not None else None
        count = 0 if model is None or model.device != "cpu" else model.num_threads
        threads = "" if not count else f" · {count} thread" if count == 1 else f" · {count} threads"
        _show(self._place, "" if model is None else f"{model.device}{threads}")

    def _refresh_warnings(self) -> None:
        records = self._models.timeline.records
        for record in records[self._num_seen :]:
            self._non_finite.extend(record.non_finite)
        self._num_seen = len(records)
        of_model, places = self._of_model(), [_place_of(found) for found in self._non_finite]
        count = len(of_model) + len(places)
        text = "no warnings" if not count else f"{count} warnings"
        text = "1 warning" if count == 1 else text
        _show(self._warnings, f"{text}: {' · '.join(self._brief_words())}" if self._brief_words() else text)
        if (count > 0, self._theme) != self._tinted:  # a palette is not free: style sheets are asked again
            self._tinted = (count > 0, self._theme)
            tint(self._warnings, self._theme, "warning" if count else "muted")
        more = [f"and {len(places) - MAX_LISTED} more places"] if len(places) > MAX_LISTED else []
        warnings = [*of_model, *places[:MAX_LISTED], *more]
        self._warnings.setToolTip(plain_tip("\n".join(warnings)))
        self._warnings.setAccessibleDescription("; ".join(warnings))

    def _brief_words(self) -> list[str]:
        """What is unusual about the model, short enough to stand there for good."""
        status = self._models.status.now
        model = status.model if status is not None else None
        if model is None:
            return []
        facts = (
            (model.random_weights, "random weights"),
            (not model.has_tokenizer, "no tokenizer"),
            (not model.captures_attention, "no attention weights"),
        )
        return [words for is_so, words in facts if is_so]

    def _of_model(self) -> list[str]:
        """What one might not expect of the model that is loaded."""
        status = self._models.status.now
        model = status.model if status is not None else None
        warnings = []
        if model is not None and model.random_weights:
            warnings.append("The weights are random: shapes and costs are real, the text is not.")
        notes = prose(model.note).split("; ") if model is not None and model.note else []
        warnings += [note for note in notes if not note.startswith("random weights")]  # said above, and at more length
        if model is not None and not model.captures_attention:
            warnings.append("This model does not hand out its attention weights.")
        return warnings


def _show(label: QLabel, text: str) -> None:
    """Set a text where it is another one; an empty label takes no room, the others one that follows no single digit."""
    if label.text() != text:
        hint = label.fontMetrics().boundingRect(text).size()
        label.setFixedSize(steady(label.width(), label.fontMetrics().horizontalAdvance(text) + 2), hint.height() + 4)
        label.setText(text)
    if label.isHidden() == bool(text):
        label.setVisible(bool(text))


def _far(work: Work) -> str:
    """Small counts as they are, bytes and the like as a share."""
    if not work.total:
        return ""
    if work.total < LARGEST_COUNT:
        return f"  {thousands(work.done)} of {thousands(work.total)}"
    return f"  {percent(min(1.0, work.done / work.total))}"


def _kv_bytes(held: CacheBytes) -> str:
    stored, reserved = held.stored, held.reserved
    of = f" of {byte_size(reserved)}" if reserved > stored else ""
    return f"KV {byte_size(stored)}{of}"


def _place_of(found: NonFinite) -> str:
    where = "logits" if found.layer is None else f"{found.tensor}, layer {found.layer}, head {found.kv_head}"
    return f"{found.count} NaN or Inf in {where}, position {found.position}"
