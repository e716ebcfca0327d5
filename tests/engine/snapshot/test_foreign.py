"""Any cache brought in: three lines in somebody's loop, for every cache class of transformers, and plain pairs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, DynamicCache, EncoderDecoderCache, QuantizedCache, StaticCache

from engine.cache.layers.build import cache_argument
from engine.errors import InputError
from engine.snapshot import save_cache
from engine.snapshot.foreign import snapshot_of_cache
from engine.snapshot.read import SnapshotFile
from engine.snapshot.resume import resumed, why_not_resumable
from engine.snapshot.verify import verified
from tests.engine.snapshot.sessions import step
from tests.engine.tiny import COMMON, config_dict, model_of, prompt_ids, random_model


def looped(model: Any, cache: Any, tokens: int = 20, steps: int = 5) -> list[int]:
    """Somebody's greedy loop; returns every id, the one that comes next included."""
    ids = list(prompt_ids(tokens))
    computed = ids
    with torch.inference_mode():
        for _ in range(steps):
            logits = model(torch.tensor([computed]), **{cache_argument(model): cache}, use_cache=True).logits
            computed = [int(logits[0, -1].argmax())]
            ids += computed
    return ids


@pytest.fixture
def llama() -> Any:
    loaded = model_of("llama")
    loaded.model.set_attn_implementation(loaded.native_attention)
    yield loaded.model
    loaded.model.set_attn_implementation("kvloupe")


CACHES = {
    "dynamic": lambda config: DynamicCache(config=config),
    "static": lambda config: StaticCache(config=config, max_cache_len=64),
    "quantised": lambda config: QuantizedCache("fp8", config),
}


@pytest.mark.parametrize("name", CACHES)
def test_every_cache_of_transformers(name: str, llama: Any, tmp_path: Path) -> None:
    cache = CACHES[name](llama.config)
    ids = looped(llama, cache)
    path = save_cache(cache, tmp_path / "x.safetensors", tokens=ids, model=llama, notes="mine")
    assert verified(path).is_sound
    with SnapshotFile(path) as file:
        assert file.token_ids == tuple(ids[:24])
        assert file.manifest.sequence.sampled == ids[24]
        assert file.manifest.cache == type(cache).__name__
        assert file.manifest.architecture == "LlamaForCausalLM"
        assert file.manifest.why_not == (
            "its rows are quantised, and were written as numbers" if name == "quantised" else ""
        )
        assert file.layers[1].num_rows == 24, "room that was never written is left out"
        layer: Any = cache.layers[1]
        expected = layer._dequantize(layer._quantized_keys) if name == "quantised" else layer.keys
        assert np.array_equal(file.rows(1, "keys", 1), expected[0, 1, :24].numpy())


def test_sliding_and_hybrid_caches(tmp_path: Path) -> None:
    loaded = model_of("gemma3_text")
    cache = DynamicCache(config=loaded.model.config)
    ids = looped(loaded.model, cache)
    with SnapshotFile(save_cache(cache, tmp_path / "x.safetensors", ids, model=loaded.model)) as file:
        assert [entry.kind for entry in file.layers] == ["sliding", "full", "sliding", "full"]
        assert [(entry.first, entry.num_rows) for entry in file.layers] == [(17, 7), (0, 24)] * 2
        assert file.positions(0, 0).tolist() == list(range(17, 24))
    hybrid = model_of("lfm2")
    cache = DynamicCache(config=hybrid.model.config)
    ids = looped(hybrid.model, cache)
    with SnapshotFile(save_cache(cache, tmp_path / "y.safetensors", ids)) as file:
        assert [entry.index for entry in file.layers] == [1]


GOING_ON = ["llama", "gpt2", "gemma3_text", "mistral", "deepseek_v3", "falcon"]


@pytest.mark.parametrize("says_next", [True, False])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("architecture", GOING_ON)
def test_a_loop_goes_on_here_with_the_tokens_it_would_have_chosen(
    architecture: str, kind: str, says_next: bool, tmp_path: Path
) -> None:
    """What the model chooses in its own loop with its own cache is what is chosen here, also where a window is full."""
    loaded = model_of(architecture)
    loaded.model.set_attn_implementation(loaded.native_attention)
    try:
        expected = looped(loaded.model, CACHES["dynamic"](loaded.model.config), steps=12)
        cache = CACHES[kind](loaded.model.config)
        ids = looped(loaded.model, cache)[: 25 if says_next else 24]
    finally:
        loaded.model.set_attn_implementation("kvloupe")
    with SnapshotFile(save_cache(cache, tmp_path / "x.safetensors", ids, model=loaded.model)) as file:
        held = file.rows(0, "keys", 0).copy()
        slid = any(entry.first > 24 - 8 for entry in file.layers)
        if not says_next and slid:
            with pytest.raises(InputError, match="does not say which token comes next"):
                resumed(loaded, file)
            return
        session = resumed(loaded, file)
    rows = session.cache_of(0).rows(0)
    assert rows is not None
    assert np.array_equal(rows.keys[0, 0].numpy(), held[-rows.keys.shape[2] :]), "the rows are those of the file"
    while session.sequence(0).num_tokens < 31:
        step(session)
    assert session.sequence(0).token_ids == expected[:31]


def test_rows_of_other_weights_ids_or_positions_do_not_go_on(tmp_path: Path) -> None:
    loaded, path = model_of("llama"), tmp_path / "x.safetensors"
    cache = DynamicCache(config=loaded.model.config)
    ids = looped(loaded.model, cache)
    pairs = [(layer.keys, layer.values) for layer in cache.layers]
    lacking = [pairs[0], tuple(part[:, :, :9] for part in pairs[1])]
    moved = [tuple(part.roll(1, 2) for part in pair) for pair in pairs]
    for given, tokens, why in (
        (pairs, [*ids[1:], 3], "not those that"),
        (moved, ids, "not those that"),
        (lacking, ids, "layer 1 lacks rows"),
        (pairs[:1], ids, "other layers than its model"),
        (pairs, None, "without the ids of its tokens"),
    ):
        save_cache(given, path, tokens, model=loaded.model)
        with SnapshotFile(path) as file, pytest.raises(InputError, match=why):
            resumed(loaded, file)
    with SnapshotFile(save_cache(pairs, path, ids, model=loaded.model)) as file:
        with pytest.raises(InputError, match="not those that"):
            resumed(random_model(config_dict("llama"), 0.05), file)
        assert why_not_resumable(loaded, file) == ""


def test_an_encoder_decoder_gives_the_decoders_own(llama: Any, tmp_path: Path) -> None:
    own, cross = DynamicCache(config=llama.config), DynamicCache(config=llama.config)
    ids = looped(llama, own)
    looped(llama, cross, tokens=9)
    with SnapshotFile(save_cache(EncoderDecoderCache(own, cross), tmp_path / "x.safetensors", ids)) as file:
        assert file.layers[0].num_rows == 24
        assert np.array_equal(file.rows(0, "values", 0), own.layers[0].values[0, 0].numpy())


@pytest.mark.parametrize("kind", ["torch", "numpy", "three dimensions"])
def test_plain_pairs(kind: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    pairs = [tuple(torch.randn(2, 3, 7, 8, generator=generator) for _ in range(2)) for _ in range(4)]
    given: list[Any] = [tuple(pair) for pair in pairs]
    if kind == "numpy":
        given = [[part.numpy() for part in pair] for pair in pairs]
    if kind == "three dimensions":
        given = [[part[1] for part in pair] for pair in pairs]
    batch = 0 if kind == "three dimensions" else 1
    with SnapshotFile(save_cache(given, tmp_path / "x.safetensors", batch=batch)) as file:
        assert file.token_ids == ()
    ids = np.arange(14).reshape(2, 7)  # of both sequences, or of the one
    tokens = ids[1] if kind == "three dimensions" else ids
    with SnapshotFile(save_cache(given, tmp_path / "x.safetensors", tokens, batch=batch)) as file:
        assert file.token_ids == tuple(range(7, 14))
        assert file.manifest.num_tokens == 7
        assert np.array_equal(file.rows(3, "values", 2), pairs[3][1][1, 2].numpy())


def test_a_tokenizer_gives_the_texts(tmp_path: Path) -> None:
    from engine.model.loader import load
    from engine.spec.model import ModelSpec

    tokenizer: Any = load(ModelSpec("bundled")).tokenizer
    ids = tokenizer("Once upon a time")["input_ids"]
    pairs = [(torch.zeros(1, 1, len(ids), 4), torch.zeros(1, 1, len(ids), 4))]
    path = save_cache(pairs, tmp_path / "x.safetensors", tokens=torch.tensor([ids]), tokenizer=tokenizer)
    with SnapshotFile(path) as file:
        assert "".join(file.token_texts).strip().endswith("Once upon a time")
        assert file.manifest.tokenizer_fingerprint


def test_what_cannot_be_brought_in_is_refused_with_the_reason(tmp_path: Path) -> None:
    rows = torch.zeros(1, 2, 5, 4)
    path = tmp_path / "x.safetensors"
    for cache, tokens, reason in (
        (None, None, "is no cache"),
        ("text", None, "is no cache"),
        ([], None, "holds no K and V yet"),
        (DynamicCache(), None, "holds no K and V yet"),
        ([rows], None, "keys|pair"),
        ([(rows, rows[:, :, :4])], None, "of one S"),
        ([(rows.int(), rows.int())], None, "give rows in float32"),
        ([(rows, rows.half())], None, "one dtype"),
        ([(rows, rows)], [1, 2], "the ids of 2 were given"),
        ([(rows, rows)], ["a"] * 5, "no token ids"),
        ([(rows, rows)], [0.5] * 5, "no token ids"),
        ([(rows, rows)], [-1] * 5, "no token ids"),
    ):
        with pytest.raises(InputError, match=reason):
            save_cache(cache, path, tokens)
    with pytest.raises(InputError, match="There is no sequence 3"):
        save_cache([(rows, rows)], path, batch=3)
    assert not path.exists()


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_kinds_of_layers_are_told_where_the_model_has_all_that_are_there(num_layers: int) -> None:
    model = SimpleNamespace(config=AutoConfig.for_model("llama", **{**COMMON, "num_hidden_layers": 2}))
    pairs = [(torch.ones(1, 2, 5, 16), torch.ones(1, 2, 5, 16)) for _ in range(num_layers)]
    kinds = snapshot_of_cache(pairs, list(range(5)), model=model).manifest["layer_kinds"]
    assert json.loads(kinds) == (["full", "full"] if num_layers < 3 else [])
