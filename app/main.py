"""Start, run and end of the program. The window neither waits for its engine when it opens nor when it closes."""

from __future__ import annotations

import gc
import locale
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from PySide6 import QtCore, QtGui, QtWidgets
from PySide6.QtCore import QObject, QTimer
from PySide6.QtWidgets import QApplication

from app.control.controller import FrameClock, GarbageTimer
from app.control.engine import Engine
from app.control.recovering import Recovering
from app.kit.theme import load_fonts
from app.kit.widgets import connect_all
from app.shell import Shell
from app.start.arguments import Arguments, sessions_path, settings_path
from app.start.settings import Settings, theme_choice
from engine.client import CHOICES, is_elsewhere, kind_for
from engine.saved.journal import JournalFolder
from engine.spec.model import usable_cores
from engine.wire.commands import OpenSnapshot

if TYPE_CHECKING:
    from app.tour import Tour


class Beginning:
    """The settings with the changes of the command line, and the engine they ask for.

    An engine in a process of its own starts here, before the window is made, so that torch is imported meanwhile. One
    that would share the interpreter or the only processor with a window that is not painted yet waits for
    `start_engine`.
    """

    def __init__(self, arguments: Arguments) -> None:
        path = arguments.settings or settings_path()
        self.settings = settings = Settings() if arguments.tour is not None else Settings.load(path)
        settings.overrule(
            theme=None if arguments.theme is None else theme_choice(arguments.theme),
            kept_bytes=arguments.kept_bytes,
            loading=arguments.loading,
        )
        if arguments.prompt is not None:
            settings.prompt = arguments.prompt
        self._arguments = arguments
        self._model = arguments.model.loaded_as(settings.loading)
        self.engine = Engine(arguments.engine or settings.engine)
        if kind_for(self.engine.choice, self._model.device) != "thread" and usable_cores() > 1:
            self.start_engine()

    def start_engine(self) -> None:
        """Start the engine unless it has started already."""
        if self.engine.kind is None:
            given = self._arguments
            opened = None if given.snapshot is None else OpenSnapshot(given.snapshot)
            self.engine.start(self._model, given.cache, opened, is_remembered=given.loading is None)


# The engine starts at the latest after this many ms: a window may never be exposed (another workspace, minimised).
LATEST_START_MS = 1500
# How long the engine may take to end once the window is gone; after that the process exits without waiting for it.
ENGINE_END_S = 1.3


class Program(QObject):
    """The objects that live as long as the process, and the order in which they start and end."""

    def __init__(self, app: QApplication, arguments: Arguments, beginning: Beginning) -> None:
        super().__init__()
        self._app = app
        self._path: Path = arguments.settings or settings_path()
        self._is_tour = arguments.tour is not None
        self._beginning = beginning
        self._settings, self._engine = beginning.settings, beginning.engine
        self.shell = Shell(app, self._settings, self._engine.send, self._engine.drain)
        self._clock = FrameClock(self.shell.controller, self)
        self._engine.listen(self._clock.ring)
        self._garbage = GarbageTimer(self)
        self._imports = _import_pictures()
        self._has_started = False
        self._specs = arguments.servers
        self._journals = JournalFolder(arguments.sessions or sessions_path())
        self._recovering = Recovering(
            self._journals, self.shell.models, self.shell.controller, self._settings.prompt, parent=self
        )
        self._tour = self._make_tour(arguments) if self._is_tour else None
        connect_all(
            (self.shell.window.first_painted, self._start_engine),
            (self.shell.window.closing, self._on_closing),
            (self.shell.engine_wanted, self._restart_engine),
            (self.shell.reload_wanted, self._reload_model),
            (self.shell.cpu_wanted, self._leave_gpu),
        )
        self._connect_journals()

    def _make_tour(self, arguments: Arguments) -> Tour:
        from app.tour import Tour  # only a tour imports this

        return Tour(self.shell, arguments, self)

    def _connect_journals(self) -> None:
        """Record this window's session in a journal, and offer the one that a killed window left; a tour does
        neither."""
        if self._is_tour:
            return
        recovering, window = self._recovering, self.shell.window
        connect_all(
            (window.recovery.accepted, recovering.on_accepted),
            (window.recovery.dismissed, recovering.on_dismissed),
            (recovering.draft_found, window.prompt.take_draft),
            (recovering.draft_found_again, self.shell.take_draft),
            (recovering.chat_found, self.shell.take_chat),
            (self.shell.session_wanted, recovering.return_to),
        )
        self.shell.intents.sessions_folder = self._journals.folder
        self.shell.controller.saving.begin_in(self._journals, self._settings.prompt)

    def open(self) -> None:
        """Show the window; the engine starts when it has been painted, at the latest after `LATEST_START_MS`."""
        sys.excepthook = self.on_exception
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, self._on_signal)
        if self._tour is not None:
            self._tour.prepare()
        self.shell.window.show()
        self.shell.window.activateWindow()  # without a window manager the window would not get the keyboard focus
        QTimer.singleShot(LATEST_START_MS, self._start_engine)

    def end(self) -> bool:
        """Stop everything that runs; returns whether the engine ended in time."""
        self._clock.stop()
        self._engine.leave_servers(ENGINE_END_S)
        has_ended = self._engine.close(ENGINE_END_S)
        if has_ended:  # an engine that still runs would collect the window's objects in its thread
            self._garbage.stop()
        return has_ended

    @property
    def exit_status(self) -> int:
        return self._tour.exit_status if self._tour is not None else 0

    def _start_engine(self) -> None:
        if not self._has_started:
            self._has_started = True
            self._beginning.start_engine()
            self._show_engine()
            self._clock.start()
            self._garbage.start()
            self._import_next()
            for spec in self._specs:
                self.shell.attach(spec)
            if self._tour is not None:
                self._tour.start()
            else:
                self._recovering.look()

    def _import_next(self) -> None:
        """Import a piece of what the first heat map needs, and the next one when no event waits."""
        if next(self._imports, None) is not None:
            QTimer.singleShot(0, self._import_next)

    def _restart_engine(self, choice: str) -> None:
        """Start another engine with the same model and replay the steps in it. `choice` (thread, process, auto, or the
        address of another machine) is where it shall run; empty: as chosen before. If the present engine already runs
        where `choice` says, only the choice is saved."""
        if choice:
            self._engine.choice = self._settings.engine = choice
            if self._engine.is_as_chosen and not self.shell.models.status.loss:
                self._show_choice()
                return
        self._engine.restart(self.shell.models.status.now.cache)
        self._begin_again()

    def _leave_gpu(self) -> None:
        """Start another engine with the model on the CPU, in the same dtype, and replay the steps in it."""
        model = self.shell.models.status.now.model
        self._engine.restart_on_cpu(self.shell.models.status.now.cache, "auto" if model is None else model.dtype)
        self._begin_again()

    def _begin_again(self) -> None:
        self._show_engine()
        self.shell.models.status.fail("")
        self.shell.controller.replay()

    def _reload_model(self) -> None:
        """Load the unloaded model again in the present engine, and replay the steps."""
        self._engine.reload(self.shell.models.status.now.cache)
        self.shell.controller.replay(after_load=True)

    def _show_engine(self) -> None:
        self.shell.models.status.set_engine(self._engine.kind or "")
        self._show_choice()

    def _show_choice(self) -> None:
        for choice in CHOICES:
            self.shell.actions.check(f"engine.{choice}", choice == self._engine.choice)
        self.shell.actions.check("engine.elsewhere", is_elsewhere(self._engine.choice))

    def _on_closing(self) -> None:
        if not self._is_tour:
            self.shell.remember()
            self._settings.save(self._path)
            self.shell.controller.saving.end()
        self._app.quit()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.shell.window.close()

    def on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report an exception raised in a slot and keep the session: PySide would only print it and go on."""
        traceback.print_exception(kind, error, trace)
        text = f"Something unexpected went wrong ({kind.__name__}: {str(error)[:200]}); the session lives on."
        self.shell.models.status.fail(text)
        if self._tour is not None:
            self._tour.fail(text)


def _import_pictures() -> Iterator[str]:
    """Import what the first heat map needs while the engine imports torch, in pieces of some 20 ms and a last one of
    some 90. Not in a thread: PySide makes a class when it is first named, and crashes where two threads name one."""
    for module in (QtCore, QtGui, QtWidgets):  # pyqtgraph names all of their classes
        for name in dir(module):
            getattr(module, name)
        yield module.__name__
    import app.kit.graphics  # noqa: F401

    # The libraries' own objects, some 90,000, live until the end. Frozen, they are left out of full collections, which
    # would otherwise block the window for three frames.
    gc.freeze()


def _use_utf8() -> None:
    """Choose C.UTF-8 where the locale has other characters: Qt would do that itself, but with four lines of warning at
    each start."""
    if sys.platform == "linux" and locale.nl_langinfo(locale.CODESET).upper() not in ("UTF-8", "UTF8"):
        os.environ["LC_ALL"] = "C.UTF-8"


def run(arguments: Arguments) -> int:
    """Open the window, run until it is closed, and return the exit status."""
    _use_utf8()
    beginning = Beginning(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    app = QApplication(sys.argv[:1])
    app.setApplicationName("kvloupe")
    app.setApplicationDisplayName("KV Loupe")
    app.setDesktopFileName("kvloupe")
    load_fonts()
    program = Program(app, arguments, beginning)
    program.open()
    app.exec()
    has_ended = program.end()
    status = program.exit_status
    if not has_ended:
        # A thread deep in an import or a large matrix product cannot be interrupted; nothing is left to be saved.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
