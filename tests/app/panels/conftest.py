"""Windows that panels are tested in: after a long run, with measurements to be answered, on the real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.shell import Shell
from engine.spec.cache import CacheSpec
from engine.wire.events import StateChanged
from engine.wire.status import SequenceInfo
from tests.app import samples
from tests.app.conftest import new_shell, sweep, take_steps, turn
from tests.app.driver import Driver
from tests.app.fake_engine import FakeEngine
from tests.app.panels.desk import Desk, PromptedDesk

STEPS = 180  # of a long run
TOKENS = samples.PROMPT + STEPS


@pytest.fixture
def two(running: Shell, engine: FakeEngine) -> Shell:
    """Two sequences, a cache that drops rows, and the panels that measure in sight; nothing is answered by itself."""
    infos = tuple(SequenceInfo(seq_id, "decode", 24, 4, 11, None) for seq_id in (0, 1))
    record = samples.step_record(21)
    own = replace(record.sequences[0], num_tokens=24)
    other = replace(own, seq_id=1, first_position=0, phase="prefill", token_ids=tuple(range(24)))
    other = replace(other, texts=("x",) * 24, surprisal=(None,) * 24)
    engine.emit(replace(record, sequences=(replace(own, token_ids=(5,), texts=("y",)), other)))
    engine.emit(StateChanged(replace(engine.status, sequences=infos, step=21)))
    running.window.resize(1800, 1300)
    running.window.arrange("truth")
    running.window.timeline.setFocus()
    turn(running)
    engine.is_silent = True
    return running


@pytest.fixture
def fresh(qapp: QApplication, engine: FakeEngine, request: pytest.FixtureRequest) -> Iterator[Shell]:
    """A window as the first start makes it, of 1280 x 800 or the size that a test names, after a run of `STEPS` steps;
    no layout was chosen by hand."""
    shell = new_shell(qapp, engine, getattr(request, "param", (1280, 800)))
    take_steps(shell, engine, STEPS)
    yield shell
    sweep(shell)


@pytest.fixture(scope="module")
def desk(qapp: QApplication) -> Iterator[Desk]:
    """A window on the real engine, shared by the tests of a file: each begins a run of its own."""
    desk = Desk(qapp)
    yield desk
    desk.close()


@pytest.fixture
def prompted(qapp: QApplication) -> Iterator[PromptedDesk]:
    """A window on the real engine that has read its prompt."""
    desk = PromptedDesk(qapp)
    yield desk
    desk.close()


@pytest.fixture
def show(qtbot: QtBot) -> Callable[..., Any]:
    """Shows a panel alone, in a size."""

    def shown(view: QWidget, width: int = 720, height: int = 330) -> QWidget:
        qtbot.addWidget(view)
        view.resize(width, height)
        view.show()
        QApplication.processEvents()
        return view

    return shown


@pytest.fixture
def drive(qapp: QApplication) -> Iterator[Callable[[CacheSpec], Driver]]:
    """Starts windows on the real engine, each with a cache."""
    made: list[Driver] = []

    def start(spec: CacheSpec) -> Driver:
        made.append(Driver(qapp, spec))
        return made[-1]

    yield start
    for driver in made:
        driver.close()


def chip(panel: object) -> tuple[str, str]:
    """The words about its source in a panel's strip, and the kind of source that its dot shows."""
    label = panel.provenance_label  # type: ignore[attr-defined]
    return label.text, label.kind
