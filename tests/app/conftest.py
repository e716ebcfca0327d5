"""A shell on a fake engine, closed and swept up after each test; a Qt warning that nobody expected fails it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import asdict
from PySide6.QtCore import QCoreApplication, QEvent, QtMsgType
from PySide6.QtWidgets import QApplication, QDialog, QMenu
from pytestqt.qtbot import QtBot

from app.kit.theme import DARK, apply_theme, current_theme, load_fonts
from app.models import Models, breakpoints
from app.shell import Shell
from app.start.settings import Settings
from engine.garbage import garbage
from engine.wire.comparison import ComparisonEnded
from engine.wire.events import StateChanged
from tests.app.fake_engine import FakeEngine

PATIENCE_MS = 120_000
# warnings of the offscreen platform itself, and of a locale without UTF-8
EXPECTED = ("does not support", "propagateSizeHints", "Detected locale")


@pytest.fixture(autouse=True)
def _no_garbage_is_collected_in_a_test() -> Iterator[None]:
    """A widget left by a test must not be deleted while Qt iterates over all widgets, nor in another thread."""
    if garbage.is_owned:  # a window that lives through several tests owns the collector
        yield
        return
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def _no_unexpected_qt_warnings(qtlog: object) -> Iterator[None]:
    yield
    loud = (QtMsgType.QtWarningMsg, QtMsgType.QtCriticalMsg, QtMsgType.QtFatalMsg)
    found = [record.message for record in qtlog.records if record.type in loud]  # type: ignore[attr-defined]
    assert not [message for message in found if not any(words in message for words in EXPECTED)]


@pytest.fixture(scope="session", autouse=True)
def _no_cursor_blinks(qapp: QApplication) -> None:
    """Otherwise pictures of a window with the focus in a text would differ by its cursor at times."""
    qapp.setCursorFlashTime(0)


@pytest.fixture(autouse=True)
def _closed_widgets_are_gone(qapp: QApplication) -> Iterator[None]:
    """Delete what a test has closed: changing the theme styles every widget that exists, thousands of old ones too."""
    yield
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


@pytest.fixture(autouse=True)
def _the_dark_theme_again(qapp: QApplication) -> Iterator[None]:
    """Restore the dark theme, so that no test is painted in the colours of another."""
    yield
    if current_theme() is not DARK:
        apply_theme(qapp, DARK)


@pytest.fixture(scope="session", autouse=True)
def _a_search_ends_in_one_piece() -> Iterator[None]:
    """Otherwise a busy machine ends a piece after any record, and a test would read what is found so far."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(breakpoints, "PIECE_S", 60.0)
        yield


@pytest.fixture
def dark_theme(qapp: QApplication) -> Iterator[None]:
    """The dark theme with its style sheet, whatever earlier tests left."""
    load_fonts()
    before = qapp.styleSheet()
    apply_theme(qapp, DARK)
    yield
    qapp.setStyleSheet(before)


@pytest.fixture(scope="session")
def qapp_cls() -> type[QApplication]:
    return QApplication


class PatientBot(QtBot):
    """Waits as long as a busy machine may take: what does not come fails later, what comes is not taken for late."""

    def waitUntil(self, callback: Callable[[], object], *, timeout: int = PATIENCE_MS) -> None:
        super().waitUntil(callback, timeout=timeout)

    def waitSignal(self, signal: object, *, timeout: int = PATIENCE_MS, **more: Any) -> Any:
        return super().waitSignal(signal, timeout=timeout, **more)


@pytest.fixture
def qtbot(qapp: QApplication, request: pytest.FixtureRequest) -> QtBot:
    return PatientBot(request)


@pytest.fixture
def models(qapp: QApplication) -> Models:
    return Models()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> FakeEngine:
    if is_kept(request):
        kept: KeptWindow = request.getfixturevalue("kept")
        kept.begin_again()
        return kept.engine
    return FakeEngine()


@pytest.fixture
def shell(qtbot: QtBot, qapp: QApplication, engine: FakeEngine) -> Iterator[Shell]:
    shell = new_shell(qapp, engine, (1280, 800))
    yield shell
    sweep(shell)


@pytest.fixture
def running(request: pytest.FixtureRequest, engine: FakeEngine) -> Shell:
    """A window after a prompt and twenty steps: one for all tests of a file that is marked `one_window`."""
    if is_kept(request):
        return request.getfixturevalue("kept").shell
    shell = request.getfixturevalue("shell")
    take_twenty(shell, engine)
    return shell


def take_twenty(shell: Shell, engine: FakeEngine) -> None:
    take_steps(shell, engine, 20)
    assert len(shell.models.timeline) == 21
    engine.sent.clear()


def is_kept(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("one_window") is not None


@pytest.fixture(scope="module")
def kept(qapp: QApplication) -> Iterator[KeptWindow]:
    kept = KeptWindow(qapp)
    yield kept
    kept.close()


class KeptWindow:
    """A running window that the tests of a file have one after the other. What one leaves there is put back; where it
    does not come back to where it began, the next test gets another window."""

    def __init__(self, app: QApplication) -> None:
        self._app = app
        self._build()

    def _build(self) -> None:
        self.engine = FakeEngine()
        self.shell = new_shell(self._app, self.engine, (1280, 800))
        take_twenty(self.shell, self.engine)
        self._docks = tuple(self.shell.window.docks.docks)  # others are built late, and stay
        self._status, self._begun = self.engine.status, self._state()
        self._selected, self._arrangement = self.shell.models.selection.now, self.shell.window.docks.arrangement

    def _state(self) -> tuple[object, ...]:
        models, window = self.shell.models, self.shell.window
        return (
            (models.status.now, models.status.failure, self.shell.controller.is_idle, models.comparison.now),
            (len(models.timeline), models.history.live, models.selection.now, models.viewport.now),
            (models.breakpoints.listed, dict(models.breakpoints.hits), models.breakpoints.query, models.bookmarks.all),
            (window.size(), window.isVisible(), window.docks.layout_name, window.prompt.draft, window.prompt.choice),
            [dock.panel.choice for name, dock in window.docks.docks.items() if name in self._docks],
        )

    def begin_again(self) -> None:
        shell, engine, models = self.shell, self.engine, self.shell.models
        for widget in (*self._app.topLevelWidgets(), *shell.window.findChildren(QDialog)):
            if isinstance(widget, QDialog | QMenu):
                widget.close()
        engine.outbox.clear()
        engine.is_silent, engine.status = False, self._status
        shell.intents.on_breakpoints_changed(())
        models.breakpoints.search("")
        if models.comparison.now is not None:
            engine.emit(ComparisonEnded())
        models.bookmarks.set_all(())
        models.selection.update(**asdict(self._selected))
        models.viewport.show_all()
        shell.window.show_arrangement(self._arrangement)
        engine.emit(StateChanged(engine.status))
        turn(shell)
        if self._state() != self._begun:
            self.close()
            self._build()
        engine.sent.clear()
        engine.numbered.clear()

    def close(self) -> None:
        sweep(self.shell)


def take_steps(shell: Shell, engine: FakeEngine, steps: int) -> None:
    """Load the model, send a prompt and take so many steps."""
    engine.loaded()
    turn(shell)
    shell.window.actions_["prompt.send"].trigger()
    turn(shell)
    shell.intents.on_run_to(steps)
    turn(shell, 10)


def new_shell(app: QApplication, engine: FakeEngine, size: tuple[int, int]) -> Shell:
    """A window as the first start makes it: shown once, at one size, and no layout chosen by hand."""
    load_fonts()
    app.setStyleSheet("")  # as at a start: the shell sets it once the window is built
    shell = Shell(app, Settings(theme="dark"), engine.send, engine.drain)
    shell.window.resize(*size)
    shell.window.show()
    app.processEvents()
    return shell


def sweep(shell: Shell) -> None:
    """Close a shell's window and delete it now, so that nothing of it reaches the next test."""
    shell.window.close()
    shell.window.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    QApplication.processEvents()


def turn(shell: Shell, times: int = 6) -> None:
    """Let the window live for a few ticks."""
    for _ in range(times):
        shell.controller.tick()
        QApplication.processEvents()
