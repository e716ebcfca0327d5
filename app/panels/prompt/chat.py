"""The editor of a conversation: its turns, the template that renders them, and the rendered text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from PySide6.QtCore import QMimeData, QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QResizeEvent, QTextCharFormat, QTextCursor, QTextOption
from PySide6.QtWidgets import (
    QCheckBox,
    QFileDialog,
    QFrame,
    QPlainTextEdit,
    QPushButton,
    QScrollArea,
    QTextEdit,
    QWidget,
)

from app.draw.format import shortened, thousands, visible
from app.kit.fields import SmallBox
from app.kit.theme import Themed, current_theme, font_fixed, font_text
from app.kit.widgets import (
    column,
    connect_all,
    plain_label,
    plain_tip,
    prose,
    push_button,
    row,
    scrolled,
    set_text_role,
)
from app.kit.words import quoted_whole
from app.models import Models
from app.models.sequence_status import selected_info
from engine.counted import counted
from engine.errors import InputError
from engine.files.text import read_text
from engine.spec.sampling import MAX_TEMPLATE_CHARS, PLAIN_NAME, PLAIN_TEMPLATE, ROLES, Chat, Turn
from engine.wire.events import Previewed
from engine.wire.pages import ContinuedFrom
from engine.wire.records import Change, PromptAppended, SequenceAdded, SequenceForked, StopReason, has_chosen
from engine.wire.status import SequenceInfo

# Laying out a longer text takes longer than the time between two keys.
MAX_SHOWN_CHARS = 60_000
PREVIEW_CHARS = 1_500
TYPING_PAUSE_MS = 180


class PromptEdit(QPlainTextEdit):
    """Signal: `edited()`, after a pause in typing. A text too long to edit is kept whole, and its beginning shown
    read-only."""

    edited = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._held: str | None = None
        self._pause = QTimer(self, singleShot=True, interval=TYPING_PAUSE_MS)
        self._pause.timeout.connect(self.edited)
        self.setTabChangesFocus(True)
        self.textChanged.connect(self._pause.start)

    @property
    def is_shortened(self) -> bool:
        """Whether a long text is kept whole and only its beginning is shown."""
        return self._held is not None

    def text(self) -> str:
        """The whole text, even if only its beginning is shown."""
        return self.toPlainText() if self._held is None else self._held

    def set_text(self, text: str) -> None:
        """Replace the text."""
        self._held = text if len(text) > MAX_SHOWN_CHARS else None
        self.setReadOnly(self.is_shortened)
        self.setPlainText(text[:PREVIEW_CHARS] + " …" if self.is_shortened else text)
        self.moveCursor(QTextCursor.MoveOperation.End)

    def insertFromMimeData(self, source: QMimeData) -> None:
        pasted = source.text()
        if len(pasted) + self.document().characterCount() <= MAX_SHOWN_CHARS:
            self.insertPlainText(pasted)
            return
        cursor = self.textCursor()
        before = self.toPlainText()
        start, end = sorted((cursor.selectionStart(), cursor.selectionEnd()))
        self.set_text(before[:start] + pasted + before[end:])

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        return source.hasText() and not source.hasUrls()


# ---- turns -----------------------------------------------------------------------------------------------------------


MAX_LINES = 60  # of a turn that are visible at once
FRAME = 18  # pixels around the lines
ROLE_TIP = "Who says this: the template writes each role in its own way"


class TurnEdit(PromptEdit):
    """An editor as high as its lines, up to MAX_LINES. Signal: `send_wanted()`, Enter was pressed (Shift+Enter makes a
    new line)."""

    send_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setFont(font_text(12.5))
        self.textChanged.connect(self.fit)
        self.fit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier == Qt.KeyboardModifier.NoModifier:
            self.send_wanted.emit()
            return
        super().keyPressEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit()

    def fit(self) -> None:
        """Become as high as the lines of the text."""
        lines = min(max(1, round(self.document().size().height())), MAX_LINES)
        height = lines * self.fontMetrics().lineSpacing() + FRAME
        is_long = self.document().size().height() > MAX_LINES
        shown = Qt.ScrollBarPolicy.ScrollBarAsNeeded if is_long else Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        self.setVerticalScrollBarPolicy(shown)
        if height != self.height():
            self.setFixedHeight(height)


class TurnRow(QWidget):
    """One turn of a list, which emits for it: `typed` at once; `edited` after a pause or for another role."""

    def __init__(self, turn: Turn, turns: TurnList) -> None:
        super().__init__()
        self._turns = turns
        known = ROLES if turn.role in ROLES else (*ROLES, turn.role)
        self.role = SmallBox("Role", ROLE_TIP, [(role, role, f"The {role} says this") for role in known], height=18)
        self.role.choose(turn.role)
        self.edit = TurnEdit()
        self.edit.set_text(turn.text)
        self.remove = push_button("×", self._on_remove, "Take this turn out")
        self.remove.setFixedWidth(20)
        self.remove.setAccessibleName("Remove this turn")
        self.note = plain_label(role="muted", font=font_text(11), wraps=True)
        self.note.hide()
        column(row(self.role, None, self.remove), self.edit, self.note, spacing=1, on=self)
        connect_all(
            (self.edit.textChanged, turns.typed),
            (self.edit.edited, turns.edited),
            (self.edit.send_wanted, turns.send_wanted),
            (self.role.currentIndexChanged, self._on_role),
        )
        self._name()

    @property
    def turn(self) -> Turn:
        return Turn(str(self.role.currentData()), self.edit.text())

    def show_text(self, text: str) -> None:
        """Replace the text without emitting anything."""
        with QSignalBlocker(self.edit):
            self.edit.set_text(text)
        self.edit.fit()

    def show_note(self, words: str) -> None:
        """Say below the text what is known of the turn: how much of the cache was reused, or how it ended."""
        if words != self.note.text():
            self.note.setText(words)
            self.note.setVisible(bool(words))

    def _name(self) -> None:
        self.edit.setAccessibleName(f"What the {self.role.currentData()} says")
        is_user = self.role.currentData() == "user"
        self.edit.setPlaceholderText("Enter sends it" if is_user else "")

    def _on_role(self, _index: int) -> None:
        self._name()
        self._turns.tell()

    def _on_remove(self) -> None:
        self._turns.remove(self)


class AnswerRow(QWidget):
    """The assistant's turn while it is generated: its text so far, what is going on, and the button `take`."""

    def __init__(self, take: QPushButton) -> None:
        super().__init__()
        self.edit = TurnEdit()
        self.edit.setReadOnly(True)
        self.edit.setAccessibleName("What the assistant says")
        self.note = plain_label(role="muted", font=font_text(11), wraps=True)
        head = row(plain_label("assistant", role="muted", font=font_text(11.5)), None, take)
        column(head, self.edit, self.note, spacing=1, on=self)
        self.hide()

    def show_answer(self, text: str, note: str) -> None:
        """Show the text so far; a longer one goes on where the cursor of a reader is not disturbed."""
        shown = self.edit.toPlainText()
        if text.startswith(shown):
            cursor = QTextCursor(self.edit.document())
            cursor.movePosition(QTextCursor.MoveOperation.End)
            cursor.insertText(text[len(shown) :])
        else:
            self.edit.setPlainText(text)
        self.note.setText(note)
        self.show()


class TurnList(QScrollArea):
    """All turns, one below the other, between the widgets `above` and `below`. Signals: `typed()` at once, `edited()`
    after a pause, `send_wanted()`."""

    typed = Signal()
    edited = Signal()
    send_wanted = Signal()

    def __init__(self, above: QWidget | None = None, below: QWidget | None = None) -> None:
        super().__init__()
        self._rows: list[TurnRow] = []
        self._shows_end = True  # whether to stay scrolled to the end when turns are added
        self._inner = QWidget()
        around = [part for part in (above, below) if part is not None]
        self._column = column(*around, None, spacing=4, on=self._inner)
        self._num_above = int(above is not None)
        scrolled(self._inner, self)
        self.setAccessibleName("Turns")
        self.verticalScrollBar().rangeChanged.connect(self._on_range)
        self.verticalScrollBar().actionTriggered.connect(self._on_scrolled)

    @property
    def rows(self) -> tuple[TurnRow, ...]:
        return tuple(self._rows)

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(row.turn for row in self._rows)

    def set_turns(self, turns: tuple[Turn, ...]) -> None:
        """Replace all turns without emitting anything; unchanged ones keep their rows."""
        same = next((n for n, (row, turn) in enumerate(zip(self._rows, turns, strict=False)) if row.turn != turn), None)
        keep = min(len(self._rows), len(turns)) if same is None else same
        for row_ in self._rows[keep:]:
            self._drop(row_)
        for turn in turns[keep:]:
            self._add(turn)
        self._shows_end = True

    def begin_with(self, turn: Turn) -> None:
        """Add a turn before all others, and put the cursor into it."""
        self.set_turns((turn, *self.turns))
        self._shows_end = False
        self.verticalScrollBar().setValue(0)
        self._rows[0].edit.setFocus(Qt.FocusReason.OtherFocusReason)
        self.typed.emit()

    def add(self, turn: Turn) -> None:
        """Add a turn at the end, and put the cursor into it."""
        self._add(turn)
        self._shows_end = True
        self.tell()
        self.focus_last()

    def focus_last(self) -> None:
        """Put the cursor into the last turn, and scroll to it."""
        if self._rows:
            self._rows[-1].edit.setFocus(Qt.FocusReason.OtherFocusReason)
            self.ensureWidgetVisible(self._rows[-1])

    def _add(self, turn: Turn) -> None:
        made = TurnRow(turn, self)
        self._column.insertWidget(self._num_above + len(self._rows), made)
        self._rows.append(made)

    def _drop(self, row_: TurnRow) -> None:
        self._rows.remove(row_)
        self._column.removeWidget(row_)
        row_.hide()
        row_.deleteLater()

    def _on_scrolled(self, _action: int) -> None:
        """Stay at the end only if that is where the user has scrolled to."""
        bar = self.verticalScrollBar()
        self._shows_end = bar.sliderPosition() >= bar.maximum()

    def _on_range(self, _least: int, most: int) -> None:
        if self._shows_end:
            self.verticalScrollBar().setValue(most)

    def remove(self, row_: TurnRow) -> None:
        """Take a turn out."""
        self._drop(row_)
        self.tell()

    def tell(self) -> None:
        """Emit that a turn is another one, or gone."""
        self.typed.emit()
        self.edited.emit()


# ---- the conversation ------------------------------------------------------------------------------------------------


MAX_SHOWN = 2_000  # tokens: if there are more, only the beginning and the end are shown
LINE_END = "⏎"


class RenderedPiece(Struct, frozen=True):
    """The place of a token in the text shown; `index` is its index among the tokens."""

    start: int
    stop: int
    index: int
    is_special: bool


def pieces_of(
    token_ids: Sequence[int], texts: Sequence[str], special: Collection[int]
) -> tuple[str, tuple[RenderedPiece, ...]]:
    """The text to show for tokens, with invisible characters escaped, and the place of each token in it. A line end is
    shown as a sign and breaks the line."""
    shown, made, length = [], [], 0
    count = len(token_ids)
    head = range(count) if count <= MAX_SHOWN else [*range(MAX_SHOWN // 2), *range(count - MAX_SHOWN // 2, count)]
    last = -1
    for index in head:
        if index != last + 1:
            gap = f" … {index - last - 1:,} tokens … "
            shown.append(gap)
            length += len(gap)
        text = "".join(LINE_END + "\n" if part == "\n" else visible(part) for part in _lines(texts[index]))
        shown.append(text)
        made.append(RenderedPiece(length, length + len(text), index, token_ids[index] in special))
        length += len(text)
        last = index
    return "".join(shown), tuple(made)


def _lines(text: str) -> list[str]:
    """The text split at line ends, which are parts of their own."""
    parts: list[str] = []
    for number, part in enumerate(text.split("\n")):
        parts += ["\n"] * bool(number) + [part] * bool(part)
    return parts


class RenderedText(Themed, QPlainTextEdit):
    """A read-only text. Special tokens are highlighted, tokens whose rows are reused are dimmed, and the first token
    that differs from the cache is underlined."""

    def __init__(self) -> None:
        super().__init__()
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setFont(font_fixed(11.5))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setTabChangesFocus(True)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAnywhere)  # spaces are dots: between them nothing is a word
        self.setAccessibleName("The conversation as the template renders it")
        self.pieces: tuple[RenderedPiece, ...] = ()
        self._num_kept, self._differs = 0, -1

    def show_tokens(
        self, token_ids: Sequence[int], texts: Sequence[str], special: Collection[int], num_kept: int, differs: int
    ) -> None:
        """Show tokens: the rows of the first `num_kept` are reused, and token `differs` (-1: none) is not the cached
        one."""
        text, self.pieces = pieces_of(token_ids, texts, special)
        self._num_kept, self._differs = num_kept, differs
        if text != self.toPlainText():
            self.setPlainText(text)
            self.moveCursor(QTextCursor.MoveOperation.End)
        self._mark()

    def take_theme(self) -> None:
        self._mark()

    def _mark(self) -> None:
        found = []
        kept = [piece for piece in self.pieces if piece.index < self._num_kept]
        if kept:
            found.append(self._selection(kept[0].start, kept[-1].stop, "muted"))
        for piece in self.pieces:
            if piece.is_special:
                found.append(self._selection(piece.start, piece.stop, "accent", is_chip=True))
            if piece.index == self._differs:
                found.append(self._selection(piece.start, piece.stop, "warning", is_underlined=True))
        self.setExtraSelections(found)

    def _selection(
        self, start: int, stop: int, role: str, *, is_chip: bool = False, is_underlined: bool = False
    ) -> QTextEdit.ExtraSelection:
        made = QTextEdit.ExtraSelection()
        style, cursor = QTextCharFormat(), QTextCursor(self.document())
        style.setForeground(current_theme().color(role))
        if is_chip:
            style.setBackground(current_theme().color("hairline"))
        if is_underlined:
            style.setUnderlineStyle(QTextCharFormat.UnderlineStyle.SingleUnderline)
            style.setUnderlineColor(current_theme().color(role))
        cursor.setPosition(start)
        cursor.setPosition(stop, QTextCursor.MoveMode.KeepAnchor)
        made.format, made.cursor = style, cursor
        return made


FILE = "file…"
NONE = "none of its own"
Template = tuple[str, str]  # (name, text); the text is empty for the model's own


class TemplateChoice(SmallBox):
    """Signals: `changed()` when the user chooses another one; `refused(why)` for a file that cannot be read."""

    changed = Signal()
    refused = Signal(str)

    def __init__(self) -> None:
        super().__init__("Chat template", "What writes the turns as one text, with special tokens")
        self.names: tuple[str, ...] | None = None
        self._own: Template | None = None  # read from a file
        self.template: Template = ("", "")
        self.activated.connect(self._on_activated)

    def show_names(self, names: tuple[str, ...]) -> None:
        """Offer a model's templates; a chosen one that it does not have is dropped."""
        if names != self.names:
            self.names = names
            if not self.template[1] and self.template[0] not in names:
                self.template = ("", "")
            self._fill()

    def show_template(self, name: str, text: str) -> None:
        """Show the template that a conversation was rendered with, without emitting `changed`."""
        if text and name != PLAIN_NAME:
            self._own = (name, text)
        known = bool(text) or name in (self.names or ())
        self.template = (name, text) if known else ("", "")
        self._fill()

    def _fill(self) -> None:
        self.blockSignals(True)
        self.clear()
        names = self.names or ()
        if not names:
            self.addItem(NONE, ("", ""))
        for number, name in enumerate(names):
            self.addItem(shortened(visible(name), 30), ("" if not number else name, ""))
        self.addItem(PLAIN_NAME, (PLAIN_NAME, PLAIN_TEMPLATE))
        if self._own is not None:
            self.addItem(shortened(visible(self._own[0]), 30), self._own)
        self.addItem(FILE, None)
        self._show_taken()
        self.let_shrink(7)
        self.blockSignals(False)

    def _show_taken(self) -> None:
        found = (n for n in range(self.count()) if tuple(self.itemData(n) or ()) == self.template)
        self.setCurrentIndex(next(found, 0))

    def _on_activated(self, index: int) -> None:
        template = self.itemData(index)
        if template is None:
            path, _ = QFileDialog.getOpenFileName(self, "Chat template", "", "Jinja templates (*.jinja *.j2);;All (*)")
            if not path:
                self._show_taken()
                return
            try:
                text = read_text(Path(path), 4 * MAX_TEMPLATE_CHARS, "chat template")
            except InputError as error:
                self._show_taken()
                self.refused.emit(str(error))
                return
            template = self._own = (Path(path).name, text)
        self.template = tuple(template)
        self._fill()
        self.changed.emit()


EMPTY = (Turn("user", ""),)
LEAST_TURNS, LEAST_RENDERED, SPACING = 48, 38, 5  # pixels; a conversation needs no more than a text
ENDINGS: dict[StopReason, str] = {  # of an answer that did not end by itself
    "length": "ended at the longest answer",
    "context full": "ended where the context is full",
    "cache full": "ended where the cache is full",
    "stopped": "stopped",
}
ANSWER_TIP = (
    "Take what was generated so far as the assistant's turn, and write the next one. F5 generates more; an answer that "
    "has ended, or that Esc has stopped, is taken by itself"
)
NEW_TIP = "Begin another conversation"


class TakenAnswer(NamedTuple):
    """An answer that became a turn, and how many tokens its sequence had then."""

    seq_id: int
    num_tokens: int
    turn: int
    text: str


class ChatEditor(QWidget):
    """Signals: `typed()` at once, `edited()` after a pause, `preview_wanted(chat, sequence or None)`.

    If the selected sequence was rendered from a conversation, the editor shows its turns, unless the user is writing
    another one; the next turn then goes `after` that sequence. When the sequence's answer has ended or was stopped, it
    becomes the assistant's turn, which grows if the sequence is run on.
    """

    typed = Signal()
    edited = Signal()
    preview_wanted = Signal(object, object)

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._models = models
        self._of: int | None = None  # the sequence that these turns belong to
        self._taken: tuple[Turn, ...] = EMPTY  # the turns as they were sent, or first shown
        self._seen: tuple[object, ...] = ()  # (sequence, history shape) for which the conversation was looked up
        self._wants_answer = self._is_stopped = False
        self._answered: tuple[int, int] | None = None  # (sequence, number of tokens) whose answer was asked for
        self._newest: TakenAnswer | None = None
        self._noted: tuple[object, ...] = ()  # what the notes of the turns were looked up for
        self._endings: dict[int, str] = {}  # how answers ended, by the number of their turn
        self._limit: int | None = None  # tokens of an answer
        self._take = push_button("Take answer", self._on_answer, ANSWER_TIP)
        self.answer = AnswerRow(self._take)
        self.template = TemplateChoice()
        self.about = plain_label(role="muted", font=font_text(11.5), wraps=True)
        self.words = plain_label(font=font_text(11.5), wraps=True)
        self.warning = plain_label(font=font_text(11.5), role="warning", wraps=True)
        self.shows_rendered = QCheckBox("Rendered")
        self.turns = self._turn_list()
        self.turns.set_turns(EMPTY)
        self.rendered = RenderedText()
        self._problem = ""
        self._add = push_button("+ Turn", self._on_add, "Another turn at the end")
        self.system = push_button("+ System", self._on_system, "What the system says, before all others")
        self.new_line = push_button("New", self._on_new, NEW_TIP)
        self._build()
        connect_all(
            (self.turns.typed, self._on_typed),
            (self.turns.edited, self._on_edited),
            (self.template.changed, self._on_edited),
            (self.template.refused, self._on_refused),
            (self.shows_rendered.toggled, self.rendered.setVisible),
        )

    def _turn_list(self) -> TurnList:
        """The turns: above them how they are rendered, below them the answer that is generated and what is said of the
        cache. All of it is scrolled together, so that nothing is cut in a low panel."""
        self.words.hide()
        self.warning.hide()
        self.shows_rendered.setToolTip("Show the text that the template makes of the turns, as the model reads it")
        above, below = QWidget(), QWidget()
        column(row((self.template, 1), self.shows_rendered), self.about, on=above)
        column(self.answer, self.words, self.warning, spacing=4, on=below)
        return TurnList(above, below)

    def _build(self) -> None:
        self.turns.setMinimumHeight(LEAST_TURNS)
        self.rendered.setMinimumHeight(LEAST_RENDERED)
        self.rendered.hide()
        buttons = row(self._add, self.system, self.new_line, None, spacing=4)
        column((self.turns, 3), (self.rendered, 2), buttons, spacing=SPACING, on=self)
        self._show_about()

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
        self.template.show_template(chat.template, chat.template_text)
        self._on_typed()
        self.ask()

    def clear(self) -> None:
        """Begin another conversation."""
        self._of, self._taken, self._newest = None, EMPTY, None
        self._endings.clear()
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

    def stop_answer(self) -> None:
        """Take the answer that is being written as it is when the run has ended, which is asked for elsewhere."""
        self._is_stopped = not self.answer.isHidden() and self._models.status.now.running

    def ask(self) -> None:
        """Ask for tokens and rendered text. Not while the panel shows another mode, because the answer would replace
        the count of that mode's text."""
        if self._models.status.now.model is None or self.isHidden():
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
        model, info = self._models.status.now.model, selected_info(self._models)
        self.template.show_names(model.templates if model is not None else ())
        seen = (None if info is None else info.seq_id, self._models.history.shape)
        if seen != self._seen:
            self._seen = seen
            self._belong_to(info)
        self._follow_taken(info)
        self._show_notes(info)
        turns = self.turns.turns
        is_mine = info is not None and self._of == info.seq_id and turns == self._taken
        if info is None or not is_mine or not turns or turns[-1].role != "user" or not has_answer(info):
            self.answer.hide()
            return
        self.answer.show_answer(self._text_so_far(info), self._progress(info))
        has_ended = info.stop is not None or (self._is_stopped and not self._models.status.now.running)
        if has_ended and self._answered != (info.seq_id, info.num_tokens):
            self._on_answer()

    def _follow_taken(self, info: SequenceInfo | None) -> None:
        """Let the newest answer that was taken have all that its sequence has generated, unless it was edited: a
        sequence that was stopped, or that reached the longest answer, can be run on."""
        taken = self._newest
        if taken is None or info is None or info.seq_id != taken.seq_id or not self._is_there(taken):
            return
        if self._wants_answer or info.num_tokens == taken.num_tokens or not has_answer(info):
            return
        if self._models.status.now.running:
            self._say("", is_wrong=False)  # how many rows the next turn keeps is told when the answer rests
            self.turns.rows[taken.turn].show_text(self._text_so_far(info))
            self._endings[taken.turn], self._noted = self._progress(info), ()
            self._newest = taken._replace(text=self.turns.turns[taken.turn].text)
        else:  # the engine decodes it whole
            self._on_answer()

    def _is_there(self, taken: TakenAnswer) -> bool:
        """Whether it is still the newest answer, as it was taken; behind it is at most the turn that is written."""
        turns = self.turns.turns
        is_newest = turns != self._taken and len(turns) - 2 <= taken.turn < len(turns)
        return is_newest and turns[taken.turn] == Turn("assistant", taken.text)

    def _text_so_far(self, info: SequenceInfo) -> str:
        """What the sequence has generated, token by token; the engine decodes it whole when it has ended."""
        model, path = self._models.status.now.model, self._models.timeline.live_path
        special = () if model is None else model.special_ids
        tokens = path.tokens(info.seq_id)[info.num_prompt_tokens :]
        texts = [each.text for each in tokens if each.token_id not in special]
        part = path.part(info.seq_id)
        if part is not None and has_chosen(part) and part.sampled == info.sampled and part.sampled not in special:
            texts.append(part.sampled_text)
        return "".join(texts)

    def _progress(self, info: SequenceInfo) -> str:
        count = counted(info.num_tokens - info.num_prompt_tokens + 1, "token")
        return f"writing · {count}" if self._models.status.now.running else f"paused · {count} · F5 goes on"

    def _show_notes(self, info: SequenceInfo | None) -> None:
        """Say at each turn that was sent how much of the cache it reused, and at an answer how it ended."""
        turns = self.turns.turns
        if (self._seen, turns) == self._noted:
            return
        self._noted = self._seen, turns
        reused = {} if info is None else reuse_by_turn(self._models, turns)
        for number, each in enumerate(self.turns.rows):
            if (found := reused.get(number)) is not None:
                each.show_note(f"{thousands(found.reused)} of {counted(found.total, 'token')} reused from the cache")
            else:
                each.show_note(self._endings.get(number, ""))

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
            self.template.show_template(chat.template, chat.template_text)
            self.ask()
        self._taken = chat.turns

    # ---- answers of the engine -----------------------------------------------------------------------------------

    def show_preview(self, preview: Previewed) -> None:
        """Show the tokens of the conversation; if an answer was waited for, add it as the next turn."""
        if self._wants_answer and preview.reuse is not None:
            self._wants_answer = False
            self._take_answer(preview.answer)
            self._on_typed()
            self.ask()
            return
        model, reuse = self._models.status.now.model, preview.reuse
        special = frozenset(model.special_ids) if model is not None else frozenset()
        differs = -1 if reuse is None or reuse.position is None else reuse.position
        kept = 0 if reuse is None else reuse.num_reused
        self.rendered.show_tokens(preview.token_ids, preview.texts, special, kept, differs)
        info = selected_info(self._models)
        if reuse is None and info is not None and info.seq_id == self._of:
            reuse = info.why_not_reused if isinstance(info.why_not_reused, ContinuedFrom) else None
            if reuse is not None and reuse.position is None and not reuse.why:
                reuse = None  # all was kept: the turn itself says how much
        self._show_about()
        is_warning = bool(preview.note) and not self._is_joined
        self._say(
            preview.note if is_warning else "" if reuse is None else reuse.words(quoted_whole), is_wrong=is_warning
        )

    def _take_answer(self, text: str) -> None:
        """Add the answer as the next turn, and an empty one behind it; one that was taken before, and has grown, is
        replaced where it stands."""
        info, taken, turns = selected_info(self._models), self._newest, self.turns.turns
        if info is None or self._answered is None:
            return
        is_grown = taken is not None and taken.seq_id == info.seq_id and self._is_there(taken)
        number = taken.turn if is_grown and taken is not None else len(turns)
        stop = info.stop or ("stopped" if self._is_stopped or is_grown else None)
        self._endings[number], self._noted = "" if stop is None else ENDINGS.get(stop, ""), ()
        self._is_stopped = False
        if is_grown:
            self.turns.rows[number].show_text(text)
        else:
            self._taken = ()  # what follows was not sent yet
            self.turns.set_turns((*turns, Turn("assistant", text), Turn("user", "")))
            if self.isVisible() and self.isActiveWindow():
                self.turns.focus_last()
        # as the editor has it, in which some characters are others
        self._newest = TakenAnswer(*self._answered, number, self.turns.turns[number].text)

    @property
    def _is_joined(self) -> bool:
        """Whether turns are joined without a template, because there is none."""
        model = self._models.status.now.model
        return model is not None and not model.templates and not self.template.template[1]

    def show_excess(self, why_not: str) -> None:
        """Say that the conversation is too long to be sent; empty if it is not."""
        self.warning.setText(f"{why_not}." if why_not else "")
        self.warning.setVisible(bool(why_not))

    def show_limit(self, num_tokens: int | None) -> None:
        """Say how many tokens an answer has at most; None: as many as there is room for."""
        if num_tokens != self._limit:
            self._limit = num_tokens
            self._show_about()

    def _show_about(self) -> None:
        """Say where turns and answers end."""
        words = []
        if self._is_joined:
            words.append("Without a chat template an empty line ends a turn.")
        elif self.template.template[1] == PLAIN_TEMPLATE:
            words.append("A line that begins with “User:” ends an answer.")
        if self._limit is not None:
            words.append(f"An answer has at most {counted(self._limit, 'token')}.")
        self.about.setText(" ".join(words))

    def _say(self, words: str, *, is_wrong: bool) -> None:
        shown = prose(words)
        self.words.setText(shown)
        self.words.setToolTip(plain_tip(shown))
        self.words.setVisible(bool(words))
        set_text_role(self.words, "warning" if is_wrong else "muted")

    # ---- events --------------------------------------------------------------------------------------------------

    def _on_typed(self) -> None:
        self._problem = ""
        self.system.setVisible(self.turns.turns[:1] == () or self.turns.turns[0].role != "system")
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
        self.turns.focus_last()


def has_answer(info: SequenceInfo) -> bool:
    """Whether the sequence has generated a token."""
    return info.num_tokens >= info.num_prompt_tokens and info.sampled is not None


def conversation_of(models: Models, seq_id: int) -> Chat | None:
    """The conversation of a sequence on the live path, or of the sequence that it was forked from; None if its prompt
    was no conversation. O(steps of the path)."""
    for change in _newest_first(models):
        match change:
            case SequenceAdded(of, _, _, chat) | PromptAppended(of, _, _, chat) if of == seq_id:
                return chat
            case SequenceForked(of, parent) if of == seq_id:
                seq_id = parent
    return None


class TurnReuse(NamedTuple):
    """How many tokens of a prompt were reused from the cache, of how many."""

    reused: int
    total: int


def reuse_by_turn(models: Models, turns: tuple[Turn, ...]) -> dict[int, TurnReuse]:
    """The reuse of each turn that continued a conversation on the live path, by its number. O(steps of the path)."""
    found: dict[int, TurnReuse] = {}
    appended: dict[int, tuple[int, int]] = {}  # sequence -> (number of the turn, tokens computed)
    for change in _newest_first(models):
        match change:
            case PromptAppended(of, ids, _, Chat(sent)) if sent == turns[: len(sent)]:
                appended[of] = len(sent) - 1, len(ids)
            case SequenceForked(of, _, _, reused) if of in appended and reused is not None:
                number, computed = appended.pop(of)
                found.setdefault(number, TurnReuse(reused, reused + computed))
            case SequenceAdded(_, ids, _, Chat(sent)) if len(sent) > 2 and sent == turns[: len(sent)]:
                found.setdefault(len(sent) - 1, TurnReuse(0, len(ids)))
    return found


def _newest_first(models: Models) -> Iterator[Change]:
    status, history = models.status.now, models.history
    yield from reversed(status.pending)
    path: Iterable[int] = history.path(history.live) if history.live is not None else ()
    for step in reversed([*path]):
        yield from reversed(history.changes(step))
