"""Loading: what is whole loads, nothing that is loaded ever runs, and a refusal changes nothing."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.errors import InputError
from engine.model import loader
from engine.model.loader import LoadedModel, load
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec, usable_cores
from engine.spec.sampling import Prompt
from tests.engine.model.folders import EVIL, edit_config, refused
from tests.engine.tiny import config_dict, model_of, prompt_ids

pytestmark = pytest.mark.usefixtures("nothing_runs")


def test_the_watch_sees_what_it_must_see(tmp_path: Path, nothing_runs: list[str]) -> None:
    import pickle

    pickle.loads(pickle.dumps(Path("x")))
    exec(compile("1", str(tmp_path / "evil.py"), "exec"))
    assert [w.split()[0] for w in nothing_runs] == ["pickle.find_class", "exec"]
    nothing_runs.clear()


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


def test_only_keys_that_turn_by_fixed_frequencies_go_beyond_the_context(tmp_path: Path) -> None:
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    for name, changes, expected in (("llama", {}, True), ("gpt2", {}, False), ("llama", {"rope": dynamic}, False)):
        config = {**config_dict(name), **({"rope_parameters": changes["rope"]} if changes else {})}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        assert load(ModelSpec(f"shape:{path}")).info.goes_beyond_context is expected


def test_a_config_that_names_code_of_its_own_but_a_known_type_loads_without_it(copy: Path) -> None:
    (copy / "evil.py").write_text(EVIL)
    edit_config(copy, auto_map={"AutoConfig": "evil.A", "AutoModelForCausalLM": "evil.A"})
    (copy / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "auto_map": {"AutoTokenizer": ["evil.A", None]}})
    )
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": 9, "custom_generate": "evil"}))
    load(ModelSpec(str(copy), num_threads=1))
    assert not (copy / "ran").exists()


def test_code_of_its_own_is_never_run(copy: Path) -> None:
    (copy / "evil.py").write_text(EVIL)
    edit_config(copy, model_type="evil", auto_map={"AutoConfig": "evil.A", "AutoModelForCausalLM": "evil.A"})
    message = refused(copy)
    assert "Python code" in message
    assert not (copy / "ran").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"eos_token_id": "x"}', '{"eos_token_id": [[1]]}'])
def test_a_broken_generation_config_does_not_matter(copy: Path, content: str) -> None:
    (copy / "generation_config.json").write_text(content)
    try:
        model = load(ModelSpec(str(copy), num_threads=1))
    except InputError:
        return
    assert all(isinstance(i, int) for i in model.end_ids)


@pytest.mark.skipif(find_spec("peft") is not None, reason="peft is installed: then such a folder is refused")
def test_an_adapter_beside_the_weights_is_not_followed(copy: Path) -> None:
    (copy / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "someone/evil", "peft_type": "LORA"})
    )
    assert load(ModelSpec(str(copy), num_threads=1)).info.name == "model"


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


def test_a_model_with_an_attention_of_its_own_does_not_go_beyond_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can hide rows from it."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_dict("llama")))
    monkeypatch.setattr(loader, "runs_through_registry", lambda model: False)
    info = load(ModelSpec(f"shape:{path}")).info
    assert (info.captures_attention, info.goes_beyond_context) == (False, False)


@pytest.mark.parametrize("name", ["llama", "falcon"])
def test_a_forward_without_a_cache_leaves_the_attention_that_is_watched(name: str) -> None:
    """One model's runs through ours, the other's hands its weights out, which only some ways to compute it do."""
    model, ids = model_of(name), torch.tensor([prompt_ids(5)])
    watched = []
    for _ in range(2):
        watched.append(model.model.config._attn_implementation)  # transformers has no other name for it
        model.reference_logits(ids)
    assert model.info.captures_attention == (name == "llama")
    assert watched[0] == watched[1]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000"}, 2), ({"cpu.max": "max 100000"}, 8), ({}, 8), ({"cpu.max": "?"}, 8),
        ({"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"}, 3),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, 8),
    ],
)  # fmt: skip
def test_a_container_has_no_more_cores_than_its_quota(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr("engine.spec.model.QUOTA_FILES", (tmp_path / "cpu.max", tmp_path / "cpu.cfs_quota_us"))
    assert usable_cores() == cores


@pytest.mark.parametrize(("cores", "asked", "threads"), [(4, None, 3), (1, None, 1), (4, 2, 2)])
def test_all_cores_but_one_compute_unless_somebody_says_how_many(
    whole: Path, monkeypatch: pytest.MonkeyPatch, cores: int, asked: int | None, threads: int
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr("engine.spec.model.usable_cores", lambda: cores)
    try:
        load(ModelSpec(str(whole), num_threads=asked))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
