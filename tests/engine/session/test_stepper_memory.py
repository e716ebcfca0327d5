"""Memory that a step returns to the system: the C heap keeps what large matrix products leave behind."""

from __future__ import annotations

import pytest

from engine.session import stepper
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids


def trims(length: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """After which of the chunks of a prompt, in chunks of 8 tokens, and of two decode steps memory is returned."""
    session, seen = Session(model_of("llama"), CacheSpec("growing"), prefill_chunk=8), list[int]()
    session.submit(Prompt(token_ids=prompt_ids(length)))
    session.force(0, (5, 6))
    number = 0
    monkeypatch.setattr(stepper, "trim_heap", lambda: seen.append(number))
    while session.is_prefilling or number < -(-length // 8) + 2:
        session.step()
        number += 1
    return seen


def test_memory_is_returned_at_the_end_of_a_long_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepper, "LONG_PROMPT", 20)
    monkeypatch.setattr(stepper, "LONG_CHUNK_S", 1e6)
    assert trims(24, monkeypatch) == [2]
    assert trims(19, monkeypatch) == []


def test_memory_is_returned_after_each_chunk_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepper, "LONG_CHUNK_S", 0.0)
    assert trims(24, monkeypatch) == [0, 1, 2]
