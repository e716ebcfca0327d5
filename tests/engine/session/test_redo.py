"""Steps of a session that is gone, done once more in another: the same rows, the same way back, the same future."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.redoing import Redoing
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_preset
from engine.spec.sampling import Prompt, SamplingParams
from engine.spec.tuning import tuned
from engine.wire.commands import Redo
from engine.wire.planned import PlannedFork, PlannedSequence, PlannedStep
from engine.wire.records import StepRecord
from engine.wire.requests import RowRequest
from engine.wire.slices import RowSlice
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


def plan(
    session: Session,
    records: list[StepRecord],
    forks: dict[int, PlannedFork] | None = None,
    gone: dict[int, tuple[int, ...]] | None = None,
) -> Redo:
    known = {
        info.seq_id: PlannedSequence(
            info.seq_id,
            tuple(session.sequence(info.seq_id).token_ids),
            info.num_prompt_tokens,
            info.sampling,
            info.sampled,
            info.stop,
            (forks or {}).get(info.seq_id),
            is_gone=False,
        )
        for info in session.sequences
    }
    for seq_id, ids in (gone or {}).items():
        known[seq_id] = PlannedSequence(seq_id, ids, len(ids), WARM, None, None, None, is_gone=True)
    return Redo(tuple(known.values()), tuple(map(PlannedStep.of, records)), session.cache)


def redone(model: LoadedModel, command: Redo, num_computed_anew: int = 0) -> Session:
    """Another session, after what a restart does: it begins in the mode of the end."""
    session = Session(model, command.cache, prefill_chunk=64)
    redoing = Redoing(session, command)
    for _ in redoing.steps(lambda: None):
        pass
    redoing.finish()
    assert redoing.num_computed_anew == num_computed_anew
    return session


def row(session: Session, seq_id: int, num_tokens: int, position: int) -> RowSlice:
    piece = session.take_slice(RowRequest(seq_id, num_tokens, position))
    assert isinstance(piece, RowSlice)
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
            assert a.dropped == b.dropped
            for x, y in zip((*a.keys, *a.values), (*b.keys, *b.values), strict=True):
                assert torch.equal(torch.tensor(x).nan_to_num(9e9), torch.tensor(y).nan_to_num(9e9))


@pytest.mark.parametrize("mode", MODES)
def test_all_rows_the_way_back_and_what_follows_are_the_same(model: LoadedModel, mode: str) -> None:
    old = Session(model, MODES[mode], prefill_chunk=16)
    old.submit(Prompt(token_ids=prompt_ids(21), sampling=WARM))
    records = [old.step() for _ in range(8)]
    old.force(0, (5, 9))
    records += [old.step() for _ in range(6)]
    new = redone(model, plan(old, records))
    assert_same(old, new)
    assert len(new.history.journal) == 14
    assert new.sequence(0).token_ids == old.sequence(0).token_ids
    for step in (9, 4, 0):
        assert old.go_to(step) == new.go_to(step)
        assert [old.step().sequences[0].sampled for _ in range(3)] == [
            new.step().sequences[0].sampled for _ in range(3)
        ]
        assert_same(old, new)


def test_the_records_are_those_of_then_forced_tokens_included(model: LoadedModel) -> None:
    old = Session(model, MODES["growing"], prefill_chunk=16)
    old.submit(Prompt(token_ids=prompt_ids(21), sampling=WARM))
    records = [old.step() for _ in range(3)]
    old.force(0, (5, 9))
    records += [old.step() for _ in range(4)]
    command = plan(old, records)
    again = list(Redoing(Session(model, command.cache, prefill_chunk=16), command).steps(lambda: None))
    told = [[(p.token_ids, p.forced, p.sampled) for r in each for p in r.sequences] for each in (records, again)]
    assert told[0] == told[1]
    assert [forced for _, forced, _ in told[1]] == [False] * 3 + [True] * 2 + [False] * 2


def test_several_sequences_a_fork_another_mode_and_one_that_was_removed(model: LoadedModel) -> None:
    old = Session(model, MODES["paged"], prefill_chunk=16)
    old.submit(Prompt(token_ids=prompt_ids(9), sampling=WARM))
    old.submit(Prompt(token_ids=prompt_ids(6, 3)))
    records = [old.step() for _ in range(6)]
    forked = old.fork(0, 3)
    assert (forked.child, forked.step) == (2, 3)
    records += [old.step() for _ in range(3)]
    old.set_cache(MODES["int8"])
    records += [old.step() for _ in range(2)]
    old.halt(2)
    ids = tuple(old.sequence(1).token_ids)
    old.remove(1)
    records += [old.step() for _ in range(2)]
    new = redone(model, plan(old, records, {2: PlannedFork(0, 3, 5)}, {1: ids}))
    assert_same(old, new)
    assert [info.stop for info in new.sequences] == [None, "stopped"]
    assert new.submit(Prompt(token_ids=(5,))) == old.submit(Prompt(token_ids=(5,))) == 3


def test_a_fork_of_the_newest_step_is_one_again(model: LoadedModel) -> None:
    old = Session(model, MODES["paged"], prefill_chunk=16)
    old.submit(Prompt(token_ids=prompt_ids(9), sampling=WARM))
    records = [old.step() for _ in range(4)]
    old.fork(0, 3)
    records += [old.step() for _ in range(3)]
    new = redone(model, plan(old, records, {1: PlannedFork(0, 3, 3)}))
    assert_same(old, new)
    assert [info.num_prompt_tokens for info in new.sequences] == [9, 9]
    assert new.go_to(3) == old.go_to(3)
    assert_same(old, new)


def test_a_pool_that_was_too_small_gives_the_same_rows_up(model: LoadedModel) -> None:
    old = Session(model, CacheSpec("paged", page_size=4, num_pages=8), prefill_chunk=16)
    for seed in range(2):
        old.submit(Prompt(token_ids=prompt_ids(9, seed), sampling=WARM))
    records = [old.step() for _ in range(12)]
    assert any(record.preempted for record in records)
    new = redone(model, plan(old, records))
    assert [(i.seq_id, i.num_tokens, i.sampled) for i in old.sequences] == [
        (i.seq_id, i.num_tokens, i.sampled) for i in new.sequences
    ]
    assert [new.history.journal.mark(1, step) for step in range(12)] == [
        old.history.journal.mark(1, step) for step in range(12)
    ]


def test_what_was_not_done_once_more_comes_next(model: LoadedModel) -> None:
    """It ends after the fifth of twelve steps: the tokens of the others are fed by the steps that follow."""
    old = Session(model, MODES["growing"])
    old.submit(Prompt(token_ids=prompt_ids(9), sampling=WARM))
    records = [old.step() for _ in range(12)]
    command = plan(old, records)
    new = Session(model, command.cache)
    redoing = Redoing(new, command)
    pieces = redoing.steps(lambda: None)
    for _ in range(5):
        next(pieces)
    redoing.finish()
    assert new.last_step == 4
    while new.sequence(0).num_tokens < old.sequence(0).num_tokens:
        new.step()
    assert new.sequence(0).token_ids == old.sequence(0).token_ids
    assert new.sequence(0).sampled == old.sequence(0).sampled


def test_a_prompt_that_waits_waits_again_and_one_half_read_is_read_on(model: LoadedModel) -> None:
    old = Session(model, MODES["growing"], prefill_chunk=16)
    for length in (40, 7):
        old.submit(Prompt(token_ids=prompt_ids(length), sampling=WARM))
    records = [old.step()]
    new = redone(model, plan(old, records))
    assert_same(old, new)
    assert [(info.state, info.num_tokens) for info in new.sequences] == [("prefill", 16), ("waiting", 0)]


def test_tokens_in_pages_of_an_earlier_run_are_computed_anew_and_counted(model: LoadedModel) -> None:
    """Pages of a prompt that is gone served the first 8 of its tokens; those that it left serve another one again."""
    old = Session(model, MODES["paged"], prefill_chunk=16)
    old.submit(Prompt(token_ids=prompt_ids(10)))
    old.step()
    old.remove(0)
    old.forget_history()
    old.submit(Prompt(token_ids=prompt_ids(13), sampling=WARM))
    old.submit(Prompt(token_ids=prompt_ids(9), sampling=WARM))
    records = [old.step() for _ in range(4)]
    assert [record.sequences[0].first_position for record in records[:2]] == [8, 8]
    new = redone(model, plan(old, records), num_computed_anew=8)
    assert new.sequence(1).token_ids == old.sequence(1).token_ids
    mine, its = new.logits(1), old.logits(1)
    assert mine is not None
    assert torch.allclose(mine, its, atol=1e-5)


def test_a_plan_that_does_not_fit_is_refused_where_it_stops(model: LoadedModel) -> None:
    old = Session(model, MODES["growing"])
    old.submit(Prompt(token_ids=prompt_ids(9), sampling=WARM))
    command = plan(old, [old.step() for _ in range(3)])
    backwards = replace(command, steps=(command.steps[0], command.steps[2], command.steps[1]))
    with pytest.raises(InputError, match="before step 1"):
        redone(model, backwards)
    with pytest.raises(InputError, match="session that has none"):
        Redoing(old, command)
