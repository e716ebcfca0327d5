"""What every message carries, whatever it is."""

from __future__ import annotations

import pytest
from msgspec.structs import fields, replace

from engine.wire.commands import COMMANDS
from engine.wire.encoding import decode_event, encode
from engine.wire.events import EVENTS
from engine.wire.message import Command, Event
from tests.engine.wire.test_encoding import example


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_says_which_command_it_answers(kind: type) -> None:
    """Behind its own fields, where records of older files have none."""
    assert issubclass(kind, Event)
    assert (fields(kind)[-1].name, fields(kind)[-1].default) == ("reply_to", None)
    event = replace(example(kind), reply_to=12)
    assert decode_event(encode(event)).reply_to == 12


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_every_command_has_an_id_and_a_session(kind: type) -> None:
    assert issubclass(kind, Command)
    assert [(field.name, field.default) for field in fields(kind)[-2:]] == [("id", 0), ("session", 0)]
