"""The nodes of a lost session, replayed in a new one: the same rows, the same history, the same next tokens."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.replay import Replay, check_can_be_replayed
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_preset, tuned
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import Redo
from engine.wire.pictures import RowPicture, RowRequest
from tests.engine.tiny import model_of, prompt_ids

MODES = {
    "growing": CacheSpec("growing"),
    "dynamic": CacheSpec("dynamic"),
    "none": CacheSpec("none"),
    "paged": CacheSpec("paged", page_size=4),
    "h2o": tuned(cache_preset("h2o").spec, budget=12),
    "streamingllm": tuned(cache_preset("streamingllm").spec, sinks=2, window=8),
    "int8": cache_preset("int8").spec,
    "kivi-4": tuned(cache_preset("kivi-4").spec, group=8, residual=8),
}
WARM = SamplingParams(temperature=1.5, seed=7)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return model_of("llama")


def plan(session: Session) -> Redo:
    """What a window knows of a session: every node, the live one, and the changes since."""
    history = session.history
    return Redo(tuple(entry.node for entry in history.tree), history.last_step, tuple(history.changes))


def redone(model: LoadedModel, command: Redo, num_computed_anew: int = 0) -> Session:
    """A new session that has replayed a plan as after a restart."""
    session = Session(model, MODES["growing"], prefill_chunk=64)
    check_can_be_replayed(session, command.nodes, command.at)
    replay = Replay(session, command.nodes)
    for _ in replay.steps():
        pass
    replay.finish(command.at, command.changes)
    assert replay.num_computed_anew == num_computed_anew
    assert replay.is_exact or num_computed_anew, replay.why_not_exact
    return session


def row(session: Session, seq_id: int, num_tokens: int, position: int) -> RowPicture:
    piece = session.take_picture(RowRequest(seq_id, num_tokens, position))
    assert isinstance(piece, RowPicture)
    return piece


def assert_same(one: Session, other: Session) -> None:
    assert one.sequences == other.sequences
    assert (one.last_step, one.cache) == (other.last_step, other.cache)
    for info in one.sequences:
        mine, its = one.logits(info.seq_id), other.logits(info.seq_id)
        assert (mine is None) == (its is None)
        assert mine is None or (its is not None and torch.equal(mine, its))
        for position in range(info.num_tokens):
            a, b = (row(session, info.seq_id, info.num_tokens, position) for session in (one, other))
            assert a.evicted == b.evicted
            for x, y in zip((*a.keys, *a.values), (*b.keys, *b.values), strict=True):
                assert torch.equal(torch.tensor(x).nan_to_num(9e9), torch.tensor(y).nan_to_num(9e9))


@pytest.mark.parametrize("mode", MODES)
def test_all_rows_the_way_back_and_what_follows_are_the_same(model: LoadedModel, mode: str) -> None:
    old = Session(model, MODES[mode], prefill_chunk=16)
    old.submit(Prompt(token_ids=prompt_ids(21), sampling=WARM))
    for _ in range(8):
        old.step()
    old.force(0, (5, 9))
    for _ in range(6):
        old.step()
    new = redone(model, plan(old))
    assert_same(old, new)
    assert len(new.history.path) == 14
    assert new.sequence(0).token_ids == old.sequence(0).token_ids
    for step in (9, 4, 0):
        old.go_to(step)
        new.go_to(step)
        assert [old.step().sequences[0].sampled for _ in range(3)] == [
            new.step().sequences[0].sampled for _ in range(3)
        ]
        assert_same(old, new)


def test_the_records_are_the_same_forced_tokens_included(model: LoadedModel) -> None:
    old = Session(model, MODES["growing"], prefill_chunk=16)
    old.submit(Prompt(token_ids=prompt_ids(21), sampling=WARM))
    records = [old.step() for _ in range(3)]
    old.force(0, (5, 9))
    records += [old.step() for _ in range(4)]
    again = [record for _, record, _ in Replay(Session(model, old.cache), plan(old).nodes).steps()]
    told = [
        [(p.token_ids, p.forced, p.sampled) for r in each if r is not None for p in r.sequences]
        for each in (records, again)
    ]
    assert told[0] == told[1]
    assert [forced for _, forced, _ in told[1]] == [False] * 3 + [True] * 2 + [False] * 2
    assert [record.changes for record in records] == [record.changes for record in again if record is not None]


def test_several_sequences_a_fork_another_mode_and_one_that_was_removed(model: LoadedModel) -> None:
    old = Session(model, MODES["paged"], prefill_chunk=16)
    old.submit(Prompt(token_ids=prompt_ids(9), sampling=WARM))
    old.submit(Prompt(token_ids=prompt_ids(6, 3)))
    for _ in range(6):
        old.step()
    forked = old.fork(0, 3)
    assert (forked.child, forked.step) == (2, 3)
    for _ in range(3):
        old.step()
    old.set_cache(MODES["int8"])
    for _ in range(2):
        old.step()
    old.stop(2)
    old.remove(1)
    for _ in range(2):
        old.step()
    new = redone(model, plan(old))
    assert_same(old, new)
    assert [info.stop for info in new.sequences] == [None, "stopped"]
    assert new.submit(Prompt(token_ids=(5,))) == old.submit(Prompt(token_ids=(5,))) == 3


@pytest.mark.parametrize("mode", ["growing", "paged", "h2o", "kivi-4"])
def test_a_tree_with_branches_comes_back_whole(model: LoadedModel, mode: str) -> None:
    """Three branches, one that was left before it was stepped, and a fork of a step of another one."""
    old = Session(model, MODES[mode], prefill_chunk=16)
    old.submit(Prompt(token_ids=prompt_ids(9), sampling=WARM))
    for _ in range(6):
        old.step()
    old.go_to(3)
    old.force(0, (5, 9, 7))
    for _ in range(4):
        old.step()
    old.go_to(1)
    old.set_sampling(SamplingParams(temperature=2.0, seed=3), 0)
    assert old.go_to(5)
    child = old.fork(0, 8).child
    old.step()
    new = redone(model, plan(old))
    assert_same(old, new)
    assert new.sequence(child).token_ids[-4:-1] == [5, 9, 7]
    for step in (10, 9, 4, 8, 11, 0, 5):
        old.go_to(step)
        new.go_to(step)
        assert_same(old, new)


def test_a_pool_that_was_too_small_preempts_the_same_sequences(model: LoadedModel) -> None:
    old = Session(model, CacheSpec("paged", page_size=4, num_pages=8), prefill_chunk=16)
    for seed in range(2):
        old.submit(Prompt(token_ids=prompt_ids(9, seed), sampling=WARM))
    records = [old.step() for _ in range(12)]
    assert any(record.preempted for record in records)
    new = redone(model, plan(old))
    assert [(i.seq_id, i.num_tokens, i.sampled, i.num_preemptions) for i in old.sequences] == [
        (i.seq_id, i.num_tokens, i.sampled, i.num_preemptions) for i in new.sequences
    ]
    assert [new.history.path.state(1, step) for step in range(12)] == [
        old.history.path.state(1, step) for step in range(12)
    ]


def test_tokens_of_steps_that_were_not_replayed_are_computed_next(model: LoadedModel) -> None:
    """The replay ends after the fifth of twelve steps; the steps that follow compute the tokens of the rest."""
    old = Session(model, MODES["growing"])
    old.submit(Prompt(token_ids=prompt_ids(9), sampling=WARM))
    for _ in range(12):
        old.step()
    command = plan(old)
    new = Session(model, old.cache)
    replay = Replay(new, command.nodes)
    pieces = replay.steps()
    for _ in range(5):
        next(pieces)
    replay.finish(command.at, command.changes)
    assert new.last_step == 4
    while new.sequence(0).num_tokens < old.sequence(0).num_tokens:
        new.step()
    assert new.sequence(0).token_ids == old.sequence(0).token_ids
    assert new.sequence(0).sampled == old.sequence(0).sampled


def test_what_was_done_since_the_newest_step_is_done_again(model: LoadedModel) -> None:
    old = Session(model, MODES["growing"], prefill_chunk=16)
    for length in (40, 7):
        old.submit(Prompt(token_ids=prompt_ids(length), sampling=WARM))
    old.step()
    old.submit(Prompt(token_ids=prompt_ids(5)))
    old.stop(1)
    new = redone(model, plan(old))
    assert_same(old, new)
    assert [(info.phase, info.num_tokens) for info in new.sequences] == [
        ("prefill", 16), ("finished", 0), ("waiting", 0),
    ]  # fmt: skip


def test_tokens_in_pages_of_an_earlier_run_are_computed_anew_and_counted(model: LoadedModel) -> None:
    """Pages of a removed prompt served the first 8 tokens; pages that the replay leaves serve the next prompt again."""
    old = Session(model, MODES["paged"], prefill_chunk=16)
    old.submit(Prompt(token_ids=prompt_ids(10)))
    old.step()
    old.remove(0)
    old.forget_history()
    old.submit(Prompt(token_ids=prompt_ids(13), sampling=WARM))
    old.submit(Prompt(token_ids=prompt_ids(9), sampling=WARM))
    records = [old.step() for _ in range(4)]
    assert [record.sequences[0].first_position for record in records[:2]] == [8, 8]
    new = redone(model, plan(old), num_computed_anew=8)
    assert new.sequence(1).token_ids == old.sequence(1).token_ids
    mine, its = new.logits(1), old.logits(1)
    assert mine is not None
    assert torch.allclose(mine, its, atol=1e-5)


def test_a_plan_that_does_not_fit_is_refused_where_it_stops(model: LoadedModel) -> None:
    old = Session(model, MODES["growing"])
    old.submit(Prompt(token_ids=prompt_ids(9), sampling=WARM))
    for _ in range(3):
        old.step()
    command = plan(old)
    first, second, third = command.nodes
    assert third.work is not None
    early = replace(second, work=replace(third.work, parts=(replace(third.work.parts[0], num_tokens=9),)))
    with pytest.raises(InputError, match="has 9 tokens before step"):
        redone(model, replace(command, nodes=(first, early, third)))
    with pytest.raises(InputError, match="session that has none"):
        check_can_be_replayed(old, command.nodes, command.at)
    with pytest.raises(InputError, match="Step 1 follows on step 0, which is not there"):
        redone(model, replace(command, nodes=(second, third)))
    with pytest.raises(InputError, match="no step 7 among"):
        redone(model, replace(command, at=7))


@pytest.mark.parametrize("mode", MODES)
def test_every_step_has_a_checksum_a_layer_and_other_rows_are_found_by_it(model: LoadedModel, mode: str) -> None:
    old = Session(model, MODES[mode], prefill_chunk=16)
    for seed in range(2):
        old.submit(Prompt(token_ids=prompt_ids(9 + seed, seed), sampling=WARM))
    records = [old.step() for _ in range(6)]
    assert all(len(record.checksums) == len(model.info.geometry.attention_layers) for record in records)
    nodes = plan(old).nodes
    assert [node.checksums for node in nodes] == [record.checksums for record in records]
    changed = replace(nodes[4], checksums=(nodes[4].checksums[0] ^ 1, *nodes[4].checksums[1:]))
    replay = Replay(Session(model, old.cache), (*nodes[:4], changed, *nodes[5:]))
    for _ in replay.steps():
        pass
    assert {(each.step, each.what) for each in replay.differences} == {(4, "rows")}
    assert replay.why_not_exact == "from step 4 on K and V are others"
