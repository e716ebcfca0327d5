"""The geometry against the truth: what transformers really caches, family by family, and what is refused."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM
from transformers.cache_utils import get_layer_types_and_kwargs
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from engine.cache.layers.build import cache_argument
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry, dtype_bytes
from engine.geometry.families import ENCODER_DECODER, FAMILY_DEFAULTS, LAYERS_ARE_LISTED
from tests.effort import effort
from tests.engine.geometry.tiny_configs import BASE, TINY, C, F, L, M, N, S, X
from tests.engine.tiny import config_dict


def _built(name: str) -> tuple[Any, Any]:
    """The config of the tiny model and the cache that a 2-token forward leaves."""
    config = CONFIG_MAPPING[name.split(":")[0]](**TINY[name][0])
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        output = model(torch.tensor([[3, 4]]), use_cache=True)
    return model.config, output[cache_argument(model)]


def _measured(layer: Any) -> dict[str, int | None]:
    """Heads, dims, window and state of one real cache layer, read off its tensors."""
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    indexer = getattr(layer, "indexer_keys", None)
    states = [
        tensor
        for name in ("conv_states", "recurrent_states")
        for tensor in getattr(layer, name, {}).values()
        if tensor is not None
    ]
    return {
        "num_kv_heads": 0 if keys is None else keys.shape[1],
        "key_dim": 0 if keys is None else keys.shape[3],
        "value_dim": 0 if values is None else values.shape[3],
        "window": getattr(layer, "sliding_window", None),
        "index_dim": None if indexer is None else indexer.shape[-1],
        "state_bytes": sum(tensor.numel() * tensor.element_size() for tensor in states),
        "elements_per_token": sum(t.numel() for t in (keys, values, indexer) if t is not None) // 2,
    }


def _predicted(layer: LayerGeometry) -> dict[str, int | None]:
    stores = layer.stores_kv
    return {
        "num_kv_heads": layer.num_kv_heads if stores else 0,
        "key_dim": layer.key_dim if stores else 0,
        "value_dim": layer.value_dim if stores else 0,
        "window": layer.window if stores else None,
        "index_dim": layer.index_dim,
        "state_bytes": layer.state_bytes("bfloat16"),
        "elements_per_token": layer.elements_per_token,
    }


@pytest.mark.parametrize("name", TINY)
def test_geometry_equals_the_cache_that_transformers_keeps(name: str) -> None:
    torch.manual_seed(0)
    config, cache = _built(name)
    measured = [_measured(layer) for layer in cache.layers]
    as_written = {**TINY[name][0], "model_type": name.split(":")[0]}
    for source in (config, config.to_dict(), as_written):  # the object, its dict, and the terse config.json
        geometry = CacheGeometry.from_config(source)
        assert [layer.kind for layer in geometry.layers] == TINY[name][1]
        count = len(measured)  # an older transformers keeps no placeholder for the sharing layers at the end
        assert [_predicted(layer) for layer in geometry.layers[:count]] == measured
        assert {layer.kind for layer in geometry.layers[count:]} <= {X}
        assert geometry.vocab_size == 64
        assert geometry.hidden_size == 32
        assert all(layer.num_heads == 4 for layer in geometry.layers if layer.kind not in (L, N))


@pytest.mark.parametrize("name", ["gemma3n_text", "gemma4_text"])
def test_a_shared_layer_reads_the_last_stored_layer_of_its_type(name: str) -> None:
    config = CONFIG_MAPPING[name](**TINY[name][0])
    geometry = CacheGeometry.from_config(config)
    first_shared = TINY[name][1].index(X)
    for layer in geometry.layers[first_shared:]:
        same_type = [i for i in range(first_shared) if config.layer_types[i] == config.layer_types[layer.index]]
        assert layer.shares_with == same_type[-1]
        assert layer.elements_per_token == 0


@pytest.mark.parametrize("family", sorted(FAMILY_DEFAULTS.keys() - LAYERS_ARE_LISTED))
def test_a_config_that_is_silent_gets_the_defaults_of_its_class(family: str) -> None:
    config = CONFIG_MAPPING[family]()
    from_class = CacheGeometry.from_config(config)
    from_name = CacheGeometry.from_config({"model_type": family})
    assert from_name.layers == from_class.layers
    assert (from_name.hidden_size, from_name.vocab_size) == (config.hidden_size, config.vocab_size)
    kinds = {"full_attention": F, "indexed_attention": F, "sliding_attention": S, "chunked_attention": C, "dummy": N}
    kinds |= {"linear_attention": L, "conv": L, "hybrid": F}
    expected = [kinds[name] for name in get_layer_types_and_kwargs(config.get_text_config(decoder=True))[0]]
    seen = {X: N, M: F}  # transformers keeps a placeholder for sharing layers, and MLA in an ordinary layer
    own, cross = from_name.layers[: from_name.num_blocks], from_name.layers[from_name.num_blocks :]
    assert [seen.get(layer.kind, layer.kind) for layer in own[: len(expected)]] == expected
    assert {layer.kind for layer in own[len(expected) :]} <= {X}
    assert [layer.kind for layer in cross] == (["cross"] * len(own) if family in ENCODER_DECODER else [])


def test_a_decoder_nested_in_a_multimodal_config() -> None:
    config = CONFIG_MAPPING["gemma3"](text_config={**TINY["gemma3_text"][0], "model_type": "gemma3_text"})
    nested = CacheGeometry.from_config(config)
    assert nested.layers == CacheGeometry.from_config({**TINY["gemma3_text"][0], "model_type": "gemma3_text"}).layers
    unnamed = {"model_type": "gemma3", "text_config": TINY["gemma3_text"][0]}
    assert CacheGeometry.from_config(unnamed).layers == nested.layers
    assert nested.model_type == "gemma3_text"


@pytest.mark.parametrize("family", ["qwen2_vl", "gemma3"])
def test_a_flat_config_of_a_multimodal_family_is_that_of_its_decoder(family: str) -> None:
    flat = {**BASE, "sliding_window": 8}  # which one has switched off, and the other one in some layers
    found = CacheGeometry.from_config({**flat, "model_type": family})
    assert found == CacheGeometry.from_config({**flat, "model_type": f"{family}_text"})
    assert found.layers != CacheGeometry.from_config({**flat, "model_type": "mistral"}).layers


def test_sizes_of_llama_3_1_8b() -> None:
    geometry = CacheGeometry.from_config(
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096,
         "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "vocab_size": 128256}
    )  # fmt: skip
    assert geometry.architecture == "LlamaForCausalLM"
    assert (geometry.num_layers, len(geometry.attention_layers)) == (32, 32)
    assert (geometry.num_heads, geometry.num_kv_heads, geometry.head_dim) == (32, 8, 128)
    assert geometry.max_length == 131072
    assert geometry.is_uniform
    assert geometry.bytes_per_token("bfloat16") == 131_072
    assert geometry.bytes_per_token("float32") == 262_144
    assert geometry.bytes_per_token("float8_e4m3fn") == 65_536


def test_latent_attention_counts_the_latent_and_the_rotary_key_once() -> None:
    geometry = CacheGeometry.from_config({"model_type": "deepseek_v3"})
    assert geometry.is_latent
    assert geometry.elements_per_token == 61 * 576
    assert geometry.bytes_per_token("bfloat16") == 70_272


def test_derived_properties_of_mixed_and_recurrent_models() -> None:
    mixed = CacheGeometry.from_config({**TINY["gemma2"][0], "model_type": "gemma2"})
    assert not mixed.is_uniform
    assert {kind: len(layers) for kind, layers in mixed.layers_by_kind().items()} == {"sliding": 2, "full": 2}
    mamba = CacheGeometry.from_config({**TINY["mamba"][0], "model_type": "mamba"})
    assert (mamba.attention_layers, mamba.num_heads, mamba.num_kv_heads, mamba.head_dim) == ((), 0, 0, 0)
    assert mamba.bytes_per_token("float32") == 0
    assert [layer.state_bytes("bfloat16") for layer in mamba.layers] == [64 * (4 * 2 + 8 * 4)] * 3
    unknown = CacheGeometry.from_config({**BASE, "model_type": "new", "layer_types": ["linear_attention"] * 4})
    assert {layer.state_bytes("bfloat16") for layer in unknown.layers} == {None}


def test_a_geometry_typed_by_hand() -> None:
    geometry = CacheGeometry.uniform(num_layers=12, num_kv_heads=12, head_dim=64, max_length=1024)
    assert geometry.bytes_per_token("float16") == 36_864
    assert geometry.is_uniform
    assert geometry.max_length == 1024


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "num_hidden_layers"),
        ({**BASE, "num_hidden_layers": 0}, "num_hidden_layers in the model config is 0"),
        ({**BASE, "num_hidden_layers": -1}, "is -1"),
        ({**BASE, "num_hidden_layers": 10**12}, "from 1 to 10,000"),
        ({**BASE, "num_attention_heads": 2.5}, "is 2.5"),
        ({**BASE, "num_attention_heads": True}, "is True"),
        ({**BASE, "num_attention_heads": "8"}, "is '8'"),
        ({**BASE, "num_key_value_heads": 3}, "4 query heads cannot be split among 3"),
        ({**BASE, "hidden_size": 30}, "30 cannot be split among 4"),
        ({**BASE, "hidden_size": None}, "does not say hidden_size"),
        ({**BASE, "head_dim": -4}, "head_dim in the model config is -4"),
        ({**BASE, "max_position_embeddings": 0}, "max_position_embeddings"),
        ({**BASE, "layer_types": ["full_attention"] * 3}, "names 3 layers and num_hidden_layers says 4"),
        ({**BASE, "layer_types": ["telepathy"] * 4}, "telepathy"),
        ({**BASE, "layer_types": "full_attention"}, "must be a list"),
        ({**BASE, "layer_types": ["sliding_attention"] * 4}, "names no window"),
        ({**BASE, "sliding_window": -1}, "sliding_window in the model config is -1"),
        ({**BASE, "num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        ({**BASE, "model_type": 7}, "model_type"),
        ({**BASE, "model_type": "rwkv"}, "rwkv"),
        ({**BASE, "model_type": "jamba", "attn_layer_period": 0}, "attn_layer_period"),
        ({**BASE, "model_type": "lfm2", "full_attn_idxs": 3}, "full_attn_idxs"),
        ({**BASE, "model_type": "llama4_text", "no_rope_layers": [1]}, "no_rope_layers"),
        ({**BASE, "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": "a"}, "max_window_layers"),
        ({**BASE, "model_type": "zamba2"}, "must list its layers"),
        ({**BASE, "is_encoder_decoder": True}, "encoder-decoder"),
        ([1, 2], "JSON object"),
        (None, "JSON object"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_in_one_sentence(config: Any, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        CacheGeometry.from_config(config)
    message = str(refusal.value)
    assert said in message
    assert "\n" not in message
    assert message.endswith(".")


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.just(10**15), st.floats(), st.text(max_size=3),
    st.lists(st.one_of(st.integers(-2, 5), st.text(max_size=2), st.none()), max_size=4),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip
KEYS = sorted(
    {key for config, _ in TINY.values() for key in config} | {"layer_types", "per_layer_config", "text_config"}
)


@given(name=st.sampled_from(sorted(TINY)), junk=st.dictionaries(st.sampled_from(KEYS), JUNK, min_size=1, max_size=3))
@settings(max_examples=effort(150, 3000))
def test_a_damaged_config_gives_a_geometry_or_one_plain_sentence(name: str, junk: dict[str, Any]) -> None:
    config = {**TINY[name][0], "model_type": name.split(":")[0], **junk}
    geometry = None
    with contextlib.suppress(InputError):  # any other exception fails the test
        geometry = CacheGeometry.from_config(config)
    assert geometry is None or (geometry.num_layers >= 1 and geometry.elements_per_token >= 0)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(InputError, match="int3"):
        dtype_bytes("int3")


def test_layers_must_be_consistent() -> None:
    with pytest.raises(InputError, match="no window"):
        LayerGeometry(0, "sliding", 2, 8, 8, 4)
    with pytest.raises(InputError, match="shares"):
        LayerGeometry(0, "shared", 2, 8, 8, 4)
    with pytest.raises(InputError, match="numbered"):
        CacheGeometry("a", "b", (LayerGeometry(1, "full", 2, 8, 8, 4),))
    with pytest.raises(InputError, match="at least one layer"):
        CacheGeometry("a", "b", ())


def test_geometry_parameters_and_budget_import_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, engine.geometry.dimensions, engine.max, engine.max, engine.predict.bytes\n"
        "import engine.cli.config\n"
        "print([m for m in ('torch', 'transformers', 'PySide6', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_layers_of_a_decoder_behind_an_encoder_grow_by_their_own_rows_alone() -> None:
    """Two layers with four heads of 16; the rows of the source are there once."""
    geometry = CacheGeometry.from_config(config_dict("t5"))
    assert {layer.kind for layer in geometry.layers} == {"full", "cross"}
    assert geometry.elements_per_token == 2 * 4 * (16 + 16)
    assert geometry.bytes_per_token("float16") == 2 * geometry.elements_per_token


@pytest.mark.parametrize("period", [1, 2, 3, 5])
def test_which_layers_of_jamba_attend(period: int) -> None:
    config = {**TINY["jamba"][0], "num_hidden_layers": 7, "attn_layer_period": period}
    for offset in range(period):
        given = {**config, "attn_layer_offset": offset}
        kinds = [layer.kind for layer in CacheGeometry.from_config({**given, "model_type": "jamba"}).layers]
        expected = CONFIG_MAPPING["jamba"](**given).layers_block_type
        assert [kind == "full" for kind in kinds] == [kind == "attention" for kind in expected]


@pytest.mark.parametrize("name", ["linear_num_key_heads", "linear_key_head_dim", "conv_L_cache"])
def test_a_state_of_which_a_size_is_not_stated_is_unknown(name: str) -> None:
    """Attention beside it is told all the same."""
    sizes = dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2)
    sizes |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "conv_L_cache": 3}
    kind = "conv" if name == "conv_L_cache" else "linear_attention"
    config = {**BASE, "model_type": "new", "layer_types": [kind, "full_attention"] * 2, **sizes}
    whole = CacheGeometry.from_config(config)
    assert all(layer.state_bytes("bfloat16") is not None for layer in whole.layers)
    part = CacheGeometry.from_config({key: value for key, value in config.items() if key != name})
    assert [layer.state_bytes("bfloat16") for layer in part.layers if layer.kind == "linear"] == [None, None]
    assert part.elements_per_token == whole.elements_per_token
