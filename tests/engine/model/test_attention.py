"""The newest query's weights are those that the model's own eager attention computes, and cost no full matrix."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.cache.attention_probe import NewestQuery, newest_weights
from engine.cache.compressed.cache import CompressedCache
from engine.model import attention
from engine.model.attention import explicit_weights, without_hidden
from engine.model.loader import LoadedModel, load
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from engine.wire.pictures import AttentionPicture, AttentionRequest
from tests.engine.largest import largest_tensor
from tests.engine.tiny import model_of, prompt_ids, write_config

ARCHITECTURES = ("llama", "gpt2", "gemma2", "gemma3_text", "gpt_oss", "mistral", "deepseek_v3", "bloom", "falcon")
OWN_CODE = ("bloom", "falcon", "mpt")


def eager_rows(model: LoadedModel, ids: tuple[int, ...]) -> list[torch.Tensor]:
    """Per layer `[H, S]`: the last row of the full matrices of a model built on eager attention, without a cache. Of a
    copy: transformers leaves hooks in a model that was asked for its attentions, and the fused decoder heeds them."""
    eager = deepcopy(model.model)
    eager.set_attn_implementation("eager")
    with torch.inference_mode():
        output = eager(torch.tensor([ids]), use_cache=False, output_attentions=True)
    return [a[0, :, -1] for a in output.attentions]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("layout", ["growing", "static", "dynamic", "none"])
def test_weights_of_the_newest_query_are_eagers(architecture: str, layout: str) -> None:
    model = model_of(architecture)
    ids = prompt_ids(19)
    expected = eager_rows(model, ids)
    session = Session(model, CacheSpec(layout), prefill_chunk=7)  # type: ignore[arg-type]
    seq_id = session.submit(Prompt(token_ids=ids[:17]))
    session.force(seq_id, ids[17:])
    while session.sequence(seq_id).num_tokens < len(ids):
        record = session.step()
    logged = session.history.attention.get((record.step, seq_id))
    assert logged is not None
    assert list(logged) == [layer.index for layer in model.info.geometry.attention_layers]
    for (layer, row), full in zip(logged.items(), expected, strict=True):
        width = row.shape[1]  # a window that has moved on holds only the last ones
        assert float((row - full[:, -width:]).abs().max()) <= 1e-5, f"layer {layer}"
        assert float(full[:, :-width].abs().sum()) == 0.0
    summary = record.sequences[0].attention
    assert summary is not None
    for n, full in enumerate(expected):
        assert summary.recent_mass[n] == pytest.approx(full[:, -16:].sum(-1).numpy(), abs=1e-5)
        layer = model.info.geometry.attention_layers[n].index
        piece = session.take_picture(AttentionRequest(seq_id, record.step, layer, 64))
        assert isinstance(piece, AttentionPicture)
        assert piece.is_causal == (model.info.geometry.layers[layer].kind != "cross")
        assert piece.entropy == pytest.approx(torch.special.entr(full).sum(-1).numpy(), abs=1e-4)
        assert summary.first_mass[n] == pytest.approx(full[:, 0].numpy(), abs=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prefill_sees_the_last_token_of_the_chunk(architecture: str) -> None:
    model = model_of(architecture)
    ids = prompt_ids(12)
    session = Session(model, CacheSpec("growing"), prefill_chunk=64)
    seq_id = session.submit(Prompt(token_ids=ids))
    record = session.step()
    logged = session.history.attention.get((record.step, seq_id))
    assert logged is not None
    for row, full in zip(logged.values(), eager_rows(model, ids), strict=True):
        assert float((row - full[:, -row.shape[1] :]).abs().max()) <= 1e-5


def test_sink_logits_take_their_share() -> None:
    session = Session(model_of("gpt_oss"), CacheSpec("growing"))
    session.submit(Prompt(token_ids=prompt_ids(9)))
    record = session.step()
    (rows,) = [session.history.attention.get((record.step, 0))]
    assert rows is not None
    assert all(float(row.sum(-1).max()) < 1.0 for row in rows.values())


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt_oss", "bloom"])
def test_a_kept_row_keeps_nothing_else_alive(architecture: str) -> None:
    """The log counts what it holds: a row that is a view of the full matrix would hold all of it."""
    session = Session(model_of(architecture), CacheSpec("growing"))
    seq_id = session.submit(Prompt(token_ids=prompt_ids(100)))
    session.step()
    for log in (session.history.attention, session.history.logits):
        entry = log.get((0, seq_id))
        assert entry is not None
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in entry.values()}
        assert sum(storages.values()) == sum(t.nbytes for t in entry.values())
        assert log.num_bytes == sum(t.nbytes for t in entry.values())


@pytest.mark.parametrize("architecture", OWN_CODE)
def test_models_with_attention_code_of_their_own_are_read_through_eager(architecture: str) -> None:
    model = model_of(architecture)
    assert not model.info.captures_attention
    assert "attention code of its own" in model.info.note
    session = Session(model, CacheSpec("growing"))
    session.submit(Prompt(token_ids=prompt_ids(6)))
    summary = session.step().sequences[0].attention
    assert summary is not None
    assert summary.layers == (0, 1)


def test_without_observing_nothing_is_measured() -> None:
    session = Session(model_of("llama"), CacheSpec("growing"), capture="off")
    session.submit(Prompt(token_ids=prompt_ids(6)))
    part = session.step().sequences[0]
    assert part.attention is None
    assert part.rows is None
    assert session.history.attention.num_bytes == 0


def test_half_precision_stays_close_to_eager(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Softmax in float32 whatever the dtype, so bfloat16 differs by its own rounding and no more."""
    model = load(ModelSpec(f"shape:{write_config('llama', tmp_path)}", dtype="bfloat16", num_threads=1))
    ids = prompt_ids(16)
    session = Session(model, CacheSpec("growing"))
    session.submit(Prompt(token_ids=ids))
    session.step()
    rows = session.history.attention.get((0, 0))
    assert rows is not None
    for row, full in zip(rows.values(), eager_rows(model, ids), strict=True):
        assert row.dtype == torch.float32
        assert float((row - full.float()).abs().max()) <= 0.01


@pytest.mark.parametrize(
    ("architecture", "cache"),
    [("llama", "h2o"), ("qwen2", "snapkv"), ("gemma2", "growing"), ("gpt_oss", "none"), ("mistral", "dynamic")],
)
def test_the_weights_of_a_long_chunk_are_never_held_at_once(
    architecture: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of 96 tokens, with room for the weights of five of them: the same rows, sums and logits as at once."""
    model, spec = model_of(architecture), PRESETS[cache].spec
    found = []
    for num_bytes in (1 << 30, 4 * 4 * 96 * 5):
        monkeypatch.setattr("engine.model.attention.WEIGHT_BYTES", num_bytes)
        session = Session(model, spec, prefill_chunk=96)
        seq_id = session.submit(Prompt(token_ids=prompt_ids(120)))
        with largest_tensor() as largest:
            session.step()
            session.step()
        size = 120 if cache == "none" else 96  # that one takes prompts at once
        is_whole = num_bytes == 1 << 30 and architecture in ("llama", "gemma2", "gpt_oss")
        assert largest.made(4, size, size) == is_whole
        if num_bytes < 1 << 30:
            assert largest.num_bytes < 4 * 4 * size * size, "nothing is as large as all of them"
        newest, cached = session.logits(seq_id), session.cache_of(seq_id)
        assert newest is not None
        rows = [held for layer in range(2) if (held := cached.rows(layer)) is not None]
        found.append([newest, *(tensor for held in rows for tensor in (held.keys, held.values))])
        if isinstance(cached, CompressedCache):
            found[-1] += [layer.memory for _, layer in cached.compressed_layers if layer.memory is not None]
    for whole, pieces in zip(*found, strict=True):
        assert torch.allclose(whole, pieces, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [80, 200])
def test_products_beyond_half_precision_give_weights_all_the_same(dtype: torch.dtype, tokens: int) -> None:
    """Before they are scaled they pass 65,504, which transformers' own attention bears."""
    numbers = torch.Generator().manual_seed(0)
    query, key = ((torch.randn(1, 2, n, 64, generator=numbers) * 90).to(dtype) for n in (1, tokens))
    exact = (query.double() @ key.double().mT * 0.125).softmax(-1)
    assert (query.double() @ key.double().mT).abs().max() > 65504
    own = explicit_weights(query, key, None, 0.125, None, None)
    newest = newest_weights([NewestQuery(query[:, :, 0], key, None, 0.125)])[0]
    assert own.dtype == newest.dtype == torch.float32
    assert own.isfinite().all()
    assert newest.isfinite().all()
    assert torch.allclose(own.double(), exact, atol=1e-2)
    assert torch.allclose(newest.double(), exact[:, :, 0], atol=1e-2)


class Products(TorchDispatchMode):
    """The shapes of what products of 16 bits multiply; transformers' own attention has a kernel for all lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[torch.Size, ...]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        is_product = any(name in str(func) for name in ("mm", "mv", "matmul", "linear"))
        if is_product and tensors[0].dtype in (torch.float16, torch.bfloat16):
            self.shapes.append(tuple(each.shape for each in tensors))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("preset", ["growing", "paged", "h2o", "paged-int8"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_no_product_of_16_bits_has_a_new_shape_at_every_step(
    dtype: str, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU would compile each of them and keep what it compiled: 800 steps took 600 MB."""
    monkeypatch.setattr(attention, "LONG_CONTEXT", 46)  # which is passed on the way
    monkeypatch.setattr(attention, "COPIED_ROWS", 16)
    session = Session(model_of("llama", dtype), PRESETS[preset].spec)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(40)))
    session.force(seq_id, prompt_ids(13, seed=1))
    session.step()
    steps = []
    for _ in range(12):
        with Products() as products:
            session.step()
        steps.append(products.shapes)
    assert steps[0]
    assert all(shapes == steps[0] for shapes in steps)


def test_hidden_rows_stand_where_a_window_that_has_slid_left_them() -> None:
    """Of five rows the first and the third are hidden; with the new one the window holds the latest four of six."""
    query, hidden = torch.zeros(1, 2, 1, 4), torch.tensor([[True, False, True, False, False]])
    for columns, seen in ((6, [0, 1, 0, 1, 1, 1]), (4, [0, 1, 1, 1]), (3, [1, 1, 1])):
        mask = without_hidden(None, hidden, query, columns, 1)
        assert mask.expand(1, 2, 1, columns)[0, :, 0].int().tolist() == [seen, seen]
    foreign = without_hidden(None, hidden, query, 5, 0)  # a source: nothing is new
    assert foreign[0, 0, 0].int().tolist() == [0, 1, 0, 1, 1]
