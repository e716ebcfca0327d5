"""A shell on a fake engine, closed and swept up after each test; a Qt warning that nobody expected fails it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QtMsgType
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.kit.theme import DARK, apply_theme, current_theme, load_fonts
from app.models import Models
from app.shell import Shell
from app.start.settings import Settings
from engine.garbage import garbage
from tests.app.fake_engine import FakeEngine

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


@pytest.fixture
def models(qapp: QApplication) -> Models:
    return Models()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def shell(qtbot: QtBot, qapp: QApplication, engine: FakeEngine) -> Iterator[Shell]:
    shell = new_shell(qapp, engine, (1280, 800))
    yield shell
    sweep(shell)


@pytest.fixture
def running(shell: Shell, engine: FakeEngine) -> Shell:
    """A window after a prompt and twenty steps."""
    take_steps(shell, engine, 20)
    assert len(shell.models.timeline) == 21
    engine.sent.clear()
    return shell


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
