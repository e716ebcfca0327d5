"""The inline client: commands in, events out, on the thread of its caller."""

from __future__ import annotations

import threading

import pytest

from engine.client.inline import InlineClient
from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.edit import parse_edit
from engine.spec.model import BUNDLED, ModelSpec
from engine.spec.sampling import Prompt
from engine.wire.commands import LoadModel, MakeEdit, Run, SubmitPrompt
from engine.wire.devices import FindDevices
from engine.wire.events import Done, Submitted
from engine.wire.records import StepRecord


def test_events_come_as_they_are_asked_for_and_failures_are_raised() -> None:
    client, before = InlineClient(), set(threading.enumerate())
    with pytest.raises(InputError, match="There is no model yet"):
        client.do(Run())
    client.do(LoadModel(ModelSpec(BUNDLED, num_threads=1), CacheSpec()))
    told = client.do(SubmitPrompt(Prompt(text="Once upon a time")))
    (submitted,) = (event for event in told if isinstance(event, Submitted))
    events = client.ask(Run(3))
    first = next(event for event in events if isinstance(event, StepRecord))
    assert client.session.last_step == first.step == 0, "the second step is done when it is asked for"
    *rest, last = events
    assert [event.step for event in rest if isinstance(event, StepRecord)] == [1, 2]
    assert isinstance(last, Done)
    tokens = client.session.sequence(submitted.seq_id).num_tokens
    with pytest.raises(InputError, match="position 90"):
        client.do(MakeEdit(parse_edit("zero pos=90", submitted.seq_id, tokens)))
    assert client.session.sequence(submitted.seq_id).num_tokens == tokens
    assert client.do(FindDevices())
    assert set(threading.enumerate()) <= before, "those of other tests may end meanwhile"
