"""The calculator is the engine to the byte: every preset, on models of every kind, at the edges of pages and groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from engine.errors import InputError
from engine.predict.bytes import BudgetSpec, budget_of
from engine.predict.capacity import is_pageable
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, Preset, tuned
from engine.spec.codec import ROW_OF_NAME, parse_codec
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from tests.effort import effort
from tests.engine.tiny import model_of, prompt_ids

# grouped, multi-query, multi-head, all sliding, sliding and full, latent, convolution and full, recurrent alone
ARCHITECTURES = ("llama", "falcon", "gpt2", "mistral", "gemma3_text", "deepseek_v3", "lfm2", "mamba")
PAGE, GROUP, RESIDUAL, BUDGET, WINDOW = 16, 16, 32, 20, 9
SIZES = {"budget": BUDGET, "window": WINDOW, "group": GROUP, "residual": RESIDUAL}


def small(preset: Preset) -> CacheSpec:
    """The preset with sizes that short sequences feel."""
    given = {k: v for k, v in SIZES.items() if k in preset.parameters and not preset.name.startswith("transformers")}
    if "budget" in given:
        given.pop("window", None)
    return tuned(preset.spec, **given)


def decoded(session: Session) -> Iterator[None]:
    """One sequence past the edge of a page, then a second past those of a page, a group and a residual: a moment after
    every step."""
    for length, last in ((PAGE - 2, PAGE + 1), (2 * PAGE - 1, 2 * PAGE + 2)):
        seq_id = session.submit(Prompt(token_ids=prompt_ids(length, seed=length)))
        session.force(seq_id, prompt_ids(8, seed=length + 1))
        while session.sequence(seq_id).num_tokens < last:
            session.step()
            yield


def check(session: Session) -> None:
    """What every layer stores and reserves is what the calculator says of its sequences together."""
    info, spec = session.model.info, session.cache
    geometry = info.geometry
    sequences = {s.seq_id: session.sequence(s.seq_id) for s in session.sequences}
    for layer in session.bytes().layers:
        assert layer.predicted == layer.stored, f"layer {layer.layer}: the ledger"
    if any(s.is_prefilling for s in sequences.values()):
        return  # a part of a prompt is no moment that the calculator knows
    budgets = [
        budget_of(geometry, BudgetSpec(spec, s.num_tokens, 1, info.dtype, s.num_prompt_tokens))
        for s in sequences.values()
    ]
    stored = sum(b.stored_bytes_per_sequence + (b.state_bytes_per_sequence or 0) for b in budgets)
    reserved = sum(b.bytes_per_sequence for b in budgets)
    held = session.bytes()
    assert held.stored == stored
    if spec.layout == "dynamic" and any(s.num_tokens == s.num_prompt_tokens for s in sequences.values()):
        return  # a prompt's last chunk leaves more behind a window than a decode step does
    if not spec.is_paged:
        assert held.reserved == reserved
        return
    in_pages = sum(
        session.cache_of(seq_id).all_bytes()[la.index].reserved for seq_id in sequences for la in geometry.layers
    )
    assert in_pages == reserved, "the pages of the sequences"
    alone = sum(part.reserved for part in held.layers if not is_pageable(geometry.layers[part.layer]))
    assert held.reserved - alone == budgets[0].pool_bytes, "the whole pool is reserved at once"


IN_ALL = [(architecture, name) for architecture in ARCHITECTURES for name in PRESETS]


@pytest.mark.parametrize(("architecture", "name"), effort(IN_ALL[::5], IN_ALL))
def test_the_calculator_is_the_engine_to_the_byte(architecture: str, name: str) -> None:
    model, spec = model_of(architecture), small(PRESETS[name])
    try:
        session = Session(model, spec, prefill_chunk=PAGE)
    except InputError as refusal:
        if model.info.captures_attention:  # which no config tells
            with pytest.raises(InputError, match=re.escape(str(refusal)[:40])):
                budget_of(model.info.geometry, BudgetSpec(spec, 10))
        return
    for _ in decoded(session):
        check(session)


CODECS = [name for name in ROW_OF_NAME if not name.startswith("kivi")]


@pytest.mark.parametrize(
    "spec",
    [
        *(tuned(CacheSpec(), codec=parse_codec(name)) for name in (*CODECS, "int8/fp8-head", "exact/fp8", "fp8/exact")),
        *(tuned(CacheSpec(), codec=parse_codec(text), group=16, residual=32) for text in ("kivi-8", "kivi-2/kivi-4")),
        tuned(CacheSpec("paged"), codec=parse_codec("int8/fp8-max-e8m0")),
        *(CacheSpec(retention=RetentionSpec("knorm", ratio=ratio, sinks=1)) for ratio in (0.0, 0.1, 0.5, 0.9)),
        CacheSpec(retention=RetentionSpec("tova", layer_budgets=(12, 5))),
        CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=6, rerotate=True)),
        CacheSpec(retention=RetentionSpec("knorm", budget=8), codec=parse_codec("fp8")),
        CacheSpec("paged", page_size=4, retention=RetentionSpec("knorm", budget=8)),
        CacheSpec("paged", page_size=4, retention=RetentionSpec("snapkv", budget=8)),
        CacheSpec("static", max_length=40),
    ],
    ids=str,
)
def test_other_caches_are_predicted_to_the_byte_too(spec: CacheSpec) -> None:
    grouped: dict[str, Any] = {"group": 16} if any(c.name.startswith("fp8-max") for c in spec.codec.codings) else {}
    if spec.codec.keys.has_groups and not spec.codec.keys.is_kivi and spec.codec.values.has_groups:
        spec = tuned(spec, **grouped)
    try:
        session = Session(model_of("llama"), spec, prefill_chunk=PAGE)
    except InputError:
        with pytest.raises(InputError):
            budget_of(model_of("llama").info.geometry, BudgetSpec(spec, 10))
        return
    for _ in decoded(session):
        check(session)


def test_buffers_are_predicted_when_they_grow() -> None:
    """Past 64 and 128 rows, where buffers double, and past what was made for rows that were kept."""
    for spec in (
        PRESETS["int8"].spec,
        PRESETS["fp8"].spec,
        tuned(PRESETS["kivi-4"].spec, group=16, residual=32),
        CacheSpec(retention=RetentionSpec("snapkv", budget=60)),
        CacheSpec(retention=RetentionSpec("knorm", ratio=0.05)),
        CacheSpec(retention=RetentionSpec("knorm", budget=64)),
    ):
        session = Session(model_of("llama"), spec, prefill_chunk=128)
        seq_id = session.submit(Prompt(token_ids=prompt_ids(62)))
        session.force(seq_id, prompt_ids(66))
        while session.sequence(seq_id).num_tokens < 127:
            session.step()
            check(session)


def test_a_shared_page_is_predicted_once() -> None:
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4))
    seq_id = session.submit(Prompt(token_ids=prompt_ids(10)))
    session.step()
    alone = session.bytes()
    session.fork(seq_id)
    both = session.bytes()
    assert both.stored == alone.stored
    assert [layer.predicted for layer in both.layers] == [layer.stored for layer in both.layers]


def test_full_pages_in_host_memory_are_those_of_the_calculator() -> None:
    session = Session(model_of("llama"), CacheSpec("host", host_gib=0.01), prefill_chunk=PAGE)
    for _ in decoded(session):
        pass
    assert session.live.mode.store is not None
    assert (host := session.live.mode.store.host) is not None
    counts = [s.num_tokens for s in session.sequences]
    budgets = [budget_of(model_of("llama").info.geometry, BudgetSpec(session.cache, n, 1, "float32")) for n in counts]
    assert host.num_stored_pages * host.bytes_per_page == sum(b.host_bytes for b in budgets) > 0
