"""The paged layout against the uncached forward: page edges, batches, shared prefixes, forks, preemption, the host."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.analysis.reference import parity, reference
from engine.cache.paged.cache import PagedCache
from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.sampling import Prompt
from engine.wire.pages import Converted, Forked, MoveDirection, PageMoved, PrefixEnd
from tests.effort import effort
from tests.engine.cache.paged.driving import TOLERANCE, check, drive, store_of
from tests.engine.tiny import model_of, prompt_ids

pytestmark = pytest.mark.usefixtures("a_reader_of_pages")

SHARING = ["llama", "gpt2", "qwen2", "qwen3", "phi3", "gpt_neox", "deepseek_v3", "opt", "bloom", "falcon"]
ISSUE_ARCHITECTURES = [*SHARING, "mistral", "gemma2", "gemma3_text", "gpt_oss", "lfm2"]


@pytest.mark.parametrize("name", ISSUE_ARCHITECTURES)
@pytest.mark.parametrize("cache", ["paged", "offloaded"])
def test_every_architecture_equals_the_uncached_forward(name: str, cache: str) -> None:
    model = model_of(name)
    truth = reference(model, prompt_ids(17), 6)
    sizes = ((1, 7), (2, 64), (16, 1), (16, 16), (128, 7))
    turn = ISSUE_ARCHITECTURES.index(name) % len(sizes)
    for page_size, chunk in effort(sizes[turn : turn + 1], sizes):
        spec = tuned(PRESETS[cache].spec, page_size=page_size, host_gib=0.01 if cache == "offloaded" else None)
        result = parity(model, cache, spec, truth, chunk)
        assert result.max_abs_logit_diff < TOLERANCE, (page_size, chunk)
        assert result.first_divergence is None


@pytest.mark.parametrize("length", effort([1, 4, 5, 8, 16], [1, 3, 4, 5, 7, 8, 9, 15, 16, 17]))
def test_lengths_at_every_page_edge(length: int) -> None:
    for name in ("llama", "gemma2"):
        session = Session(model_of(name), CacheSpec("paged", page_size=4), prefill_chunk=5)
        session.submit(Prompt(token_ids=prompt_ids(length, 3)))
        assert drive(session, 12) < TOLERANCE


@pytest.mark.parametrize("name", effort(ISSUE_ARCHITECTURES[::4], ISSUE_ARCHITECTURES))
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
    assert session.sequences[newcomer].why_not_reused == PrefixEnd(13, 8, 8, is_all=True)
    assert session.sequences[child].why_not_reused == Forked(parent)


def test_scattered_pages_read_the_same_rows() -> None:
    """A table whose pages do not lie one behind the other takes the gathering path; the rows must not care."""
    model = model_of("llama")
    session = Session(model, CacheSpec("paged", page_size=2, num_pages=40))
    ids = [session.submit(Prompt(token_ids=prompt_ids(6, i))) for i in range(3)]
    for _ in range(9):
        session.step()
    cache = session.cache_of(ids[1])
    assert isinstance(cache, PagedCache)
    table = cache.tables[0]
    assert any(b != a + 1 for a, b in pairwise(table.page_ids))
    assert drive(session, 6) < TOLERANCE


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


@settings(max_examples=effort(12, 100))
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
            session.go_to(data.draw(st.sampled_from([entry.node.step for entry in session.history.tree])))
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


@pytest.mark.parametrize(("at_most", "hit"), [(None, 28), (29, 28), (19, 16), (16, 16), (8, 8), (7, 4), (3, 0)])
def test_from_both_tiers_together_no_more_is_taken_than_was_asked_for(at_most: int | None, hit: int) -> None:
    """Two pages are still on the device, the next five on the host alone."""
    session = Session(model_of("llama"), CacheSpec("host", page_size=4, num_pages=40, host_gib=0.001))
    seq_id = session.submit(Prompt(token_ids=prompt_ids(30)))
    session.step()
    cache = session.cache_of(seq_id)
    assert isinstance(cache, PagedCache)
    behind = cache.tables[0].page_ids[2:7]
    session.remove(seq_id)
    session.kept.clear()
    store_of(session).groups[0].pool.evict(behind)
    found = session.live.mode.new_cache(9, 30)
    assert found.admit([*prompt_ids(30)], 0, at_most) == found.num_tokens == hit


def test_a_fork_has_the_states_of_layers_beside_the_pages() -> None:
    """And moves them on by itself: parent and fork go other ways, and each says what its tokens do."""
    session = Session(model_of("lfm2"), CacheSpec("paged", page_size=4))
    parent = session.submit(Prompt(token_ids=prompt_ids(9)))
    session.force(parent, prompt_ids(9, seed=1))
    for _ in range(3):
        session.step()
    fork = session.fork(parent).child
    session.force(fork, prompt_ids(9, seed=2))
    assert drive(session, 4) < TOLERANCE
