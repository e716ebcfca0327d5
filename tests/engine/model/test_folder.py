"""A folder that is not a whole model is refused in one sentence before anything of it is loaded."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from engine.errors import InputError
from engine.model.loader import load
from engine.model.source import read_config
from engine.spec.model import ModelSpec
from tests.engine.model.folders import edit_config, refused
from tests.engine.tiny import config_dict

pytestmark = pytest.mark.usefixtures("nothing_runs")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in refused(tmp_path / "none")
    assert "check the path" in refused(tmp_path / "none")


def test_a_hub_name_that_is_not_here() -> None:
    message = refused("someone/no-such-model")
    assert "not on this computer" in message
    assert "download" in message


@pytest.mark.parametrize("name", ["some one/x", "a/b\\c", "a/..", "bert", "~nobody/x", "https://x/y", "a/b/c"])
def test_names_that_are_neither_folder_nor_hub_name(name: str) -> None:
    assert refused(name)


def test_a_file_instead_of_a_folder(whole: Path) -> None:
    assert "is a file" in refused(whole / "model.safetensors")


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "config.json" in refused(tmp_path)


def test_no_weights(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    assert "no .safetensors weights" in refused(copy)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl"])
def test_pickled_weights_are_never_opened(copy: Path, name: str) -> None:
    (copy / "model.safetensors").rename(copy / name)
    message = refused(copy)
    assert name in message
    assert "convert them to safetensors" in message


def test_safetensors_of_something_else_do_not_let_a_pickle_in(copy: Path) -> None:
    """An adapter's safetensors beside pickled weights: the pickle must stay closed."""
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").rename(copy / "adapter.safetensors")
    message = refused(copy)
    assert "adapter.safetensors" in message
    assert "neither model.safetensors" in message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "adapter.safetensors", "tokenizer_config.json"])
def test_a_pipe_in_a_model_folder_is_not_waited_for(copy: Path, name: str) -> None:
    (copy / name).unlink(missing_ok=True)
    os.mkfifo(copy / name)
    assert "no regular file" in refused(copy)


@pytest.mark.parametrize(
    "shard",
    [
        "pytorch_model.bin",
        "../model/pytorch_model.bin",
        "sub/model.safetensors",
        "../outside.safetensors",
        "/etc/hostname",
    ],
)
def test_an_index_may_only_name_safetensors_of_the_folder(copy: Path, shard: str) -> None:
    """transformers loads whatever the index names: also a pickle, also from another folder."""
    names = list(load_file(copy / "model.safetensors"))
    torch.save({"a": torch.zeros(1)}, copy / "pytorch_model.bin")
    for place in (copy / "sub" / "model.safetensors", copy.parent / "outside.safetensors"):
        place.parent.mkdir(exist_ok=True)
        shutil.copy(copy / "model.safetensors", place)
    (copy / "model.safetensors").rename(copy / "model-00001.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, shard)}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "index" in refused(copy)


def test_a_missing_shard_is_named(copy: Path) -> None:
    names = list(load_file(copy / "model.safetensors"))
    (copy / "model.safetensors").rename(copy / "model-00001-of-00002.safetensors")
    shards = dict.fromkeys(names, "model-00001-of-00002.safetensors")
    shards[names[0]] = "model-00002-of-00002.safetensors"
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert "model-00002-of-00002.safetensors" in refused(copy)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "[" * 100_000])
def test_an_index_that_is_none(copy: Path, content: str) -> None:
    (copy / "model.safetensors").rename(copy / "model-00001.safetensors")
    (copy / "model.safetensors.index.json").write_text(content)
    assert "index" in refused(copy)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 0.5, 0.999])
def test_weights_cut_short(copy: Path, keep: float) -> None:
    path = copy / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep) if keep >= 1 or keep == 0 else int(len(content) * keep)])
    assert "damaged or cut short" in refused(copy)


def test_weights_with_a_monstrous_header(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    assert "damaged" in refused(copy)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[1, 2]", "null", "{}", '{"a": NaN', "\x00\x01", "[" * 100_000, '{"a":' * 50_000, '{"model_type": 3}'],
    ids=["empty", "cut", "list", "null", "no type", "nan", "binary", "deep list", "deep dict", "type is a number"],
)
def test_a_config_that_is_none(copy: Path, content: str) -> None:
    (copy / "config.json").write_text(content)
    assert "config.json" in refused(copy)


def test_a_config_in_another_encoding(copy: Path) -> None:
    (copy / "config.json").write_bytes('{"model_type": "é"}'.encode("utf-16"))
    assert "not UTF-8 text" in refused(copy)


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 0},
        {"num_attention_heads": -4},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": "two"},
        {"hidden_size": None},
        {"num_key_value_heads": 3},
        {"max_position_embeddings": -5},
        {"vocab_size": 0},
        {"rope_scaling": {"rope_type": "nonsense"}},
        {"rope_parameters": {"rope_type": 7}},
        {"hidden_act": "nonsense"},
        {"layer_types": ["nonsense", "full_attention"]},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        {"quantization_config": {"quant_method": "nonsense"}},
        {"_attn_implementation": "kernels-community/flash-attn3"},
        {"attn_implementation": "someone/evil-kernel"},
        {"torch_dtype": "nonsense"},
        {"dtype": "complex64"},
    ],
    ids=lambda change: " ".join(f"{k}={v}" for k, v in change.items()),
)
def test_a_config_with_nonsense_in_it_is_refused_or_harmless(copy: Path, change: dict[str, Any]) -> None:
    edit_config(copy, **change)
    try:
        model = load(ModelSpec(str(copy), device="cpu", num_threads=1))
    except InputError:
        assert "\n" not in refused(copy)
        return
    assert model.reference_logits(torch.tensor([[5, 6]])).shape == (2, 128)


def test_an_infinite_limit_is_read_as_transformers_writes_it(tmp_path: Path) -> None:
    AutoConfig.for_model("falcon_h1", time_step_limit=[0.5, math.inf]).save_pretrained(tmp_path)
    assert "__float__" in (tmp_path / "config.json").read_text()
    assert read_config(tmp_path / "config.json").time_step_limit == (0.5, math.inf)


def test_a_value_that_a_config_refuses_is_told_with_the_reason(tmp_path: Path) -> None:
    AutoConfig.for_model("falcon_h1").save_pretrained(tmp_path)
    edit_config(tmp_path, time_step_limit="never")
    with pytest.raises(InputError, match=r"'time_step_limit': TypeError: .*'never'"):
        read_config(tmp_path / "config.json")


def test_an_architecture_nobody_knows(copy: Path) -> None:
    edit_config(copy, model_type="no_such_architecture")
    assert "no_such_architecture" in refused(copy)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("whisper", "its encoder reads sound"),
        ("prophetnet", "how many layers the decoder has"),
        ("fsmt", "encoder-decoder whose layers are not known"),
    ],
)
def test_an_encoder_decoder_that_is_not_run_is_named_as_such(copy: Path, name: str, why: str) -> None:
    (copy / "config.json").write_text(json.dumps({"model_type": name, "is_encoder_decoder": True}))
    message = refused(copy)
    assert why in message
    assert "bart" in message.lower(), "what can be used in its place"


def test_the_folder_of_an_adapter_says_how_it_becomes_a_model(copy: Path) -> None:
    (copy / "config.json").rename(copy / "adapter_config.json")
    (copy / "model.safetensors").rename(copy / "adapter_model.safetensors")
    message = refused(copy)
    assert "holds an adapter and no model" in message
    assert message.endswith("load its model, and give this folder as the adapter.")


@pytest.mark.parametrize("name", ["vit", "clip", "wav2vec2"])
def test_what_is_no_language_model(copy: Path, name: str) -> None:
    (copy / "config.json").write_text(json.dumps({"model_type": name}))
    assert refused(copy)
    assert refused(f"shape:{copy / 'config.json'}")


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "of_no_meaning"])
@pytest.mark.parametrize("digits", [4000, 5000])
def test_numbers_of_thousands_of_digits_are_refused_in_a_sentence(tmp_path: Path, key: str, digits: int) -> None:
    text = json.dumps({**config_dict("llama"), key: "X"}, default=str).replace('"X"', "9" * digits)
    (tmp_path / "config.json").write_text(text, "utf-8")
    spec = ModelSpec(f"shape:{tmp_path / 'config.json'}", device="cpu", num_threads=1)
    if (key, digits) == ("of_no_meaning", 4000):
        load(spec)
        return
    with pytest.raises(InputError) as caught:
        load(spec)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    assert ("thousands of digits" in str(caught.value)) == (digits == 5000)
