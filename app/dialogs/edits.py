"""The dialogs of edits of rows: what each asks beside the selected rows."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QComboBox, QDoubleSpinBox, QFileDialog, QLineEdit, QSpinBox, QWidget

from app.dialogs.edit_form import EditForm, RowsForm
from app.kit.boxes import row
from app.kit.buttons import push_button
from app.kit.segments import Segments
from app.kit.theme import font_fixed
from app.kit.units import inset
from app.models import Models
from engine.errors import InputError
from engine.spec.edit import AddNoise, BiasLogits, Edit, Overwrite, ReplaceTokens, Scale
from engine.spec.edit_text import EXAMPLE, parse_edit

MOST_STEP, MOST_SEED = 2**31 - 1, 2**31 - 1


class ScaleForm(RowsForm):
    """A factor."""

    def __init__(self, models: Models, parent: QWidget) -> None:
        super().__init__("Scale", models, parent)
        self.factor = decimal_field("Factor", 0.5, -1e6, 1e6)
        self.form.addRow("Multiply by", self.factor)
        self.listen(self.factor)

    def edit(self) -> Edit:
        return Scale(self.seq_id, self.rows, self.factor.value())


class NoiseForm(RowsForm):
    """How large, and drawn from which seed."""

    def __init__(self, models: Models, parent: QWidget) -> None:
        super().__init__("Add noise", models, parent)
        self.ratio = decimal_field("Standard deviations", 0.1, 0, 1e6)
        self.ratio.setToolTip("Of the standard deviation of the numbers that are there")
        self.seed = whole_field("Seed", 0, 0, MOST_SEED)
        self.form.addRow("Standard deviations", self.ratio)
        self.form.addRow("Seed", self.seed)
        self.listen(self.ratio, self.seed)

    def edit(self) -> Edit:
        return AddNoise(self.seq_id, self.rows, self.ratio.value(), self.seed.value())


class OverwriteForm(RowsForm):
    """From which moment, of this or another branch and sequence, or from which snapshot file."""

    def __init__(self, models: Models, parent: QWidget, folder: Path) -> None:
        super().__init__("Overwrite from", models, parent)
        self._folder = folder
        self.source = Segments()
        self.source.set_choices((
            ("step", "another moment", "A step of any branch"),
            ("file", "snapshot file", "A snapshot that was exported"),
        ))  # fmt: skip
        self.source.set_choice("step")
        live = models.history.live or 0
        self.step = whole_field("Step", max(0, live - 1), 0, MOST_STEP)
        self.step.setToolTip("Of any branch: the numbers of the history tree")
        self.sequence = QComboBox()
        self.sequence.setAccessibleName("Sequence")
        self.sequence.addItem("the same sequence", None)
        for seq_id in models.timeline.sequence_ids():
            if seq_id != self.seq_id:
                self.sequence.addItem(f"sequence {seq_id}", seq_id)
        self.file = QLineEdit()
        self.file.setAccessibleName("Snapshot file")
        self.file.setPlaceholderText("a snapshot: .safetensors")
        self._browse = push_button("Browse…", self._on_browse)
        self._file_row = row((self.file, 1), self._browse)
        self.shift = whole_field("Shift", 0, -MOST_STEP, MOST_STEP)
        self.shift.setToolTip("Rows are read that many positions further on")
        self.form.addRow("From", self.source)
        self.form.addRow("Step", self.step)
        self.form.addRow("Sequence", self.sequence)
        self.form.addRow("File", self._file_row)
        self.form.addRow("Moved by", self.shift)
        self.source.chosen.connect(self._on_source)
        self.listen(self.step, self.sequence, self.file, self.shift)
        self._on_source("step")

    def _on_source(self, choice: str) -> None:
        for field in (self.step, self.sequence):
            self.form.setRowVisible(field, choice == "step")
        self.form.setRowVisible(self._file_row, choice == "file")
        self.show_edit()

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
    """An edit in words, as it is written in a saved session: `zero pos=4:8 layer=3 head=1`."""

    def __init__(self, models: Models, parent: QWidget) -> None:
        super().__init__("Type an edit", models, parent)
        self.line = QLineEdit()
        self.line.setFont(font_fixed())
        self.line.setAccessibleName("Edit")
        self.line.setPlaceholderText(EXAMPLE)
        self.line.setMinimumWidth(420)
        self.form.addRow("Edit", self.line)
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


def decimal_field(name: str, value: float, least: float, most: float) -> QDoubleSpinBox:
    """A field for a number with four digits after the point."""
    field = QDoubleSpinBox()
    field.setDecimals(4)
    field.setRange(least, most)
    field.setSingleStep(0.1)
    field.setValue(value)
    field.setFont(font_fixed())
    field.setAccessibleName(name)
    inset(field)
    return field


def whole_field(name: str, value: int, least: int, most: int) -> QSpinBox:
    """A field for a whole number."""
    field = QSpinBox()
    field.setRange(least, most)
    field.setValue(value)
    field.setFont(font_fixed())
    field.setAccessibleName(name)
    inset(field)
    return field
