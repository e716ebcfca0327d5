"""A window on the real engine, driven by tests. A wait that fails names its condition; it ends early at any failure."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

from PySide6.QtWidgets import QApplication

from app.control.controller import GarbageTimer
from app.kit.theme import load_fonts
from app.shell import Shell
from app.start.settings import Settings
from engine.client.thread import ThreadClient
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.commands import Force, LoadModel
from tests.app.conftest import sweep

PATIENCE_S = 300


class Driver:
    """The bundled model in a window, both alive until `close()`."""

    def __init__(self, app: QApplication, cache: CacheSpec | None = None, prompt: str = "") -> None:
        load_fonts()
        settings = Settings(theme="dark", prompt=prompt) if prompt else Settings(theme="dark")
        self.loop = ThreadClient(lambda: 0.0)  # on a busy machine it would be taken for one that hangs
        self._garbage = GarbageTimer()
        self._garbage.start()
        app.setStyleSheet("")  # as at a start: the shell sets it once the window is built
        self.shell = Shell(app, settings, self.loop.send, self.loop.drain)
        self.models, self.window, self.controller = self.shell.models, self.shell.window, self.shell.controller
        self.intents = self.shell.intents
        self.window.resize(1280, 800)
        self.window.show()
        self.loop.send(LoadModel(ModelSpec(num_threads=1), cache or CacheSpec()))
        self.until(lambda: self.shell.models.status.now.model is not None)

    def until(self, holds: Callable[[], object], *, may_fail: bool = False) -> None:
        """Let both live until it holds. A failure ends the wait unless it `may_fail`: that is then waited for."""
        end = time.monotonic() + PATIENCE_S
        while not holds():
            status = self.models.status
            assert may_fail or not status.failure, f"{status.failure!r} while waiting for {source_of(holds)}"
            assert time.monotonic() < end, f"waited {PATIENCE_S} s for {source_of(holds)}; {status.now}"
            self.controller.tick()
            QApplication.processEvents()
            time.sleep(0.002)

    def wait_until_idle(self, holds: Callable[[], object] = lambda: True, *, may_fail: bool = False) -> None:
        """Wait until the condition holds, the engine is idle and every picture has arrived."""
        self.controller.tick()
        self.until(lambda: holds() and self.controller.is_idle, may_fail=may_fail)

    def send(self, text: str) -> None:
        """Send a prompt and wait until it is read."""
        self.window.prompt.edit.set_text(text)
        self.window.actions_["prompt.send"].trigger()
        self.wait_until_idle(self.has_chosen)

    def has_chosen(self) -> bool:
        """Whether the newest step chose a token."""
        latest = self.models.timeline.latest
        return latest is not None and latest.sequences[0].sampled is not None

    def steps(self, count: int) -> None:
        for _ in range(count):
            done = len(self.models.timeline)
            self.loop.send(Force(0, (40 + done,)))  # a forced token: the text does not end early
            self.window.actions_["run.step"].trigger()
            self.wait_until_idle(lambda done=done: len(self.models.timeline) > done)

    def choose(self, spec: CacheSpec) -> None:
        self.window.top.cache.choose(spec)
        self.wait_until_idle(lambda: self.models.status.now.cache == spec)

    def look_at(self, step: int | None) -> None:
        self.models.selection.update(step=step)
        self.wait_until_idle()

    def close(self) -> None:
        """End the engine, then the window."""
        assert self.loop.close(PATIENCE_S), "the engine did not end"
        self._garbage.stop()
        sweep(self.shell)


def source_of(condition: Callable[[], object]) -> str:
    """The source lines of a condition, to say what was waited for."""
    cells = inspect.getclosurevars(condition).nonlocals
    inner = cells.get("holds")
    return source_of(inner) if callable(inner) else inspect.getsource(condition).strip()
