"""The whole program, its window and a real engine with a tiny random model, driven by a script: what it does wrong is
collected, and what it holds (widgets, timers, threads, handles, memory) can be counted between two actions."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from PySide6.QtCore import QCoreApplication, QEvent, QTimer, QtMsgType, qInstallMessageHandler
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QApplication, QDialog, QFileDialog, QMenu, QWidget

from app.control.actions import declared_in
from app.control.conditions import reasons
from app.kit.asking import Question
from app.main import Beginning, Program
from app.panels.prompt.view import TEXT
from app.start.arguments import parse
from engine.spec.cache import CacheSpec
from engine.spec.sampling import LogitBias, SamplingParams
from engine.wire.commands import Cancel, EndComparison, SetCache, Tokenize

PATIENCE_S = 180.0
EXPECTED_WARNINGS = ("does not support", "propagateSizeHints")  # of the offscreen platform itself
ENDLESS = SamplingParams(bias=LogitBias(banned=(0, 1, 2)))  # no token ends the text
MADE_LATE = 12  # of a kind; of plain widgets each plot has three
PROMPT = "Once upon a time there was a little dragon"


@dataclass(frozen=True)
class Census:
    """What a window at rest holds: its widgets by class, timers, Python's threads by name, and of the whole process the
    open handles and the resident bytes."""

    widgets: Mapping[str, int]
    num_timers: int
    threads: Mapping[str, int]
    num_handles: int
    resident: int

    @property
    def num_widgets(self) -> int:
        return sum(self.widgets.values())

    def growth_since(self, before: Census) -> list[str]:
        """Everything but memory of which there is more than before, in words. A few of a kind are made when they are
        first needed, and kept; but no dialog is."""
        pairs = [(f"{kind} widgets", before.widgets.get(kind, 0), now) for kind, now in self.widgets.items()]
        pairs += [("threads", sum(before.threads.values()), sum(self.threads.values()))]
        pairs += [("timers", before.num_timers, self.num_timers), ("handles", before.num_handles, self.num_handles)]
        late = {"QWidget widgets": 3 * MADE_LATE}
        found = [
            each for each in pairs if each[2] - each[1] > (0 if "Dialog" in each[0] else late.get(each[0], MADE_LATE))
        ]
        return [f"{what}: {was} before, {now} now" for what, was, now in found]


class LiveProgram:
    """A program that was opened; `faults` are exceptions, warnings of Qt and unexpected failures so far."""

    def __init__(
        self, app: QApplication, folder: Path, source: str, engine: str = "thread", cache: str = "growing"
    ) -> None:
        self.app, self.faults = app, list[str]()
        self._hook, self._handler = sys.excepthook, qInstallMessageHandler(self._on_message)
        self._signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        given = ["--settings", str(folder / "settings.ini"), "--sessions", str(folder / "sessions"), "--theme", "dark"]
        given += ["--engine", engine, "--device", "cpu", "--threads", "1", "--model", source, "--cache", cache]
        arguments = parse([*given, "--prompt", PROMPT])
        app.setStyleSheet("")  # as at a start: the shell sets it once the window is built
        self.program = Program(app, arguments, Beginning(arguments))
        self.shell = self.program.shell
        self.window, self.models, self.controller = self.shell.window, self.shell.models, self.shell.controller
        self.window.resize(1280, 800)
        self.models.status.failed.connect(self._on_failed)
        self.program.open()
        sys.excepthook = self._on_exception
        self.until(lambda: self.models.status.now.model is not None, "the model")

    def close(self) -> None:
        """Close the window and end the engine, as the program does at its end; restore what it replaced."""
        self.window.close()
        has_ended = self.program.end()
        sys.excepthook = self._hook
        for number, handler in self._signals.items():
            signal.signal(number, handler)
        self.window.deleteLater()
        self.program.deleteLater()
        _delete_closed()
        qInstallMessageHandler(self._handler)
        if not has_ended:
            self.faults.append("the engine did not end in time")

    # ---- faults --------------------------------------------------------------------------------------------------

    def _on_message(self, kind: QtMsgType, _: object, text: str) -> None:
        if kind in (QtMsgType.QtDebugMsg, QtMsgType.QtInfoMsg) or any(words in text for words in EXPECTED_WARNINGS):
            return
        self.faults.append(f"Qt warns: {text}")

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        import traceback

        self.faults.append("".join(traceback.format_exception(kind, error, trace)))

    def _on_failed(self, text: str) -> None:
        if "Something unexpected" in text:
            self.faults.append(f"the engine fails: {text}")

    def problems(self) -> list[str]:
        """What does not hold now: the selection is of this history, and exactly those actions are enabled that are
        possible."""
        models, actions = self.models, self.shell.actions
        now, timeline = models.selection.now, models.timeline
        found = []
        if now.step is not None and now.step not in timeline.nodes:
            found.append(f"step {now.step} is selected, and is not in the timeline")
        if now.position is not None and not 0 <= now.position < max(1, timeline.num_tokens(now.seq_id)):
            found.append(f"position {now.position} of sequence {now.seq_id} is selected, and there is none")
        can, why_not = self.window.picture.abilities, reasons(models)
        for action in declared_in(actions.menus):
            if action.name in ("view.reset", "view.zoom", "view.colors"):
                is_possible = action.name in can
            else:
                is_possible = not (action.needs and why_not[action.needs])
            if actions[action.name].isEnabled() != is_possible:
                found.append(f"{action.name} is {'disabled' if is_possible else 'enabled'}, and should not be")
        return found

    # ---- time ----------------------------------------------------------------------------------------------------

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Let the window live until it holds, as soon as it looks for events when a person waits for something."""
        end = time.monotonic() + PATIENCE_S
        self.controller.waiting.wake()
        while not holds():
            if time.monotonic() > end:
                status = self.models.status
                raise AssertionError(f"waited in vain for {what}; {status.now}; {status.failure}; {self.faults}")
            self.app.processEvents()
            time.sleep(0.0005)

    def live(self, seconds: float) -> None:
        """Let the window live for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.app.processEvents()
            time.sleep(0.0005)

    def rest(self) -> None:
        """Close all dialogs, stop what is going on, and wait until everything has arrived."""
        self.dismiss_dialogs()
        self.post(Cancel())
        self.wait_until_idle("a rest")

    def wait_until_idle(self, after: str) -> None:
        """Wait until all that was sent is answered, nothing goes on, and every picture has arrived."""
        answered = list[object]()
        question = Question(Tokenize(""), answered.append, answered.append)  # answered in its turn
        self.shell.intents.take(question)
        self.until(lambda: answered and self.is_idle, f"rest after {after}")

    @property
    def is_idle(self) -> bool:
        return self.controller.is_idle and not self.shell.controller.requests.replaying.is_going_on

    def settle(self, cache: CacheSpec) -> None:
        """Bring the window into one and the same state, whatever was done: the same layout and cache, no stops, notes
        and comparisons, no search, and a prompt of which one step is done."""
        self.rest()
        if self.models.status.has_file or self.models.status.now.model is None:
            raise AssertionError("there is no live model")
        self.shell.intents.send(EndComparison())
        self.shell.intents.on_breakpoints_changed(())
        self.post(SetCache(cache))
        window = self.window
        window.prompt.choose(TEXT)
        window.prompt.edit.set_text(PROMPT)
        window.arrange("inspect")
        self.wait_until_idle("another cache mode")
        self.shell.intents.on_prompt_submitted(PROMPT, ENDLESS)
        self.wait_until_idle("a prompt")
        assert (self.models.status.now.cache, len(self.models.timeline)) == (cache, 1), (
            self.models.status.failure,
            self.models.status.now.cache,
            len(self.models.timeline),
        )
        self.models.status.fail("")

    def post(self, command: Any) -> None:
        self.shell.intents._sender.post(command)

    # ---- dialogs and counts --------------------------------------------------------------------------------------

    def dialogs(self) -> list[QDialog]:
        return [each for each in QApplication.topLevelWidgets() if isinstance(each, QDialog) and each.isVisible()]

    def dismiss_dialogs(self) -> None:
        for widget in QApplication.topLevelWidgets():
            if isinstance(widget, QMenu) or (
                widget is not self.window and widget.isVisible() and widget.isWindow() and _is_sheet(widget)
            ):
                widget.close()
        _delete_closed()

    def census(self) -> Census:
        """What there is, once everything that nobody needs is deleted."""
        for _ in range(3):
            self.live(0.03)
            _delete_closed()
            gc.collect()
        process = psutil.Process()
        timers = sum(len(root.findChildren(QTimer)) for root in (self.window, self.program, self.shell))
        return Census(
            Counter(map(_kind_of, QApplication.allWidgets())),
            timers,
            Counter(thread.name for thread in threading.enumerate()),
            process.num_fds() if hasattr(process, "num_fds") else process.num_handles(),
            process.memory_info().rss,
        )


def _kind_of(widget: QWidget) -> str:
    return f"{type(widget).__name__}{' Dialog' if isinstance(widget, QDialog) else ''}"


def _is_sheet(widget: QWidget) -> bool:
    return isinstance(widget, QDialog) or type(widget).__module__.startswith("app.")


def _delete_closed() -> None:
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    QApplication.processEvents()


@contextmanager
def nobody_waits(paths: Callable[[], str]) -> Iterator[None]:
    """Inside, whoever asks for a file or folder is given `paths()` at once (empty: the question was cancelled), no
    browser opens, and no menu or dialog waits for a person."""
    replaced: list[tuple[Any, str, Any]] = [
        (QFileDialog, "getOpenFileName", lambda *_: (paths(), "")),
        (QFileDialog, "getSaveFileName", lambda *_: (paths(), "")),
        (QFileDialog, "getExistingDirectory", lambda *_: ""),
        (QDesktopServices, "openUrl", lambda *_: True),
        (QMenu, "exec", lambda *_: None),
        (QDialog, "exec", lambda *_: 0),
    ]
    before = [(kind, name, getattr(kind, name)) for kind, name, _ in replaced]
    for kind, name, stand_in in replaced:
        setattr(kind, name, staticmethod(stand_in) if name != "exec" else stand_in)
    try:
        yield
    finally:
        for kind, name, own in before:
            setattr(kind, name, own)
