"""The prompt: a text, how to sample, and the button that sends it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QSpinBox, QVBoxLayout, QWidget

from app.draw.format import thousands
from app.models import Models
from app.theme import Theme, font_fixed
from app.views.panel import Panel
from app.views.prompt_edit import PromptEdit
from app.views.sampling import SamplingButton
from engine.config import SamplingParams

# Counting the tokens of more than this while typing would keep the engine busy; it is counted when it is sent.
MAX_COUNTED_CHARS = 100_000
ROOM_FOR_KEY = 324


class PromptPanel(Panel):
    """Intents: `submitted(text, sampling)`, `added(text, sampling)` beside the others, `sampling_changed(sampling)`,
    `text_edited(text)` after a pause.
    """

    submitted = Signal(str, object)
    added = Signal(str, object)
    sampling_changed = Signal(object)
    text_edited = Signal(str)

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Prompt", parent, can_copy=False)
        self.set_title(self.tr("Prompt"))
        self._models = models
        self._num_tokens: int | None = None
        self._counted = ""
        self._send_key = ""
        self._shown_of: int | None = None  # the sequence whose sampling is in the fields
        self._asked: list[SamplingParams] = []  # what was wished of it and is not told back yet
        self.edit = PromptEdit()
        self.edit.setAccessibleName(self.tr("Prompt text"))
        self.edit.setPlaceholderText(self.tr("Type the beginning of a text…"))
        self._sampling = SamplingButton(theme)
        self._seed = QSpinBox()
        self._send = QPushButton(self.tr("Send"))
        self._add = QPushButton("+")
        self._clear = QPushButton(self.tr("Clear"))
        self._build()
        self.edit.edited.connect(self._on_edited)
        self.edit.textChanged.connect(self._on_typing)
        self._sampling.changed.connect(self._on_sampling)
        self._seed.valueChanged.connect(self._on_sampling)
        self._clear.clicked.connect(self._on_clear)
        models.status.changed.connect(self._on_status)
        models.status.failed.connect(self._on_failed)
        models.selection.changed.connect(self._show_sampling)
        self._refresh()

    def set_send_action(self, action: QAction, key: str) -> None:
        """The button does what the action does, and shows its key."""
        self._send_key = key
        self._send.setToolTip(action.toolTip())
        self._send.clicked.connect(action.trigger)

    def set_add_action(self, action: QAction) -> None:
        """The small button beside Send: another sequence."""
        self._add.setToolTip(action.toolTip())
        self._add.setAccessibleName(action.text())
        self._add.clicked.connect(action.trigger)

    @property
    def sampling(self) -> SamplingParams:
        return self._sampling.params(self._seed.value())

    def submit(self) -> None:
        """Send what is in the editor."""
        self.submitted.emit(self.edit.text(), self.sampling)

    def submit_beside(self) -> None:
        """Send what is in the editor as another sequence."""
        self.added.emit(self.edit.text(), self.sampling)

    def set_num_tokens(self, _stamp: int, count: int) -> None:
        """How many tokens the text has, counted by the model's own tokenizer."""
        self._num_tokens = count
        self._refresh()

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._sampling.set_theme(theme)

    def _build(self) -> None:
        self.edit.setFont(font_fixed(12.5))
        self._seed.setRange(0, 2**31 - 1)
        self._seed.setPrefix(self.tr("seed "))
        self._seed.setFont(font_fixed())
        self._seed.setAccessibleName(self.tr("Seed"))
        self._seed.setToolTip(self.tr("The same seed draws the same tokens again"))
        self._seed.setFixedWidth(62)
        # The least a narrow column must give: the words shorten before the column widens.
        self._send.setMinimumWidth(56)
        self._sampling.setMinimumWidth(78)
        self._send.setProperty("primary", True)
        self._add.setFixedWidth(28)
        self._send.setCursor(Qt.CursorShape.PointingHandCursor)
        self._clear.setToolTip(self.tr("Take the long text out"))
        row = QHBoxLayout()
        row.setSpacing(6)
        row.addWidget(self._sampling)
        row.addWidget(self._seed)
        row.addWidget(self._clear)
        row.addStretch(1)
        row.addWidget(self._add)
        row.addWidget(self._send)
        body = QWidget()
        layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addWidget(self.edit, 1)
        layout.addLayout(row)
        self.set_body(body)
        self.setFocusProxy(self.edit)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        has_room = self.width() >= ROOM_FOR_KEY and self._send_key
        self._send.setText(self.tr("Send {0}").format(self._send_key) if has_room else self.tr("Send"))

    def _on_typing(self) -> None:
        self._num_tokens = None

    def _on_edited(self) -> None:
        self._count()
        self._refresh()

    def _on_status(self) -> None:
        self._count()
        self._show_sampling()
        self._refresh()

    def _on_sampling(self) -> None:
        if self._shown_of is not None:
            self._asked.append(self.sampling)
        self.sampling_changed.emit(self.sampling)

    def _on_failed(self, text: str) -> None:
        if text and self._asked:
            self._asked.clear()
            self._show_sampling()

    def _show_sampling(self) -> None:
        """The fields are those of the selected sequence; without one they are the next prompt's.

        While a wish is on its way the fields keep it: what is told until then is older.
        """
        status, seq_id = self._models.status.now, self._models.selection.now.seq_id
        infos = status.sequences if status is not None else ()
        told = next((info.sampling for info in infos if info.seq_id == seq_id), None)
        if told is None or self._shown_of != seq_id:
            self._asked.clear()
        self._shown_of = seq_id if told is not None else None
        if told in self._asked:
            del self._asked[: self._asked.index(told) + 1]
        elif told is not None and not self._asked:
            self._sampling.show_params(told)
            self._seed.blockSignals(True)
            self._seed.setValue(min(told.seed, self._seed.maximum()))
            self._seed.blockSignals(False)

    def _on_clear(self) -> None:
        self.edit.set_text("")

    def _count(self) -> None:
        """Ask for the tokens of the text once per text and model."""
        status = self._models.status.now
        model = status.model if status is not None else None
        if model is None or not model.has_tokenizer:
            return
        text = self.edit.text()
        wanted = f"{model.fingerprint}\n{text}" if 0 < len(text) <= MAX_COUNTED_CHARS else ""
        if wanted != self._counted:
            self._counted = wanted
            self._num_tokens = None
            if wanted:
                self.text_edited.emit(text)

    def _refresh(self) -> None:
        num_chars = len(self.edit.text())
        parts = [] if self._num_tokens is None else [self.tr("{0} tokens").format(thousands(self._num_tokens))]
        if self.edit.is_held:
            parts.append(self.tr("{0} characters, shown in part, sent whole").format(thousands(num_chars)))
        self.set_detail(" · ".join(parts))
        self._clear.setVisible(self.edit.is_held)
        status = self._models.status.now
        for button in (self._send, self._add):
            button.setEnabled(status is not None and status.model is not None)
