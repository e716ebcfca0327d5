"""Forks: a fork has exactly the parent's state of a step, is drawn at once, and goes on by itself."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engine.errors import InputError
from engine.history.state import SharedList
from engine.session.commands import join
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_preset, tuned
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.pictures import (
    AttentionPicture,
    AttentionRequest,
    PictureRequest,
    RowPicture,
    RowRequest,
    WallPicture,
    WallRequest,
)
from engine.wire.records import StopReason
from tests.effort import effort
from tests.engine.session import sessions
from tests.engine.session.sessions import set_state
from tests.engine.snapshot.sessions import snapshot
from tests.engine.tiny import model_of, prompt_ids

PROMPT, STEPS = 12, 9
MODES = {
    **{name: cache_preset(name).spec for name in ("none", "dynamic", "static", "growing", "paged", "offloaded")},
    **{name: cache_preset(name).spec for name in ("fp8", "int8", "paged-int8")},
    "kivi-4": tuned(cache_preset("kivi-4").spec, group=8, residual=8),
    **{
        name: tuned(cache_preset(name).spec, budget=10, sinks=1, window=3)
        for name in ("h2o", "snapkv", "tova", "knorm", "random")
    },
    "sliding": tuned(cache_preset("sliding").spec, window=8),
    "paged-tova": tuned(cache_preset("tova").spec, budget=10, sinks=1, window=3, layout="paged", page_size=4),
}
FORCED = prompt_ids(STEPS + 6, seed=3)


def started(cache: CacheSpec, architecture: str = "llama") -> Session:
    """A prompt in two chunks and then steps with tokens that end no text."""
    session = Session(model_of(architecture), cache, prefill_chunk=8)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(PROMPT), sampling=SamplingParams(temperature=1.0, seed=5)))
    session.force(seq_id, FORCED)
    for _ in range(2 + STEPS):
        session.step()
    return session


def rows(session: Session, seq_id: int) -> list[torch.Tensor]:
    """K, V and their positions of every layer."""
    cache, found = session.cache_of(seq_id), []
    for layer in range(len(cache.layers)):
        held = cache.rows(layer)
        if held is not None:
            found += [held.keys.clone(), held.values.clone()]
            found += [] if held.positions is None else [held.positions.clone()]
    return found


def same(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(ones) == len(others) and all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


IN_ALL = [
    *((mode, "llama") for mode in MODES), *((mode, "mistral") for mode in ("dynamic", "static", "growing", "paged")),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "architecture"), effort(IN_ALL[::2], IN_ALL))
def test_a_fork_of_a_past_step_has_its_state_to_the_bit(mode: str, architecture: str) -> None:
    session, twin = started(MODES[mode], architecture), started(MODES[mode], architecture)
    step = 5
    parent = rows(session, 0)
    forked = session.fork(0, step)
    assert same(rows(session, 0), parent), "the parent stays as it is"
    twin.go_to(step)
    child, then = session.sequence(1), twin.sequence(0)
    assert (forked.parent, forked.child, forked.step, forked.num_tokens) == (0, 1, step, then.num_tokens)
    assert PROMPT < forked.num_tokens < session.sequence(0).num_tokens
    assert child.token_ids == then.token_ids
    assert replace(child, origins=()) == then
    if mode != "none":  # there the newest step's rows are a scratch that going back does not compute anew
        assert same(rows(session, 1), rows(twin, 0))
    newest, logged = session.logits(1), twin.logits(0)
    assert newest is not None
    assert logged is not None
    assert torch.equal(newest, logged)
    session.stop(0)
    for _ in range(3):
        mine, its = session.step().of(1), twin.step().of(0)
        assert mine is not None
        assert its is not None
        assert (mine.token_ids, mine.sampled, mine.num_tokens) == (its.token_ids, its.sampled, its.num_tokens)
        mine_logits, its_logits = session.logits(1), twin.logits(0)
        assert mine_logits is not None
        assert its_logits is not None
        assert torch.equal(mine_logits, its_logits)


@pytest.mark.parametrize("mode", ["growing", "h2o", "paged", "none"])
@pytest.mark.parametrize("step", [None, 6])
def test_a_fork_has_pictures_and_logits_at_once(mode: str, step: int | None) -> None:
    session = started(MODES[mode])
    at = 10 if step is None else step
    count = session.fork(0, step).num_tokens
    pairs: list[tuple[PictureRequest, PictureRequest]] = [
        (AttentionRequest(0, at, 1, 64), AttentionRequest(1, 10, 1, 64)),
        (RowRequest(0, count, count - 1), RowRequest(1, count, count - 1)),
        (WallRequest(0, count, count, "keys", False, 32, 8), WallRequest(1, count, count, "keys", False, 32, 8)),
    ]
    for of_parent, of_child in pairs:
        theirs, mine = session.take_picture(of_parent), session.take_picture(of_child)
        if isinstance(mine, AttentionPicture):
            assert isinstance(theirs, AttentionPicture)
            assert mine.weights.shape[1] == count
            np.testing.assert_array_equal(mine.weights, theirs.weights)
            held = "recomputed" if mode == "none" else "live cache"
            assert mine.provenance == held, "it is the newest row of the fork"
            assert mine.query_position == count - 1
        elif isinstance(mine, RowPicture):
            assert isinstance(theirs, RowPicture)
            assert mine.layers
            np.testing.assert_array_equal(mine.keys, theirs.keys)
        else:
            assert isinstance(mine, WallPicture)
            assert isinstance(theirs, WallPicture)
            np.testing.assert_array_equal(mine.low, theirs.low)
    child, parent = session.history.logged_logits(1), session.history.logged_logits(0)
    assert [(e.step, e.num_tokens) for e in child] == [(e.step, e.num_tokens) for e in parent if e.step <= at]
    assert set(session.history.attention_with(1, count)) == {0, 1}


def test_the_history_of_a_fork_goes_on_after_its_parent_is_gone() -> None:
    session = started(MODES["growing"])
    then = session.take_picture(AttentionRequest(0, 4, 1, 64))
    session.fork(0, 6)
    session.remove(0)
    session.step()
    child = session.take_picture(AttentionRequest(1, 4, 1, 64))
    assert isinstance(then, AttentionPicture)
    assert isinstance(child, AttentionPicture)
    np.testing.assert_array_equal(then.weights, child.weights)
    assert [entry.step for entry in session.history.logged_logits(1)] == [*range(7), 11]


def test_a_fork_of_a_fork_goes_back_through_both() -> None:
    session = started(MODES["growing"])
    first = session.fork(0, 6).child
    session.step()
    second = session.fork(first, 4)
    assert second.num_tokens == PROMPT + 3
    assert [entry.step for entry in session.history.logged_logits(second.child)] == [0, 1, 2, 3, 4]
    assert session.history.path.forward_lengths(second.child) == [8, 12, 13, 14, 15]


def test_forks_that_cannot_be_exact_are_refused_and_change_nothing() -> None:
    session = started(MODES["growing"])
    session.set_cache(MODES["kivi-4"])
    second = session.submit(Prompt(token_ids=prompt_ids(5)))
    session.step()
    before = session.sequences
    for seq_id, step, why in (
        (0, 4, "another cache mode"),
        (second, 4, "not there yet at step 4"),
        (0, 99, "no step 99"),
        (0, -1, "no step -1"),
        (7, 4, "no sequence 7"),
    ):
        with pytest.raises(InputError, match=why):
            session.fork(seq_id, step)
    assert session.sequences == before
    assert session.fork(second).child == 2


def test_a_fork_of_a_step_in_another_lossless_mode_is_exact() -> None:
    session, twin = started(MODES["growing"]), started(MODES["growing"])
    session.set_cache(MODES["paged"])
    session.step()
    session.fork(0, 5)
    twin.go_to(5)
    assert same(rows(session, 1), rows(twin, 0))


@pytest.mark.parametrize("mode", ["knorm", "tova", "random", "sliding", "paged-tova", "fp8", "int8", "kivi-4"])
@pytest.mark.parametrize("step", [6, 10])
def test_a_fork_from_before_a_mode_was_left_and_taken_again_is_exact(mode: str, step: int) -> None:
    session, twin = started(MODES[mode]), started(MODES[mode])
    for between in ("growing", mode):
        session.set_cache(MODES[between])
        session.step()
    session.kept.clear()
    assert session.fork(0, step).how.startswith("repeated")
    twin.go_to(step)
    assert same(rows(session, 1), rows(twin, 0))


def test_a_fork_without_pages_for_it_is_refused() -> None:
    spec = CacheSpec("paged", page_size=4, num_pages=7)
    session = started(spec, "mistral")  # pages left the window: a past step must be computed again
    session.fork(0, 3)
    with pytest.raises(InputError, match="pages that the pool does not have"):
        session.fork(0, 3)
    assert [info.seq_id for info in session.sequences] == [0, 1]
    session.step()


# ---- sampling is a sequence's -----------------------------------------------------------------------------------


def test_a_second_prompt_leaves_the_sampling_of_the_first_alone() -> None:
    alone, both = started(MODES["growing"]), started(MODES["growing"])
    second = both.submit(Prompt(token_ids=prompt_ids(6), sampling=SamplingParams(temperature=0.0, seed=99)))
    both.step()
    for session in (alone, both):
        set_state(session, 0, forced=SharedList())
        set_state(session, 0, sampled_is_forced=False)
        for _ in range(6):
            session.step()
    assert alone.sequence(0).token_ids == both.sequence(0).token_ids[: len(alone.sequence(0).token_ids)]
    assert [info.sampling.seed for info in both.sequences] == [5, 99]
    assert second == 1


def test_sampling_of_one_sequence_is_changed_and_goes_back_with_it() -> None:
    session = started(MODES["growing"])
    other = session.fork(0).child
    warm = SamplingParams(temperature=3.0, seed=1)
    session.set_sampling(warm, other)
    assert [info.sampling for info in session.sequences] == [SamplingParams(temperature=1.0, seed=5), warm]
    session.step()
    session.set_sampling(SamplingParams(), other)
    session.go_to(11)
    assert session.sequence(other).sampling == warm
    with pytest.raises(InputError, match="no sequence 9"):
        session.set_sampling(warm, 9)


def test_every_sequence_has_a_sampling_of_its_own() -> None:
    session, warm = Session(model_of("llama"), MODES["growing"]), SamplingParams(temperature=2.0)
    first = session.submit(Prompt(token_ids=(5, 6), sampling=warm))
    second = session.submit(Prompt(token_ids=(5, 6)))
    assert (session.sequence(first).sampling, session.sequence(second).sampling) == (warm, SamplingParams())
    session.set_sampling(SamplingParams(seed=4), first)
    assert (session.sequence(first).sampling.seed, session.sequence(second).sampling.seed) == (4, 0)


def test_a_snapshot_says_the_seed_of_its_sequence() -> None:
    session = started(MODES["growing"])
    session.submit(Prompt(token_ids=(5, 6), sampling=SamplingParams(seed=77)))
    session.step()
    assert [json.loads(snapshot(session, i).manifest["sequence"])["sampling"]["seed"] for i in (0, 1)] == [5, 77]


def test_a_fork_of_what_was_added_after_the_newest_step_changes_its_mode_as_others_do() -> None:
    session = started(MODES["growing"])
    late = session.submit(Prompt(token_ids=prompt_ids(PROMPT, seed=9)))
    with pytest.raises(InputError, match="was not there yet at step 10"):
        session.fork(late, session.last_step)
    child = session.fork(late).child
    assert session.sequence(child).num_tokens == 0
    session.set_cache(MODES["kivi-4"])
    session.force(late, FORCED)
    session.force(child, FORCED)
    for _ in range(4):
        session.step()
    assert same(rows(session, child), rows(session, late))
    assert rows(session, child)


def test_a_sequence_that_was_taken_from_a_branch_and_removed_can_be_taken_again() -> None:
    """Even before a step has recorded that it was taken."""
    session, seq_id = sessions.started(temperature=1.0)
    for _ in range(3):
        session.step()
    session.go_to(1)
    session.force(seq_id, (7,))
    session.step()
    (first,) = join(session, (2,))
    with pytest.raises(InputError, match="has every sequence of step 2"):
        join(session, (2,))
    session.remove(first.child)
    (again,) = join(session, (2,))
    assert (again.parent, again.step) == (seq_id, 2)
    assert again.child != first.child


@pytest.mark.parametrize("reason", ["end of text", "stop string", "length", "context full", "cache full"])
def test_a_sequence_that_has_ended_keeps_its_reason_when_it_is_stopped(reason: StopReason) -> None:
    session, seq_id = sessions.started()
    session.step()
    set_state(session, seq_id, stop=reason)
    session.stop(seq_id)
    assert session.sequence(seq_id).stop == reason
    assert session.history.changes == []


def test_a_moment_that_computed_nothing_has_what_the_step_before_it_gave() -> None:
    """Whatever was done to the sequence between the two moments."""
    session, seq_id = sessions.started(temperature=1.0)
    for _ in range(3):
        session.step()
    session.force(seq_id, (7,))
    session.stop(seq_id)
    session.go_to(0)
    node = session.history.tree.at(3).node
    assert node.work is None
    assert len(node.changes) == 2
    assert session.history.tree.computed_by(seq_id, 3) == (2, seq_id)
