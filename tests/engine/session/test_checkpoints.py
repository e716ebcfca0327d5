"""Kept checkpoints: how many, who owns their pages, and which are let go first."""

from __future__ import annotations

import pytest

from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.pages import KEPT, PageEvicted
from tests.engine.session.histories import MODES, difference, stands
from tests.engine.session.warm import FORCED, WARM, begun, stepped
from tests.engine.tiny import model_of, prompt_ids


def test_a_full_pool_lets_kept_checkpoints_go_before_it_preempts_a_sequence() -> None:
    session = begun("small pool", length=20)
    steps = stepped(session, 6)
    session.go_to(steps[3])
    assert steps[-1] in session.kept
    session.force(0, prompt_ids(40, seed=9))
    while session.has_work:
        assert not session.step().preempted
    assert steps[-1] not in session.kept
    session.go_to(steps[-1])
    for group in session.live.mode.store.groups:  # type: ignore[union-attr]
        group.pool.check(group.tables)


def test_a_cached_page_is_evicted_before_a_kept_checkpoint_is_let_go() -> None:
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4, num_pages=14))
    gone = session.submit(Prompt(token_ids=prompt_ids(17, seed=8)))
    session.step()
    session.remove(gone)
    session.kept.clear()
    session.submit(Prompt(token_ids=prompt_ids(9)))
    steps = stepped(session, 6)
    session.go_to(steps[2])
    store = session.live.mode.store
    assert store is not None
    num_cached = store.groups[0].pool.counts().num_cached
    assert num_cached >= 4
    session.force(1, prompt_ids(26, seed=9))
    evicted: list[int] = []
    while len(evicted) < num_cached:
        evicted += [e.committed.page_id for e in session.step().page_events if isinstance(e, PageEvicted)]
        assert steps[-1] in session.kept
    while steps[-1] in session.kept:
        session.step()


def test_pages_of_kept_checkpoints_have_an_owner_of_their_own() -> None:
    session = begun("paged")
    steps = stepped(session, 8)
    session.go_to(steps[2])
    (group,) = session.live.mode.store.groups  # type: ignore[union-attr]
    assert sorted(table.seq_id for table in group.tables) == [KEPT, 0]
    record = session.step()
    owners = {event.seq_id for event in record.page_events if hasattr(event, "seq_id")}
    assert owners == {KEPT, 0}
    session.go_to(steps[-1])
    assert sorted(table.seq_id for table in group.tables) == [KEPT, 0]


def test_beyond_the_byte_limit_the_least_recently_used_moment_is_let_go() -> None:
    session = begun("growing")
    steps = stepped(session, 8)
    for step in (steps[3], steps[4], steps[5]):
        session.go_to(step)
    kept = [state.step for state in session.kept]
    assert kept == [steps[4], steps[3], steps[-1]]
    session.kept.max_bytes = session.kept.num_bytes - 1
    session.go_to(steps[6])
    assert steps[-1] not in session.kept
    assert session.kept.num_bytes <= session.kept.max_bytes


def test_pages_of_a_mode_that_was_left_are_given_back_though_a_kept_checkpoint_lies_beside_them() -> None:
    session = begun("paged")
    steps = stepped(session, 5)
    session.go_to(steps[2])
    session.set_sampling(SamplingParams(seed=3), 0)
    session.set_cache(MODES["growing"])
    session.go_to(steps[-1])
    (group,) = session.live.mode.store.groups  # type: ignore[union-attr]
    group.pool.check(group.tables)
    assert [table.seq_id for table in group.tables if table.seq_id != KEPT] == [0]


@pytest.mark.parametrize("mode", ["h2o", "window", "paged h2o"])
def test_rows_kept_for_going_back_are_bounded_and_what_they_forget_is_replayed(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, bounded = begun(mode), begun(mode)
    stood = {}
    last = {}
    for _ in range(33):
        last = {session: session.live.caches[0].lost_bytes for session in (free, bounded)}
        for session in (free, bounded):
            monkeypatch.setattr("engine.session.session.LOST_BYTES", 64 << 20 if session is free else 3_000)
            session.force(0, (7,))
            step = session.step().step
        stood[step] = stands(bounded)
    kept = [session.live.caches[0].lost_bytes for session in (free, bounded)]
    newest = kept[0] - last[free]  # the limit is checked before each step
    assert kept[1] - newest <= 3_000 + bounded.bytes().stored // 10 < kept[0] - newest
    if mode == "h2o":  # rows and states go together: what is left of either is of use
        assert "put" in bounded.go_to(step - 4)
    assert "put" in free.go_to(4)
    assert bounded.go_to(4).startswith("repeated ")
    assert difference(stands(bounded), stood[4]) == difference(stands(free), stood[4]) == ""


@pytest.mark.parametrize("mode", ["growing", "paged"])
def test_a_sequence_that_rests_since_long_does_not_make_going_back_a_replay(mode: str) -> None:
    """Its logits have left the log, but the sequence still holds them."""
    session = Session(model_of("llama"), PRESETS[mode].spec)
    resting = session.submit(Prompt(token_ids=prompt_ids(8)))
    session.force(session.submit(Prompt(token_ids=prompt_ids(9, seed=2))), prompt_ids(60, seed=4))
    for _ in range(6):
        session.step()
    session.stop(resting)
    stood = {}
    for _ in range(8):
        record = session.step()
        stood[record.step] = stands(session)
    session.history.logits.drop_steps(set(range(6)))
    assert "repeated" not in session.go_to(9)
    assert difference(stood[9], stands(session)) == ""


def test_a_kept_checkpoint_whose_step_is_forgotten_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.history.tree.MAX_STEPS", 40)
    session = Session(model_of("llama"), CacheSpec())
    session.force(session.submit(Prompt(token_ids=prompt_ids(8))), prompt_ids(100, seed=3))
    for _ in range(6):
        session.step()
    session.go_to(2)
    session.force(0, prompt_ids(100, seed=9))
    for _ in range(70):
        session.step()
    session.history.logits.clear()
    assert 5 not in session.history.tree
    assert 5 in session.kept
    last = session.last_step
    assert last is not None
    assert "repeated 1 step" in session.go_to(last - 3)
    assert 5 not in session.kept


@pytest.mark.parametrize("mode", ["growing", "paged"])
def test_what_a_removed_sequence_held_is_kept_within_the_bytes_of_kept_checkpoints(mode: str) -> None:
    """Its pages are reported as those of a kept checkpoint. Any earlier step is copied from it, even when all other
    sequences were removed too; only once its rows are let go is it computed again."""
    session = begun(mode, length=20)
    session.force(session.submit(Prompt(token_ids=prompt_ids(7, seed=2), sampling=WARM)), FORCED)
    steps = stepped(session, 8)
    both = stands(session)
    session.remove(1)
    assert session.kept.num_bytes > 0
    assert session.status(SamplingParams(), None, running=False).kept == (), "it is not a moment of the tree"
    store = session.live.mode.store
    assert store is None or sorted(table.seq_id for table in store.groups[0].tables) == [KEPT, 0]
    stepped(session, 2)
    session.remove(0)
    assert "repeated" not in session.go_to(steps[-1])
    assert difference(stands(session), both) == ""
    assert "repeated" not in session.go_to(steps[5])
    assert session.live.ids == (0, 1)
    session.remove(1)
    session.kept.set_limit(0)
    stepped(session, 1)
    assert session.kept.num_bytes == 0
    assert "repeated" in session.go_to(steps[4])
