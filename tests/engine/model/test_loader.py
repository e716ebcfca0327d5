"""Loading: what is whole loads, everything else is refused in one sentence, and nothing that is loaded ever runs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from engine.errors import InputError
from engine.model.loader import LoadedModel, load
from engine.model.text import TokenTexts
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from tests.engine.tiny import config_dict, write_config


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole tiny llama: config, weights, tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    torch.manual_seed(0)
    config = AutoConfig.for_model(**config_dict("llama"))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{chr(0x21 + i): 3 + i for i in range(94)}, "Ġ": 97}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refused(source: Path | str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(ModelSpec(str(source), device="cpu", num_threads=1, **options))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


# ---- nothing that is loaded runs ---------------------------------------------------------------------------------

WATCHED: list[str] = []
ON = [False]


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Sockets, processes, pickle, and any code object that comes from outside the installed packages."""
    if not ON[0]:
        return
    if event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn")) or event in (
        "pickle.find_class",
        "os.fork",
    ):
        WATCHED.append(f"{event} {str(arguments)[:200]}")
    if event == "exec":
        name = str(getattr(arguments[0], "co_filename", ""))
        if not name.startswith(("<frozen", sys.prefix, sys.base_prefix, "<string>", "<attrs", "<dynamic")):
            WATCHED.append(f"exec {name}")
    if event == "import" and "evil" in str(arguments[0]):
        WATCHED.append(f"import {arguments[0]}")


sys.addaudithook(watch)


@pytest.fixture(autouse=True)
def nothing_runs() -> Iterator[None]:
    """Every test of this file also asserts that its load ran no code, opened no socket and unpickled nothing."""
    WATCHED.clear()
    ON[0] = True
    try:
        yield
    finally:
        ON[0] = False
    assert WATCHED == []


def test_the_watch_sees_what_it_must_see(tmp_path: Path) -> None:
    import pickle

    pickle.loads(pickle.dumps(Path("x")))
    exec(compile("1", str(tmp_path / "evil.py"), "exec"))
    assert [w.split()[0] for w in WATCHED] == ["pickle.find_class", "exec"]
    WATCHED.clear()


EVIL = "import os\nopen(os.path.join(os.path.dirname(__file__), 'ran'), 'w')\nclass A: pass\n"


# ---- what loads --------------------------------------------------------------------------------------------------


def test_a_whole_folder_loads(whole: Path) -> None:
    model = load(ModelSpec(str(whole), num_threads=1))
    assert isinstance(model, LoadedModel)
    info = model.info
    assert (info.name, info.architecture, info.dtype) == ("tiny-llama", "LlamaForCausalLM", "float32")
    assert info.has_tokenizer
    assert info.captures_attention
    assert not info.random_weights
    assert model.end_ids == {2}
    ids = torch.tensor([[5, 6, 7]])
    own = AutoModelForCausalLM.from_pretrained(whole)
    with torch.no_grad():
        assert torch.equal(model.reference_logits(ids), own(ids).logits[0])


def test_the_fingerprint_follows_weights_and_config(whole: Path, copy: Path) -> None:
    def fingerprint(folder: Path) -> str:
        return load(ModelSpec(str(folder), num_threads=1)).info.fingerprint

    first = fingerprint(whole)
    assert fingerprint(copy) == first
    edit_config(copy, rope_theta=5.0)
    second = fingerprint(copy)
    edit_weights(copy, lambda tensors: tensors["model.norm.weight"].add_(1))
    assert len({first, second, fingerprint(copy)}) == 3


def test_no_tokenizer_is_told_and_no_error(copy: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copy / name).unlink()
    model = load(ModelSpec(str(copy), num_threads=1))
    assert model.tokenizer is None
    assert "no tokenizer" in model.info.note
    assert TokenTexts(None)(7) == "<7>"


def test_a_shape_takes_the_tokenizer_beside_its_config(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    config = tmp_path / "smol.json"
    config.write_text(json.dumps(config_dict("llama")))
    model = load(ModelSpec(f"shape:{config}"))
    assert (model.info.name, model.info.has_tokenizer) == ("smol (shape only)", True)
    assert model.info.note == "random weights: only the shape is real"
    assert Session(model, CacheSpec()).encode(Prompt(text="a b")) == [67, 97, 68]


def test_a_broken_tokenizer_beside_a_shape_is_a_note_and_no_refusal(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    model = load(ModelSpec(f"shape:{write_config('llama', tmp_path)}"))
    assert not model.info.has_tokenizer
    assert "prompts are token ids: The tokenizer in" in model.info.note


def test_a_tokenizer_of_another_model_is_refused_before_the_forward(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**config_dict("llama"), "vocab_size": 60}))
    session = Session(load(ModelSpec(f"shape:{config}")), CacheSpec())
    with pytest.raises(InputError, match="token id 97, outside the vocabulary of 60"):
        session.encode(Prompt(text="a b"))


@pytest.mark.parametrize(
    ("path", "name"),
    [("/models/smol/config.json", "smol"), ("/models/smol.json", "smol"), ("/config.json", "config")],
)
def test_a_shape_is_called_after_its_file_or_its_folder(path: str, name: str) -> None:
    assert ModelSpec(f"shape:{path}").shape_name == name


def test_only_keys_that_turn_by_fixed_frequencies_go_beyond_the_context(tmp_path: Path) -> None:
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    for name, changes, expected in (("llama", {}, True), ("gpt2", {}, False), ("llama", {"rope": dynamic}, False)):
        config = {**config_dict(name), **({"rope_parameters": changes["rope"]} if changes else {})}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        assert load(ModelSpec(f"shape:{path}")).info.goes_beyond_context is expected


def test_shape_only_is_the_same_every_time_and_says_so(tmp_path: Path) -> None:
    source = f"shape:{write_config('qwen3', tmp_path)}"
    torch.manual_seed(1)
    one = load(ModelSpec(source, num_threads=1))
    before = torch.initial_seed()
    two = load(ModelSpec(source, num_threads=1))
    assert torch.initial_seed() == before
    assert one.info.random_weights
    assert "random weights" in one.info.note
    assert one.info.fingerprint == two.info.fingerprint
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_config_that_names_code_of_its_own_but_a_known_type_loads_without_it(copy: Path) -> None:
    (copy / "evil.py").write_text(EVIL)
    edit_config(copy, auto_map={"AutoConfig": "evil.A", "AutoModelForCausalLM": "evil.A"})
    (copy / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "auto_map": {"AutoTokenizer": ["evil.A", None]}})
    )
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": 9, "custom_generate": "evil"}))
    load(ModelSpec(str(copy), num_threads=1))
    assert not (copy / "ran").exists()


# ---- what is refused ---------------------------------------------------------------------------------------------


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


def test_a_tensor_of_another_shape_is_named(copy: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = torch.zeros(63)

    edit_weights(copy, change)
    message = refused(copy)
    assert "model.norm.weight" in message


def test_a_tensor_that_is_missing_is_named(copy: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]

    edit_weights(copy, change)
    message = refused(copy)
    assert "lack" in message
    assert "model.layers.1.mlp.up_proj.weight" in message


@pytest.mark.parametrize("change", [{"num_hidden_layers": 3}, {"hidden_size": 32}, {"vocab_size": 99}])
def test_a_config_of_another_model(copy: Path, change: dict[str, int]) -> None:
    edit_config(copy, **change)
    assert "config" in refused(copy)


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


def test_code_of_its_own_is_never_run(copy: Path) -> None:
    (copy / "evil.py").write_text(EVIL)
    edit_config(copy, model_type="evil", auto_map={"AutoConfig": "evil.A", "AutoModelForCausalLM": "evil.A"})
    message = refused(copy)
    assert "Python code" in message
    assert not (copy / "ran").exists()


def test_an_architecture_nobody_knows(copy: Path) -> None:
    edit_config(copy, model_type="no_such_architecture")
    assert "no_such_architecture" in refused(copy)


@pytest.mark.parametrize("name", ["t5", "bart", "whisper"])
def test_encoder_decoders_are_named_as_such(copy: Path, name: str) -> None:
    (copy / "config.json").write_text(json.dumps({"model_type": name, "is_encoder_decoder": True}))
    assert "encoder-decoder" in refused(copy)


@pytest.mark.parametrize("name", ["vit", "clip", "wav2vec2"])
def test_what_is_no_language_model(copy: Path, name: str) -> None:
    (copy / "config.json").write_text(json.dumps({"model_type": name}))
    assert refused(copy)
    assert refused(f"shape:{copy / 'config.json'}")


@pytest.mark.parametrize("content", ["", "{}", "[" * 50_000, '{"version": "1.0", "model": {"type": "BPE"}}'])
def test_a_broken_tokenizer(copy: Path, content: str) -> None:
    (copy / "tokenizer.json").write_text(content)
    assert "tokenizer" in refused(copy)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"eos_token_id": "x"}', '{"eos_token_id": [[1]]}'])
def test_a_broken_generation_config_does_not_matter(copy: Path, content: str) -> None:
    (copy / "generation_config.json").write_text(content)
    try:
        model = load(ModelSpec(str(copy), num_threads=1))
    except InputError:
        return
    assert all(isinstance(i, int) for i in model.end_ids)


def test_an_adapter_beside_the_weights_is_not_followed(copy: Path) -> None:
    (copy / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "someone/evil", "peft_type": "LORA"})
    )
    assert load(ModelSpec(str(copy), num_threads=1)).info.name == "model"


@pytest.mark.parametrize("device", ["cuda:77", "nonsense", "meta"])
def test_a_device_that_is_not_here(whole: Path, device: str) -> None:
    with pytest.raises(InputError):
        load(ModelSpec(str(whole), device=device, num_threads=1))


def test_a_refused_model_changes_no_setting(whole: Path, copy: Path) -> None:
    load(ModelSpec(str(whole), num_threads=1))
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError):
        load(ModelSpec(str(copy), num_threads=2))
    assert torch.get_num_threads() == 1


def test_a_vocabulary_of_one_token_is_a_model_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**config_dict("llama"), "vocab_size": 1}, default=str), "utf-8")
    model = load(ModelSpec(f"shape:{tmp_path / 'config.json'}", device="cpu", num_threads=1))
    session = Session(model, CacheSpec("growing"))
    session.submit(Prompt(token_ids=(0, 0)))
    part = session.step().sequences[0]
    assert (part.sampled, part.entropy, len(part.candidates)) == (0, 0.0, 1)
    with pytest.raises(InputError, match="outside the vocabulary of 1"):
        session.submit(Prompt(token_ids=(1,)))


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
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)
    assert ("thousands of digits" in str(caught.value)) == (digits == 5000)
