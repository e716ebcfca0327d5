"""What is undone, replayed or begun anew in pages."""

from __future__ import annotations

import pytest
import torch

from engine.cache.paged.store import PageStore
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.pages import PageCommitted
from tests.engine.cache.paged.driving import TOLERANCE, check, drive, store_of
from tests.engine.tiny import model_of, prompt_ids

pytestmark = pytest.mark.usefixtures("a_reader_of_pages")


def test_a_failed_forward_leaves_the_pool_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4), prefill_chunk=7)
    ids = [session.submit(Prompt(token_ids=prompt_ids(9 + i, i))) for i in range(3)]
    for _ in range(7):
        session.step()
    counts = store_of(session).groups[0].pool.counts()
    before = [(s.num_tokens, s.sampled) for s in session.sequences]

    def fail(self: LoadedModel, *args: object, **kwargs: object) -> torch.Tensor:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(LoadedModel, "forward", fail)
        with pytest.raises(MemoryError):
            session.step()
    check(session)
    assert [(s.num_tokens, s.sampled) for s in session.sequences] == before
    assert store_of(session).groups[0].pool.counts() == counts
    assert drive(session, 4) < TOLERANCE
    for seq_id in ids:
        session.remove(seq_id)


@pytest.mark.parametrize("name", ["paged", "offloaded"])
def test_after_going_back_a_prompt_is_not_served_by_its_own_undone_pages(name: str) -> None:
    spec = tuned(PRESETS[name].spec, page_size=4, num_pages=20)
    session = Session(model_of("llama"), spec, prefill_chunk=8)
    session.submit(Prompt(token_ids=prompt_ids(9)))
    session.force(0, prompt_ids(20, 7))
    for _ in range(3):
        session.step()
    prompt = Prompt(token_ids=prompt_ids(9)[:4] + prompt_ids(13, 5))  # one page is the first one's
    first_life = session.submit(prompt)
    first_time = [session.step() for _ in range(3)]
    logits = session.logits(first_life)
    for target, then in ((2, first_time), (4, first_time[2:]), (2, first_time)):
        session.go_to(target)
        check(session)
        second = session.submit(prompt) if target == 2 else first_life
        again = [session.step() for _ in then]
        assert [r.sequences[0].hit_tokens for r in again] == [r.sequences[0].hit_tokens for r in then]
        assert [r.sequences[0].first_position for r in again] == [r.sequences[0].first_position for r in then]
        newest = session.logits(second)
        assert logits is not None
        assert newest is not None
        assert torch.equal(newest, logits)
        check(session)
    assert first_time[0].sequences[0].hit_tokens == 4


def test_a_new_run_keeps_what_can_be_found_whatever_its_steps_undo() -> None:
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4))
    old = session.submit(Prompt(token_ids=prompt_ids(13)))
    session.force(old, prompt_ids(9, 7))
    for _ in range(6):
        session.step()
    session.force(session.submit(Prompt(token_ids=prompt_ids(13))), prompt_ids(9, 7))
    session.remove(old)
    session.forget_history()
    session.step()
    session.step()
    session.go_to(0)
    session.submit(Prompt(token_ids=prompt_ids(13)))
    session.step()
    assert [info.hit_tokens for info in session.sequences] == [12, 12]


def rows_of(session: Session) -> list[torch.Tensor]:
    """K and V of all layers of all sequences."""
    found = [cache.rows(layer) for cache in session.live.caches for layer in range(len(cache.layers))]
    return [tensor.clone() for rows in found if rows is not None for tensor in (rows.keys, rows.values)]


def test_steps_of_several_sequences_are_replayed_together_to_the_bit() -> None:
    """The window has let pages go, so that the way back computes them again: as one batch, as they were."""
    session = Session(model_of("mistral"), CacheSpec("paged", page_size=4), prefill_chunk=8)
    for seed in range(2):
        session.force(session.submit(Prompt(token_ids=prompt_ids(7, seed))), prompt_ids(30, 7 + seed))
    for _ in range(18):
        session.step()
    held = rows_of(session)
    logits = [session.logits(seq_id) for seq_id in (0, 1)]
    for _ in range(8):
        session.step()
    assert session.go_to(17) == "repeated 18 steps from the start"
    for then, now in zip(held, rows_of(session), strict=True):
        assert torch.equal(then, now)
    for then, now in zip(logits, (session.logits(0), session.logits(1)), strict=True):
        assert then is not None
        assert now is not None
        assert torch.equal(then, now)


def test_a_step_asks_of_no_old_page_though_the_host_holds_more_than_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which pages can be found is remembered of both tiers; a list longer than both is pruned, not at every step."""
    spec = tuned(PRESETS["offloaded"].spec, page_size=4, num_pages=20, host_gib=0.001)
    session = Session(model_of("llama"), spec, prefill_chunk=64)
    store = store_of(session)
    assert store.host is not None
    asked = 0

    def is_findable(entry: PageCommitted) -> bool:
        nonlocal asked
        asked += 1
        return PageStore._is_findable(store, entry)

    monkeypatch.setattr(store, "_is_findable", is_findable)
    num_asking = 0
    for number in range(100):
        seq_id = session.submit(Prompt(token_ids=prompt_ids(60, seed=number)))
        session.force(seq_id, (5, 6))
        for _ in range(2):
            asked = 0
            session.step()
            num_asking += asked > 0
        session.remove(seq_id)
    assert store.host.num_stored_pages > 4 * 20
    assert num_asking == 1, "30 pages become findable with every prompt: the bound is passed once"


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_prompt_that_began_with_a_hit_is_replayed_to_the_bit(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was dropped is not remembered any more; the rows of the prefix came from another sequence."""
    spec = CacheSpec("paged", page_size=4, retention=RetentionSpec("sinks+window", sinks=4, window=8))
    session = Session(model_of("llama"), spec, prefill_chunk=8)
    for number in range(2):
        seq_id = session.submit(Prompt(token_ids=prompt_ids(13, 0 if is_shared else number)))
        session.force(seq_id, prompt_ids(30, 7))
        for _ in range(6):
            session.step()
        if number == 0:
            session.remove(seq_id)
    assert [info.hit_tokens for info in session.sequences] == [12 if is_shared else 0]
    target, held = session.last_step or 0, rows_of(session)
    monkeypatch.setattr("engine.cache.lost_rows.MAX_BYTES", 0)
    for _ in range(20):
        session.step()
    assert session.go_to(target).startswith("repeated ")
    assert [info.hit_tokens for info in session.sequences] == [12 if is_shared else 0]
    for then, now in zip(held, rows_of(session), strict=True):
        assert torch.equal(then, now)
