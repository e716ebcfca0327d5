"""Several sequences of a session; how they stop; where there is nothing to go back to."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.errors import InputError
from engine.model.batch import Batch, Result
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.sampling import Prompt
from tests.engine.session.sessions import GROWING, LOSSLESS, started
from tests.engine.tiny import model_of, prompt_ids


def test_several_sequences_do_not_disturb_each_other() -> None:
    session = Session(model_of("llama"), GROWING, prefill_chunk=4)
    prompts = [prompt_ids(n, seed=n) for n in (3, 9, 6)]
    ids = [session.submit(Prompt(token_ids=p)) for p in prompts]
    for seq_id in ids:
        session.force(seq_id, prompt_ids(6, seed=50 + seq_id))
    while any(session.sequence(i).num_tokens < len(p) + 4 for i, p in zip(ids, prompts, strict=True)):
        record = session.step()
        if record.phase == "prefill":
            assert len(record.sequences) == 1
    for seq_id, prompt in zip(ids, prompts, strict=True):
        alone = Session(model_of("llama"), GROWING, prefill_chunk=4)
        own = alone.submit(Prompt(token_ids=prompt))
        alone.force(own, prompt_ids(6, seed=50 + seq_id))
        while alone.sequence(own).num_tokens < session.sequence(seq_id).num_tokens:
            alone.step()
        mine, theirs = session.logits(seq_id), alone.logits(own)
        assert mine is not None
        assert theirs is not None
        assert torch.equal(mine, theirs)


def test_a_removed_sequence_is_gone() -> None:
    session, seq_id = started()
    session.step()
    session.remove(seq_id)
    assert session.sequences == ()
    assert session.bytes().stored == 0
    for ask in (session.remove, session.cache_of, session.sequence, lambda i: session.force(i, (3,))):
        with pytest.raises(InputError, match="no sequence 0"):
            ask(seq_id)
    with pytest.raises(InputError, match="nothing to do"):
        session.step()


def test_going_back_before_a_prompt_removes_its_sequence_and_going_forward_restores_it() -> None:
    session, first = started()
    session.step()
    second = session.submit(Prompt(token_ids=prompt_ids(5, seed=2)))
    session.step()
    session.go_to(0)
    assert [(each.seq_id, each.num_tokens) for each in session.sequences] == [(first, 8)]
    assert session.step().sequences[0].seq_id == first
    session.go_to(1)
    assert [(each.seq_id, each.num_tokens) for each in session.sequences] == [(first, 8), (second, 5)]


def test_no_step_to_go_back_to() -> None:
    session, _ = started()
    for step in (0, -1, 5):
        with pytest.raises(InputError, match="no step"):
            session.go_to(step)
    session.step()
    with pytest.raises(InputError, match="no step 1"):
        session.go_to(1)


# ---- stopping ----------------------------------------------------------------------------------------------------


def logits_for(token_id: int, value: float = 9.0) -> Any:
    def forward(self: Any, batch: Batch) -> Result:
        logits = torch.zeros(1, 1, 128)
        logits[0, -1, token_id] = value
        return Result(logits, ("none",))

    return forward


def test_end_of_text_stops_and_a_forced_token_goes_past_it(monkeypatch: pytest.MonkeyPatch) -> None:
    session, seq_id = started(cache=CacheSpec("none"))
    (end,) = session.model.end_ids
    monkeypatch.setattr(type(session.model), "forward", logits_for(end))
    record = session.step()
    assert record.sequences[0].sampled == end
    assert record.sequences[0].stop == "end of text"
    assert not session.has_work
    assert session.sequences[0].phase == "finished"
    with pytest.raises(InputError):
        session.step()
    session.force(seq_id, (9,))
    assert session.has_work
    record = session.step()
    assert record.sequences[0].token_ids == (9,)
    assert record.sequences[0].forced
    assert not session.has_work, "the model says again that the text ends"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_end_a_sequence_for_that_reason(monkeypatch: pytest.MonkeyPatch, bad: float) -> None:
    """Token 0, which ends the text of many models, would be next, although no probabilities chose it."""
    session, seq_id = started(cache=CacheSpec("none"))
    monkeypatch.setattr(session.model, "end_ids", frozenset({0}))
    monkeypatch.setattr(type(session.model), "forward", logits_for(0))
    session.step()
    assert session.sequence(seq_id).stop == "end of text"
    monkeypatch.setattr(type(session.model), "forward", logits_for(5, bad))
    session.force(seq_id, (9, 10))
    parts = [session.step().sequences[0] for _ in range(2)]
    assert [part.stop for part in parts] == [None, "non-finite logits"]
    assert not session.has_work
    session.go_to(1)
    assert session.sequence(seq_id).stop is None


def test_while_tokens_are_forced_no_record_says_that_the_text_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model chooses the end of text at every step, and the limit of new tokens is reached after the second."""
    session, seq_id = started(cache=CacheSpec("none"), max_new_tokens=2)
    (end,) = session.model.end_ids
    monkeypatch.setattr(type(session.model), "forward", logits_for(end))
    session.force(seq_id, (9, 10, 11))
    parts = [session.step().sequences[0] for _ in range(4)]
    assert [(part.token_ids[-1], part.stop, part.sampled) for part in parts[1:]] == [
        (9, None, end),
        (10, None, end),
        (11, "end of text", end),
    ]
    assert parts[0].stop is None
    assert [entry.node.work.parts[0].stop for entry in session.history.tree] == [
        None,
        None,
        None,
        "end of text",
    ]  # type: ignore[union-attr]


def test_more_is_computed_than_was_asked_for_where_a_person_steps_on() -> None:
    """With the tokens of a run without a limit; one that was stopped stays so."""
    session, seq_id = started(max_new_tokens=2)
    free, _ = started()
    for each in (session, free):
        each.step()
    session.step()
    assert (session.sequence(seq_id).stop, session.has_work) == ("length", False)
    session.allow_steps()
    while session.sequence(seq_id).num_tokens < 12:
        session.step()
    while free.sequence(0).num_tokens < 12:
        free.step()
    assert [*session.sequence(seq_id).token_ids] == [*free.sequence(0).token_ids]
    ended = session.last_step
    assert ended is not None
    session.go_to(1)
    assert session.sequence(seq_id).stop == "length"
    session.go_to(ended)
    assert session.has_work
    session.stop(seq_id)
    with pytest.raises(InputError, match="every sequence has ended"):
        session.allow_steps()


def test_a_forced_token_wakes_a_stopped_sequence() -> None:
    session, seq_id = started()
    session.step()
    session.stop(seq_id)
    assert not session.has_work
    session.force(seq_id, (9,))
    assert session.step().sequences[0].token_ids == (9,)


@pytest.mark.parametrize("cache", LOSSLESS)
def test_the_context_is_full_and_nothing_is_cut_silently(cache: str) -> None:
    session, seq_id = started(cache=PRESETS[cache].spec, length=126)
    session.force(seq_id, prompt_ids(20, seed=1))
    stops = [session.step().sequences[0].stop for _ in range(3)]
    assert stops == [None, None, "context full"]
    assert session.sequence(seq_id).num_tokens == session.model.max_length == 128
    assert not session.has_work
    with pytest.raises(InputError, match="no room"):
        session.force(seq_id, (9,))


def test_a_full_static_cache_says_so_and_a_larger_one_goes_on() -> None:
    session, seq_id = started(cache=CacheSpec("static", max_length=10))
    session.force(seq_id, prompt_ids(20, seed=1))
    assert [session.step().sequences[0].stop for _ in range(3)] == [None, None, "cache full"]
    session.set_cache(GROWING)
    assert session.has_work
    assert session.step().sequences[0].num_tokens == 11


def test_a_mode_that_keeps_nothing_has_the_tokens_from_the_moment_that_it_is_chosen() -> None:
    session, seq_id = started(cache=GROWING, length=10)
    for _ in range(3):
        session.step()
    count = session.sequence(seq_id).num_tokens
    assert count > 10
    session.set_cache(CacheSpec("none"))
    assert session.cache_of(seq_id).num_tokens == count
    assert session.fork(seq_id).num_tokens == count
