"""Bytes of kept checkpoints: a page counts as a moment's own if nobody else refers to it."""

from __future__ import annotations

import pytest

from engine.cache.contract import HeldBytes
from engine.cache.lost_rows import LostStep
from engine.cache.sequence_cache import SequenceCache
from engine.session.session import Session
from engine.session.states import SessionState
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.sampling import Prompt, SamplingParams
from tests.engine.tiny import model_of, prompt_ids


def run(spec: CacheSpec, steps: int) -> tuple[Session, int]:
    session = Session(model_of("llama"), spec)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(40)))
    session.force(seq_id, prompt_ids(steps, seed=1))
    for _ in range(steps):
        session.step()
    return session, seq_id


def test_pages_from_before_the_parting_are_shared_and_those_after_it_are_the_branchs_own() -> None:
    spec = PRESETS["paged"].spec
    session, _ = run(spec, 60)
    assert session.kept.sizes == ()
    left = session.last_step
    assert left is not None
    store = session.live.mode.store
    assert store is not None
    tables = session.live.get(0).cache.tables
    before = len(tables[0].page_ids)
    session.go_to(2)
    (held,) = session.kept.sizes
    num_shared = sum(table.page_ids[0] == session.live.get(0).cache.tables[0].page_ids[0] for table in tables)
    assert num_shared == len(tables)
    page_bytes = store.page_size * sum(rows.row_bytes for found in store.rows_of.values() for rows in found)
    assert held.step == left
    assert held.shared % page_bytes == 0
    assert held.shared // page_bytes == len(session.live.get(0).cache.tables[0].page_ids)
    assert held.private - session.kept.row_bytes == (before - held.shared // page_bytes) * page_bytes


def test_rows_that_were_copied_are_all_the_branchs_own_and_the_live_step_is_none_of_them() -> None:
    session, _ = run(CacheSpec(), 10)
    left = session.last_step
    session.go_to(3)
    (held,) = session.kept.sizes
    assert (held.step, held.shared, held.private) == (left, 0, session.kept.row_bytes)
    session.go_to(left)
    assert [one.step for one in session.kept.sizes] == [3]


def test_what_is_shared_is_counted_again_when_somebody_lets_go() -> None:
    """Two branches share pages: when one is deleted, those pages belong to the other alone."""
    session, seq_id = run(PRESETS["paged"].spec, 60)
    tip = session.last_step
    assert tip is not None
    session.go_to(tip - 1)
    session.force(seq_id, (5,))
    session.step()
    other = session.last_step
    assert other is not None
    session.go_to(None)
    both = {held.step: held for held in session.kept.sizes}
    assert {tip, other} == both.keys() - {tip - 1}
    total = session.kept.num_bytes
    session.kept.drop((other, None))
    session.kept.drop((tip - 1, None))
    (alone,) = session.kept.sizes
    assert alone.shared == 0
    assert alone.private == both[tip].private + both[tip].shared
    assert session.kept.num_bytes == alone.private < total


def test_the_status_has_the_total_and_its_limit() -> None:
    session, _ = run(CacheSpec(), 10)
    session.go_to(3)
    status = session.status(SamplingParams(), None, running=False)
    assert status.kept_bytes == status.kept[0].private == session.kept.row_bytes
    assert status.kept_limit == 1 << 30


def test_a_step_does_not_count_the_rows_of_kept_checkpoints_again(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = run(CacheSpec(), 10)
    for step in (3, 5, 7):
        session.go_to(step)
    kept = {id(live.cache) for state in session.kept for live in state.sequences.values()}
    asked: list[int] = []
    all_bytes = SequenceCache.all_bytes

    def noted(cache: SequenceCache) -> list[HeldBytes]:
        asked.append(id(cache))
        return all_bytes(cache)

    monkeypatch.setattr(SequenceCache, "all_bytes", noted)
    session.step()
    assert asked
    assert not kept.intersection(asked)


@pytest.mark.parametrize("name", ["h2o", "knorm"])
def test_what_is_kept_for_going_back_is_counted_with_a_moment(name: str) -> None:
    session = Session(model_of("llama"), tuned(PRESETS[name].spec, budget=12))
    seq_id = session.submit(Prompt(token_ids=prompt_ids(40)))
    session.step()
    live = session.live.get(seq_id)
    state, later = (SessionState(session.last_step, session.live.mode, {seq_id: live}) for _ in range(2))
    before, lost = state.row_bytes, live.cache.lost_bytes
    assert lost > 0
    live.cache.forget_past()
    assert before - later.row_bytes == lost - live.cache.lost_bytes > 0


def test_what_two_kept_checkpoints_hold_together_is_counted_once() -> None:
    """Rows evicted before the branches part are in the logs of both, which share them."""
    session = Session(model_of("llama"), tuned(PRESETS["knorm"].spec, budget=12))
    session.force(session.submit(Prompt(token_ids=prompt_ids(40))), prompt_ids(9, seed=1))
    for _ in range(9):
        session.step()
    session.go_to(6)
    session.force(0, (5,))
    session.step()
    session.go_to(3)
    kept = list(session.kept)
    assert len(kept) > 1
    held = {id(step): step.num_bytes for step in lost_steps(kept)}
    doubled = sum(step.num_bytes for step in lost_steps(kept)) - sum(held.values())
    assert doubled > 0
    assert session.kept.num_bytes == session.kept.row_bytes == sum(state.row_bytes for state in kept) - doubled
    assert sum(one.private for one in session.kept.sizes) < session.kept.num_bytes
    assert {one.private + one.shared for one in session.kept.sizes} == {state.row_bytes for state in kept}
    for state in kept[1:]:
        session.kept.drop((state.step or 0, None))
    (last,) = session.kept.sizes
    assert (last.shared, last.private) == (0, kept[0].row_bytes)


def lost_steps(kept: list[SessionState]) -> list[LostStep]:
    """The logged steps of every moment."""
    caches = [live.cache for state in kept for live in state.sequences.values()]
    return [step for cache in caches for step in cache.lost.since(-1)]


def test_each_page_of_the_prefix_cache_names_the_step_that_made_it_findable() -> None:
    """A page that a step of another branch made findable is no prefix of this branch."""
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4), prefill_chunk=8)
    session.submit(Prompt(token_ids=prompt_ids(21)))
    for _ in range(6):
        session.step()
    store, ids = session.live.mode.store, [*session.sequence(0).token_ids, 5]
    assert store is not None
    found = [store.groups[0].pool.match_prefix(ids).num_hit_tokens]
    for step in range(4, -1, -1):
        session.go_to(step)
        found.append(store.groups[0].pool.match_prefix(ids).num_hit_tokens)
    assert found == [24, 20, 20, 20, 16, 8]
