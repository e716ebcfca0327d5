"""Going back where several features meet: rules with a memory, forks, shortened journals, two sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.cache import lost_rows
from engine.cache.compressed.cache import CompressedCache
from engine.session.going_back import steps_in_words
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.tree import Node, PlannedStep
from tests.engine.cache.compressed.test_cache_going_back import assert_alike, assert_same, state_of
from tests.engine.tiny import model_of, prompt_ids

SPECS = {
    "h2o": CacheSpec(retention=RetentionSpec("h2o", budget=12, window=4)),
    "tova": CacheSpec(retention=RetentionSpec("tova", budget=12)),
    "snapkv": CacheSpec(retention=RetentionSpec("snapkv", budget=12, window=4)),
    "knorm": CacheSpec(retention=RetentionSpec("knorm", budget=12, window=4)),
    "paged h2o": CacheSpec("paged", page_size=4, retention=RetentionSpec("h2o", budget=12, window=4)),
    "paged knorm": CacheSpec("paged", page_size=4, retention=RetentionSpec("knorm", budget=12, window=4)),
}


def session_of(name: str, steps: int) -> tuple[Session, int]:
    session = Session(model_of("llama"), SPECS[name], prefill_chunk=8)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(20)))
    session.force(seq_id, prompt_ids(60, seed=1))
    for _ in range(steps):
        session.step()
    return session, seq_id


def logits_of(session: Session, seq_id: int) -> torch.Tensor:
    newest = session.logits(seq_id)
    assert newest is not None
    return newest


def memories(session: Session, seq_id: int) -> list[torch.Tensor | None]:
    cache = session.cache_of(seq_id)
    assert isinstance(cache, CompressedCache)
    return [None if layer.memory is None else layer.memory.clone() for _, layer in cache.compressed_layers]


@pytest.mark.parametrize("name", SPECS)
def test_a_fork_that_goes_back_to_where_it_stands_stays_as_it_is(name: str) -> None:
    """As a step does that fails before it has written a row."""
    session, seq_id = session_of(name, 9)
    fork = session.fork(seq_id).child
    before, cache = state_of(session, fork), session.cache_of(fork)
    remembered = memories(session, fork) if isinstance(cache, CompressedCache) else []
    assert cache.crop(cache.num_tokens)
    assert_same(state_of(session, fork), before)
    for mine, then in zip(memories(session, fork) if remembered else [], remembered, strict=True):
        assert (mine is None and then is None) or torch.equal(mine, then)  # type: ignore[arg-type]
    rows = cache.rows(0)
    assert rows is not None
    assert rows.positions is not None


@pytest.mark.parametrize("name", SPECS)
def test_a_fork_whose_step_failed_goes_on_as_its_parent_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, seq_id = session_of(name, 9)
    fork = session.fork(seq_id).child

    def failing(self: Any, num_new: int) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(type(session.cache_of(fork)), "begin", failing)
        with pytest.raises(MemoryError):
            session.step()
    for _ in range(6):
        session.step()
    assert_same(state_of(session, fork), state_of(session, seq_id))
    assert torch.equal(logits_of(session, fork), logits_of(session, seq_id))


@pytest.mark.parametrize("name", SPECS)
def test_going_back_to_a_fork_gives_the_same_logits(name: str) -> None:
    session, seq_id = session_of(name, 9)
    fork = session.fork(seq_id).child
    at = session.step().step
    then, seen = [state_of(session, seq).read for seq in (seq_id, fork)], []
    for _ in range(4):
        session.step()
        seen.append([logits_of(session, seq) for seq in (seq_id, fork)])
    session.go_to(at)
    for seq, read in zip((seq_id, fork), then, strict=True):
        assert_alike(state_of(session, seq).read, read)
    for expected in seen:
        session.step()
        for seq, logits in zip((seq_id, fork), expected, strict=True):
            assert torch.equal(logits_of(session, seq), logits)


@pytest.mark.parametrize("name", SPECS)
def test_going_back_to_before_a_second_sequence_began(name: str) -> None:
    """The second sequence is gone with all its state, and the first has lost nothing: both repeat what they did."""
    session, first = session_of(name, 6)
    at = session.last_step
    assert at is not None
    lives = []
    for _ in range(2):
        second = session.submit(Prompt(token_ids=prompt_ids(22, seed=3)))
        session.force(second, prompt_ids(40, seed=4))
        seen = []
        for _ in range(9):
            session.step()
            seen += [
                (number, session.sequence(seq).num_tokens, session.logits(seq))
                for number, seq in enumerate((first, second))
            ]
        lives.append(seen)
        session.go_to(at)
    for (one, length, then), (other, num_tokens, newest) in zip(*lives, strict=True):
        assert (one, length) == (other, num_tokens)
        assert (then is None) == (newest is None)
        assert then is None or torch.equal(newest, then)


@pytest.mark.parametrize("name", ["knorm", "h2o", "tova"])
def test_a_state_that_a_short_log_no_longer_has_is_replayed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has room for the rows of few steps: going back to an older state replays it, exactly."""
    monkeypatch.setattr(lost_rows, "MAX_BYTES", 4_000)
    session, seq_id = session_of(name, 3)
    states = {}
    for _ in range(20):
        session.step()
        assert session.last_step is not None
        states[session.last_step] = (session.sequence(seq_id).num_tokens, state_of(session, seq_id))
    cache = session.cache_of(seq_id)
    assert isinstance(cache, CompressedCache)
    newest, oldest = max(states), min(states)
    (late, state), (early, first) = states[newest - 2], states[oldest]
    assert cache.knows(late)
    assert not cache.knows(early)
    assert not cache.crop(early)
    assert "put" in session.go_to(newest - 2)
    assert_same(state_of(session, seq_id), state)
    assert "repeated" in session.go_to(oldest)
    assert_same(state_of(session, seq_id), first)


def test_a_rule_that_has_pruned_the_prompt_notes_no_later_steps() -> None:
    """SnapKV keeps no state once the prompt has ended, so that going back needs no notes of later steps."""
    session, seq_id = session_of("snapkv", 30)
    cache = session.cache_of(seq_id)
    assert isinstance(cache, CompressedCache)
    assert [lost.memory for step in cache.lost.since(0) for lost in step.layers.values()] == [None, None]
    assert session.last_step is not None
    assert session.go_to(session.last_step - 20).startswith("cropped")
    assert not cache.knows(10) or not cache.crop(10), "inside the prompt it remembered more than is kept"


def test_before_the_first_step_is_the_mode_of_the_first() -> None:
    session, _ = session_of(next(iter(SPECS)), 2)
    first = session.cache
    session.set_cache(CacheSpec("growing"))
    session.step()
    session.set_cache(CacheSpec("dynamic"))
    session.step()
    session.go_to(None)
    assert (session.cache, session.last_step, len(session.live)) == (first, None, 0)


def test_steps_that_are_repeated_are_counted_and_edits_are_none() -> None:
    spec, work = CacheSpec(), PlannedStep(0, CacheSpec(), (), ())
    step, edit = Node(0, None, (), spec, work, ()), Node(1, 0, (), spec, None, ())
    assert [steps_in_words(nodes) for nodes in ([step, edit], [step, edit, step], [edit])] == [
        "1 step",
        "2 steps",
        "0 steps",
    ]
