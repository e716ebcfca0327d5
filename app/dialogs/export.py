"""What to keep: the cache as a snapshot, the steps as a table, the window as a picture."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QButtonGroup, QFileDialog, QHBoxLayout, QLineEdit, QRadioButton, QWidget

from app.kit.buttons import push_button
from app.kit.dialog import QuestionDialog
from app.kit.files import save_picture, save_text
from app.kit.theme import font_fixed
from app.models import Models
from engine.errors import InputError
from engine.files.atomic import writable_target
from engine.wire.step_table import step_csv

SNAPSHOT, TABLE, PICTURE = "snapshot", "table", "picture"
ENDINGS = {SNAPSHOT: ".safetensors", TABLE: ".csv", PICTURE: ".png"}


class ExportDialog(QuestionDialog):
    """Writes tables and pictures itself. Intent: `chosen(Path, notes)`. News: `accepted_in(folder)`."""

    chosen = Signal(object, str)
    accepted_in = Signal(object)

    def __init__(self, models: Models, folder: Path, parent: QWidget) -> None:
        super().__init__("Export", parent)
        self._models = models
        self._window = parent
        self._folder = folder
        self._kinds = QButtonGroup(self)
        self._kind = SNAPSHOT
        for index, text in enumerate(self._texts(models)):
            button = QRadioButton(text)
            button.setChecked(index == 0)
            self._kinds.addButton(button, index)
            self.form.addRow(button)
        self._path = QLineEdit()
        self._path.setFont(font_fixed())
        self._path.setAccessibleName("File")
        browse = push_button("Browse…", self._on_browse, is_small=False)
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addWidget(self._path, 1)
        row.addWidget(browse)
        self._notes = QLineEdit()
        self._notes.setPlaceholderText("kept inside the snapshot")
        self.form.addRow("File", row)
        self.form.addRow("Notes", self._notes)
        self.ok.setText("Export")
        self.setMinimumWidth(600)
        self._kinds.idToggled.connect(self._on_kind)
        self._path.setText(str(self._suggested()))

    def _texts(self, models: Models) -> tuple[str, str, str]:
        step = models.selection.now.step
        when = "now" if step is None else f"at step {step}"
        return (
            f"Snapshot of the cache {when}: K and V of every layer, one safetensors file",
            f"Table of all {len(models.timeline)} steps, as CSV",
            "Picture of the window, as PNG",
        )

    def first_field(self) -> QWidget:
        """The name of the file: what is kept is chosen less often."""
        return self._path

    def answer(self) -> None:
        """A snapshot is asked for with its notes, anything else is written at once: nothing is left to say."""
        path = Path(self._path.text().strip()).expanduser()
        if not self._path.text().strip():
            raise InputError("Give a file name.")
        writable_target(path)
        if problem := self._write(path):
            raise InputError(problem)
        self.accepted_in.emit(path.parent)

    def _write(self, path: Path) -> str:
        """Write what was chosen, or ask for it; what went wrong, or nothing."""
        match self._kind:
            case "snapshot":
                self.chosen.emit(path, self._notes.text())
                return ""
            case "table":
                what, problem = "Step table", save_text(step_csv(self._models.timeline), path)
            case _:
                what, problem = "Picture", save_picture(self._window.grab(), path)
        if not problem:
            self._models.status.notify(f"{what} written to {path}")
        return problem

    def _suggested(self) -> Path:
        latest = self._models.timeline.at(self._models.selection.now.step)
        name = f"kvloupe-step{latest.step}" if latest is not None else "kvloupe"
        return self._folder / (name + ENDINGS[self._kind])

    def _on_kind(self, index: int, is_on: bool) -> None:
        if is_on:
            old, self._kind = self._kind, (SNAPSHOT, TABLE, PICTURE)[index]
            path = Path(self._path.text())
            kept = path.with_suffix(ENDINGS[self._kind]) if path.suffix == ENDINGS[old] else self._suggested()
            self._path.setText(str(kept))
            self._notes.setEnabled(self._kind == SNAPSHOT)

    def _on_browse(self) -> None:
        ending = ENDINGS[self._kind]
        path, _ = QFileDialog.getSaveFileName(self, "Export", self._path.text(), f"*{ending}")
        if path:
            self._path.setText(path if path.endswith(ending) else path + ending)
