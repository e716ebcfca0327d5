"""Whole pages are dropped: exactly the masked full cache, from this sequence alone, and back again to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, preset_of, tuned
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.pages import PageFreed
from engine.wire.pictures import TableRequest
from tests.effort import effort
from tests.engine.cache.compressed.prompts import masked_logits
from tests.engine.cache.compressed.rules import assert_nothing_is_dropped, held_and_pictured, roomy
from tests.engine.cache.paged.driving import check
from tests.engine.cache.paged.retained import BY_RULE, RULES, SPECS, paged, session_of
from tests.engine.snapshot.sessions import snapshot
from tests.engine.tiny import model_of, prompt_ids


@BY_RULE
@pytest.mark.parametrize("architecture", effort(["llama", "gemma3_text"], ["llama", "gemma3_text", "lfm2"]))
@pytest.mark.usefixtures("a_reader_of_pages")
def test_dropping_pages_is_masking_their_columns(name: str, architecture: str) -> None:
    """In float64: the same logits to 1e-10 as the full cache with the dropped columns masked."""
    model = model_of(architecture)
    model.model.double()
    try:
        session, seq_id = session_of(RULES[name], model)
        for layer_rows in (row for pair in paged(session, seq_id).store.rows_of.values() for row in pair):
            layer_rows._buffers = [buffer.double() for buffer in layer_rows._buffers]
        dropped_at: dict[int, dict[Any, list[int]]] = {}
        for _ in range(14):
            record = session.step()
            check(session, record)
            seen = session.sequence(seq_id).num_tokens
            for e in record.evictions:
                assert e.kv_head is None
                for head in (0, 1):
                    dropped_at.setdefault(seen, {}).setdefault((e.layer, head), []).extend(e.positions.tolist())
        sequence, newest = session.sequence(seq_id), session.logits(seq_id)
        assert newest is not None
        assert dropped_at
        expected = masked_logits(model, sequence.token_ids[: sequence.num_tokens], 21, dropped_at)
        assert float((newest - expected).abs().max()) < 1e-10
        full = model.reference_logits(torch.tensor([sequence.token_ids[: sequence.num_tokens]]))[-1]
        assert float((newest - full).abs().max()) > 1e-3, "and it is not the full cache"
    finally:
        model.model.float()


@BY_RULE
@pytest.mark.usefixtures("a_reader_of_pages")
def test_budgets_hold_in_whole_pages_and_bytes_are_the_formula(name: str) -> None:
    session, seq_id = session_of(RULES[name])
    retention = RULES[name]
    gone: set[int] = set()
    for step in range(20):
        record = session.step()
        check(session, record)
        seen, prompt = session.sequence(seq_id).num_tokens, 21
        rows = session.cache_of(seq_id).rows(1)
        assert rows is not None
        held = set(rows.positions[0].tolist()) if rows.positions is not None else set(range(seen))
        for e in record.evictions:
            if e.layer == 0:
                gone |= set(e.positions.tolist())
                assert len(e.positions) % 4 == 0
                assert e.positions[0] % 4 == 0
                if e.lowest_kept is not None:
                    assert float(e.scores.max()) <= e.lowest_kept
        assert held | gone == set(range(seen))
        assert not held & gone
        assert rows.keys.shape[2] == len(held)
        if seen >= prompt:
            at = prompt if retention.only_at_prompt_end else seen
            pages = retention.num_kept_pages(at, 4) + (-(-seen // 4) - -(-at // 4))
            assert record.sequences[0].stored_bytes == record.num_bytes.stored
            assert len(paged(session, seq_id).tables[0].held_pages) == pages
            kept = retention.recent(retention.num_kept(at))
            if not retention.only_at_prompt_end:
                assert held >= {*range(min(retention.sinks, seen)), *range(seen - max(1, kept), seen)}
        assert record.num_bytes.stored == record.num_bytes.predicted, (step, seen)


def test_a_page_goes_by_the_mean_of_its_rows() -> None:
    session, _ = session_of(RULES["knorm"], chunk=64)
    exact = Session(session.model, CacheSpec(), prefill_chunk=64)
    other = exact.submit(Prompt(token_ids=prompt_ids(21)))
    exact.step()
    (record,) = {e.layer: e for e in session.step().evictions if e.layer == 0}.values()
    norms = torch.zeros(21)
    for layer in (0, 1):
        rows = exact.cache_of(other).rows(layer)
        assert rows is not None
        norms += rows.keys[0].norm(dim=-1).mean(0) / 2
    means = {number: float(norms[number * 4 : number * 4 + 4].mean()) for number in range(6)}
    # sinks keep page 0 and the newest token page 5; of the other four the one with the smallest keys stays
    going = sorted(range(1, 5), key=lambda number: means[number])[1:]
    assert record.positions.tolist() == [p for n in sorted(going) for p in range(n * 4, n * 4 + 4)]
    assert record.lowest_kept == pytest.approx(-min(means[n] for n in range(1, 5)), rel=1e-5)
    assert [record.score_of(n * 4) for n in sorted(going)] == pytest.approx(
        [-means[n] for n in sorted(going)], rel=1e-5
    )


@BY_RULE
def test_a_budget_of_the_whole_context_changes_nothing(name: str) -> None:
    assert_nothing_is_dropped(*session_of(roomy(RULES[name])), *session_of(RetentionSpec()))


@pytest.mark.usefixtures("a_reader_of_pages")
def test_freed_pages_go_back_to_the_pool_with_an_event_and_shared_ones_stay_with_the_others() -> None:
    session = Session(
        model_of("llama"), CacheSpec("paged", page_size=4, retention=RULES["sinks+window"]), prefill_chunk=64
    )
    first = session.submit(Prompt(token_ids=prompt_ids(8)))
    session.step()
    again = session.submit(Prompt(token_ids=prompt_ids(8) + prompt_ids(4, 2)))
    session.step()
    assert session.sequences[1].hit_tokens == 8
    kept = session.cache_of(first).rows(0)
    assert kept is not None
    before = kept.keys[:, :, :8].clone()
    session.stop(first)
    session.force(again, prompt_ids(30, seed=1))
    freed: list[PageFreed] = []
    for _ in range(12):
        record = session.step()
        check(session, record)
        freed += [e for e in record.page_events if isinstance(e, PageFreed)]
    assert [e.ref_count for e in freed if e.seq_id == again][:1] == [1], "the shared page stays with the first"
    assert 0 in [e.ref_count for e in freed if e.seq_id == again][1:]
    rows = session.cache_of(first).rows(0)
    assert rows is not None
    assert rows.positions is None
    assert torch.equal(rows.keys[:, :, :8], before)
    session.remove(first)
    session.remove(again)
    check(session)


def test_rows_computed_after_a_drop_are_shared_with_nobody() -> None:
    session, seq_id = session_of(RULES["window"], prompt=16)
    for _ in range(20):
        session.step()
    ids = tuple(session.sequence(seq_id).token_ids[:32])
    session.remove(seq_id)
    session.submit(Prompt(token_ids=ids))
    session.step()
    (info,) = session.sequences
    assert info.hit_tokens <= 16
    watching, watched = session_of(RULES["h2o"])
    watching.step()
    assert "must see the attention" in str(watching.sequences[0].why_not_reused)
    assert watched == 0


@pytest.mark.parametrize("name", SPECS)
def test_full_becomes_smaller_and_what_was_lost_is_prefilled_again(name: str) -> None:
    session = Session(model_of("llama"), CacheSpec(), prefill_chunk=8)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(21)))
    session.force(seq_id, prompt_ids(30, seed=1))
    for _ in range(8):
        session.step()
    how = session.set_cache(SPECS[name])
    assert how.startswith("re-prefilled" if SPECS[name].retention.watches_all else "converted without recomputing"), how
    check(session)
    session.step()
    check(session)
    assert session.set_cache(CacheSpec("paged", page_size=4)).startswith("re-prefilled")
    session.step()
    ids = session.sequence(seq_id).token_ids[: session.sequence(seq_id).num_tokens]
    newest = session.logits(seq_id)
    assert newest is not None
    assert float((newest - model_of("llama").reference_logits(torch.tensor([ids]))[-1]).abs().max()) < 1e-4


@pytest.mark.usefixtures("a_reader_of_pages")
def test_a_full_pool_preempts_and_goes_on() -> None:
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4, num_pages=12, retention=RULES["tova"]))
    for i in range(3):
        session.force(session.submit(Prompt(token_ids=prompt_ids(12 + i, i))), prompt_ids(40, i))
    for _ in range(40):
        check(session, session.step())


def test_pictures_leave_dropped_pages_empty() -> None:
    session, seq_id = session_of(RULES["tova"])
    held, head = held_and_pictured(session, seq_id)
    tokens = session.sequence(seq_id).num_tokens
    assert head.positions[head.absent == 0].tolist() == held
    assert not session.cache_of(seq_id).knows(20)
    assert session.cache_of(seq_id).knows(tokens - 1) == (tokens % 4 != 1)
    table: Any = session.take_picture(TableRequest(seq_id, tokens))
    assert [n for n, page in enumerate(table.tables[0]) if page] == sorted({p // 4 for p in held})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: CacheSpec("paged", retention=RetentionSpec("sinks+window", sinks=1, window=8, rerotate=True)),
            "shared",
        ),
        (lambda: CacheSpec("paged", retention=RetentionSpec("h2o", layer_budgets=(32, 32))), "one budget"),
        (lambda: CacheSpec("paged", retention=RetentionSpec("snapkv", budget=32, schedule="pyramid")), "one budget"),
        (lambda: CacheSpec("paged", retention=RetentionSpec("h2o", budget=12)), "hold a page of 16"),
        (lambda: CacheSpec("host", host_gib=1.0, retention=RULES["h2o"]), "growing"),
    ],
)
def test_nonsense_is_refused_when_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


def test_a_rule_keeps_its_name_in_pages() -> None:
    assert preset_of(tuned(PRESETS["h2o"].spec, layout="paged", budget=64)).name == "h2o"
    with pytest.raises(InputError, match="only sliding layers"):
        Session(model_of("mistral"), tuned(PRESETS["h2o"].spec, layout="paged"))


def test_an_export_names_the_positions_of_the_rows_that_are_left() -> None:
    session, seq_id = session_of(RULES["tova"])
    for _ in range(8):
        session.step()
    kept = snapshot(session, seq_id)
    positions = kept.tensors["layers.0.positions"]
    assert positions.shape[1] == kept.tensors["layers.0.keys"].shape[2] < session.sequence(seq_id).num_tokens
    with pytest.raises(InputError, match="not known any more"):
        snapshot(session, seq_id, 12)


@pytest.mark.parametrize("architecture", ["gpt2", "gemma2", "gpt_oss", "deepseek_v3", "qwen3"])
@pytest.mark.parametrize("name", ["sinks+window", "h2o", "tova"])
@pytest.mark.usefixtures("a_reader_of_pages")
def test_rules_run_in_the_pages_of_every_kind_of_model(name: str, architecture: str) -> None:
    session, _ = session_of(RULES[name], model_of(architecture))
    evictions = []
    for _ in range(10):
        record = session.step()
        check(session, record)
        assert not record.non_finite
        evictions += record.evictions
        for layer in record.num_bytes.layers:
            assert layer.stored == layer.predicted
    assert evictions
