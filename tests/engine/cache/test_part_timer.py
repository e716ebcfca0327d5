"""What parts of a layer take, by a clock that a test moves: what is timed inside something else is none of it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch

from engine.cache import part_timer
from engine.cache.part_timer import PartTimer, rows_of, timed, timed_layers
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, Coding
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids


class Time:
    """A time in milliseconds."""

    def __init__(self, at: float) -> None:
        self.at = at

    def ms_since(self, earlier: Time) -> float:
        return self.at - earlier.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    now = Time(0.0)
    monkeypatch.setattr(part_timer, "device_now", lambda device: Time(now.at))
    return now


def test_what_is_inside_is_taken_out_of_what_is_around_it(clock: Time) -> None:
    timer = PartTimer(torch.device("cpu"))
    with timer.timed("attention", 1):
        clock.at += 1
        with timer.timed("cache", 1):
            clock.at += 10
            with timer.timed("dequantise", 1):
                clock.at += 100
            clock.at += 20
        clock.at += 2
        with timer.timed("copies", 2):
            clock.at += 1000
        clock.at += 4
    clock.at += 50_000
    with suppress(ValueError), timer.timed("attention", 1):
        clock.at += 8
        raise ValueError
    expected = {("attention", 1): 1 + 2 + 4 + 8, ("cache", 1): 30, ("dequantise", 1): 100, ("copies", 2): 1000}
    assert timer.parts_ms() == expected


def test_nobody_who_does_not_ask_is_timed(clock: Time) -> None:
    timer = PartTimer(torch.device("cpu"))
    for asked in ((None, 1), (timer, None)):
        with timed(asked[0], "cache", asked[1]):  # type: ignore[arg-type]
            clock.at += 1
    assert timer.parts_ms() == {}


SPECS = {
    "growing": (CacheSpec(), {"cache"}),
    "int8 of K": (CacheSpec(codec=CodecSpec(Coding("int8"))), {"cache", "dequantise", "copies"}),
    "paged": (CacheSpec("paged", page_size=4), {"cache", "copies"}),
    "paged int8": (CacheSpec("paged", page_size=4, codec=CodecSpec(Coding("int8"), Coding("int8"))),
                   {"cache", "dequantise"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_the_layers_of_a_cache_are_timed_meanwhile_and_as_they_were_after(name: str) -> None:
    spec, parts = SPECS[name]
    session = Session(model_of("llama"), spec)
    session.submit(Prompt(token_ids=prompt_ids(9)))
    session.step()
    cache: Any = session.cache_of(0)
    timer = PartTimer(torch.device("cpu"))
    things = [thing for layer in cache.model_cache.layers for thing in (layer, *rows_of(layer))]
    before = [set(vars(thing)) for thing in things]
    with torch.inference_mode(), timed_layers(cache.model_cache, timer):
        cache.begin(1)
        cache.plan_forward(1)
        for layer in cache.model_cache.layers:
            layer.update(torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 16))
    assert {part for part, _ in timer.parts_ms()} == parts
    assert {layer for _, layer in timer.parts_ms()} == {0, 1}
    assert [set(vars(thing)) for thing in things] == before
    found = timer.parts_ms()
    for layer in cache.model_cache.layers:
        rows_of(layer)
    cache.rows(0)
    assert timer.parts_ms() == found, "nothing is timed any more"
