"""The dialogs that edit rows of K and V: scale, add noise, overwrite, and an edit typed as text."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QFileDialog, QWidget

from app.dialogs.edit_form import EditForm, RowsForm
from app.kit.boxes import row
from app.kit.buttons import push_button
from app.kit.fields import MOST, choice_field, decimal_field, line_field, whole_field
from app.kit.segments import Segments
from app.models import Models
from engine.errors import InputError
from engine.spec.edit import AddNoise, BiasLogits, Edit, Overwrite, ReplaceTokens, Scale
from engine.spec.edit_text import EXAMPLE, parse_edit

SOURCES = (
    ("step", "another moment", "A step of any branch"),
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

    def __init__(self, models: Models, parent: QWidget, folder: Path) -> None:
        super().__init__("Overwrite from", models, parent)
        self._folder = folder
        self.source = self.add(Segments(SOURCES, "step"), "From")
        before = max(0, (models.history.live or 0) - 1)
        self.step = self.add(whole_field("Step", before, tip="Of any branch: the numbers of the history tree"))
        others = [seq_id for seq_id in models.timeline.sequence_ids() if seq_id != self.seq_id]
        sequences = [(None, "the same sequence"), *((seq_id, f"sequence {seq_id}") for seq_id in others)]
        self.sequence = self.add(choice_field("Sequence", sequences))
        self.file = line_field("Snapshot file", hint="a snapshot: .safetensors")
        self._file_row = row((self.file, 1), push_button("Browse…", self._on_browse))
        self.form.addRow("File", self._file_row)
        tip = "Rows are read that many positions further on"
        self.shift = self.add(whole_field("Shift", 0, -MOST, tip=tip), "Moved by")
        self.listen(self.source, self.step, self.sequence, self.file, self.shift)

    def show_edit(self) -> None:
        is_file = self.source.choice == "file"
        self.form.setRowVisible(self.step, not is_file)
        self.form.setRowVisible(self.sequence, not is_file)
        self.form.setRowVisible(self._file_row, is_file)
        super().show_edit()

    def _on_browse(self) -> None:
        path, _ = QFileDialog.getOpenFileName(
            self, "Overwrite from", str(self._folder), "Snapshots (*.safetensors);;All files (*)"
        )
        if path:
            self.file.setText(path)

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

    def touched_words(self, edit: Edit) -> str:
        match edit:
            case ReplaceTokens() | BiasLogits():
                return edit.describe()
            case _:
                return self.size_of(edit.rows)
