"""Nothing is deleted by going back: forks, removed sequences, modes, sampling, full caches, prompts half read."""

from __future__ import annotations

import pytest
import torch

from engine.errors import InputError
from engine.session.commands import branch, delete_branch
from engine.session.replay import Replay
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import BeginBranch
from engine.wire.records import EditMade, SamplingChanged, TokensForced
from tests.engine.session.histories import MODES, difference, stands
from tests.engine.session.sessions import set_state
from tests.engine.session.warm import FORCED, WARM, begun, stepped
from tests.engine.tiny import model_of, prompt_ids

SOME = ("growing", "paged", "h2o", "kivi", "window", "paged h2o")


@pytest.mark.parametrize("mode", SOME)
def test_later_moments_are_kept_after_going_back(mode: str) -> None:
    session = begun(mode)
    steps = stepped(session, 8)
    tip = stands(session)
    session.go_to(steps[3])
    session.force(0, (7, 8, 9))
    other = stepped(session, 3)
    assert other[0] == steps[-1] + 1, "ids of sequences are never reused"
    assert session.history.path.steps == [*steps[:4], *other]
    assert session.go_to(steps[-1]) == "it was kept as it stood"
    assert difference(stands(session), tip) == ""


@pytest.mark.parametrize("mode", SOME)
def test_a_moment_whose_tensors_were_dropped_is_replayed_and_the_answer_says_so(mode: str) -> None:
    session = begun(mode)
    steps = stepped(session, 8)
    tip = stands(session)
    session.go_to(steps[2])
    session.kept.clear()
    assert session.go_to(steps[-1]).startswith("repeated ")
    assert difference(stands(session), tip) == ""


@pytest.mark.parametrize("mode", SOME)
def test_a_fork_is_the_same_after_going_back_before_it_and_forward_again(mode: str) -> None:
    session = begun(mode)
    steps = stepped(session, 5)
    child = session.fork(0).child
    steps += stepped(session, 3)
    tip = stands(session)
    session.go_to(steps[1])
    assert session.live.ids == (0,)
    session.kept.clear()
    session.go_to(steps[-1])
    assert session.live.ids == (0, child)
    assert difference(stands(session), tip) == ""


@pytest.mark.parametrize("mode", SOME)
def test_a_removed_sequence_comes_back_with_its_rows(mode: str) -> None:
    session = begun(mode)
    session.submit(Prompt(token_ids=prompt_ids(7, seed=2), sampling=WARM))
    session.force(1, FORCED)
    steps = stepped(session, 6)
    both = stands(session)
    session.remove(1)
    later = stepped(session, 3)
    how = session.go_to(steps[-1])
    assert "repeated" not in how or MODES[mode].retention.name == "h2o", "what it held was kept"
    assert difference(stands(session), both) == ""
    session.go_to(later[-1])
    assert session.live.ids == (0,)


def test_a_fork_while_looking_back_is_of_the_step_that_is_shown() -> None:
    session = begun()
    steps = stepped(session, 8)
    then = session.sequence(0).token_ids[:]
    session.go_to(steps[2])
    session.force(0, (7, 8, 9))
    stepped(session, 3)
    child = session.fork(0, steps[6]).child
    assert session.sequence(child).token_ids == then[: len(then) - 1]
    record = session.step()
    assert [part.seq_id for part in record.sequences] == [0, child], "two branches run on together"
    assert record.changes[0].step == steps[6]  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["growing", "paged"])
def test_logits_and_sampling_of_a_branch_come_back(mode: str) -> None:
    session = begun(mode)
    steps = stepped(session, 4)
    session.history.logits.clear()
    logits = session.logits(0)
    session.set_sampling(SamplingParams(temperature=2.0, seed=1), 0)
    other = stepped(session, 3)
    assert session.history.tree.at(other[0]).node.changes == (
        SamplingChanged(0, SamplingParams(temperature=2.0, seed=1)),
    )
    session.go_to(steps[-1])
    newest = session.logits(0)
    assert logits is not None
    assert newest is not None
    assert torch.equal(newest, logits), "the last forward was repeated"
    assert session.sequence(0).sampling == WARM
    session.go_to(other[-1])
    assert session.sequence(0).sampling.seed == 1


@pytest.mark.parametrize("other", [mode for mode in MODES if mode != "growing"])
def test_a_change_of_mode_is_gone_back_over_and_forward_again(other: str) -> None:
    session = begun()
    steps = stepped(session, 6)
    before = stands(session)
    session.set_cache(MODES[other])
    steps += stepped(session, 3)
    after = stands(session)
    for step, spec, then in ((steps[5], MODES["growing"], before), (steps[-1], MODES[other], after)):
        session.kept.clear()
        session.go_to(step)
        assert session.cache == spec
        assert difference(stands(session), then) == ""


def test_changes_since_the_last_step_are_a_moment_of_their_own() -> None:
    session = begun()
    steps = stepped(session, 3)
    session.force(0, (5, 6))
    session.stop(0)
    pending = stands(session)
    session.go_to(steps[0])
    (node,) = session.history.take_added()
    assert (node.step, node.parent, node.work) == (steps[-1] + 1, steps[-1], None)
    assert node.changes[0] == TokensForced(0, (5, 6))
    session.kept.clear()
    session.go_to(node.step)
    assert difference(stands(session), pending) == ""
    assert session.history.take_added() == []


def test_a_full_cache_lets_one_go_back_and_begin_another_branch() -> None:
    session = Session(model_of("llama"), CacheSpec("static", max_length=16), prefill_chunk=6)
    session.submit(Prompt(token_ids=prompt_ids(9)))
    session.force(0, FORCED)
    steps = []
    while session.has_work:
        steps.append(session.step().step)
    assert session.sequence(0).stop == "cache full"
    full = stands(session)
    session.go_to(steps[3])
    assert session.sequence(0).stop is None
    assert session.step().sequences[0].num_tokens < 16
    session.go_to(steps[-1])
    assert difference(stands(session), full) == ""
    with pytest.raises(InputError, match="no room for another token"):
        session.force(0, (5,))


def test_a_preempted_sequence_is_preempted_again_where_it_was() -> None:
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4, num_pages=8), prefill_chunk=16)
    for seed in range(2):
        session.submit(Prompt(token_ids=prompt_ids(9, seed), sampling=WARM))
    stood = {}
    records = []
    for _ in range(12):
        records.append(session.step())
        stood[records[-1].step] = stands(session)
    assert any(record.preempted for record in records)
    session.kept.clear()
    for step in (11, 3, 8, 0, 10):
        session.go_to(step)
        assert difference(stands(session), stood[step]) == "", f"step {step}"


def test_a_prompt_half_read_is_half_read_again() -> None:
    session = begun("growing", length=20)
    steps = stepped(session, 2)
    half = stands(session)
    stepped(session, 4)
    session.go_to(steps[-1])
    assert difference(stands(session), half) == ""
    assert session.is_prefilling


def test_a_branch_is_deleted_unless_it_is_live_or_a_sequence_was_taken_from_it() -> None:
    session = begun()
    steps = stepped(session, 5)
    session.go_to(steps[1])
    other = stepped(session, 3)
    with pytest.raises(InputError, match="live step came of step"):
        delete_branch(session, other[1])
    with pytest.raises(InputError, match="no step 99"):
        delete_branch(session, 99)
    child = session.fork(0, steps[4]).child
    with pytest.raises(InputError, match=f"has taken something from step {steps[4]}"):
        delete_branch(session, steps[3])
    session.go_to(other[-1])
    (node,) = session.history.take_added()
    assert delete_branch(session, node.step) == (node.step,)
    assert delete_branch(session, steps[2]) == tuple(steps[2:])
    with pytest.raises(InputError, match=f"no step {steps[3]} to go to"):
        session.go_to(steps[3])
    assert child not in session.live.ids
    assert session.go_to(steps[0])


def test_another_branch_is_begun_from_any_step_at_once() -> None:
    session = begun()
    steps = stepped(session, 6)
    assert branch(session, BeginBranch(0, steps[2], token_ids=(7,)))
    assert session.step().sequences[0].token_ids == (7,)
    assert branch(session, BeginBranch(0, steps[4], sampling=SamplingParams(temperature=1.0, seed=77)))
    assert session.step().parent == steps[4]
    where = session.last_step
    for command, why in (
        (BeginBranch(0, steps[1]), "give one of them"),
        (BeginBranch(0, 99, token_ids=(7,)), "no step 99"),
        (BeginBranch(5, steps[1], token_ids=(7,)), "Sequence 5 was not there at step"),
        (BeginBranch(0, steps[1], token_ids=(10_000,)), "outside the vocabulary"),
    ):
        with pytest.raises(InputError, match=why):
            branch(session, command)
        assert session.last_step == where


def test_going_to_a_moment_and_cancelling_changes_nothing() -> None:
    session = begun("window")
    steps = stepped(session, 8)
    before = stands(session)
    session.kept.clear()
    session.history.logits.clear()

    class Cancelled(Exception):
        pass

    def check() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        session.go_to(steps[1], check)
    assert difference(stands(session), before) == ""
    assert session.last_step == steps[-1]


def test_a_replay_of_the_path_alone_is_what_the_tree_has() -> None:
    session = begun("paged")
    steps = stepped(session, 6)
    session.go_to(steps[2])
    session.force(0, (5, 6, 7))
    stepped(session, 2)
    tree = session.history.tree
    nodes = tuple(tree.at(step).node for step in session.history.path.steps)
    assert not any(isinstance(change, EditMade) for node in nodes for change in node.changes)
    fresh = Session(session.model, session.cache)
    replay = Replay(fresh, nodes)
    assert [node.step for node, *_ in replay.steps()] == session.history.path.steps
    assert replay.is_exact
    assert difference(stands(fresh), stands(session)) == ""


@pytest.mark.parametrize("spec", [CacheSpec("static", max_length=12), CacheSpec("paged", page_size=4, num_pages=4)])
def test_a_branch_that_is_refused_leaves_the_live_step(spec: CacheSpec) -> None:
    """A sequence that ended its text with the last token that fits stopped for that reason, and has no room either."""
    session = Session(model_of("llama"), spec)
    session.submit(Prompt(token_ids=prompt_ids(8)))
    for _ in range(4):
        session.step()
    full = session.step()
    set_state(session, 0, stop="end of text")
    session.history.tree.at(full.step).states[0] = session.sequence(0)
    session.go_to(2)
    with pytest.raises(InputError, match="no room"):
        branch(session, BeginBranch(0, full.step, token_ids=(7,)))
    with pytest.raises(InputError, match="no tokenizer"):
        branch(session, BeginBranch(0, 3, sampling=SamplingParams(stop=("x",))))
    assert session.last_step == 2


def test_a_mode_that_was_left_and_taken_again_has_the_rows_of_its_newest_step() -> None:
    session = begun("none")
    step = stepped(session, 4)[-1]
    then = stands(session)
    session.submit(Prompt(token_ids=(5, 6, 7)))  # with changes pending the changes of mode keep no moment
    session.set_cache(CacheSpec(layout="dynamic"))
    session.set_cache(CacheSpec(layout="none"))
    session.go_to(step)
    assert difference(stands(session), then) == ""
