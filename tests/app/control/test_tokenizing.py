from __future__ import annotations

from app.control.controller import Controller
from engine.wire.commands import Tokenize
from engine.wire.events import Tokenized
from tests.app.fake_engine import FakeEngine


def test_only_the_newest_text_is_counted(controller: Controller, engine: FakeEngine) -> None:
    counts: list[int] = []
    controller.requests.texts.counted.connect(lambda ids: counts.append(len(ids)))
    controller.intents.on_text_edited("a")
    controller.intents.on_text_edited("a b")
    first, second = engine.ids_of(Tokenize)
    engine.emit(Tokenized((1,), ("a",), reply_to=first), Tokenized((1, 2), ("a", " b"), reply_to=second))
    controller.tick()
    assert counts == [2]
