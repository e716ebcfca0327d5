"""Start, run and end of the window, which waits for its engine neither when it opens nor when it closes."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer
from PySide6.QtWidgets import QApplication

from app.control.clock import TickClock
from app.control.recovering import Recovering
from app.kit.changes import connect_all
from app.kit.theme import load_fonts
from app.shell import Shell
from app.start.arguments import Arguments
from app.start.beginning import Beginning
from app.start.paths import sessions_path, settings_path
from engine.client import CHOICES
from engine.saved.folder import JournalFolder

if TYPE_CHECKING:
    from app.tour import Tour

# A window that is never exposed (another workspace, a minimised start) must not keep the engine waiting for ever.
LATEST_START_MS = 1500
# What is left of two seconds after the window is gone; then the process ends without asking the thread again.
ENGINE_END_S = 1.3


class Program(QObject):
    """The parts that live as long as the process, and the order in which they begin and end."""

    def __init__(self, app: QApplication, arguments: Arguments, beginning: Beginning) -> None:
        super().__init__()
        self._app = app
        self._path: Path = arguments.settings or settings_path()
        self._is_tour = arguments.tour is not None
        self._beginning = beginning
        self._settings, self._engine = beginning.settings, beginning.engine
        self.shell = Shell(app, self._settings, self._engine.send, self._engine.drain)
        self._clock = TickClock(self.shell.controller, self)
        self._engine.listen(self._clock.ring)
        self._has_started = False
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
        from app.tour import Tour  # other starts need nothing of it

        return Tour(self.shell, arguments, self)

    def _connect_journals(self) -> None:
        """What this window would lose is written down, and what another one left is offered; a tour does neither."""
        if self._is_tour:
            return
        recovering, window = self._recovering, self.shell.window
        connect_all(
            (window.recovery.accepted, recovering.on_accepted),
            (window.recovery.dismissed, recovering.on_dismissed),
            (recovering.draft_found, self.shell.take_draft),
            (recovering.chat_found, self.shell.take_chat),
            (window.sessions.aboutToShow, self._show_sessions),
        )
        self._show_sessions()
        self.shell.intents.sessions_folder = self._journals.folder
        self.shell.controller.saving.begin_in(self._journals, self._settings.prompt)

    def _show_sessions(self) -> None:
        self.shell.window.sessions.set_paths([str(path) for path in self._journals.ended()])

    def open(self) -> None:
        """Show the window; when it is on the screen the engine starts, if it has not, and is listened to."""
        sys.excepthook = self._on_exception
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, self._on_signal)
        if self._tour is not None:
            self._tour.prepare()
        self.shell.window.show()
        self.shell.window.activateWindow()  # without a window manager nobody else gives it the keyboard
        QTimer.singleShot(LATEST_START_MS, self._start_engine)

    def end(self) -> bool:
        """Stop everything that runs; whether the engine ended in time."""
        self._clock.stop()
        return self._engine.close(ENGINE_END_S)

    @property
    def exit_status(self) -> int:
        return self._tour.exit_status if self._tour is not None else 0

    def _start_engine(self) -> None:
        if not self._has_started:
            self._has_started = True
            self._beginning.start_engine()
            self._show_engine()
            self._clock.start()
            threading.Thread(target=_import_pictures, name="pictures", daemon=True).start()
            if self._tour is not None:
                self._tour.start()
            else:
                self._recovering.look()

    def _restart_engine(self, choice: str) -> None:
        """Another engine with the same model, which does the steps of the one before once more. `choice` empty: where
        it runs. A choice that the engine meets already changes nothing but what is chosen."""
        if choice in CHOICES:
            self._engine.choice = self._settings.engine = choice
            if self._engine.is_as_chosen and not self.shell.models.status.is_engine_lost:
                self._show_choice()
                return
        self._engine.restart(self.shell.models.status.cache)
        self._begin_again()

    def _leave_gpu(self) -> None:
        """Another engine has the model on the CPU, in the same numbers, and does the steps once more."""
        model = self.shell.models.status.model
        self._engine.restart_on_cpu(self.shell.models.status.cache, "auto" if model is None else model.dtype)
        self._begin_again()

    def _begin_again(self) -> None:
        self._show_engine()
        self.shell.models.status.fail("")
        self.shell.controller.replay()

    def _reload_model(self) -> None:
        """The engine that runs has the model again, and does its steps once more."""
        self._engine.reload(self.shell.models.status.cache)
        self.shell.controller.replay()

    def _show_engine(self) -> None:
        self.shell.models.status.set_engine(self._engine.kind or "")
        self._show_choice()

    def _show_choice(self) -> None:
        for choice in CHOICES:
            self.shell.actions.check(f"engine.{choice}", choice == self._engine.choice)

    def _on_closing(self) -> None:
        if not self._is_tour:
            self.shell.remember()
            self._settings.save(self._path)
            self.shell.controller.saving.end()
        self._app.quit()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.shell.window.close()

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """A fault in a slot: say it, keep the session. Python would print it and go on as if nothing had happened."""
        traceback.print_exception(kind, error, trace)
        text = f"Something unexpected went wrong ({kind.__name__}: {str(error)[:200]}); the session lives on."
        self.shell.models.status.fail(text)
        if self._tour is not None:
            self._tour.fail(text)


def _import_pictures() -> None:
    """What the first heat map needs, while the engine imports torch: the window waits for it neither now nor then."""
    import app.kit.heatmap_image  # noqa: F401

    # The libraries' own objects, some 90,000, stay for good: a full collection that visits them all holds the window up
    # for three frames.
    gc.freeze()
    gc.enable()  # the entry point has put collecting off until here


def run(arguments: Arguments) -> int:
    """Open the window and stay until it is closed."""
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
        # A thread that is deep in an import or a large product cannot be asked; nothing of value is open any more.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
