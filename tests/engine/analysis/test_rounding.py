"""What rounding may do, dtype by dtype: healthy caches of the bundled model pass, and lossy or wrong ones do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from msgspec.structs import replace

from engine.analysis.reference import (
    TOLERANCES,
    Reference,
    WrongRow,
    first_wrong,
    first_wrong_row,
    parity,
    reference,
    row_errors,
    session_logits,
)
from engine.analysis.tolerance import tolerance_between
from engine.cache.contract import HeldRows
from engine.cache.sequence_cache import SequenceCache
from engine.geometry.dimensions import LayerGeometry
from engine.model.loader import LoadedModel, load
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.model import ModelSpec
from tests.effort import effort
from tests.engine.tiny import model_of, prompt_ids

TEXT = "Once upon a time there was a little girl named Lily. She liked to play in the park with her dog."
DTYPES = tuple(TOLERANCES)
STEPS = 6


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def bundled(dtype: str) -> tuple[LoadedModel, Reference]:
    """The bundled model, and what it says without a cache."""
    model = load(ModelSpec("bundled", dtype=dtype, device="cpu", num_threads=1))  # type: ignore[arg-type]
    ids = tuple(model.tokenizer(TEXT)["input_ids"])
    return model, reference(model, ids, STEPS)


@cache
def healthy(dtype: str, tokens_of: str | None = None) -> Session:
    """A growing cache after those steps, or after the tokens that the model chose in another dtype; nobody may write to
    it."""
    model, _ = bundled(dtype)
    _, truth = bundled(tokens_of or dtype)
    session = Session(model, CacheSpec(), prefill_chunk=16)
    session_logits(session, truth.prompt_ids, truth.token_ids)
    return session


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_another_dtype_of_the_same_weights_is_rounding_and_not_a_fault(dtype: str) -> None:
    """Rows of layer 0 differ by more than those of one dtype may: the weights were rounded too."""
    caches = [healthy("float32").cache_of(0), healthy(dtype, tokens_of="float32").cache_of(0)]
    pairs = [(caches[0].rows(layer), caches[1].rows(layer)) for layer in range(6)]
    for layer, (exact, coarse) in enumerate(pairs):
        assert exact is not None
        assert coarse is not None
        for one, other in ((exact.keys, coarse.keys), (exact.values, coarse.values)):
            error = float(row_errors(one[0].float(), other[0].float()).max())
            assert error <= tolerance_between("float32", dtype).of_row(layer)
    assert tolerance_between(dtype, dtype) == TOLERANCES[dtype]


EXACT = [(dtype, name) for dtype in DTYPES for name in ("none", "dynamic", "static", "growing", "paged")]


@pytest.mark.parametrize(("dtype", "name"), effort(EXACT[::2], EXACT))
def test_a_healthy_cache_passes(dtype: str, name: str) -> None:
    model, truth = bundled(dtype)
    for chunk in (1, 16) if name == "growing" else (5,):
        found = parity(model, name, PRESETS[name].spec, truth, chunk)
        assert found.wrong_row is None, (chunk, found)
        assert found.passes, (chunk, found)


CODED = [(name, dtype) for name in ("int8", "paged-int8", "fp8", "paged-fp8") for dtype in DTYPES]


@pytest.mark.parametrize(("name", "dtype"), effort(CODED[::2], CODED))
def test_a_lossy_code_judged_as_lossless_fails(dtype: str, name: str) -> None:
    """In bfloat16, int8 moves logits and deeper rows no further than rounding does: rows of layer 0 tell."""
    model, truth = bundled(dtype)
    found = parity(model, name, PRESETS[name].spec, truth, 16)
    assert not found.lossless
    assert found.passes, "measured, not judged"
    session = Session(model, PRESETS[name].spec, prefill_chunk=16)
    session_logits(session, truth.prompt_ids, truth.token_ids)
    wrong = first_wrong_row(model.info.geometry.attention_layers, session.cache_of(0), truth.cache, dtype)
    assert wrong is not None
    assert wrong.layer == 0
    assert not dataclasses.replace(found, lossless=True, wrong_row=wrong).passes


class Altered(SequenceCache):
    """The rows of another cache, some of them altered."""

    def __init__(self, of: SequenceCache, altered: dict[int, HeldRows | None]) -> None:
        self.of, self.altered, self.spec = of, altered, of.spec

    def rows(self, layer_index: int) -> HeldRows | None:
        return self.altered[layer_index] if layer_index in self.altered else self.of.rows(layer_index)


def held(cache: SequenceCache, layer: int) -> HeldRows:
    rows = cache.rows(layer)
    assert rows is not None
    return HeldRows(rows.keys.clone(), rows.values.clone(), rows.first, rows.positions)


def judged(dtype: str, altered: dict[int, HeldRows | None]) -> WrongRow | None:
    model, truth = bundled(dtype)
    layers = model.info.geometry.attention_layers
    return first_wrong_row(layers, Altered(healthy(dtype).cache_of(0), altered), truth.cache, dtype)


@pytest.mark.parametrize("layer", [0, 3, 5])
@pytest.mark.parametrize("tensor", ["keys", "values"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_larger_by_a_tenth_is_wrong(dtype: str, tensor: str, layer: int) -> None:
    assert judged(dtype, {}) is None
    rows = held(healthy(dtype).cache_of(0), layer)
    getattr(rows, tensor)[:, 1, 7] *= 1.09
    assert judged(dtype, {layer: rows}) == WrongRow(layer, tensor, 7)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_row_shows_beside_a_channel_far_larger_than_the_others(dtype: str) -> None:
    """Its 63 small channels hold those of the row before; the large one, which few caches would mistake, is right."""
    _, truth = bundled(dtype)
    true, mine = held(truth.cache, 3), held(healthy(dtype).cache_of(0), 3)
    for rows in (true, mine):
        rows.keys[:, :, :, -1] *= 100
        rows.keys[:, :, :, -1] += 100
    assert first_wrong(mine, true, "keys", TOLERANCES[dtype].of_row(3)) is None
    for position in range(1, mine.keys.shape[2]):
        wrong = HeldRows(mine.keys.clone(), mine.values, 0)
        wrong.keys[:, 0, position, :-1] = mine.keys[:, 0, position - 1, :-1]
        assert first_wrong(wrong, true, "keys", TOLERANCES[dtype].of_row(3)) == position


def test_the_error_of_a_row_is_a_part_of_its_own_size() -> None:
    rows = torch.randn(2, 50, 32, generator=torch.Generator().manual_seed(1))
    rows[:, :, 4] *= 1000
    rows[:, 10] *= 1e-3
    off = rows.clone()
    off[0, 10] *= 1.2
    off[1, 20] *= 0.7
    errors = row_errors(off, rows)
    assert errors[0, 10] == pytest.approx(0.2, rel=1e-4)
    assert errors[1, 20] == pytest.approx(0.3, rel=1e-4)
    assert int((errors > 0).sum()) == 2
    off[0, 3, 9] = torch.nan
    assert bool(row_errors(off, rows)[0, 3].isnan())
    assert float(row_errors(torch.zeros(1, 3, 8), torch.zeros(1, 3, 8)).max()) == 0


# ---- rows that are not there ---------------------------------------------------------------------------------------


def test_a_layer_that_lost_its_rows_is_wrong() -> None:
    assert judged("float32", {2: None}) == WrongRow(2, "keys", 0)
    rows = held(healthy("float32").cache_of(0), 2)
    assert judged("float32", {2: HeldRows(rows.keys[:, :, :0], rows.values[:, :, :0], 0)}) == WrongRow(2, "keys", 0)


def test_a_row_that_was_lost_is_wrong_wherever_it_stood() -> None:
    rows = held(healthy("float32").cache_of(0), 2)
    count = rows.keys.shape[2]
    assert judged("float32", {2: HeldRows(rows.keys[:, :, :-2], rows.values[:, :, :-2], 0)}) == WrongRow(
        2, "keys", count - 2
    )
    assert judged("float32", {2: HeldRows(rows.keys[:, :, 3:], rows.values[:, :, 3:], 3)}) == WrongRow(2, "keys", 0)
    kept = torch.tensor([p for p in range(count) if p != 6])
    gap = HeldRows(rows.keys[:, :, kept], rows.values[:, :, kept], 0, kept.repeat(rows.keys.shape[1], 1))
    assert judged("float32", {2: gap}) == WrongRow(2, "keys", 6)


def test_a_verified_cache_that_lost_rows_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama")
    truth = reference(model, prompt_ids(20), 4)
    assert parity(model, "growing", CacheSpec(), truth, 64).passes
    whole = SequenceCache.rows
    monkeypatch.setattr(
        SequenceCache, "rows", lambda self, layer: None if layer and self.num_tokens else whole(self, layer)
    )
    found = parity(model, "growing", CacheSpec(), truth, 64)
    assert found.wrong_row == WrongRow(1, "keys", 0)
    assert not found.passes


def test_rows_before_the_window_of_a_layer_may_go() -> None:
    """The true rows reach further back than the next token sees."""
    rows = HeldRows(torch.randn(1, 2, 30, 8), torch.randn(1, 2, 30, 8), 0)
    layer = replace(bundled("float32")[0].info.geometry.layers[0], kind="sliding", window=8)
    truth, spec = Altered(healthy("float32").cache_of(0), {0: rows}), CacheSpec()
    assert spec.retention.keeps_all

    def found(first: int, layer: LayerGeometry = layer) -> WrongRow | None:
        kept = HeldRows(rows.keys[:, :, first:], rows.values[:, :, first:], first)
        return first_wrong_row([layer], Altered(truth, {0: kept}), truth, "float32")

    assert found(0) is None
    assert found(23) is None, "the next token stands at 30 and sees the seven before it"
    assert found(24) == WrongRow(0, "keys", 23)
