"""The paged layout against the uncached forward: page edges, batches, shared prefixes, forks, preemption, the host."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.analysis.reference import parity, reference
from engine.cache.paged.cache import PagedCache
from engine.cache.paged.store import PageStore
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.spec.tuning import tuned
from engine.wire.page_events import MoveDirection, PageCommitted, PageMoved
from engine.wire.page_map import PageCell
from engine.wire.prefix_match import AllFullPagesHit, Converted, Forked
from engine.wire.records import StepRecord
from tests.engine.cache.paged.conftest import MAPS
from tests.engine.tiny import model_of, prompt_ids

pytestmark = pytest.mark.usefixtures("a_reader_of_pages")

SHARING = ["llama", "gpt2", "qwen2", "qwen3", "phi3", "gpt_neox", "deepseek_v3", "opt", "bloom", "falcon"]
ISSUE_ARCHITECTURES = [*SHARING, "mistral", "gemma2", "gemma3_text", "gpt_oss", "lfm2"]
TOLERANCE = 1e-4


def store_of(session: Session) -> PageStore:
    assert session.live.mode.store is not None
    return session.live.mode.store


def check(session: Session, record: StepRecord | None = None) -> None:
    """The bookkeeping is sound, and the record's map says of every page what the pool says."""
    for number, group in enumerate(store_of(session).groups):
        group.pool.check(group.tables)
        if record is None:
            continue
        cells = MAPS[session][number].cells()
        names = {PageCell.FREE: "free", PageCell.USED: "used", PageCell.SHARED: "shared"}
        names |= {PageCell.CACHED: "cached", PageCell.NULL: "null"}
        states = [group.pool.state(p) for p in range(len(cells))]
        for cell, state in zip(map(PageCell, cells["state"]), states, strict=True):  # the pool knows no kept moments
            assert state in ("used", "shared") if cell is PageCell.KEPT else names[cell] == state
        assert cells["ref_count"].tolist() == [group.pool.ref_count(p) for p in range(len(cells))]


def drive(session: Session, num_steps: int) -> float:
    """Step, checking everything after each; the largest logit difference to the uncached forward."""
    worst = 0.0
    for _ in range(num_steps):
        if not session.has_work:
            break
        record = session.step()
        check(session, record)
        for part in record.sequences:
            if part.sampled is None:
                continue
            sequence = session.sequence(part.seq_id)
            ids = torch.tensor([sequence.token_ids[: sequence.num_tokens]])
            logits = session.logits(part.seq_id)
            assert logits is not None
            expected = session.model.reference_logits(ids)[-1]
            assert logits.argmax() == expected.argmax()
            worst = max(worst, float((logits - expected).abs().max()))
    return worst


@pytest.mark.parametrize("name", ISSUE_ARCHITECTURES)
@pytest.mark.parametrize("cache", ["paged", "offloaded"])
def test_every_architecture_equals_the_uncached_forward(name: str, cache: str) -> None:
    model = model_of(name)
    truth = reference(model, prompt_ids(17), 6)
    for page_size, chunk in ((1, 7), (2, 64), (16, 1), (16, 16), (128, 7)):
        spec = tuned(PRESETS[cache].spec, page_size=page_size, host_gib=0.01 if cache == "offloaded" else None)
        result = parity(model, cache, spec, truth, chunk)
        assert result.max_abs_logit_diff < TOLERANCE, (page_size, chunk)
        assert result.first_divergence is None


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 15, 16, 17])
def test_lengths_at_every_page_edge(length: int) -> None:
    for name in ("llama", "gemma2"):
        session = Session(model_of(name), CacheSpec("paged", page_size=4), prefill_chunk=5)
        session.submit(Prompt(token_ids=prompt_ids(length, 3)))
        assert drive(session, 12) < TOLERANCE


@pytest.mark.parametrize("name", ISSUE_ARCHITECTURES)
def test_a_ragged_batch_shares_forks_and_goes_back(name: str) -> None:
    session = Session(model_of(name), CacheSpec("paged", page_size=4), prefill_chunk=7)
    first = prompt_ids(19)
    ids = [session.submit(Prompt(token_ids=p)) for p in (first, prompt_ids(33, 1), first[:17] + prompt_ids(9, 5))]
    assert drive(session, 18) < TOLERANCE
    assert [i.hit_tokens for i in session.sequences] == ([0, 0, 16] if name in SHARING else [0, 0, 0])
    forked = session.fork(ids[0])
    fork = forked.child
    session.force(fork, (5,))
    assert drive(session, 4) < TOLERANCE
    before = session.sequence(ids[1]).token_ids[: session.sequence(ids[1]).num_tokens]
    assert forked.step is not None
    session.go_to(forked.step + 1)
    check(session)
    assert drive(session, 2) < TOLERANCE
    assert fork in session.live.ids
    session.go_to(13)
    assert session.live.ids == tuple(ids)
    check(session)
    assert drive(session, 6) < TOLERANCE
    assert session.sequence(ids[1]).token_ids[: len(before)][:30] == before[:30]
    for seq_id in ids:
        session.remove(seq_id)
    for group in store_of(session).groups:
        group.pool.check(group.tables)
    session.kept.clear()
    for group in store_of(session).groups:
        group.pool.check([])
        assert group.pool.counts().num_used == group.pool.counts().num_shared == 0


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral", "lfm2", "deepseek_v3"])
def test_a_full_pool_preempts_the_youngest_visibly_and_loses_nothing(name: str) -> None:
    session = Session(model_of(name), CacheSpec("paged", page_size=4, num_pages=15), prefill_chunk=7)
    ids = [session.submit(Prompt(token_ids=prompt_ids(9 + i, i))) for i in range(3)]
    preempted: list[int] = []
    waiting: set[int] = set()
    for _ in range(40):
        record = session.step()
        check(session, record)
        preempted += record.preempted
        waiting |= set(record.waiting)
    if name != "mistral":  # whose windows are smaller than the pool
        assert preempted
        assert preempted[0] == ids[-1]
        assert waiting
    assert {i.seq_id for i in session.sequences} == set(ids)
    # when the elders leave, the youngest comes back and goes on where it was
    sequence = session.sequence(ids[-1])
    known, chosen = list(sequence.token_ids), sequence.sampled
    for seq_id in ids[:-1]:
        session.remove(seq_id)
    assert drive(session, 12) < TOLERANCE
    assert sequence.token_ids[: len(known)] == known
    if chosen is not None and len(sequence.token_ids) > len(known):
        assert sequence.token_ids[len(known)] == chosen


def test_a_tight_pool_makes_progress() -> None:
    """Two that share a prefix and do not fit together take turns; neither is thrown out before the other decodes."""
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4, num_pages=14))
    ids = [session.submit(Prompt(token_ids=prompt_ids(8) + prompt_ids(20, i))) for i in (1, 2)]
    phases = []
    while session.sequence(ids[0]).stop is None and len(phases) < 60:
        record = session.step()
        check(session, record)
        phases.append(record.phase)
    assert session.sequence(ids[0]).num_tokens > 45
    assert "decode" in phases[-3:]


def test_what_left_the_device_is_read_back_from_the_host() -> None:
    spec = CacheSpec("host", page_size=4, num_pages=12, host_gib=0.001)
    session = Session(model_of("llama"), spec)
    first = session.submit(Prompt(token_ids=prompt_ids(30)))
    events = list(session.step().page_events)
    stored = [e for e in events if isinstance(e, PageMoved)]
    assert len(stored) == 7  # written through when they became full
    assert all(e.direction is MoveDirection.TO_HOST and e.num_bytes > 0 for e in stored)
    session.remove(first)
    other = session.submit(Prompt(token_ids=prompt_ids(40, 1)))
    session.step()
    session.remove(other)  # its pages pushed the first prompt's off the device
    again = session.submit(Prompt(token_ids=prompt_ids(30)))
    record = session.step()
    back = [e for e in record.page_events if isinstance(e, PageMoved) and e.direction is MoveDirection.TO_DEVICE]
    assert back
    part = record.of(again)
    assert part is not None
    assert part.hit_tokens == 28
    assert part.token_ids == prompt_ids(30)[28:]
    assert drive(session, 5) < TOLERANCE
    host = store_of(session).host
    assert host is not None
    host.check()


def test_copy_on_write_keeps_the_parent_as_it_was() -> None:
    session = Session(model_of("llama"), CacheSpec("paged", page_size=8))
    parent = session.submit(Prompt(token_ids=prompt_ids(13)))
    session.step()
    rows = session.cache_of(parent).rows(0)
    assert rows is not None
    kept = rows.keys.clone()
    child = session.fork(parent).child
    assert [i.num_shared_pages for i in session.sequences] == [2, 2]
    session.force(parent, (7,))
    session.force(child, (9,))
    assert drive(session, 1) < TOLERANCE
    after = session.cache_of(parent).rows(0)
    assert after is not None
    assert torch.equal(after.keys[:, :, :13], kept)
    assert [i.num_shared_pages for i in session.sequences] == [1, 1]  # the full first page, still


def test_a_sequence_that_was_not_looked_up_says_how_it_came() -> None:
    session = Session(model_of("llama"), CacheSpec("growing"))
    parent = session.submit(Prompt(token_ids=prompt_ids(13)))
    session.step()
    session.set_cache(CacheSpec("paged", page_size=8))
    child = session.fork(parent).child
    assert [info.why_not_reused for info in session.sequences] == [Converted(), Forked(parent)]
    newcomer = session.submit(Prompt(token_ids=prompt_ids(13)))
    session.step()
    assert session.sequences[newcomer].why_not_reused == AllFullPagesHit(5)
    assert session.sequences[child].why_not_reused == Forked(parent)


def test_scattered_pages_read_the_same_rows() -> None:
    """A table that is no single run takes the gathering path; the rows must not care."""
    model = model_of("llama")
    session = Session(model, CacheSpec("paged", page_size=2, num_pages=40))
    ids = [session.submit(Prompt(token_ids=prompt_ids(6, i))) for i in range(3)]
    for _ in range(9):
        session.step()
    cache = session.cache_of(ids[1])
    assert isinstance(cache, PagedCache)
    assert cache.tables[0].contiguous_slots() is None
    assert drive(session, 6) < TOLERANCE


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


@pytest.mark.parametrize("target", ["growing", "dynamic", "static", "none", "paged", "host", "allocated"])
def test_modes_change_under_live_sequences(target: str) -> None:
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4))
    for i in range(2):
        session.submit(Prompt(token_ids=prompt_ids(9 + i, i)))
    for _ in range(4):
        session.step()
    spec = CacheSpec(target, page_size=2, host_gib=0.01 if target == "host" else None)  # type: ignore[arg-type]
    session.set_cache(spec)
    session.step()
    how = session.set_cache(CacheSpec("paged", page_size=16))
    assert ("converted" in how) == (target not in ("none", "allocated"))
    assert drive(session, 4) < TOLERANCE


@settings(max_examples=25)
@given(data=st.data())
def test_random_programs(data: st.DataObject) -> None:
    """Submit, step, fork, force, remove and go back in any order: logits stay those of the uncached forward."""
    model = model_of(data.draw(st.sampled_from(["llama", "gemma2"])))
    page_size = data.draw(st.sampled_from([1, 2, 4, 16]))
    pages = data.draw(st.sampled_from([None, 1 + -(-64 // page_size)]))
    session = Session(model, CacheSpec("paged", page_size=page_size, num_pages=pages), prefill_chunk=5)
    session.submit(Prompt(token_ids=prompt_ids(data.draw(st.integers(1, 20)))))
    for _ in range(data.draw(st.integers(1, 10))):
        action = data.draw(st.sampled_from(["step", "step", "submit", "fork", "force", "remove", "rewind"]))
        alive = [info.seq_id for info in session.sequences]
        if action == "submit" and len(alive) < 4:
            seed, length = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 20))
            session.submit(Prompt(token_ids=prompt_ids(length, seed)))
        elif action == "fork" and alive and len(alive) < 4:
            session.fork(data.draw(st.sampled_from(alive)))
        elif action == "force" and alive:
            session.force(data.draw(st.sampled_from(alive)), (data.draw(st.integers(3, 100)),))
        elif action == "remove" and len(alive) > 1:
            session.remove(data.draw(st.sampled_from(alive)))
        elif action == "rewind" and session.last_step:
            session.go_to(data.draw(st.sampled_from([moment.node.step for moment in session.history.tree])))
        assert drive(session, 2) < TOLERANCE
        check(session)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"page_size": 3}, "power of two"),
        ({"page_size": 0}, "power of two"),
        ({"page_size": 2048}, "power of two"),
        ({"num_pages": 1}, "2 or more"),
        ({"num_pages": -5}, "2 or more"),
        ({"num_pages": 10**12}, "GiB"),
        ({"host_gib": 0.5}, "host tier"),
    ],
)
def test_impossible_sizes_are_refused_before_anything_is_allocated(spec: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Session(model_of("llama"), CacheSpec("paged", **spec))  # type: ignore[arg-type]


def test_a_host_tier_that_holds_no_page_is_refused() -> None:
    with pytest.raises(InputError):
        Session(model_of("llama"), CacheSpec("host", page_size=1024, host_gib=1e-7))


def test_a_prompt_longer_than_the_pool_is_refused_and_costs_nothing() -> None:
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4, num_pages=4))
    kept = session.submit(Prompt(token_ids=prompt_ids(8)))
    session.step()
    with pytest.raises(InputError, match="page pool"):
        session.submit(Prompt(token_ids=prompt_ids(13)))
    check(session)
    assert [i.seq_id for i in session.sequences] == [kept]


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
            assert len(store._findable) <= 4 * (20 + store.host.num_pages)
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
    for _ in range(20):
        session.step()
    monkeypatch.setattr("engine.cache.paged.retention.PageKeeper.can_go_back", lambda *_: False)
    assert session.go_to(target).startswith("repeated ")
    assert [info.hit_tokens for info in session.sequences] == [12 if is_shared else 0]
    for then, now in zip(held, rows_of(session), strict=True):
        assert torch.equal(then, now)


# ---- models all of whose layers keep a window --------------------------------------------------------------------


@pytest.mark.parametrize("num_pages", [5 + 1, 8 + 1])
def test_pages_that_leave_every_window_are_room_for_a_sequence_of_any_length(num_pages: int) -> None:
    """20 or 32 tokens fit into the pool, of which a window of 8 takes 10 at most."""
    session = Session(model_of("mistral"), CacheSpec("paged", page_size=4, num_pages=num_pages), prefill_chunk=64)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(61, 2)))
    session.force(seq_id, prompt_ids(40, 3))
    lengths = []
    while session.sequence(seq_id).num_tokens < 61:
        record = session.step()
        check(session, record)
        lengths.append(record.sequences[0].num_tokens)
    assert lengths[0] == 4 * (num_pages - 1) - 10, "as much at once as the pool always has room for"
    assert drive(session, 40) < TOLERANCE
    assert session.sequence(seq_id).num_tokens == 101
    assert session.sequence(seq_id).stop is None


def test_two_of_them_share_a_pool_that_holds_one_window_at_a_time() -> None:
    session = Session(model_of("mistral"), CacheSpec("paged", page_size=4, num_pages=8), prefill_chunk=8)
    ids = [session.submit(Prompt(token_ids=prompt_ids(30 + i, i))) for i in range(2)]
    for seq_id in ids:
        session.force(seq_id, prompt_ids(30, seq_id))
    assert drive(session, 200) < TOLERANCE
    assert all(session.sequence(seq_id).num_tokens >= 60 for seq_id in ids)


@pytest.mark.parametrize("name", ["gemma2", "llama"])
def test_a_layer_that_keeps_every_token_fills_its_pool_all_the_same(name: str) -> None:
    session = Session(model_of(name), CacheSpec("paged", page_size=4, num_pages=9), prefill_chunk=8)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(30)))
    session.force(seq_id, prompt_ids(8, 3))
    while session.has_work:
        session.step()
    assert (session.sequence(seq_id).num_tokens, session.sequence(seq_id).stop) == (32, "cache full")


def test_a_pool_smaller_than_a_window_and_a_page_is_full_when_it_is() -> None:
    session = Session(model_of("mistral"), CacheSpec("paged", page_size=4, num_pages=4), prefill_chunk=8)
    with pytest.raises(InputError, match="30 tokens and the page pool holds 12"):
        session.submit(Prompt(token_ids=prompt_ids(30)))
