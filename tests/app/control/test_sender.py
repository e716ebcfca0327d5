"""Every question gets its answers, each once, and its end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QObject
from shiboken6 import delete

from app.control.controller import Controller
from app.kit.asking import Question
from app.models import Models
from engine.wire.commands import FindModels, GoTo, Tokenize
from engine.wire.events import Cancelled, Done, EngineLost, Event, Failed, ModelsFound, Tokenized, WentTo
from engine.wire.message import Command
from tests.app.fake_engine import FakeEngine


class Asker(QObject):
    """Notes what it is told."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._ask = controller.intents.take
        self.answers: list[Event] = []
        self.refusals: list[str] = []

    def ask(self, command: Command, slot: str | None = None) -> None:
        self._ask(Question(command, self.take, self.refuse, slot))

    def take(self, answer: Event) -> None:
        self.answers.append(answer)

    def refuse(self, failure: Failed) -> None:
        self.refusals.append(failure.message)


@pytest.fixture
def asker(controller: Controller, engine: FakeEngine) -> Asker:
    engine.is_silent = True
    return Asker(controller)


def test_only_the_newest_of_a_slot_is_answered(controller: Controller, engine: FakeEngine, asker: Asker) -> None:
    asker.ask(Tokenize("a"), "text")
    asker.ask(Tokenize("a b"), "text")
    asker.ask(FindModels())
    first, second = engine.ids_of(Tokenize)
    answer = Tokenized((1, 2), ("a", " b"), reply_to=second)
    engine.emit(Failed("no", reply_to=first), answer, ModelsFound((), reply_to=engine.id_of(FindModels)))
    controller.tick()
    assert [type(each) for each in asker.answers] == [Tokenized, ModelsFound]
    assert (asker.answers[0], asker.refusals) == (answer, [])


@pytest.mark.parametrize("last", [Failed("There is no step 7."), Cancelled(), Done()])
def test_after_the_last_word_there_is_no_other(
    controller: Controller, models: Models, engine: FakeEngine, asker: Asker, last: Event
) -> None:
    asker.ask(GoTo(7))
    number = engine.id_of(GoTo)
    went = WentTo(7, "a swap", 0.5, reply_to=number)
    engine.emit(went, replace(last, reply_to=number), went)
    controller.tick()
    assert len(asker.answers) == 1
    assert asker.refusals == {Failed: ["There is no step 7."], Cancelled: [""], Done: []}[type(last)]


def test_a_failure_that_nobody_takes_stands_in_the_status_line(
    controller: Controller, models: Models, engine: FakeEngine
) -> None:
    said: list[str] = []
    models.status.failed.connect(said.append)
    engine.is_silent = True
    controller.intents.take(Question(FindModels()))
    engine.emit(Failed("The folder cannot be read.", reply_to=engine.id_of(FindModels)))
    controller.tick()
    assert said[-1] == "The folder cannot be read."


def test_a_lost_engine_ends_every_question(controller: Controller, engine: FakeEngine, asker: Asker) -> None:
    asker.ask(GoTo(7))
    engine.emit(EngineLost("it was killed"))
    controller.tick()
    assert asker.refusals == [""]
    asker.ask(Tokenize("typed while nobody counts"))
    assert not engine.of(Tokenize)


def test_an_asker_that_is_gone_is_told_nothing(controller: Controller, engine: FakeEngine, asker: Asker) -> None:
    asker.ask(Tokenize("a"))
    delete(asker)
    engine.emit(Tokenized((1,), ("a",), reply_to=engine.id_of(Tokenize)))
    controller.tick()
    assert asker.answers == []
