"""What a person may wish of snapshots and sessions in files."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from app.control.asking import Asking
from app.kit.labels import prose
from engine.errors import InputError
from engine.saved.folder import check_nobody_writes
from engine.saved.session import spec_of
from engine.spec.model import BUNDLED, ModelSpec
from engine.wire import commands, exporting


class FileIntents(Asking):
    """Opening a file, going on from it, closing it, and writing one."""

    sessions_folder: Path | None = None  # where windows of this program, and nobody else, write their sessions

    def on_snapshot_chosen(self, path: Path) -> None:
        """Look at a file in place of what there is, unless a window writes it."""
        try:
            check_nobody_writes(path)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self.on_left_taken_up(path)

    def on_left_taken_up(self, path: Path) -> int:
        """Look at a journal that this window has claimed; the number of the command."""
        return self._send(commands.OpenSnapshot(path))

    def on_file_continued(self, model: ModelSpec, *, may_open_files: bool = False) -> None:
        """Go on from the opened file with that model. Edits in a session open files only where this window's program
        wrote it."""
        self._send(commands.Continue(model, may_open_files))

    def on_continued(self) -> None:
        """Go on from the opened file with its model: one that was loaded here before, known by its fingerprint, or the
        bundled one. Which other one it is a person says: no name in a file leads to a folder."""
        if source := self._models.status.source_of_file:
            self.on_file_continued(self._as_in_file(source), may_open_files=self._is_own_file)
        else:
            model = self._models.status.model
            where = f" It was at {prose(model.source)}." if model is not None and model.source else ""
            self._models.status.notify(f"Choose the model of this file: decoding goes on where it fits.{where}")
            self.model_wanted.emit()

    @property
    def _is_own_file(self) -> bool:
        """Whether the opened file is a journal that a window of this program wrote."""
        opened, folder = self._models.status.opened, self.sessions_folder
        return opened is not None and folder is not None and opened.path.resolve().parent == folder.resolve()

    def _as_in_file(self, source: str) -> ModelSpec:
        """The model of the opened file from there, in the file's numbers: a session is repeated on as many threads,
        rows go on where models are loaded."""
        opened, model = self._models.status.opened, self._models.status.model
        if opened is None or model is None or opened.has_rows:
            return ModelSpec(source).loaded_as(replace(self._requests.loading.chosen, dtype="auto"))
        return replace(spec_of(model), source=source)

    def on_file_closed(self) -> None:
        """Begin anew with the model that was there before the opened file, else the bundled one."""
        model = ModelSpec(self._models.status.last_source or BUNDLED).loaded_as(self._requests.loading.chosen)
        self._send(commands.CloseSnapshot(model))

    def on_export_chosen(self, command: exporting.Export) -> None:
        self._take_failure_back()
        self._requests.exports.write(command)
        self._waiting.wake()

    def on_estimate_wanted(self, command: exporting.Export) -> None:
        """Ask how large an export would become."""
        self._requests.exports.estimate(command)
        self._waiting.wake()
