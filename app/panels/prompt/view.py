"""The prompt panel: a text, a conversation or token ids, the sampling, and the button that sends it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction, QResizeEvent, QTextCursor

from app.draw.format import thousands
from app.kit.asking import Question
from app.kit.reader import SELECTION, STATUS, SignalSource
from app.kit.theme import font_fixed, font_text
from app.kit.view import MARGIN, View
from app.kit.widgets import ActionButton, column, connect_all, plain_label, prose, push_button, row, set_text_role
from app.models import Models
from app.models.draft import is_random, random_prompt, token_ids
from app.models.sequence_status import reading, selected_info
from app.panels.prompt.chat import ChatEditor, PromptEdit, conversation_of
from app.panels.prompt.sampling import SamplingButton, SamplingOf, seed_field
from engine.counted import counted
from engine.errors import InputError
from engine.predict.capacity import most_tokens
from engine.spec.sampling import Chat, Prompt, SamplingParams
from engine.wire.commands import PreviewPrompt, Tokenize
from engine.wire.events import Failed, Previewed, Tokenized
from engine.wire.status import ModelInfo

TEXT, CHAT, IDS = "text", "chat", "ids"  # how a prompt is written
# Counting the tokens of a longer text while typing would keep the engine busy: only its beginning is counted.
MAX_COUNTED_CHARS = 100_000


class PromptText(Struct, frozen=True):
    """The editor's content in a `mode` and what is known of it: its token `ids` once they are counted, the `refusal` if
    there are none, and the `limit` of tokens for model and cache. `is_shortened`: only its beginning is shown."""

    content: str
    ids: tuple[int, ...] | None
    refusal: str
    limit: int | None
    mode: str
    is_shortened: bool = False

    @property
    def excess(self) -> int:
        """How many tokens are too many, as far as they are counted."""
        return 0 if self.ids is None or self.limit is None else max(0, len(self.ids) - self.limit)

    @property
    def count(self) -> str:
        """The number of tokens; with + if only the beginning of the text was counted."""
        more = "+" if len(self.content) > MAX_COUNTED_CHARS else ""
        return "" if self.ids is None else f"{thousands(len(self.ids))}{more}"

    @property
    def problem(self) -> str:
        """Why the prompt cannot be sent, and what to do; empty if it can."""
        if self.refusal or not self.content:
            return self.refusal or "type a prompt first"
        most = thousands(self.limit or 0)
        remedy = "take out turns at the beginning, or begin anew"
        if self.mode != CHAT:
            remedy = f"shorten it, or send the first {most}"
        too_many = f"{self.count} tokens are more than the {most} that there is room for: {remedy}"
        return too_many if self.excess else ""

    @property
    def detail(self) -> str:
        """The text after the title: how many tokens there are, and how many fit."""
        words = []
        if self.ids is not None and self.limit is not None:
            words.append(f"{self.count} of {counted(self.limit, 'token')}")
            if is_random(self.content):
                words.append("random")
        elif self.mode == IDS:
            words.append("token ids")
        if self.is_shortened:
            words.append(f"{thousands(len(self.content))} characters, shown in part, sent whole")
        return " · ".join(words)


class PromptState(Struct, frozen=True):
    """The texts around the editor and which offers to show. `problem` says why the prompt cannot be sent; `is_wrong`:
    it is shown in the title, and `warning` says it in a sentence; `is_excess`: there are too many tokens."""

    detail: str
    brief: str
    is_wrong: bool
    is_excess: bool
    problem: str
    warning: str
    invitation: str
    has_seed: bool
    can_clear: bool
    limit: int
    can_send_first: bool
    can_draw_random: bool


def prompt_state(text: PromptText, now: str, send_key: str, *, is_greedy: bool) -> PromptState:
    """Everything around the editor; `now` is the progress of a prompt that is being read, empty if there is none."""
    is_refused = bool(text.refusal and text.content.strip()) and not now  # nothing written yet is no error
    is_wrong = is_refused or (bool(text.excess) and not now)
    problem = text.problem
    brief = "" if now or text.ids is None or text.limit is None else f"{text.count}/{thousands(text.limit)}"
    what = "Token ids: 40977 33717 …\nor [40977, 33717]" if text.mode == IDS else "Type a beginning…"
    return PromptState(
        detail=text.refusal if is_refused else now or text.detail,
        brief={IDS: "no token ids", CHAT: "not yet"}.get(text.mode, "no tokens") if is_refused else brief,
        is_wrong=is_wrong,
        is_excess=bool(text.excess) and not text.refusal,
        problem=problem,
        warning=f"{problem[:1].upper()}{problem[1:].rstrip('.')}." if is_wrong and problem else "",
        invitation=f"{what}\n{send_key} sends it" if send_key else what,
        has_seed=not is_greedy or is_random(text.content),  # otherwise the seed has no effect
        can_clear=text.is_shortened,
        limit=text.limit or 0,
        can_send_first=bool(text.excess) and text.mode != CHAT,  # its newest turn would be cut off
        can_draw_random=text.mode == IDS,
    )


class Drafts:
    """The drafts of text and ids, which share one editor: the one not shown is kept."""

    def __init__(self, edit: PromptEdit) -> None:
        self._edit = edit
        self._kept = {TEXT: "", IDS: ""}
        self._shown = TEXT

    @property
    def text(self) -> str:
        return self._edit.text() if self._shown == TEXT else self._kept[TEXT]

    @text.setter
    def text(self, text: str) -> None:
        if self._shown == TEXT:
            self._edit.set_text(text)
        else:
            self._kept[TEXT] = text

    def show(self, mode: str, ids: tuple[int, ...] | None) -> None:
        """Show the draft of a mode. If no ids were written yet, they begin as `ids`, the tokens of the text (None:
        unknown), or the text itself if it is a list of ids."""
        if mode == self._shown:
            return
        text = self._kept[self._shown] = self._edit.text()
        if mode == IDS and not self._kept[IDS]:
            self._kept[IDS] = " ".join(map(str, ids)) if ids else _ids_in(text)
        self._shown = mode
        self._edit.set_text(self._kept[mode])


def _ids_in(text: str) -> str:
    """The text, if it is a list of token ids, else empty."""
    try:
        token_ids(text, None, seed=0)
    except InputError:
        return ""
    return text


# ---- the panel -------------------------------------------------------------------------------------------------------


class WrittenTokens:
    """`ids`, None if they are not known; `refusal` says why there are none."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._asked = ""  # the tokenizer and text of the latest question
        self._tokenizer = ""  # identity of the tokenizer that `ids` belong to
        self.ids: tuple[int, ...] | None = None
        self.refusal = ""

    def forget(self) -> None:
        """Clear ids and refusal, because the text has changed."""
        self.ids, self.refusal, self._asked = None, "", ""

    def read_ids(self, text: str, seed: int) -> None:
        """Parse a text of token ids."""
        model = self._models.status.now.model
        try:
            self.ids = token_ids(text, model.geometry.vocab_size, seed) if model is not None else None
        except InputError as error:
            self.refusal = str(error)

    def to_be_counted(self, text: str) -> str:
        """The text that the engine should be asked about; empty if it was asked already."""
        text = text[:MAX_COUNTED_CHARS]
        asked = f"{self._newest_tokenizer()}\n{text}"
        if asked == self._asked:
            return ""
        self._asked = asked
        return text

    def follow_model(self) -> bool:
        """Clear the ids if another model, and so another tokenizer, was loaded; returns whether it was."""
        tokenizer = self._newest_tokenizer()
        if tokenizer == self._tokenizer:
            return False
        self._tokenizer, self.ids = tokenizer, None
        return True

    def _newest_tokenizer(self) -> str:
        """The identity of the present tokenizer. It contains the source and whether it is of an opened file, which
        cannot be asked: the same weights may come with other templates in another folder, or in one that was edited."""
        status = self._models.status.now
        if status.model is None:
            return ""
        model = status.model
        where = " in a file" if status.opened is not None else ""
        return f"{model.fingerprint} {model.text_fingerprint} of {model.source}{where}"


READY_IDS = 4096
CHAT_HEIGHT = 440  # pixels of the panel for a conversation to be readable
RANDOM_TIP = "Token ids drawn at random by the seed: a prompt that means nothing"
FIRST_TIP = "The beginning of the text, as many tokens as there is room for"
ROOM_FOR_KEY = 324
CHEVRON = 42  # pixels of a button besides its text


class PromptPanel(View[PromptState]):
    """Signals: `submitted(content, sampling, alone, in_phases, after)`, a text, a tuple of token ids or a conversation,
    as `Intents.on_prompt_submitted` takes it; `sampling_changed(sampling)`; `room_wanted(pixels)`, the height needed
    (0: the usual).

    Writes `models.draft`: why the prompt cannot be sent.
    """

    name = "prompt"
    follows = (STATUS, SELECTION, SignalSource("timeline", ("reset",)))
    can_copy = False
    reads_while_hidden = True  # actions need to know whether the prompt can be sent
    choices = (
        (TEXT, "Text", "A text as it is, with the special tokens that begin one"),
        (CHAT, "Chat", "Turns with roles, rendered by a chat template"),
        (IDS, "Ids", "Token ids, taken as they are"),
    )

    submitted = Signal(object, object, bool, bool, object)
    room_wanted = Signal(int)
    sampling_changed = Signal(object)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.tokens = WrittenTokens(models)
        self._send_key = ""
        self.chat = ChatEditor(models)
        self.chat.hide()
        self.edit = PromptEdit()
        self._drafts = Drafts(self.edit)
        self._settled = ""  # the text that was sent or put in last
        self.edit.setAccessibleName("Prompt text")
        self.sampling_button = SamplingButton()
        self.seed = seed_field()
        self.send = ActionButton("Send")
        self._add = ActionButton("+")
        self._clear = push_button("Clear", self._on_clear, "Take the long text out", is_small=False)
        self.warning = plain_label(font=font_text(11.5), role="warning", wraps=True)
        self.warning.setAccessibleName("Why the prompt cannot be sent")
        self.warning.hide()
        self.random = push_button("", self._on_random, RANDOM_TIP)
        self.first = push_button("", self._on_first, FIRST_TIP)
        self._build()
        self._sampling_of = SamplingOf(models, self.sampling_button, self.seed, self)
        connect_all(
            (self.edit.edited, self._count),
            (self.edit.textChanged, self._on_typing),
            (self._sampling_of.wished, self._on_sampling),
            (self.chat.typed, self._on_typing),
            (self.chat.turns.send_wanted, self.send.click),
            (self.chat.preview_wanted, self._on_preview),
            (models.timeline.texts_due, self._on_texts),
        )
        self.follow(models)

    # ---- called by the window ------------------------------------------------------------------------------------

    def set_actions(self, send: QAction, key: str, add: QAction) -> None:
        """Set the actions of the buttons Send, which shows `key`, and Add."""
        self._send_key = key
        self.send.set_action(send)
        self._add.set_action(add)

    def take_tokens(self, answer: Tokenized | Previewed) -> None:
        """Set the tokens of the text, as counted by the engine, and show the rendering of a conversation."""
        if isinstance(answer, Previewed) and self._mode == CHAT:
            self.chat.show_preview(answer)
        self.tokens.ids = answer.token_ids
        self.tokens.refusal = self.chat.problem if self._mode == CHAT else ""  # one before was of another text
        self.refresh()

    @property
    def draft(self) -> str:
        """The text that is being written, whichever mode is shown."""
        return self._drafts.text

    @property
    def is_begun(self) -> bool:
        """Whether another text was begun since one was sent or put in."""
        return self.draft != self._settled

    def take_draft(self, text: str) -> None:
        """Restore a text."""
        self._drafts.text = self._settled = text

    def choose(self, choice: str) -> None:
        """Change the mode. What is written in each mode is kept; the tokens of a text are the first ids."""
        self.choice = choice
        self._bring_text()
        self._on_typing()
        super().choose(choice)
        self._show_mode()
        self._count()
        self.room_wanted.emit(CHAT_HEIGHT if choice == CHAT else 0)
        self.begin()

    def _bring_text(self) -> None:
        """Show the draft of the mode in the editor."""
        if self._mode != CHAT:
            self._drafts.show(self._mode, self.tokens.ids)

    def refuse(self, failure: Failed) -> None:
        """Note why the text has no tokens."""
        self.tokens.refusal = failure.message
        self.refresh()

    def begin(self) -> None:
        """Put the cursor into the editor, and select its text."""
        if self._mode == CHAT:
            self.chat.turns.focus_last()
            return
        self.edit.setFocus(Qt.FocusReason.OtherFocusReason)
        self.edit.selectAll()

    @property
    def sampling(self) -> SamplingParams:
        """The sampling of what is sent: only an answer has a limit of tokens."""
        return self._limited(self._sampling_of.params, is_answer=self._mode == CHAT)

    @staticmethod
    def _limited(sampling: SamplingParams, *, is_answer: bool) -> SamplingParams:
        return sampling if is_answer else replace(sampling, max_new_tokens=None)

    def ask_sampling(self, name: str) -> None:
        """Put the cursor into a field of the sampling; a seed has an effect, and so a field, only where tokens are
        drawn."""
        if name == "seed" and self.seed.isVisible():
            self.seed.setFocus()
            self.seed.selectAll()
        else:
            self.sampling_button.open_at("temperature" if name == "seed" else name)

    def set_sampling(self, name: str, value: float) -> None:
        """Set a number of the sampling, as if it were typed into its field."""
        if name == "seed":
            self.seed.setValue(int(value))
        else:
            self.sampling_button.set_value(name, value)

    def submit(self) -> None:
        """Start a new run, in place of all sequences; a conversation replaces only the sequence that it continues."""
        content = self._content()
        after = self.chat.after if isinstance(content, Chat) else None
        self.submitted.emit(content, self.sampling, after is None, False, after)

    def submit_beside(self) -> None:
        """Send the content as another sequence. Its prompt is read, and no other sequence is stepped."""
        self.submitted.emit(self._content(), self.sampling, False, False, None)

    def submit_in_phases(self) -> None:
        """Send the content, and stop at the first phase of its first step."""
        self.submitted.emit(self._content(), self.sampling, True, True, None)

    # ---- construction --------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self.edit.setFont(font_fixed(12.5))
        # The least width of a narrow column: longer texts are shortened before the column widens.
        self.sampling_button.setMinimumWidth(self.sampling_button.fontMetrics().horizontalAdvance("greedy") + CHEVRON)
        self.send.setMinimumWidth(56)
        self.send.setProperty("primary", True)
        self._add.setFixedWidth(28)
        self.send.setCursor(Qt.CursorShape.PointingHandCursor)
        self.random.hide()
        self.first.hide()
        offers = row(self.seed, self.random, self.first, None)
        send = row(self.sampling_button, self._clear, None, self._add, self.send)
        self.set_body(column((self.edit, 1), (self.chat, 1), self.warning, offers, send, spacing=8))
        self.setFocusProxy(self.edit)

    def _fit_warning(self) -> None:
        """Give the warning the height of all its lines: a dock knows nothing of heights that depend on a width."""
        self.warning.setMinimumHeight(max(0, self.warning.heightForWidth(max(1, self.width() - 2 * MARGIN))))

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._fit_warning()
        has_room = self.width() >= ROOM_FOR_KEY and self._send_key
        self.send.setText(f"Send {self._send_key}" if has_room else "Send")
        self._add.setText("+ Add" if has_room else "+")
        self._add.setFixedWidth(self._add.sizeHint().width() if has_room else 28)

    # ---- events --------------------------------------------------------------------------------------------------

    def _on_typing(self) -> None:
        """Parse ids at once; a text is counted after a pause, and counts as valid until then."""
        self.tokens.forget()
        if self._mode == CHAT:
            self.tokens.refusal = self.chat.problem
        elif self._by_ids:
            self.tokens.read_ids(self.edit.text(), self.seed.value())
        self.refresh()

    def _on_sampling(self, sampling: SamplingParams) -> None:
        if self._mode != CHAT and is_random(self.edit.text()):
            self._on_typing()  # another seed gives other random tokens
        self.refresh()
        info = selected_info(self._models)
        is_answer = info is not None and conversation_of(self._models, info.seq_id) is not None
        self.sampling_changed.emit(self._limited(sampling, is_answer=is_answer))

    def _show_mode(self) -> None:
        """Show the editor of the mode, and the modes that this model has."""
        self._bring_text()
        model, mode = self._model, self._mode
        is_bare = model is not None and not model.has_tokenizer
        self.set_choices(self.choices[-1:] if is_bare else self.choices)
        self.segments.set_choice(mode)
        self.edit.setVisible(mode != CHAT)
        self.chat.setVisible(mode == CHAT)
        self.setFocusProxy(self.chat if mode == CHAT else self.edit)

    def _on_clear(self) -> None:
        self.edit.set_text("")

    def _on_random(self) -> None:
        limit = self._limit
        self.edit.set_text(random_prompt(READY_IDS if limit is None else min(READY_IDS, limit)))
        self.edit.setFocus(Qt.FocusReason.OtherFocusReason)
        self.edit.moveCursor(QTextCursor.MoveOperation.End)

    def _on_first(self) -> None:
        if self.tokens.ids is not None and self._limit is not None:
            self.submitted.emit(self.tokens.ids[: self._limit], self.sampling, True, False, None)

    def _count(self) -> None:
        """Ask for the tokens of the text, once per text and model."""
        if self._model is None:
            return
        if self._mode == CHAT:
            self.chat.ask()
        elif (text := self.tokens.to_be_counted(self.edit.text())) and not self._by_ids:
            self._ask(Tokenize(text))

    def _on_preview(self, chat: Chat, after: int | None) -> None:
        self._ask(PreviewPrompt(Prompt(chat=chat), after))

    def _ask(self, command: Tokenize | PreviewPrompt) -> None:
        self.wants.emit(Question(command, self.take_tokens, self.refuse, slot=self))

    # ---- state ---------------------------------------------------------------------------------------------------

    @property
    def _model(self) -> ModelInfo | None:
        return self._models.status.now.model

    @property
    def _mode(self) -> str:
        """The mode in use: a model without a tokenizer has only IDS."""
        is_bare = self._model is not None and not self._model.has_tokenizer
        return IDS if is_bare else self.choice

    @property
    def _by_ids(self) -> bool:
        return self._mode == IDS

    @property
    def _limit(self) -> int | None:
        """The greatest number of tokens for this model and cache; None without a model."""
        return None if self._model is None else most_tokens(self._models.status.now.cache, self._model.geometry)

    def _content(self) -> str | tuple[int, ...] | Chat:
        if self._mode == CHAT:
            return self.chat.chat
        self._settled = self.draft
        if is_random(self.edit.text()):
            self._on_typing()  # the seed field may show another sequence's seed by now
        return self.tokens.ids or () if self._by_ids else self.edit.text()

    def _on_texts(self) -> None:
        """A prompt is being read, or an answer written: other steps change nothing here."""
        if self._models.status.now.running or self._mode == CHAT:
            self._ask_refresh()

    def refresh(self) -> None:
        if self._mode == CHAT:
            self.chat.show_limit(self._sampling_of.params.max_new_tokens)
            self.chat.follow_selection()
        if self.tokens.follow_model():
            self._show_mode()
            self._on_typing()
            self._count()
        self._sampling_of.show_reported()
        super().refresh()

    def read(self) -> PromptState:
        model, mode = self._model, self._mode
        written = CHAT if self.chat.is_begun else ""
        content, is_shortened = (written, False) if mode == CHAT else (self.edit.text(), self.edit.is_shortened)
        refusal = "" if self._models.status.has_file else self.tokens.refusal  # tokens are not counted for a file
        text = PromptText(content, self.tokens.ids, refusal, self._limit, mode, is_shortened)
        shown = prompt_state(text, reading(self._models), self._send_key, is_greedy=self.sampling.is_greedy)
        if model is None:  # the actions themselves say that there is no model
            return replace(shown, problem="", warning="", can_draw_random=False)
        return replace(shown, can_draw_random=shown.can_draw_random and model.geometry.vocab_size is not None)

    def show_state(self, state: PromptState) -> None:
        self.set_detail(state.detail, state.brief)
        set_text_role(self.detail, "warning" if state.is_wrong else "muted")
        self.edit.setPlaceholderText(state.invitation)
        self.seed.setVisible(state.has_seed)
        self._clear.setVisible(state.can_clear)
        self.first.setText(f"Send the first {thousands(state.limit)}")
        self.first.setVisible(state.can_send_first)
        self.random.setText(f"Random tokens: {thousands(min(READY_IDS, state.limit))}")
        self.random.setVisible(state.can_draw_random)
        # the conversation says that itself
        is_said = self._mode == CHAT and (state.is_excess or state.problem == self.chat.problem)
        was_warned = bool(self.warning.text())
        self.warning.setText("" if is_said else prose(state.warning))
        self.warning.setVisible(bool(self.warning.text()))
        if was_warned and self.warning.isHidden() and self._mode != CHAT:
            self.room_wanted.emit(0)  # a dock keeps the height that it was made taller by
        self._fit_warning()
        self._models.draft.update(state.problem, state.warning)
        self.chat.show_excess(state.problem if state.is_excess else "")
