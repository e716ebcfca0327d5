"""The dialogs that make an edit: of rows of K and V (scale, add noise, overwrite), of tokens and logits, or typed as
text."""

from __future__ import annotations

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from app.draw.edited import num_numbers, rows_words, size_words
from app.draw.format import byte_size, shortened, visible
from app.kit.asking import Question
from app.kit.dialog import QuestionDialog, browse_button
from app.kit.fields import MOST, choice_field, decimal_field, line_field, whole_field
from app.kit.theme import font_fixed
from app.kit.widgets import Segments, column, on_change, plain_label, row
from app.models import Models
from app.models.places import NOTHING, chosen_rows
from app.models.sequence_status import current_bias, with_ban, with_bias, with_only
from engine.counted import counted
from engine.errors import InputError
from engine.geometry.dimensions import dtype_bytes
from engine.spec.edit import (
    EXAMPLE,
    MAX_BIAS,
    AddNoise,
    BiasLogits,
    Edit,
    EditedPart,
    Overwrite,
    Replacement,
    ReplaceTokens,
    Rows,
    Scale,
    edit_text,
    parse_edit,
)
from engine.wire.commands import Tokenize
from engine.wire.events import Failed, Tokenized

_PARTS: dict[str, EditedPart] = {"both": "both", "keys": "keys", "values": "values"}


class EditForm(QuestionDialog):
    """A form for one edit. A subclass adds its fields, calls `listen` at the end of its constructor and implements
    `edit`. Signal: `chosen(Edit)`."""

    def __init__(self, title: str, models: Models, parent: QWidget) -> None:
        super().__init__(title, parent, "Apply", 460)
        self.models = models
        self.touched = plain_label(wraps=True)
        self.touched.setAccessibleName("What will be touched")
        self.text = plain_label("", font_fixed(11.5), "muted", wraps=True)
        self.text.setAccessibleName("The edit as text")

    def listen(self, *fields: QObject) -> None:
        """Show what the fields mean, now and whenever one of them changes. Call it when all fields exist."""
        self.add(self.touched, "Touches")
        self.add(self.text, "As text")
        on_change(self.show_edit, *fields)
        self.show_edit()

    def edit(self) -> Edit:
        """Return the edit; raises `InputError` where the fields are incomplete."""
        raise NotImplementedError

    def touched_words(self, edit: Edit) -> str:
        """Describe what an edit changes: `positions 4 … 7 · layer 3 · K and V`, and below it `1,024 numbers,
        4.0 KiB`."""
        model = self.models.status.now.model
        if isinstance(edit, ReplaceTokens | BiasLogits) or model is None:
            return edit.describe()
        return f"{rows_words(edit.rows)}\n{size_words(edit.rows, model.geometry, model.dtype)}"

    def answer(self) -> Edit:
        edit, model = self.edit(), self.models.status.now.model
        if model is None:
            raise InputError("There is no model any more: load one.")
        edit.check(model.geometry, self.models.timeline.num_tokens(edit.seq_id))
        return edit

    def show_edit(self) -> None:
        """Show what the edit would do, or one sentence saying why it is impossible."""
        edit = self.check()
        self.touched.setText(self.touched_words(edit) if edit is not None else "")
        self.text.setText(edit_text(edit) if edit is not None else "")
        for label in (self.touched, self.text):
            self.show_row(label, edit is not None)
        self._grow()

    def _grow(self) -> None:
        """Make the dialog taller where wrapped lines need more height than it had at first."""
        layout = self.layout()
        if layout is not None and self.isVisible():
            layout.activate()
            self.resize(self.width(), max(self.height(), layout.totalHeightForWidth(self.width())))

    @property
    def rows(self) -> Rows:
        """Return the selected rows; raises `InputError` where nothing is selected."""
        if (rows := chosen_rows(self.models)) is None:
            raise InputError(f"Nothing is selected: {NOTHING}.")
        return rows

    @property
    def seq_id(self) -> int:
        return self.models.selection.now.seq_id


class RowsForm(EditForm):
    """A form for an edit of the selected rows: of K, of V or of both."""

    def __init__(self, title: str, models: Models, parent: QWidget) -> None:
        super().__init__(title, models, parent)
        rows = chosen_rows(models)
        choices = (("both", "K and V", ""), ("keys", "K", "Keys alone"), ("values", "V", "Values alone"))
        self.part = Segments(choices, rows.part if rows is not None else "both")

    def listen(self, *fields: QObject) -> None:
        self.add(self.part, "Of")
        super().listen(self.part, *fields)

    @property
    def rows(self) -> Rows:
        return replace(super().rows, part=_PARTS[self.part.choice])


SOURCES = (
    ("step", "another step", "A step of any branch"),
    ("file", "snapshot file", "A snapshot that was exported"),
)


class ScaleForm(RowsForm):
    """Ask for the factor to multiply by."""

    def __init__(self, models: Models, parent: QWidget) -> None:
        super().__init__("Scale", models, parent)
        self.factor = self.add(decimal_field("Factor", 0.5, -1e6, 1e6), "Multiply by")
        self.listen(self.factor)

    def edit(self) -> Edit:
        return Scale(self.seq_id, self.rows, self.factor.value())


class NoiseForm(RowsForm):
    """Ask for the size of the noise and the seed it is drawn from."""

    def __init__(self, models: Models, parent: QWidget) -> None:
        super().__init__("Add noise", models, parent)
        tip = "Of the standard deviation of the numbers that are there"
        self.ratio = self.add(decimal_field("Standard deviations", 0.1, 0, 1e6, tip=tip))
        self.seed = self.add(whole_field("Seed", 0))
        self.listen(self.ratio, self.seed)

    def edit(self) -> Edit:
        return AddNoise(self.seq_id, self.rows, self.ratio.value(), self.seed.value())


class OverwriteForm(RowsForm):
    """Ask where the rows come from: another step, branch or sequence, or a snapshot file."""

    def __init__(self, models: Models, parent: QWidget) -> None:
        super().__init__("Overwrite from", models, parent)
        self.source = self.add(Segments(SOURCES, "step"), "From")
        before = max(0, (models.history.live or 0) - 1)
        self.step = self.add(whole_field("Step", before, tip="Of any branch: the numbers of the history tree"))
        others = [seq_id for seq_id in models.timeline.sequence_ids() if seq_id != self.seq_id]
        sequences = [(None, "the same sequence"), *((seq_id, f"sequence {seq_id}") for seq_id in others)]
        self.sequence = self.add(choice_field("Sequence", sequences))
        self.file = line_field("Snapshot file", hint="a snapshot: .safetensors")
        start = str(models.status.folder)
        self.add(self.file, "File", browse_button(self.file, "Overwrite from", (".safetensors",), start))
        tip = "Rows are read that many positions further on"
        self.shift = self.add(whole_field("Shift", 0, -MOST, tip=tip), "Moved by")
        self.listen(self.source, self.step, self.sequence, self.file, self.shift)

    def show_edit(self) -> None:
        is_file = self.source.choice == "file"
        for field, is_shown in ((self.step, not is_file), (self.sequence, not is_file), (self.file, is_file)):
            self.show_row(field, is_shown)
        super().show_edit()

    def edit(self) -> Edit:
        if self.source.choice == "step":
            source = self.sequence.currentData()
            return Overwrite(self.seq_id, self.rows, self.step.value(), source, shift=self.shift.value())
        if not self.file.text().strip():
            raise InputError("No file is named: choose the snapshot that the rows come from.")
        return Overwrite(self.seq_id, self.rows, from_file=self.file.text().strip(), shift=self.shift.value())


class TypedForm(EditForm):
    """Type an edit in the form that saved sessions use: `zero pos=4:8 layer=3 head=1`."""

    def __init__(self, models: Models, parent: QWidget) -> None:
        super().__init__("Type an edit", models, parent)
        self.line = self.add(line_field("Edit", hint=EXAMPLE))
        self.line.setMinimumWidth(420)
        self.listen(self.line)

    def edit(self) -> Edit:
        if not self.line.text().strip():
            raise InputError(f"Type what to do, for example: {EXAMPLE}")
        return parse_edit(self.line.text(), self.seq_id, self.models.timeline.num_tokens(self.seq_id))


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
        model = models.status.now.model
        self.add(plain_label(_replaced_words(models)), "In place of")
        self.tokens = self.add(TokensField(model is not None and model.has_tokenizer), "New tokens")
        self.how = self.add(Segments(WAYS, "overwrite"), "What follows")
        self.listen(self.tokens, self.how)

    def edit(self) -> Edit:
        rows = self.rows
        how: Replacement = "overwrite" if self.how.choice == "overwrite" else "re-prefill"
        return ReplaceTokens(self.seq_id, rows.start, self.tokens.ids, how, rows.stop - rows.start)

    def touched_words(self, edit: Edit) -> str:
        assert isinstance(edit, ReplaceTokens)
        model, stop = self.models.status.now.model, edit.stop
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
        model = models.status.now.model
        self.tokens = self.add(TokensField(model is not None and model.has_tokenizer), "Tokens")
        self.what = self.add(Segments(BIASES, "bias"), "From now on")
        self.amount = self.add(decimal_field("Added to the logits", 2.0, -MAX_BIAS, MAX_BIAS), "Add")
        self.listen(self.tokens, self.what, self.amount)

    def offer(self, token_ids: tuple[int, ...]) -> None:
        """Start with these tokens."""
        self.tokens.kind.set_choice(IDS)
        self.tokens.line.setText(", ".join(map(str, token_ids)))

    def show_edit(self) -> None:
        self.show_row(self.amount, self.what.choice == "bias")
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
