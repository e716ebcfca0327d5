"""`--tour DIR`: drives the real window with the real engine, and writes screenshots, a snapshot, the session and the
step table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QObject, QTimer

from app.dialogs.export import whole_session
from app.kit.files import save_picture, save_text
from app.shell import Shell
from app.start.arguments import Arguments
from engine.client import is_elsewhere
from engine.history.table import step_csv
from engine.spec.cache import fitted
from engine.wire.commands import Fork

POLL_MS = 15
# Seconds to wait: a model of many gigabytes loads slowly; no step takes this long.
LOAD_PATIENCE_S, PATIENCE_S = 900.0, 300.0
# Steps taken one by one, as a user would, before the rest is run.
SINGLE_STEPS = 3
SMALLER = 1 / 3  # a lossy cache is shrunk to this part of the rows so far, so that a short sequence shows its effect


class Until(Struct, frozen=True):
    """A pause of the script: it goes on when the condition holds, and fails naming `what` after `patience_s`
    seconds."""

    condition: Callable[[], bool]
    what: str
    patience_s: float = PATIENCE_S


class Tour(QObject):
    """Runs the script from a timer, so that the window's event loop works as it does for a user."""

    def __init__(self, shell: Shell, arguments: Arguments, parent: QObject) -> None:
        super().__init__(parent)
        assert arguments.tour is not None
        self._shell = shell
        self._arguments = arguments
        self._folder: Path = arguments.tour
        self._exported = False
        self._pictures = 0
        self._since = 0.0
        self.until: Until | None = None  # what the script waits for
        self._script = self._stages()
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.poll)
        self.exit_status = 1
        shell.controller.requests.exports.written.connect(self._on_exported)

    def prepare(self) -> None:
        """Resize the window to the size that was asked for."""
        self._shell.window.resize(*self._arguments.size)

    def start(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.fail(f"The folder {self._folder} cannot be made ({error.strerror}): give another one.")
            return
        self._since = time.monotonic()
        self._timer.start(POLL_MS)

    def fail(self, text: str) -> None:
        """End the tour with one line on standard error and exit status 2."""
        self._timer.stop()
        sys.stderr.write(f"kvloupe: {text}\n")
        self.exit_status = 2
        self._shell.window.close()

    # ---- the script ----------------------------------------------------------------------------------------------

    def _stages(self) -> Iterator[Until]:
        shell, window = self._shell, self._shell.window
        trigger = window.actions_
        if self._arguments.snapshot is not None:
            yield from self._look_into_file()
            return
        yield Until(self._is_loaded, "the model to load", LOAD_PATIENCE_S)
        yield from self._picture("ready")
        trigger["prompt.send"].trigger()
        yield Until(self._has_prefilled, "the prompt to be read")
        yield from self._picture("prompt")
        for _ in range(min(SINGLE_STEPS, self._arguments.steps)):
            yield from self._step()
        shell.models.selection.update(position=self._some_position())
        yield from self._picture("keys")
        trigger["view.values"].trigger()
        yield from self._picture("values")
        trigger["view.change"].trigger()
        yield from self._picture("change")
        trigger["view.change"].trigger()
        trigger["view.keys"].trigger()
        shell.navigator.walk_layers(+1)
        shell.navigator.walk_heads(+1)
        yield from self._picture("another-head")
        yield from self._run_on()
        yield from self._picture("ran")
        if self._arguments.cache.is_paged:
            yield from self._share()
        yield from self._shrink()
        yield from self._look_back()
        yield from self._export()

    def _look_into_file(self) -> Iterator[Until]:
        """Show an opened snapshot, and a further step of its model if that is on this machine."""
        shell, actions = self._shell, self._shell.window.actions_
        yield Until(self._is_loaded, "the file to open", LOAD_PATIENCE_S)
        yield from self._picture("opened")
        shell.models.selection.update(position=self._some_position())
        yield from self._picture("keys")
        actions["view.values"].trigger()
        yield from self._picture("values")
        yield from self._look_back()
        if actions["snapshot.continue"].isEnabled() and shell.models.status.source_of_file:
            actions["snapshot.continue"].trigger()
            yield Until(self._is_live, "its model to go on", LOAD_PATIENCE_S)
            taken = len(shell.models.timeline)
            yield from self._step()
            yield from self._picture("went-on" if len(shell.models.timeline) > taken else "with-its-model")
        self._save_steps()

    def _is_live(self) -> bool:
        return self._is_loaded() and not self._shell.models.status.has_file and self._is_idle()

    def _shrink(self) -> Iterator[Until]:
        """Make a lossy cache so small in mid-generation that a short sequence shows its effect, and show what is
        left."""
        shell = self._shell
        seq_id = shell.models.selection.now.seq_id
        mode = self._arguments.cache
        smaller = mode if mode.is_exact else fitted(mode, shell.models.timeline.num_tokens(seq_id), SMALLER)
        if smaller == mode:
            return
        shell.window.top.cache.choose(smaller)
        yield Until(lambda: shell.models.status.now.cache == smaller and self._is_idle(), "the smaller cache")
        yield from self._picture("smaller")
        for _ in range(SINGLE_STEPS):
            yield from self._step()
        shell.models.selection.update(position=self._some_position() // 2)
        yield from self._picture("smaller-steps")
        records = shell.models.timeline.records
        shell.models.selection.update(step=records[max(0, len(records) - 2)].step)
        yield from self._picture("smaller-looking-back")
        shell.navigator.on_live()
        yield Until(self._is_idle, "the live step")

    def _step(self) -> Iterator[Until]:
        step = self._shell.window.actions_["run.step"]
        done = len(self._shell.models.timeline)
        if step.isEnabled():
            step.trigger()
            yield Until(lambda: len(self._shell.models.timeline) > done and self._is_idle(), "a step")

    def _run_on(self) -> Iterator[Until]:
        shell = self._shell
        rest = self._arguments.steps - SINGLE_STEPS
        if rest < 1 or not shell.window.actions_["run.to"].isEnabled():
            return
        done = len(shell.models.timeline)
        shell.intents.on_run_to(rest)
        half = done + rest // 2

        def has_ended() -> bool:  # `is_idle` alone also holds before the engine has received the command
            return len(shell.models.timeline) > done and shell.controller.is_idle

        yield Until(lambda: len(shell.models.timeline) >= half or has_ended(), "running")
        self._save("running")
        yield Until(has_ended, "the run to end")

    def _share(self) -> Iterator[Until]:
        """Add a second sequence with the first one's beginning and a fork of it, and show their pages."""
        shell, window = self._shell, self._shell.window
        first = shell.models.selection.now.seq_id
        text = "".join(token.text for token in shell.models.timeline.tokens(first)[1:])
        window.prompt.edit.set_text(text + " and they were happy")
        shell.window.actions_["prompt.add"].trigger()
        yield Until(lambda: self._num_sequences() == 2 and self._has_prefilled() and self._is_idle(), "prompt.add")
        shell.intents.send(Fork(first))
        yield Until(lambda: self._num_sequences() == 3 and self._is_idle(), "the fork")
        for _ in range(SINGLE_STEPS):
            yield from self._step()
        for choice in ("owner", "state"):
            window.pages.choose(choice)
            yield from self._picture(f"pages-by-{choice}")
        window.pages.choose_page(0, 1)
        yield from self._picture("page")
        window.docks.docks["sequences"].raise_()
        yield from self._picture("sequences")
        window.docks.docks["pages"].raise_()

    def _num_sequences(self) -> int:
        return len(self._shell.models.status.now.sequences)

    def _look_back(self) -> Iterator[Until]:
        records = self._shell.models.timeline.records
        if len(records) < 2:
            return
        self._shell.models.selection.update(step=records[len(records) // 2].step)
        yield from self._picture("looking-back")
        self._shell.navigator.on_live()
        yield Until(self._is_idle, "the live step")

    def _export(self) -> Iterator[Until]:
        shell = self._shell
        path = self._folder / "snapshot.safetensors"
        written = whole_session(shell.models, path, "written by the tour")
        shell.intents.send(replace(written, comes_here=is_elsewhere(shell.models.status.engine)))
        yield Until(lambda: self._exported, "the snapshot")
        self._save_steps()

    def _save_steps(self) -> None:
        if not self._shell.models.status.has_file:
            self._shell.controller.saving.save(self._folder / "session.json")
        models = self._shell.models
        if problem := save_text(step_csv(models.timeline, models.bookmarks.all), self._folder / "steps.csv"):
            self.fail(problem)

    def _picture(self, name: str) -> Iterator[Until]:
        yield Until(self._is_idle, f"the picture “{name}”")
        self._save(name)

    def _save(self, name: str) -> None:
        self._pictures += 1
        path = self._folder / f"{self._pictures:02d}-{name}.png"
        problem = save_picture(self._shell.window.grab().toImage(), path)
        if problem:
            self.fail(problem)

    # ---- conditions ----------------------------------------------------------------------------------------------

    def _is_loaded(self) -> bool:
        status = self._shell.models.status.now
        return status.model is not None and status.work is None

    def _has_prefilled(self) -> bool:
        latest = self._shell.models.timeline.latest
        return latest is not None and any(part.sampled is not None for part in latest.sequences)

    def _is_idle(self) -> bool:
        return self._shell.controller.is_idle

    def _some_position(self) -> int:
        """The position of a token near the end of the prompt, to be selected."""
        return max(0, self._shell.models.timeline.num_tokens(self._shell.models.selection.now.seq_id) - 3)

    def _on_exported(self, _event: object) -> None:
        self._exported = True

    # ---- running it ----------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Go on with the script if what it waits for is there; the timer calls this."""
        failure = self._shell.models.status.failure
        if failure:
            self.fail(failure)
            return
        if self.until is not None and not self.until.condition():
            if time.monotonic() - self._since > self.until.patience_s:
                self.fail(f"Waited too long for {self.until.what}.")
            return
        self._since = time.monotonic()
        self.until = next(self._script, None)
        if self.until is None:
            self._timer.stop()
            if not self._shell.models.status.failure:
                self.exit_status = 0
                files = "snapshot.safetensors, session.json and steps.csv" if self._exported else "steps.csv"
                print(f"{self._pictures} pictures, {files} are in {self._folder}")
                self._shell.window.close()
