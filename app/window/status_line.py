"""The status line at the bottom: speed, time to first token, bytes, the cost of statistics and pictures, work in
progress, and the device."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct
from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QFont
from PySide6.QtWidgets import QLabel, QProgressBar, QSizePolicy, QWidget

from app.control.requests import Pace
from app.draw.format import byte_size, decimal, milliseconds, percent, thousands
from app.kit.reader import DRAFT, SELECTION, STEPS, Reader, SignalSource
from app.kit.theme import font_text
from app.kit.widgets import ElidedLabel, plain_label, plain_tip, prose, push_button, row, set_text_role, steady
from app.models import Models
from app.models.sequence_status import RECENT_STEPS, rates
from app.models.status import HALTED, Status
from engine.client import is_elsewhere
from engine.client.ssh import remote_of
from engine.counted import counted
from engine.wire.records import CacheBytes, NonFinite, StepRecord
from engine.wire.status import ModelInfo, Work

NEWS_MS, READ_MS = 8000, 50  # how long a message stays, and how much longer for each of its characters
SELECTED = "Selected: "  # begins a message about the selection, which goes with it
KEPT, OFFER_MS = "The former session is kept", 30_000  # and how long the button beside it stays
RETURN, RETURN_TO_FORMER = "Return to it", "Return to the former session"  # beside that message, and without it
UNLIMITED = 16_777_215  # pixels: as wide as Qt allows
MARGIN, SPACING = 12, 20  # pixels
MOST_CROWDED = 2  # how many groups of other texts a message may displace
ONE_EVENT_S = 2.0  # messages within this time of another session belong together
MAX_LISTED = 6
WARNINGS_TIP = "A click lists them."
SHORTEST_LEFT_S = 2.0  # a shorter remaining time is not shown
LARGEST_COUNT = 10_000


class WorkLine(QWidget):
    """Work that takes a while: its label, its progress, and a Cancel button."""

    def __init__(self, cancel: QAction) -> None:
        super().__init__()
        self.label = ElidedLabel(role="text")
        self._bar = QProgressBar()
        self._bar.setTextVisible(False)
        self._bar.setFixedWidth(100)
        self._button = push_button("Cancel", cancel.trigger)
        row((self.label, 1), self._bar, self._button, spacing=8, on=self)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.hide()

    @property
    def _beside(self) -> int:
        """The width of the bar, the button and the spacing."""
        return self._bar.width() + self._button.sizeHint().width() + 24

    def show_work(self, work: Work | None) -> None:
        self.setVisible(work is not None)
        if work is None:
            return
        far, label = _far(work), prose(work.label)
        words = label + far
        self.label.setText(words, brief=_first_of(label) + far if far else "")
        self.label.setToolTip(plain_tip(words))
        self.setMaximumWidth(self.label.fontMetrics().horizontalAdvance(words) + self._beside)
        self._bar.setAccessibleName(prose(work.label))
        # Progress bars count in 32 bits; a download has more bytes than that.
        self._bar.setRange(0, 0 if work.total is None else 1000)
        self._bar.setValue(0 if not work.total else min(1000, 1000 * work.done // work.total))
        self._button.setVisible(work.can_cancel)


class StatusLineState(Struct, frozen=True):
    """The texts of the line; an empty text takes no space. `listed` are the warnings in the tool tip, `versions`
    those of packages on the engine's machine, if that is another."""

    speed: str
    is_running: bool
    first_token: str
    num_bytes: str
    looking: str
    device: str
    versions: str
    warnings: str
    listed: tuple[str, ...]
    work: Work | None


class NonFiniteLog:
    """The NaN and Inf values of all records; only new records are read."""

    def __init__(self) -> None:
        self._found: list[NonFinite] = []
        self._num_read = 0
        self._last: StepRecord | None = None

    def follow(self, records: Sequence[StepRecord]) -> Sequence[NonFinite]:
        """Read the new records and return all values found; a history that was shortened is read again."""
        if self._num_read > len(records) or (self._num_read and records[self._num_read - 1] is not self._last):
            self._found, self._num_read = [], 0
        for record in records[self._num_read :]:
            self._found.extend(record.non_finite)
        self._num_read, self._last = len(records), records[-1] if records else None
        return self._found


class StatusLine(Reader[StatusLineState], QWidget):
    """Shows the state of the timeline, the pictures and the status. Signal: `warnings_wanted()`, their number was
    clicked."""

    warnings_wanted = Signal()

    follows = (STEPS, SELECTION, SignalSource("status", ("changed", "engine_changed")), DRAFT)

    def __init__(self, models: Models, cancel: QAction, return_to_former: QAction) -> None:
        super().__init__()
        self._non_finite = NonFiniteLog()
        self._pace = ""
        self.setFixedHeight(25)
        self.speed, self.num_warnings = plain_label(), plain_label()
        self._first, self._bytes, self.looking, self._place = (plain_label(role="muted") for _ in range(4))
        self.note = ElidedLabel(role="muted")
        self._return = push_button(RETURN, return_to_former.trigger)
        self._return.setObjectName("return")
        self._return.hide()
        self._offered_at = 0.0
        self._shown_at: int | None = None  # the newest step when the message came
        # of how many other texts the message has the room: 1, time to first token and overhead; 2, bytes too
        self._crowding = 0
        self._is_fitting = False
        self._work = WorkLine(cancel)
        self._build()
        self._news = QTimer(self, singleShot=True)
        self._news.timeout.connect(self._drop_news)
        self._offer = QTimer(self, singleShot=True)
        self._offer.timeout.connect(self._drop_offer)
        models.status.noticed.connect(self.notify)
        models.timeline.appended.connect(self._on_steps)
        models.selection.changed.connect(self._on_selected)
        models.kept_sessions.replaced.connect(self._on_replaced)
        self.follow(models)

    def show_pace(self, pace: Pace) -> None:
        """Show the chosen pace if it is a limited one: it differs from the engine's own speed."""
        self._pace = "" if pace.command.steps_per_second is None else pace.label
        self.refresh()

    def notify(self, text: str) -> None:
        """Show a message for a while. What has just replaced the session may have one too: it follows the offer."""
        self._shown_at = self._models.timeline.tip
        if time.monotonic() - self._offered_at < ONE_EVENT_S and text != KEPT:
            text = f"{KEPT} · {text}"
        self.note.setText(prose(text[:400]))
        self.note.setToolTip(plain_tip(prose(text[:2000])))
        self._fit_note()
        self._news.start(NEWS_MS + READ_MS * len(self.note.text()))

    @property
    def warnings(self) -> tuple[str, ...]:
        """All warnings, as sentences."""
        return () if self.state is None else self.state.listed

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.num_warnings and event.type() == QEvent.Type.MouseButtonRelease and self.warnings:
            self.warnings_wanted.emit()
        return super().eventFilter(watched, event)

    def withdraw(self, text: str) -> None:
        """Remove a message that no longer holds, unless another one has replaced it."""
        if self.note.text() == prose(text[:400]):
            self._clear_news()

    def _on_steps(self) -> None:
        """Remove where a run halted once there is a step after it."""
        if self.note.text().startswith(HALTED) and self._models.timeline.tip != self._shown_at:
            self._clear_news()

    def _on_selected(self) -> None:
        """Remove what was said about the selection before this one."""
        if self.note.text().startswith(SELECTED):
            self._clear_news()

    def _on_replaced(self) -> None:
        """Say that the session before is kept, and offer to return to it."""
        former = self._models.kept_sessions.former
        assert former is not None
        self.notify(KEPT)
        self._offered_at = time.monotonic()
        self._return.setToolTip(plain_tip(f"{prose(former.title)}\nAs it was; the present session is kept as well"))
        self._return.setAccessibleName(f"Return to {prose(former.title)}")
        self._return.show()
        self._fit_note()
        self._offer.start(OFFER_MS)

    def _drop_offer(self) -> None:
        """Remove the button; under the mouse it stays."""
        if self._return.underMouse():
            self._offer.start(NEWS_MS)
        else:
            self._return.hide()
            self._fit_note()

    def _fit_note(self) -> None:
        """Let the button stand beside the message, and name what it returns to where the message does not; without it
        the message has all the space. A message that is too long for it, and may end with a remedy, takes the room of
        what the last steps cost."""
        self._return.setText(RETURN if self.note.text().startswith(KEPT) else RETURN_TO_FORMER)
        words = self._note_width
        self.note.setMaximumWidth(UNLIMITED if self._return.isHidden() else words)
        self._is_fitting = True
        for self._crowding in range(MOST_CROWDED + 1):
            self.refresh()
            if words <= self._note_room:
                break
        self._is_fitting = False

    @property
    def _note_width(self) -> int:
        return self.note.fontMetrics().horizontalAdvance(self.note.text()) + 2

    @property
    def _note_room(self) -> int:
        """The width that the other texts leave to the message."""
        others = (self.speed, self._first, self._bytes, self.looking, self._return, self._place, self.num_warnings)
        taken = sum(each.sizeHint().width() + SPACING for each in others if not each.isHidden())
        return self.width() - taken - SPACING - 2 * MARGIN

    def _drop_news(self) -> None:
        """Remove the message once there was time to read it. Under the mouse it stays, and while a model is loaded, as
        it may say what comes then."""
        status = self._models.status
        if self.note.underMouse() or status.awaits_model:
            self._news.start(NEWS_MS)
        else:
            self._clear_news()

    def _clear_news(self) -> None:
        self._news.stop()
        self.note.setText("")
        self.note.setToolTip("")
        self._fit_note()

    def _build(self) -> None:
        left = self.speed, self._first, self._bytes, self.looking, (self.note, 1), self._return
        right = (self._work, 1000), self._place, self.num_warnings  # the message gets the space that is left
        layout = row(*left, *right, spacing=SPACING, margins=(MARGIN, 0, MARGIN, 0), on=self)
        layout.insertStretch(len(left))
        self.num_warnings.installEventFilter(self)
        self.speed.setToolTip(
            f"Tokens per second of the engine's own time, over the last {RECENT_STEPS} decode steps; what a run waits "
            "between steps, for its pace or for pictures, is not in it"
        )
        self._first.setToolTip("Time to first token: the prefill of the selected sequence")
        self._bytes.setToolTip("Stored K and V of what the cache has reserved")
        self.looking.setToolTip(
            f"Overhead of KV Loupe: the share of the engine's time in the last {RECENT_STEPS} steps, and between them,"
            " that went into statistics, which Step time shows as measuring, and into pictures, which are in no step;"
            " by the clock: other programs at work make it less exact"
        )

    def read(self) -> StatusLineState:
        models, now = self._models, self._models.selection.now
        found, held = rates(models.timeline, models.pictures, now.seq_id), models.timeline.num_bytes(now.step)
        status, is_running = models.status.now, models.status.now.running
        model, work = status.model, status.work
        lasting = [why for why in (models.status.unwritten, models.draft.warning) if why]
        lasting += _of_model(model) if model is not None else []
        places = [_place_of(value) for value in self._non_finite.follow(models.timeline.records)]
        more = [f"and {counted(len(places) - MAX_LISTED, 'more place')}"] if len(places) > MAX_LISTED else []
        # a long message, progress and a busy engine need the space of other texts
        is_long = self._crowding > 0 or bool(models.status.busy) or (work is not None and bool(work.total))
        return StatusLineState(
            speed=_speed_words(found.tokens_per_s, self._pace, is_running=is_running, is_file=models.status.has_file),
            is_running=is_running,
            first_token="" if found.first_token_ms is None or is_long else f"TTFT {milliseconds(found.first_token_ms)}",
            num_bytes="" if held is None or models.status.why_no_rows or self._crowding > 1 else _kv_bytes(held),
            looking=""
            if found.looking_ratio is None or is_long or models.status.has_file  # it does not say what pictures took
            else f"overhead {percent(found.looking_ratio)}",
            device=_device_words(model, models.status),
            versions=models.status.versions,
            warnings=_warning_words(len(lasting) + len(places), model),
            listed=(*lasting, *places[:MAX_LISTED], *more),
            work=work,
        )

    def show_state(self, state: StatusLineState) -> None:
        set_text_role(self.speed, "text" if state.is_running else "muted")
        # bold while the engine runs; at rest it is the speed of the last steps
        self.speed.setFont(font_text(12.5, QFont.Weight.DemiBold if state.is_running else QFont.Weight.Normal))
        set_text_role(self.num_warnings, "warning" if state.listed else "muted")
        self._work.show_work(state.work)
        _show(self.speed, state.speed)
        _show(self._first, state.first_token)
        _show(self._bytes, state.num_bytes)
        _show(self.looking, state.looking)
        _show(self._place, state.device)
        self._place.setToolTip(plain_tip(state.versions))
        _show(self.num_warnings, state.warnings)
        self.num_warnings.setToolTip(plain_tip("\n".join((*state.listed, WARNINGS_TIP) if state.listed else ())))
        self.num_warnings.setCursor(Qt.CursorShape.PointingHandCursor if state.listed else Qt.CursorShape.ArrowCursor)
        self.num_warnings.setAccessibleDescription("; ".join(state.listed))
        # the other texts may have come or grown since the message was fitted between them
        may_crowd = bool(self.note.text()) and self._crowding < MOST_CROWDED and not self._is_fitting
        if may_crowd and self._note_width > self._note_room:
            self._fit_note()


def _speed_words(tokens_per_s: float | None, pace: str, *, is_running: bool, is_file: bool) -> str:
    """The engine's own speed, next to the pace if the run waits between steps; at rest, that of the last steps, or what
    the file recorded."""
    if tokens_per_s is None:
        return ""
    speed = f"{decimal(tokens_per_s, 0)} tok/s"
    if is_file:
        return f"recorded {speed}"
    if is_running:
        return f"pace {pace} · engine {speed}" if pace else speed
    return f"engine {speed}" if pace else f"last steps {speed}"


def _device_words(model: ModelInfo | None, status: Status) -> str:
    """The device, and whether the engine runs in a thread of the window or in its own process; or what has kept the
    engine busy for seconds, or that it is gone."""
    if status.busy:
        return status.busy
    if model is None:
        is_connecting = is_elsewhere(status.engine) and not (status.is_known or status.loss)
        return f"connecting to {remote_of(status.engine).machine}" if is_connecting else ""
    if status.loss:
        return f"engine {status.loss}: restart it under Run · Engine"
    engine, words = status.engine, model.device
    if model.device == "cpu" and model.num_threads:
        words += f" · {counted(model.num_threads, 'thread')}"
    if is_elsewhere(engine):
        return f"{words} · engine on {status.line or remote_of(engine).machine}"
    return f"{words} · engine in a {engine}" if engine else words


def _warning_words(count: int, model: ModelInfo | None) -> str:
    """The number of warnings and what is unusual about the model, short enough to be shown all the time."""
    text = counted(count, "warning") if count else "no warnings"
    if model is None:
        return text
    facts = (
        (model.random_weights, "random weights"),
        (not model.has_tokenizer, "no tokenizer"),
        (not model.captures_attention, "its own attention" if model.geometry.attention_layers else "no attention"),
    )
    unusual = " · ".join(words for is_so, words in facts if is_so)
    return f"{text}: {unusual}" if unusual else text


def _of_model(model: ModelInfo) -> list[str]:
    """What may surprise the user about the loaded model."""
    warnings = ["The weights are random: shapes and costs are real, the text is not."] if model.random_weights else []
    notes = prose(model.note).split("; ") if model.note else []
    return warnings + [note for note in notes if not note.startswith("random weights")]  # the first warning says more


def _show(label: QLabel, text: str) -> None:
    """Set a text if it differs. An empty label takes no space; the width of others does not change with every digit."""
    if label.text() != text:
        hint = label.fontMetrics().boundingRect(text).size()
        label.setFixedSize(steady(label.width(), label.fontMetrics().horizontalAdvance(text) + 2), hint.height() + 4)
        label.setText(text)
    if label.isHidden() == bool(text):
        label.setVisible(bool(text))


def _first_of(label: str) -> str:
    """What is done, as briefly as it can be said: `Sweeping` of `Sweeping: INT8 on the prompt`, else the first word."""
    head, colon, _ = label.partition(": ")
    word, space, _ = label.partition(" ")
    return head if colon else f"{word} …" if space else word


def _far(work: Work) -> str:
    """The progress: small counts as they are, bytes with speed and remaining time, other large numbers as a
    percentage."""
    if not work.total:
        return ""
    left = "" if work.left_s is None or work.left_s < SHORTEST_LEFT_S else f", {thousands(round(work.left_s))} s left"
    if work.bytes_per_s is not None:
        speed = f" · {byte_size(round(work.bytes_per_s))}/s" if work.bytes_per_s else ""
        return f"  {byte_size(work.done)} of {byte_size(work.total)}{speed}{left}"
    if work.total < LARGEST_COUNT:
        return f"  {thousands(work.done)} of {thousands(work.total)}{left}"
    return f"  {percent(min(1.0, work.done / work.total))}{left}"


def _kv_bytes(held: CacheBytes) -> str:
    stored, reserved = held.stored, held.reserved
    of = f" of {byte_size(reserved)}" if reserved > stored else ""
    return f"KV {byte_size(stored)}{of}"


def _place_of(found: NonFinite) -> str:
    where = "logits" if found.layer is None else f"{found.tensor}, layer {found.layer}, head {found.kv_head}"
    return f"{found.count} NaN or Inf in {where}, position {found.position}"
