"""The turns of a conversation as rows, each with a role and a text."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QKeyEvent, QResizeEvent, QTextCursor
from PySide6.QtWidgets import QPushButton, QScrollArea, QWidget

from app.kit.fields import SmallBox
from app.kit.theme import font_text
from app.kit.widgets import column, connect_all, plain_label, push_button, row, scrolled
from app.panels.prompt.editor import PromptEdit
from engine.spec.sampling import ROLES, Turn

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
