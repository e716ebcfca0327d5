"""The small dialogs, each of which asks for one thing: a machine, a limit, a server, how far to run, a note."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QPlainTextEdit, QRadioButton, QWidget

from app.draw.format import byte_size
from app.kit.dialog import QuestionDialog, browse_button
from app.kit.fields import decimal_field, line_field, whole_field
from app.kit.widgets import Segments, connect_all, plain_label
from app.kit.words import place_words, places
from app.models import Models
from app.models.sequence_status import selected_info
from engine.client import check_choice, is_elsewhere
from engine.client.ssh import PREFIX
from engine.counted import counted
from engine.errors import InputError
from engine.files.text import MIB
from engine.predict.capacity import setting_of
from engine.spec.bookmark import Bookmark, BookmarkTarget
from engine.spec.condition import HOW_TO_COMBINE, help_lines, parsed, why_never
from engine.wire.serving import ServerSpec
from engine.wire.status import EngineStatus


class AddressDialog(QuestionDialog):
    """Name the machine on which the engine shall run. Signal: `chosen(address)`."""

    def __init__(self, present: str, parent: QWidget) -> None:
        super().__init__("Engine on another machine", parent, "Connect", 620)
        tip = "ssh must get in without a question; KV Loupe in the same version is installed there"
        text = present.removeprefix(PREFIX) if is_elsewhere(present) else ""
        self.host = self.add(line_field("Machine", text, "[user@]host[:port][/path/of/kvloupe-engine]", tip))

    def answer(self) -> str:
        return check_choice(PREFIX + self.host.text().strip().removeprefix(PREFIX))


MOST_MIB = 1 << 20  # a tebibyte


class CheckpointLimitDialog(QuestionDialog):
    """Choose the limit. Signal: `chosen(num_bytes)`."""

    def __init__(self, status: EngineStatus, parent: QWidget) -> None:
        super().__init__("Checkpoints kept in memory", parent)
        self.limit = whole_field(
            "MiB that checkpoints may take", status.kept_limit // MIB, 0, MOST_MIB, is_grouped=True
        )
        self.limit.setSingleStep(256)
        self.limit.setSuffix(" MiB")
        self.add(self.limit, "They may take")
        self.add(plain_label(_taken(status)), "They take now")
        words = plain_label(
            "The cache of a step that you leave stays in memory as a checkpoint, so that going back is a swap. Beyond "
            "this limit the one that rested longest is let go: its step stays in the history, and is computed again "
            "when you go there.",
            wraps=True,
        )
        self.form.addRow(words)

    def answer(self) -> int:
        return self.limit.value() * MIB


def _taken(status: EngineStatus) -> str:
    """What they take now: `12.0 MiB, 3 checkpoints`."""
    if not status.kept:
        return "nothing: no step was left yet"
    return f"{byte_size(status.kept_bytes)}, {counted(len(status.kept), 'checkpoint')}"


_FIELDS = (
    (
        "KV events",
        "tcp://HOST:5557, or a recording",
        "Where the server publishes (of several ranks a range of ports, or with commas); or a .kvevents file",
    ),
    ("Replay", "tcp://HOST:5558, if there is one", "Where it repeats what was missed: without it the tree is partial"),
    ("Metrics", "http://HOST:8000/metrics, if there is one", "Its own figures, shown beside the tree"),
    ("Tokenizer", "the folder of the served model", "Without it tokens are numbers; its config says the bytes"),
)


class ServerDialog(QuestionDialog):
    """`tried` is what was chosen last. Signal: `chosen(ServerSpec)`."""

    def __init__(self, tried: ServerSpec, parent: QWidget) -> None:
        super().__init__("Attach to a server", parent, "Attach", 560)
        texts = tried.endpoint, tried.replay, tried.metrics, tried.tokenizer
        self.fields = [
            line_field(name, text, hint, tip) for text, (name, hint, tip) in zip(texts, _FIELDS, strict=True)
        ]
        ways = {0: ("A recording", (".kvevents",)), 3: ("The folder of the served model", ())}
        for number, field in enumerate(self.fields):
            way = ways.get(number)
            self.add(field, None, *([] if way is None else [browse_button(field, *way, text="…", tip="Choose it")]))
        self.speed = decimal_field(
            "Speed of a recording", tried.speed, 0, 1000, decimals=1, step=1, unit=" ×", automatic="at once"
        )
        self.add(self.speed)

    def first_field(self) -> QWidget | None:
        return self.fields[0]

    def answer(self) -> ServerSpec:
        endpoint, replay, metrics, tokenizer = (field.text().strip() for field in self.fields)
        if not endpoint:
            raise InputError("There is no address: give one like tcp://HOST:5557, or choose a recording.")
        return ServerSpec(endpoint, replay, metrics, tokenizer, self.speed.value())


MOST = 10_000_000


class RunToDialog(QuestionDialog):
    """Choose where a run stops. Signal: `chosen(num_steps or condition)`."""

    def __init__(self, models: Models, parent: QWidget) -> None:
        super().__init__("Run to", parent, "Run", 540)
        self._models = models
        info = selected_info(models)
        self._seq_id, self._num_tokens = (0, 0) if info is None else (info.seq_id, info.num_tokens)
        self._steps = whole_field("Steps to run, then rest", 32, 1, MOST, is_grouped=True)
        name = "Tokens of the sequence to run to"
        self.tokens = whole_field(name, self._num_tokens + 32, 1, MOST, is_grouped=True)
        tip = "\n".join((*help_lines(), HOW_TO_COMBINE))
        self.condition = line_field("Condition to run to", models.breakpoints.query, "entropy > 2", tip)
        which = f"sequence {self._seq_id} has" if info is not None else "the sequence has"
        texts = ("So many steps", f"Until {which} so many tokens", "Until this holds")
        self.ways = [QRadioButton(text) for text in texts]
        for way, field in zip(self.ways, (self._steps, self.tokens, self.condition), strict=True):
            self.form.addRow(way, field)
        self.ways[0].setChecked(True)
        connect_all(
            (self._steps.valueChanged, self.ways[0].click),
            (self.tokens.valueChanged, self.ways[1].click),
            (self.condition.textEdited, self.ways[2].click),
        )

    def first_field(self) -> QWidget | None:
        return self._steps

    def answer(self) -> int | str:
        if self.ways[0].isChecked():
            return self._steps.value()
        if self.ways[1].isChecked():
            return self._until_tokens()
        text = self.condition.text().strip()
        condition, model = parsed(text), self._models.status.now.model
        is_compared = self._models.comparison.now is not None
        if model is not None and (
            problem := why_never(condition, setting_of(model, self._models.status.now.cache, is_compared=is_compared))
        ):
            raise InputError(problem)
        return text

    def _until_tokens(self) -> str:
        wanted = self.tokens.value()
        if wanted <= self._num_tokens:
            raise InputError(
                f"Sequence {self._seq_id} has {counted(self._num_tokens, 'token')} already: "
                "give more, or go back to that step."
            )
        return f"tokens >= {wanted} and sequence = {self._seq_id}"


TIPS = {
    "step": "The step that is viewed",
    "token": "The selected token, wherever it stands on this branch",
    "page": "The selected page, as it is after this step",
    "head": "The selected layer and kv head, as they are after this step",
}


class BookmarkDialog(QuestionDialog):
    """Choose what to bookmark and write a note, which may stay empty. Signal: `chosen(Bookmark)`."""

    def __init__(self, models: Models, kind: str, parent: QWidget, target: BookmarkTarget | None = None) -> None:
        super().__init__("Bookmark" if target is None else "Note", parent, "Save")
        self._models = models
        self._places = {"": target} if target is not None else dict(places(models))
        self._filled_in = ""  # the note that came with the chosen place, as opposed to one typed by the user
        self.kind = self.add(Segments([(name, name, TIPS[name]) for name in self._places if name]), "On")
        self.place = self.add(plain_label(), "Which is")
        self.note = QPlainTextEdit()
        self.note.setTabChangesFocus(True)
        self.note.setAccessibleName("Note")
        self.note.setPlaceholderText("A note, or nothing")
        self.note.setFixedHeight(92)
        self.add(self.note)
        self.note.installEventFilter(self)
        if target is not None:
            self.show_row(self.kind, False)
        self._choose(kind if kind in self._places else next(iter(self._places)))
        self.kind.chosen.connect(self._choose)
        self.note.textChanged.connect(self.check)

    def first_field(self) -> QWidget:
        return self.note

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Save the note on Ctrl+Return; Return alone starts a new line."""
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            is_return = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
            if is_return and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
                self.ok.click()
                return True
        return super().eventFilter(watched, event)

    @property
    def target(self) -> BookmarkTarget:
        return self._places[self.kind.choice]

    def _choose(self, kind: str) -> None:
        """Show the note of a place that already has a bookmark, unless the user has typed something."""
        self.kind.set_choice(kind)
        found = self._models.bookmarks.at(self.target)
        if self.note.toPlainText() == self._filled_in:
            self._filled_in = found.text if found is not None else ""
            self.note.setPlainText(self._filled_in)
        self.place.setText(f"{place_words(self._models, self.target)}, at step {self.target.step}")

    def answer(self) -> Bookmark:
        return Bookmark(self.target, self.note.toPlainText().strip())
