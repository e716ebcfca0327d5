"""Intents about snapshot and session files."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from app.control.intent_sender import IntentSender
from app.kit.labels import prose
from engine.errors import InputError
from engine.saved.folder import check_nobody_writes
from engine.saved.session import spec_of
from engine.spec.model import BUNDLED, ModelSpec
from engine.wire import commands, exporting


class FileIntents(IntentSender):
    """Open a file, continue from it, close it, and export to one."""

    sessions_folder: Path | None = None  # where only windows of this program write their session journals

    def on_snapshot_chosen(self, path: Path) -> None:
        """Open a file in place of the present session, unless a window is still writing it."""
        try:
            check_nobody_writes(path)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self.open_file(path)

    def open_file(self, path: Path) -> int:
        """Open a file in place of the present session, without asking who writes it; returns the id of the command."""
        return self._send(commands.OpenSnapshot(path))

    def on_file_continued(self, model: ModelSpec, *, may_open_files: bool = False) -> None:
        """Continue from the opened file with that model. `may_open_files`: edits recorded in the session may open files
        on this machine; True only for a session that this program wrote."""
        self._send(commands.Continue(model, may_open_files))

    def on_continued(self) -> None:
        """Continue from the opened file with its model: one that was loaded here before and has the same fingerprint,
        or the bundled one. If it is another, the user is asked to choose it: a path that is named in a file is not
        opened."""
        if source := self._models.status.source_of_file:
            self.on_file_continued(self._as_in_file(source), may_open_files=self.is_own_file)
        else:
            model = self._models.status.model
            where = f" It was at {prose(model.source)}." if model is not None and model.source else ""
            self._models.status.notify(f"Choose the model of this file: decoding goes on where it fits.{where}")
            self.model_wanted.emit()

    @property
    def is_own_file(self) -> bool:
        """Whether the opened file is a session journal written by a window of this program."""
        opened, folder = self._models.status.opened, self.sessions_folder
        return opened is not None and folder is not None and opened.path.resolve().parent == folder.resolve()

    def _as_in_file(self, source: str) -> ModelSpec:
        """How to load the file's model from `source`. A session is replayed with the file's dtype and threads; rows of
        a snapshot continue on the device that models are loaded to, in the dtype that suits it."""
        opened, model = self._models.status.opened, self._models.status.model
        if opened is None or model is None or opened.has_rows:
            return ModelSpec(source).loaded_as(replace(self._requests.loading.chosen, dtype="auto"))
        return replace(spec_of(model), source=source)

    def on_file_closed(self) -> None:
        """Start again with the model that was loaded before the file was opened, else with the bundled one."""
        model = ModelSpec(self._models.status.last_source or BUNDLED).loaded_as(self._requests.loading.chosen)
        self._send(commands.CloseSnapshot(model))

    def on_export_chosen(self, command: exporting.Export) -> None:
        self._take_failure_back()
        self._requests.exports.write(command)
        self._waiting.wake()

    def on_estimate_wanted(self, command: exporting.Export) -> None:
        """Ask the engine how large an export would become."""
        self._requests.exports.estimate(command)
        self._waiting.wake()
