"""The dialogs of edits that name tokens: replacing tokens, and biasing logits."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from app.dialogs.edit_form import EditForm
from app.draw.edit_words import num_numbers
from app.draw.format import byte_size, counted, shortened, visible
from app.kit.boxes import column, row
from app.kit.changes import on_change
from app.kit.fields import decimal_field, line_field
from app.kit.labels import plain_label
from app.kit.question import Question
from app.kit.segments import Segments
from app.kit.theme import font_fixed
from app.models import Models
from app.models.after_edit import current_bias, with_ban, with_bias, with_only
from app.models.chosen_rows import NOTHING, chosen_rows
from engine.errors import InputError
from engine.geometry.dimensions import dtype_bytes
from engine.spec.edit import MAX_BIAS, Edit, Replacement, ReplaceTokens, Rows
from engine.wire.commands import Tokenize
from engine.wire.events import Failed, Tokenized

TEXT, IDS = "text", "ids"
WAYS = (
    ("overwrite", "overwrite", "Their own K and V alone: what follows keeps what it saw of the old ones"),
    ("re-prefill", "re-prefill", "What follows is computed anew, as if they had stood there from the start"),
)
BIASES = (
    ("bias", "add to their logits", "Above 0 favours them, below 0 disfavours them"),
    ("ban", "ban them", "They are never chosen"),
    ("only", "nothing else", "None but them is chosen"),
)
_MANY = 12  # so many ids are listed


class TokensField(QWidget):
    """Tokens given as text, which the engine's tokenizer reads, or as ids. Signals: `changed()`, `wants(Question)`."""

    changed = Signal()
    wants = Signal(object)

    def __init__(self, has_tokenizer: bool) -> None:
        super().__init__()
        self._ids: tuple[int, ...] = ()
        self._problem = ""
        self._is_waiting = False
        kinds = ((TEXT, "text", "A text, as the tokenizer reads it"), (IDS, "ids", "Token ids: 17, 18"))
        self.kind = Segments(kinds, TEXT if has_tokenizer else IDS)
        self.kind.setEnabled(has_tokenizer)
        self.line = line_field("Tokens")
        self.words = plain_label("", font_fixed(11), "muted")
        column(row((self.line, 1), self.kind), self.words, on=self)
        self.setFocusProxy(self.line)
        on_change(self._on_text, self.line, self.kind)

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens; raises `InputError` where there are none, or none yet."""
        if self._problem:
            raise InputError(self._problem)
        if self._is_waiting:
            raise InputError("The tokens of this text are being counted.")
        if not self._ids:
            raise InputError("No tokens are named: type a text, or ids like 17, 18.")
        return self._ids

    def take(self, answer: Tokenized) -> None:
        """Take the tokens that the engine found in the text."""
        if self.kind.choice == TEXT and self._is_waiting:
            self._set_ids(answer.token_ids)

    def refuse(self, failure: Failed) -> None:
        """Show why the text could not be turned into tokens."""
        if self.kind.choice == TEXT and self._is_waiting and failure.message:
            self._set_ids((), failure.message)

    def _set_ids(self, ids: tuple[int, ...], problem: str = "") -> None:
        self._ids, self._problem, self._is_waiting = ids, problem, False
        more = " …" if len(ids) > _MANY else ""
        listed = ", ".join(map(str, ids[:_MANY]))
        self.words.setText(f"{counted(len(ids), 'token')}: {listed}{more}" if ids else "")
        self.changed.emit()

    def _on_text(self) -> None:
        text = self.line.text()
        if not text.strip(" " if self.kind.choice == IDS else ""):
            self._set_ids(())
        elif self.kind.choice == TEXT:
            self._is_waiting = True
            self.wants.emit(Question(Tokenize(text), self.take, self.refuse, slot=self))
            self.changed.emit()
        else:
            self._read_ids(text)

    def _read_ids(self, text: str) -> None:
        parts = text.replace(",", " ").split()
        if all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            self._set_ids(tuple(map(int, parts)))
        else:
            self._set_ids((), "Token ids are whole numbers, with spaces or commas between them: 17, 18.")


class ReplaceForm(EditForm):
    """Ask for the new tokens, and whether the tokens after them are recomputed."""

    def __init__(self, models: Models, parent: QWidget) -> None:
        super().__init__("Replace tokens", models, parent)
        model = models.status.model
        self.add(plain_label(_replaced_words(models)), "In place of")
        self.tokens = self.add(TokensField(model is not None and model.has_tokenizer), "New tokens")
        self.how = self.add(Segments(WAYS, "overwrite"), "What follows")
        self.listen(self.tokens, self.how)

    def edit(self) -> Edit:
        rows = chosen_rows(self.models)
        if rows is None:
            raise InputError(f"Nothing is selected: {NOTHING}.")
        how: Replacement = "overwrite" if self.how.choice == "overwrite" else "re-prefill"
        return ReplaceTokens(self.seq_id, rows.start, self.tokens.ids, how, rows.stop - rows.start)

    def touched_words(self, edit: Edit) -> str:
        assert isinstance(edit, ReplaceTokens)
        model, stop = self.models.status.model, edit.stop
        assert model is not None
        if edit.how == "re-prefill":
            stop = self.models.timeline.num_tokens(edit.seq_id) - edit.stop + edit.position + len(edit.token_ids)
        count = num_numbers(Rows(edit.position, stop), model.geometry)
        size = f"{counted(count, 'number')}, {byte_size(count * dtype_bytes(model.dtype))}"
        return f"{edit.describe()}\nK and V of positions {edit.position} … {stop - 1}: {size}"


def _replaced_words(models: Models) -> str:
    """Name the selected tokens: `positions 2 … 3 “·cat·sat”`."""
    rows = chosen_rows(models)
    if rows is None:
        return "nothing is selected"
    tokens = models.timeline.tokens(models.selection.now.seq_id)[rows.start : rows.stop]
    where = f"position {rows.start}" if rows.stop == rows.start + 1 else f"positions {rows.start} … {rows.stop - 1}"
    return f"{where} “{shortened(visible(''.join(token.text for token in tokens)), 40)}”"


class BiasForm(EditForm):
    """Ask for the tokens, and what to do with their logits."""

    def __init__(self, models: Models, parent: QWidget) -> None:
        super().__init__("Bias logits", models, parent)
        model = models.status.model
        self.tokens = self.add(TokensField(model is not None and model.has_tokenizer), "Tokens")
        self.what = self.add(Segments(BIASES, "bias"), "From now on")
        self.amount = self.add(decimal_field("Added to the logits", 2.0, -MAX_BIAS, MAX_BIAS), "Add")
        self.listen(self.tokens, self.what, self.amount)

    def offer(self, token_ids: tuple[int, ...]) -> None:
        """Start with these tokens."""
        self.tokens.kind.set_choice(IDS)
        self.tokens.line.setText(", ".join(map(str, token_ids)))

    def show_edit(self) -> None:
        self.form.setRowVisible(self.amount, self.what.choice == "bias")
        super().show_edit()

    def edit(self) -> Edit:
        now, ids = current_bias(self.models, self.seq_id), self.tokens.ids
        match self.what.choice:
            case "ban":
                return with_ban(now, ids)
            case "only":
                return with_only(now, ids)
            case _:
                return with_bias(now, ids, self.amount.value())
