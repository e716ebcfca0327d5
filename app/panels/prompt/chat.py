"""The editor of a conversation: its turns, the template that renders them, and the rendered text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QWidget

from app.kit.boxes import column, row
from app.kit.buttons import push_button
from app.kit.changes import connect_all
from app.kit.labels import plain_label, plain_tip, prose, set_text_role
from app.kit.page_words import quoted_whole
from app.kit.theme import font_text
from app.models import Models
from app.models.sequence_status import selected_info
from app.panels.prompt.rendered import RenderedText
from app.panels.prompt.template_choice import TemplateChoice
from app.panels.prompt.turns import TurnList
from engine.errors import InputError
from engine.spec.chat import Chat, Turn
from engine.wire.changes import Change, PromptAppended, SequenceAdded, SequenceForked
from engine.wire.events import Previewed
from engine.wire.prefix_match import ContinuedFrom
from engine.wire.status import SequenceInfo

EMPTY = (Turn("user", ""),)
LEAST_TURNS, LEAST_RENDERED, SPACING = 64, 38, 5  # pixels
MOST_LINES = 5  # of the text about reuse
ANSWER_TIP = (
    "Take what was generated so far as the assistant's turn, and write the next one. F5 generates more; an answer that "
    "has ended is taken by itself"
)
NEW_TIP = "Begin another conversation"


class ChatEditor(QWidget):
    """Signals: `typed()` at once, `edited()` after a pause, `send_wanted()`, `preview_wanted(chat, sequence or None)`.

    If the selected sequence was rendered from a conversation, the editor shows its turns, unless the user is writing
    another one; the next turn then goes `after` that sequence. When the sequence's answer has ended, it becomes the
    assistant's turn.
    """

    typed = Signal()
    edited = Signal()
    send_wanted = Signal()
    preview_wanted = Signal(object, object)

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._models = models
        self._of: int | None = None  # the sequence that these turns belong to
        self._taken: tuple[Turn, ...] = EMPTY  # the turns as they were sent, or first shown
        self._seen: tuple[object, ...] = ()  # (sequence, history shape) for which the conversation was looked up
        self._wants_answer = False
        self._answered: tuple[int, int] | None = None  # (sequence, number of tokens) whose answer was asked for
        self.turns = TurnList()
        self.turns.set_turns(EMPTY)
        self.template = TemplateChoice()
        self.rendered = RenderedText()
        self.words = plain_label(font=font_text(11.5), wraps=True)
        self._problem = ""
        self._add = push_button("+ Turn", self._on_add, "Another turn at the end")
        self._system = push_button("+ System", self._on_system, "What the system says, before all others")
        self._answer = push_button("Take answer", self._on_answer, ANSWER_TIP)
        self._new = push_button("New", self._on_new, NEW_TIP)
        self._build()
        connect_all(
            (self.turns.typed, self._on_typed),
            (self.turns.edited, self._on_edited),
            (self.turns.send_wanted, self.send_wanted),
            (self.template.changed, self._on_edited),
            (self.template.refused, self._on_refused),
        )

    def _build(self) -> None:
        self.words.hide()
        self.turns.setMinimumHeight(LEAST_TURNS)
        self.words.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.rendered.setMinimumHeight(LEAST_RENDERED)
        buttons = row(self._add, self._system, self._answer, self._new, None, spacing=4)
        rendering = row(plain_label("Chat template"), (self.template, 9), None, spacing=6)
        column((self.turns, 3), buttons, rendering, (self.rendered, 2), self.words, spacing=SPACING, on=self)
        self._fit_words()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_words()

    def _fit_words(self) -> None:
        """Limit the height of the text so that turns and rendered text keep theirs; the tool tip has the whole text."""
        rows = self._add.sizeHint().height() + self.template.sizeHint().height()
        others = LEAST_TURNS + LEAST_RENDERED + rows + 4 * SPACING
        pitch = self.words.fontMetrics().lineSpacing()
        lines = (self.height() - others) // pitch
        self.words.setMaximumHeight(max(1, min(MOST_LINES, lines)) * pitch + 2)

    # ---- what is written -----------------------------------------------------------------------------------------

    @property
    def chat(self) -> Chat:
        """The conversation. Raises `InputError` if it is not valid."""
        name, text = self.template.template
        return Chat(self.turns.turns, name, text)

    @property
    def draft(self) -> Chat | None:
        """The conversation that is being written and was not sent; None if there is none."""
        turns = self.turns.turns
        name, text = self.template.template
        return None if turns in (EMPTY, self._taken) or not turns else Chat(turns, name, text)

    def take_draft(self, chat: Chat) -> None:
        """Show a conversation that was recovered."""
        self.turns.set_turns(chat.turns)
        self.template.take(chat.template, chat.template_text)
        self._on_typed()
        self.ask()

    def clear(self) -> None:
        """Begin another conversation."""
        self._of, self._taken = None, EMPTY
        self.turns.set_turns(EMPTY)
        self._on_typed()
        self.ask()

    @property
    def after(self) -> int | None:
        """The sequence that the next turn continues; None: a new one begins."""
        info = selected_info(self._models)
        return self._of if info is not None and info.seq_id == self._of else None

    @property
    def is_begun(self) -> bool:
        """Whether the last turn has text."""
        turns = self.turns.turns
        return bool(turns and turns[-1].text)

    @property
    def problem(self) -> str:
        """Why the conversation cannot be sent; empty if it can."""
        turns = self.turns.turns
        if not turns:
            return "add a turn first"
        if not turns[-1].text:
            return f"type what the {turns[-1].role} says first"
        return self._problem

    def focus_last(self) -> None:
        self.turns.focus_last()

    def ask(self) -> None:
        """Ask for tokens and rendered text. Not while the panel shows another mode, because the answer would replace
        the count of that mode's text."""
        if self._models.status.model is None or self.isHidden():
            return
        try:
            chat = self.chat
        except InputError as error:
            self._on_refused(str(error))
        else:
            is_sent = chat.turns == self._taken and not self._wants_answer  # its rows are cached: no reuse to show
            self.preview_wanted.emit(chat, None if is_sent else self.after)

    # ---- the sequence that the turns belong to -------------------------------------------------------------------

    def follow_selection(self) -> None:
        """Follow the selected sequence, and take its answer when that has ended."""
        model, info = self._models.status.model, selected_info(self._models)
        self.template.show_names(model.templates if model is not None else ())
        seen = (None if info is None else info.seq_id, self._models.history.shape)
        if seen != self._seen:
            self._seen = seen
            self._belong_to(info)
        turns = self.turns.turns
        is_mine = info is not None and self._of == info.seq_id and turns == self._taken
        if info is None or not is_mine or not turns or turns[-1].role != "user" or not has_answer(info):
            self._answer.hide()
            return
        self._answer.show()
        if info.stop is not None and self._answered != (info.seq_id, info.num_tokens):
            self._on_answer()

    def _belong_to(self, info: SequenceInfo | None) -> None:
        chat = None if info is None else conversation_of(self._models, info.seq_id)
        mine = self.turns.turns
        is_other = chat is not None and mine != self._taken and mine[:1] != chat.turns[:1]  # being written
        had, self._of = self._of, None if info is None or chat is None or is_other else info.seq_id
        if chat is None or self._of is None:
            if had is not None:  # what was shown about its rows is no longer true
                self._say("", is_wrong=False)
                self.ask()
            return
        if mine == self._taken or mine == chat.turns:
            self.turns.set_turns(chat.turns)
            self.template.take(chat.template, chat.template_text)
            self.ask()
        self._taken = chat.turns

    # ---- answers of the engine -----------------------------------------------------------------------------------

    def show_preview(self, told: Previewed) -> None:
        """Show the tokens of the conversation; if an answer was waited for, add it as the next turn."""
        if self._wants_answer and told.reuse is not None:
            self._wants_answer = False
            self._taken = ()  # what follows was not sent yet
            self.turns.set_turns((*self.turns.turns, Turn("assistant", told.answer), Turn("user", "")))
            if self.isVisible() and self.isActiveWindow():
                self.turns.focus_last()
            self._on_typed()
            self.ask()
            return
        model, reuse = self._models.status.model, told.reuse
        special = frozenset(model.special_ids) if model is not None else frozenset()
        differs = -1 if reuse is None or reuse.position is None else reuse.position
        kept = 0 if reuse is None else reuse.num_reused
        self.rendered.show_tokens(told.token_ids, told.texts, special, kept, differs)
        info = selected_info(self._models)
        if reuse is None and info is not None and info.seq_id == self._of:
            reuse = info.why_not_reused if isinstance(info.why_not_reused, ContinuedFrom) else None
        self._say(told.note or ("" if reuse is None else reuse.words(quoted_whole)), is_wrong=bool(told.note))

    def _say(self, words: str, *, is_wrong: bool) -> None:
        shown = prose(words)
        self.words.setText(shown)
        self.words.setToolTip(plain_tip(shown))
        self.words.setVisible(bool(words))
        set_text_role(self.words, "warning" if is_wrong else "muted")

    # ---- events --------------------------------------------------------------------------------------------------

    def _on_typed(self) -> None:
        self._problem = ""
        self._system.setVisible(self.turns.turns[:1] == () or self.turns.turns[0].role != "system")
        self.typed.emit()

    def _on_edited(self) -> None:
        self.ask()
        self.edited.emit()

    def _on_refused(self, why: str) -> None:
        self._problem = why
        self._say(why, is_wrong=True)
        self.typed.emit()

    def _on_add(self) -> None:
        turns = self.turns.turns
        self.turns.add(Turn("assistant" if turns and turns[-1].role == "user" else "user", ""))

    def _on_system(self) -> None:
        self.turns.begin_with(Turn("system", ""))

    def _on_answer(self) -> None:
        info = selected_info(self._models)
        if info is not None:
            self._answered, self._wants_answer = (info.seq_id, info.num_tokens), True
            self.ask()

    def _on_new(self) -> None:
        self.clear()
        self.focus_last()


def has_answer(info: SequenceInfo) -> bool:
    """Whether the sequence has generated a token."""
    return info.num_tokens >= info.num_prompt_tokens and info.sampled is not None


def conversation_of(models: Models, seq_id: int) -> Chat | None:
    """The conversation of a sequence on the live path, or of the sequence that it was forked from; None if its prompt
    was no conversation. O(nodes of the path)."""
    for change in _newest_first(models):
        match change:
            case SequenceAdded(of, _, _, chat) | PromptAppended(of, _, _, chat) if of == seq_id:
                return chat
            case SequenceForked(of, parent) if of == seq_id:
                seq_id = parent
    return None


def _newest_first(models: Models) -> Iterator[Change]:
    status, history = models.status.now, models.history
    yield from reversed(status.pending if status is not None else ())
    path: Iterable[int] = history.path(history.live) if history.live is not None else ()
    for node in reversed([*path]):
        yield from reversed(history.changes(node))
