"""The prompt: a text or token ids, how to sample, and the button that sends it."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction, QResizeEvent, QTextCursor
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QSpinBox, QVBoxLayout, QWidget

from app.draw.format import thousands
from app.kit.labels import set_text_role
from app.kit.reader import SELECTION, STATUS, STEPS
from app.kit.theme import font_fixed
from app.kit.units import inset
from app.kit.view import View
from app.models import Models
from app.models.prompt_ids import is_random, random_prompt, token_ids
from app.models.sequence_status import reading
from app.panels.prompt.editor import PromptEdit
from app.panels.prompt.sampling import SamplingButton
from app.panels.prompt.sampling_of import SamplingOf
from engine.errors import InputError
from engine.predict.capacity import most_tokens
from engine.spec.sampling import SamplingParams
from engine.wire.events import ModelInfo

# Counting the tokens of more than this while typing would keep the engine busy: of a longer text its beginning counts.
MAX_COUNTED_CHARS = 100_000
READY_IDS = 4096
ROOM_FOR_KEY = 324
CHEVRON = 42  # pixels of a button beside its words


@dataclass(frozen=True)
class Shown:
    """What stands around the editor: words after the title, and which offers are made. `problem` keeps the prompt from
    being sent, `is_wrong` says so in the title."""

    detail: str
    brief: str
    is_wrong: bool
    problem: str
    invitation: str
    has_seed: bool
    can_clear: bool
    limit: int
    can_send_first: bool
    can_draw_random: bool


class PromptPanel(View[Shown]):
    """Intents: `submitted(content, sampling)`, `added(content, sampling)` beside the others, where the content is a
    text or a tuple of token ids; `sampling_changed(sampling)`, `text_edited(text)` after a pause.

    Writes `models.draft`: what keeps the prompt from being sent.
    """

    title = "Prompt"
    follows = (STATUS, STEPS, SELECTION)
    reads_while_hidden = True  # actions ask whether the prompt can be sent

    submitted = Signal(object, object)
    added = Signal(object, object)
    sampling_changed = Signal(object)
    text_edited = Signal(str)

    def __init__(self, models: Models, parent: QWidget | None = None) -> None:
        super().__init__(models, parent, can_copy=False)
        self._ids: tuple[int, ...] | None = None  # the tokens of the text, where they are known
        self._refusal = ""
        self._counted = ""
        self._fingerprint = ""  # of the model that the tokens of the text are of
        self._send_key = ""
        self.edit = PromptEdit()
        self.edit.setAccessibleName("Prompt text")
        self._sampling = SamplingButton()
        self._seed = QSpinBox()
        self._send = QPushButton("Send")
        self._add = QPushButton("+")
        self._clear = QPushButton("Clear")
        self._random = QPushButton()
        self._first = QPushButton()
        self._build()
        self.edit.edited.connect(self._count)
        self.edit.textChanged.connect(self._on_typing)
        self._sampling_of = SamplingOf(models, self._sampling, self._seed, self)
        self._sampling_of.wished.connect(self._on_sampling)
        self._clear.clicked.connect(self._on_clear)
        self._random.clicked.connect(self._on_random)
        self._first.clicked.connect(self._on_first)
        self.follow(models)

    # ---- what the window says ------------------------------------------------------------------------------------

    def set_send_action(self, action: QAction, key: str) -> None:
        """The button does what the action does, and shows its key."""
        self._send_key = key
        self._follow(self._send, action)

    def set_add_action(self, action: QAction) -> None:
        """The small button beside Send: another sequence."""
        self._follow(self._add, action)

    def _follow(self, button: QPushButton, action: QAction) -> None:
        button.clicked.connect(action.trigger)
        action.changed.connect(self._take_actions)
        button.setAccessibleName(action.text())
        self._followed.append((button, action))
        self._take_actions()

    def _take_actions(self) -> None:
        """A button is as possible as its action, and gives the same reason."""
        for button, action in self._followed:
            button.setEnabled(action.isEnabled())
            button.setToolTip(action.toolTip())

    def set_tokens(self, ids: tuple[int, ...]) -> None:
        """The tokens of the text, by the model's own tokenizer."""
        self._ids = ids
        self.refresh()

    def refuse(self, reason: str) -> None:
        """The text cannot be made tokens of."""
        self._refusal = reason
        self.refresh()

    def begin(self) -> None:
        """Write another prompt: the cursor in the editor, its text selected."""
        self.edit.setFocus(Qt.FocusReason.OtherFocusReason)
        self.edit.selectAll()

    @property
    def sampling(self) -> SamplingParams:
        return self._sampling_of.params

    def submit(self) -> None:
        """Send what is in the editor."""
        self.submitted.emit(self._content(), self.sampling)

    def submit_beside(self) -> None:
        """Send what is in the editor as another sequence."""
        self.added.emit(self._content(), self.sampling)

    # ---- construction --------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._followed: list[tuple[QPushButton, QAction]] = []
        self.edit.setFont(font_fixed(12.5))
        self._seed.setRange(0, 2**31 - 1)
        self._seed.setPrefix("seed ")
        self._seed.setFont(font_fixed())
        inset(self._seed)
        self._seed.setAccessibleName("Seed")
        self._seed.setToolTip("The same seed draws the same tokens again")
        self._seed.setFixedWidth(70)
        # The least a narrow column must give: longer words shorten before the column widens.
        self._sampling.setMinimumWidth(self._sampling.fontMetrics().horizontalAdvance("greedy") + CHEVRON)
        self._send.setMinimumWidth(56)
        self._send.setProperty("primary", True)
        self._send.setEnabled(False)
        self._add.setEnabled(False)
        self._add.setFixedWidth(28)
        self._send.setCursor(Qt.CursorShape.PointingHandCursor)
        self._clear.setToolTip("Take the long text out")
        self._random.setToolTip("Token ids drawn at random by the seed: a prompt that means nothing")
        self._first.setToolTip("The beginning of the text, as many tokens as there is room for")
        for button in (self._random, self._first):
            button.setObjectName("small")
            button.hide()
        offers = QHBoxLayout()
        offers.setSpacing(6)
        offers.addWidget(self._seed)
        offers.addWidget(self._random)
        offers.addWidget(self._first)
        offers.addStretch(1)
        row = QHBoxLayout()
        row.setSpacing(6)
        row.addWidget(self._sampling)
        row.addWidget(self._clear)
        row.addStretch(1)
        row.addWidget(self._add)
        row.addWidget(self._send)
        body = QWidget()
        layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addWidget(self.edit, 1)
        layout.addLayout(offers)
        layout.addLayout(row)
        self.set_body(body)
        self.setFocusProxy(self.edit)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        has_room = self.width() >= ROOM_FOR_KEY and self._send_key
        self._send.setText(f"Send {self._send_key}" if has_room else "Send")
        self._add.setText("+ Add" if has_room else "+")
        self._add.setFixedWidth(self._add.sizeHint().width() if has_room else 28)

    # ---- what happens --------------------------------------------------------------------------------------------

    def _on_typing(self) -> None:
        """Ids are read at once; a text is counted after a pause, and until then nothing speaks against it."""
        self._ids, self._refusal, self._counted = None, "", ""
        model = self._model
        if model is not None and not model.has_tokenizer:
            self._read_ids(model)
        self.refresh()

    def _read_ids(self, model: ModelInfo) -> None:
        try:
            self._ids = token_ids(self.edit.text(), model.geometry.vocab_size, self._seed.value())
        except InputError as error:
            self._refusal = str(error)

    def _key(self) -> str:
        """What the known tokens are of: a model and the text that it was asked about."""
        model = self._model
        return "" if model is None else f"{model.fingerprint}\n{self.edit.text()[:MAX_COUNTED_CHARS]}"

    def _on_sampling(self, sampling: SamplingParams) -> None:
        if is_random(self.edit.text()):
            self._on_typing()  # another seed draws other tokens
        self.refresh()
        self.sampling_changed.emit(sampling)

    def _on_clear(self) -> None:
        self.edit.set_text("")

    def _on_random(self) -> None:
        limit = self._limit
        self.edit.set_text(random_prompt(READY_IDS if limit is None else min(READY_IDS, limit)))
        self.edit.setFocus(Qt.FocusReason.OtherFocusReason)
        self.edit.moveCursor(QTextCursor.MoveOperation.End)

    def _on_first(self) -> None:
        if self._ids is not None and self._limit is not None:
            self.submitted.emit(self._ids[: self._limit], self.sampling)

    def _count(self) -> None:
        """Ask for the tokens of the text once per text and model."""
        model, key = self._model, self._key()
        if model is None or key == self._counted:
            return
        self._counted = key
        text = self.edit.text()[:MAX_COUNTED_CHARS]
        if model.has_tokenizer and text:
            self.text_edited.emit(text)

    # ---- what is so ----------------------------------------------------------------------------------------------

    @property
    def _model(self) -> ModelInfo | None:
        status = self._models.status.now
        return status.model if status is not None else None

    @property
    def _limit(self) -> int | None:
        """Tokens that model and cache take."""
        status = self._models.status.now
        return None if status is None or status.model is None else most_tokens(status.cache, status.model.geometry)

    def _content(self) -> str | tuple[int, ...]:
        model = self._model
        if is_random(self.edit.text()):
            self._on_typing()  # the seed may be another sequence's by now
        is_text = model is None or model.has_tokenizer or self._ids is None
        return self.edit.text() if is_text else self._ids or ()

    @property
    def _excess(self) -> int:
        """Tokens that are too many, as far as they are counted."""
        limit = self._limit
        return 0 if self._ids is None or limit is None else max(0, len(self._ids) - limit)

    def _problem(self) -> str:
        if self._model is None:
            return ""  # the actions say that themselves
        if self._refusal:
            return self._refusal
        if not self.edit.text():
            return "type a prompt first"
        if self._excess and self._ids is not None:
            text = "{0} tokens are more than the {1} that there is room for: shorten it, or send the first {1}"
            return text.format(self._told_count(), thousands(self._limit or 0))
        return ""

    def _told_count(self) -> str:
        """How many tokens the text has; a long one has more than were counted."""
        more = "+" if len(self.edit.text()) > MAX_COUNTED_CHARS else ""
        return "" if self._ids is None else f"{thousands(len(self._ids))}{more}"

    def _detail_words(self) -> list[str]:
        if now := reading(self._models):
            return [now]
        words = []
        if self._ids is not None and self._limit is not None:
            words.append(f"{self._told_count()} of {thousands(self._limit)} tokens")
            if is_random(self.edit.text()):
                words.append("random")
        elif self._model is not None and not self._model.has_tokenizer:
            words.append("no tokenizer: token ids")
        if self.edit.is_held:
            num_chars = thousands(len(self.edit.text()))
            words.append(f"{num_chars} characters, shown in part, sent whole")
        return words

    def _invitation(self, by_ids: bool) -> str:
        what = "Token ids: 40977 33717 …\nor [40977, 33717]" if by_ids else "Type a beginning…"
        return f"{what}\n{f'{self._send_key} sends it'}" if self._send_key else what

    def refresh(self) -> None:
        fingerprint = self._model.fingerprint if self._model is not None else ""
        if fingerprint != self._fingerprint:  # another model has other tokens for the same text
            self._fingerprint = fingerprint
            self._on_typing()
            self._count()
        super().refresh()

    def read(self) -> Shown:
        model, now = self._model, reading(self._models)
        by_ids = model is not None and not model.has_tokenizer
        is_wrong = bool(self._excess or self._refusal) and not now
        is_refused = is_wrong and bool(self._refusal)
        return Shown(
            detail=self._refusal if is_refused else " · ".join(self._detail_words()),
            brief=("no token ids" if by_ids else "no tokens") if is_refused else "",
            is_wrong=is_wrong,
            problem=self._problem(),
            invitation=self._invitation(by_ids),
            has_seed=not self.sampling.is_greedy or is_random(self.edit.text()),  # else it draws nothing
            can_clear=self.edit.is_held,
            limit=self._limit or 0,
            can_send_first=bool(self._excess),
            can_draw_random=by_ids and model is not None and model.geometry.vocab_size is not None,
        )

    def show_state(self, state: Shown) -> None:
        self.set_detail(state.detail, state.brief)
        set_text_role(self._detail, "warning" if state.is_wrong else "muted")
        self.edit.setPlaceholderText(state.invitation)
        self._seed.setVisible(state.has_seed)
        self._clear.setVisible(state.can_clear)
        self._first.setText(f"Send the first {thousands(state.limit)}")
        self._first.setVisible(state.can_send_first)
        self._random.setText(f"Random tokens: {thousands(min(READY_IDS, state.limit))}")
        self._random.setVisible(state.can_draw_random)
        self._models.draft.update(state.problem)
