"""The export dialog: the session as a snapshot or for other programs, the window as a picture."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QCheckBox, QFileDialog, QWidget

from app.draw.format import byte_size
from app.kit.asking import Question
from app.kit.dialog import QuestionDialog, ask_path
from app.kit.fields import choice_field, line_field, whole_field
from app.kit.files import save_look, save_text
from app.kit.widgets import on_change, plain_label, prose, push_button, row, set_text_role
from app.models import Models
from app.models.timeline import Path as TimelinePath
from engine.client import is_elsewhere
from engine.client.ssh import remote_of
from engine.counted import counted
from engine.errors import InputError
from engine.files.atomic import writable_target
from engine.history.table import step_csv
from engine.spec.edit import parse_numbers
from engine.wire.encoding import packed
from engine.wire.events import Failed
from engine.wire.exporting import EstimateExport, Export, ExportEstimate
from engine.wire.records import StepRecord

MOST_PACKED = 100


def whole_session(models: Models, path: Path, notes: str = "") -> Export:
    """The command for a snapshot of the selected sequence as it is now, with all steps."""
    return export_of(models, path, None, None, notes=notes)


def export_of(models: Models, path: Path, first: int | None, last: int | None, *, notes: str = "") -> Export:
    """The command to export the cache of the selected sequence after step `last` (None: as it is now), with the records
    from step `first` (None: the first) to `last`."""
    timeline, seq_id = models.timeline.live_path, models.selection.now.seq_id
    is_past = last is not None and timeline.latest is not None and last < timeline.latest.step
    records = tuple(records_between(timeline.records, first, last))
    steps = {record.step for record in records}
    return Export(
        path,
        seq_id,
        timeline.num_tokens(seq_id, last) if is_past else None,
        notes,
        records=records,
        bookmarks=tuple(one for one in models.bookmarks.all if one.target.step in steps),
    )


def records_between(records: Sequence[StepRecord], first: int | None, last: int | None) -> list[StepRecord]:
    """The records of the steps `first` to `last`, both included, as the engine sent them: without page maps, which a
    reader builds again from the page events."""
    wanted = (r for r in records if (first is None or r.step >= first) and (last is None or r.step <= last))
    return [replace(record, page_maps=()) if record.page_maps else record for record in wanted]


def records_bytes(records: Sequence[StepRecord]) -> int:
    """About how many bytes the records take in a snapshot, extrapolated from at most about `2 × MOST_PACKED` of
    them."""
    some = records[:: max(1, len(records) // MOST_PACKED)]
    return round(sum(map(_record_bytes, some)) * len(records) / len(some)) if some else 0


def _record_bytes(record: StepRecord) -> int:
    """The bytes of a record in a file, which has the norms of all rows and not only of the newest."""
    missing = (
        part.rows.nbytes * (part.num_tokens - part.first_position - part.rows.num_rows)
        for part in record.sequences
        if part.rows is not None
    )
    return len(packed(record)) + sum(missing)


ALL, ONE, RANGE = range(3)


class StepChoice(QWidget):
    """Choose steps. Where an earlier step is shown, that one is offered first. Signal: `changed()`."""

    changed = Signal()

    def __init__(self, timeline: TimelinePath, viewed: int | None) -> None:
        super().__init__()
        self._timeline = timeline
        first, latest = timeline.first, timeline.latest
        self._one = viewed if viewed is not None else latest.step if latest is not None else 0
        one = f"step {self._one} alone" + (", which is viewed" if viewed is not None else "")
        choices = (
            (ALL, "all, and the cache as it is now"),  # how many is told with the size: a run makes more
            (ONE, one),
            (RANGE, "from one to another"),
        )
        self._box = choice_field("Steps", choices, ALL if viewed is None else ONE)
        low, high = (each.step if each is not None else 0 for each in (first, latest))
        self._first, self._to = whole_field("First step", low, low, high), plain_label("to")
        self._last = whole_field("Last step", self._one, low, high)
        row((self._box, 1), self._first, self._to, self._last, spacing=8, on=self)
        self._on_box()
        on_change(self._on_box, self._box)
        on_change(self.changed, self._box, self._first, self._last)

    @property
    def range(self) -> tuple[int | None, int | None]:
        """The first and the last step; None for both where all steps are chosen."""
        match self._box.currentIndex():
            case 0:
                return None, None
            case 1:
                return self._one, self._one
        return min(self._first.value(), self._last.value()), max(self._first.value(), self._last.value())

    @property
    def count(self) -> int:
        """How many steps are chosen."""
        return len(records_between(self._timeline.records, *self.range))

    def _on_box(self) -> None:
        for widget in (self._first, self._to, self._last):
            widget.setVisible(self._box.currentIndex() == RANGE)


class ExportChoice(Struct, frozen=True):
    """One kind of export. `name` is the engine's; `endings` are the allowed file endings, the usual one first; `suffix`
    is appended to the suggested name. `has_rows`: it contains K and V, and layers and heads can be chosen. `has_steps`:
    a range of steps can be chosen."""

    name: Any
    label: str
    words: str
    endings: tuple[str, ...]
    suffix: str = ""
    has_rows: bool = False
    has_steps: bool = True


PICTURE = ExportChoice(
    "picture",
    "Picture",
    "The window or a panel as it looks now: PNG, or SVG by its name",
    (".png", ".svg"),
    has_steps=False,
)
KINDS = (
    ExportChoice(
        "snapshot",
        "Snapshot",
        "K and V, tokens and steps in one safetensors file that opens anywhere",
        (".safetensors",),
        has_rows=True,
    ),
    ExportChoice("npz", "NumPy arrays", "K and V as numbers, for numpy.load", (".npz",), has_rows=True),
    ExportChoice(
        "table",
        "Table of the steps",
        "A line for each step and sequence: CSV, or Parquet by its name",
        (".csv", ".parquet"),
    ),
    ExportChoice("trace", "Timings as a trace", "What each step spent its time on, for ui.perfetto.dev", (".json",)),
    ExportChoice(
        "session",
        "Session as a Python script",
        "Repeats all steps with the engine alone and compares every number",
        (".py",),
        suffix="-session",  # the script beside a snapshot has the snapshot's name
        has_steps=False,
    ),
    PICTURE,
)


WHOLE_WINDOW = "The whole window"
TYPING_MS = 150
FORMS = (("stored", "as they are stored"), ("rows", "as the numbers that attention reads"))


class ExportDialog(QuestionDialog):
    """Choose what to export and where to. CSV and pictures are written by the dialog itself. Signals: `chosen(Export)`
    and `wants(Question)`.

    `pictures` are the widgets that can be drawn, by name. `view` says where the window looks. `is_writing` tells
    whether an export to a file is still running.
    """

    wants = Signal(object)

    def __init__(
        self,
        models: Models,
        pictures: Mapping[str, QWidget],
        view: str,
        is_writing: Callable[[Path], bool],
        parent: QWidget,
    ) -> None:
        super().__init__("Export", parent, "Export", 600)
        self._models, self._view, self._is_writing = models, view, is_writing
        self._pictures = {WHOLE_WINDOW: parent, **pictures}
        self._record_bytes = 0
        self.kind_box = choice_field("Export", [(kind.name, kind.label) for kind in KINDS])
        self._words, self.size_words, self.there = (plain_label(role="muted", wraps=True) for _ in range(3))
        self.steps = StepChoice(models.timeline.live_path, _viewed(models))
        self.picture = choice_field("Of", [(name, prose(name)) for name in self._pictures])
        tip = "Numbers like 0-3, 7; empty for all"
        self.layers, self.heads = (line_field(name, hint="all", tip=tip) for name in ("Layers", "KV heads"))
        self.form_box = choice_field("Rows", FORMS)
        self.path, self.notes = line_field("File"), line_field("Notes", hint="kept inside the snapshot")
        machine = remote_of(models.status.engine).machine if is_elsewhere(models.status.engine) else ""
        self.machine = choice_field("On", [("here", "this machine"), ("there", machine)])
        self.script = QCheckBox("A Python script beside it goes on from it in plain transformers")
        self._typing = QTimer(self, singleShot=True, interval=TYPING_MS)
        self._build()
        self._connect()
        self.path.setText(str(self._suggested()))
        self.set_kind(KINDS[0].name)

    def _build(self) -> None:
        is_exact = self._models.status.now.cache.codec.is_exact
        self.form_box.setEnabled(not is_exact)
        self.form_box.setToolTip("This cache stores numbers as they are" if is_exact else "")
        self.add(self.kind_box)
        self.add(self._words, "")
        self.add(self.steps, "Steps")
        for part in (self.picture, self.layers, self.heads, self.form_box):
            self.add(part)
        self.add(self.path, None, push_button("Browse…", self._on_browse, is_small=False))
        self.add(self.machine)
        self.add(self.there, "")
        self.add(self.notes)
        self.add(self.script, "")
        self.add(self.size_words, "Size")

    def _connect(self) -> None:
        self._typing.timeout.connect(self._ask_for_estimate)
        on_change(self._on_kind, self.kind_box)
        on_change(self._typing.start, self.layers, self.heads, self.form_box)
        on_change(self._on_steps, self.steps)
        on_change(self._on_path, self.path)
        on_change(self._on_machine, self.machine)

    # ---- what is chosen ------------------------------------------------------------------------------------------

    @property
    def kind(self) -> ExportChoice:
        return KINDS[self.kind_box.currentIndex()]

    def set_kind(self, name: str) -> None:
        """Choose the kind of export."""
        self.kind_box.setCurrentIndex(self.kind_box.findData(name))
        self._on_kind()

    def first_field(self) -> QWidget:
        """Start in the file name: the kind of export is changed less often."""
        return self.path

    def answer(self) -> Export | None:
        """Return the export for the engine, or None for CSV and pictures, which are written here. So recorded steps can
        still be written when the engine is gone."""
        path = self._target()
        if self.kind is PICTURE:
            self._told("Picture", path, save_look(self._pictures[self.picture.currentData()], path))
        elif self.kind.name == "table" and path.suffix != ".parquet":
            first, last = self.steps.range
            chosen = export_of(self._models, path, first, last)
            self._told("Step table", path, save_text(step_csv(chosen.records, chosen.bookmarks), path))
        else:
            command = self._command(path)
            self._remember(path)
            return command
        self._remember(path)
        return None

    def _remember(self, path: Path) -> None:
        """Offer the folder to the next dialog, unless it is one of another machine."""
        if not self._is_there:
            self._models.status.folder = path.parent

    def _target(self) -> Path:
        if not self.path.text().strip():
            raise InputError("Give a file name.")
        if self._is_there:  # whether it can be written is seen there
            return Path(self.path.text().strip())
        path = Path(self.path.text().strip()).expanduser()
        writable_target(path)
        if self._is_writing(path):
            raise InputError(f"'{path}' is being written by another export: wait for it, or give another name.")
        return path

    def _told(self, what: str, path: Path, problem: str) -> None:
        if problem:
            raise InputError(problem)
        self._models.status.notify(f"{what} written to {path}")

    def _command(self, path: Path) -> Export:
        if self._models.status.loss:
            raise InputError("The engine is gone, and only it can write this: restart it under Run · Engine.")
        kind = self.kind
        first, last = self.steps.range if kind.has_steps else (None, None)
        comes_here = is_elsewhere(self._models.status.engine) and not self._is_there
        command = replace(export_of(self._models, path, first, last), kind=kind.name, comes_here=comes_here)
        if kind.has_rows:
            layers = parse_numbers(self.layers.text(), "layers")
            command = replace(command, layers=layers, kv_heads=parse_numbers(self.heads.text(), "heads"))
        if kind.name != "snapshot":
            return command
        form, notes = self.form_box.currentData(), self.notes.text()
        return replace(command, form=form, notes=notes, view=self._view, with_script=self.script.isChecked())

    # ---- how large it will be ------------------------------------------------------------------------------------

    def _ask_for_estimate(self) -> None:
        if not self.kind.has_rows:
            return
        try:
            command = self._command(Path(self.path.text()))
        except InputError as error:
            self._say_size(str(error), is_bad=True)
            return
        self._record_bytes = records_bytes(command.records) if self.kind.name == "snapshot" else 0
        estimate = EstimateExport(replace(command, records=()))  # the size does not need the records
        self.wants.emit(Question(estimate, self.show_estimate, self.show_refusal, slot=self))

    def show_estimate(self, found: ExportEstimate) -> None:
        """Show the size that the engine estimates."""
        num_bytes, num_steps = found.num_bytes + self._record_bytes, self.steps.count
        counts = [(found.num_layers, "layer"), (found.num_tokens, "token")]
        if self.kind.name == "snapshot":
            counts.append((num_steps, "step"))
        of = ", ".join(counted(count, name) for count, name in counts)
        lines = [f"About {byte_size(num_bytes)}: {of}"]
        if self.kind.name == "snapshot":
            lines.append(f"To be viewed only: {found.why_not}" if found.why_not else "Decoding can go on from it")
        free = None if self._is_there else _free_bytes(Path(self.path.text()))
        if free is not None and free < num_bytes:
            lines.append(f"Only {byte_size(free)} are free there")
        self._say_size("\n".join(lines), is_bad=free is not None and free < num_bytes)

    def show_refusal(self, failure: Failed) -> None:
        """Show why the present choice cannot be written."""
        if failure.message:
            self._say_size(failure.message, is_bad=True)

    def _say_size(self, text: str, *, is_bad: bool) -> None:
        set_text_role(self.size_words, "warning" if is_bad else "muted")
        self.size_words.setText(text)
        self.size_words.setMinimumHeight(self.size_words.heightForWidth(max(1, self.size_words.width())))

    # ---- input of the user ---------------------------------------------------------------------------------------

    def _on_kind(self) -> None:
        kind = self.kind
        self._words.setText(kind.words)
        is_snapshot = kind.name == "snapshot"
        for field, is_shown in (
            (self.steps, kind.has_steps),
            (self.picture, kind is PICTURE),
            (self.layers, kind.has_rows),
            (self.heads, kind.has_rows),
            (self.form_box, is_snapshot),
            (self.notes, is_snapshot),
            (self.script, is_snapshot),
            (self.size_words, kind.has_rows),
        ):
            self.show_row(field, is_shown)
        path = Path(self.path.text())
        is_ours = path.suffix in {ending for other in KINDS for ending in other.endings}
        kept = path.with_suffix(kind.endings[0]) if is_ours and not self._is_suggested else self._suggested()
        self.path.setText(str(kept))
        self._ask_for_estimate()

    def _on_steps(self) -> None:
        if self._is_suggested:
            self.path.setText(str(self._suggested()))
        self._typing.start()

    def _on_path(self) -> None:
        text = self.path.text().strip()
        try:
            is_there = bool(text) and not self._is_there and Path(text).expanduser().is_file()
        except (OSError, ValueError, RuntimeError):
            is_there = False
        self.there.setText("A file of that name is there, and will be replaced." if is_there else "")
        self.show_row(self.there, is_there)
        self.show_row(self.machine, self._is_by_engine and is_elsewhere(self._models.status.engine))

    def _on_machine(self) -> None:
        self.path.setText(str(self._home / Path(self.path.text()).name))

    @property
    def _is_suggested(self) -> bool:
        """Whether the file name is still the suggested one."""
        path = Path(self.path.text())
        return path.parent == self._home and path.stem.startswith("kvloupe")

    def _suggested(self) -> Path:
        last = self.steps.range[1]
        latest = self._models.timeline.live_path.at(last)
        name = f"kvloupe-step{latest.step}" if latest is not None else "kvloupe"
        return self._home / (name + self.kind.suffix + self.kind.endings[0])

    def _on_browse(self) -> None:
        endings = self.kind.endings
        if self._is_there:
            ask_path(self, self._models.status.engine, self.wants.emit, "Export into", (), self._on_folder)
            return
        kinds = ";;".join(f"*{ending}" for ending in endings)
        path, chosen = QFileDialog.getSaveFileName(self, "Export", self.path.text(), kinds)
        if path:
            self.path.setText(path if path.endswith(endings) else path + chosen.removeprefix("*"))

    def _on_folder(self, folder: str) -> None:
        self.path.setText(str(Path(folder) / Path(self.path.text()).name))

    @property
    def _is_by_engine(self) -> bool:
        """Whether the engine writes the file, and not this dialog."""
        return self.kind is not PICTURE and (self.kind.name != "table" or Path(self.path.text()).suffix == ".parquet")

    @property
    def _is_there(self) -> bool:
        """Whether the file is to lie on the other machine that the engine runs on."""
        is_far = is_elsewhere(self._models.status.engine) and self.machine.currentData() == "there"
        return is_far and self._is_by_engine

    @property
    def _home(self) -> Path:
        """The folder that is suggested; on another machine the one that ssh begins in."""
        return Path() if self._is_there else self._models.status.folder


def _free_bytes(path: Path) -> int | None:
    """Return the free space where a file would be written; None where that is not known."""
    try:
        return shutil.disk_usage(path.expanduser().parent).free
    except (OSError, ValueError, RuntimeError):
        return None


def _viewed(models: Models) -> int | None:
    """Return the step that is shown, if it is an earlier one of the live path; None otherwise."""
    step, timeline = models.selection.now.step, models.timeline
    record = timeline.at(step) if step is not None and not timeline.is_elsewhere else None
    return record.step if record is not None else None
