"""A LoRA adapter on a model: what is refused, and that the numbers are those of the model with its product added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from engine.errors import InputError
from engine.model.forecast import forecast
from engine.model.loader import load
from engine.model.source import ADAPTER, PICKLED, check_adapter
from engine.model.source import WEIGHTS as FILE
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec, with_adapters
from engine.spec.sampling import Prompt
from engine.wire.devices import ForecastLoad
from tests.engine.model.folders import refused
from tests.engine.tiny import config_dict, prompt_ids, write_config

RANK, ALPHA, LAYERS = 4, 8, 2
IDS = prompt_ids(9)


def written(folder: Path, inputs: int = 64, outputs: int = 64, **changes: Any) -> Path:
    """An adapter as peft writes one, on the queries of every layer."""
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj"], **changes}
    (folder / ADAPTER).write_text(json.dumps(config), "utf-8")
    save_file(matrices(inputs, outputs), folder / FILE)
    return folder


def matrices(inputs: int = 64, outputs: int = 64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    made = {}
    for layer in range(LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        made[f"{name}.lora_A.weight"] = torch.randn(RANK, inputs, generator=generator) * 0.3
        made[f"{name}.lora_B.weight"] = torch.randn(outputs, RANK, generator=generator) * 0.3
    return made


def on(base: str, *folders: Path) -> ModelSpec:
    return ModelSpec(with_adapters(base, [str(folder) for folder in folders]), device="cpu", num_threads=1)


@pytest.fixture
def base(tmp_path: Path) -> str:
    (tmp_path / "shape").mkdir()
    return f"shape:{write_config('llama', tmp_path / 'shape')}"


def test_a_source_names_the_model_and_the_adapter_on_it(base: str, tmp_path: Path) -> None:
    spec = on(base, tmp_path / "a")
    assert (spec.base, spec.adapter) == (base, tmp_path / "a")
    assert spec.shape_name == "shape"
    assert (ModelSpec(base).base, ModelSpec(base).adapter) == (base, None)
    chosen = ModelSpec(device="cuda", dtype="float16", weights="int8")
    assert spec.loaded_as(chosen) == replace(chosen, source=spec.source, weights="stored")


@pytest.mark.parametrize(
    ("source", "weights", "says"),
    [
        ("m+adapter:/a+adapter:/a", "stored", "The adapter '/a' is given twice, and would count twice: give it once"),
        ("m+adapter:/a+adapter:/b", "stored", "2 adapters are given: give one"),
        ("m+adapter:", "stored", "name both"),
        ("+adapter:/a", "stored", "name both"),
        ("m+adapter:/a", "int8", "leave out the int8 weights"),
    ],
)
def test_what_a_source_cannot_say(source: str, weights: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        ModelSpec(source, weights=weights)


def test_what_is_no_whole_lora_adapter_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def why(folder: Path) -> str:
        with pytest.raises(InputError) as told:
            check_adapter(folder)
        return str(told.value)

    assert why(tmp_path / "none") == f"There is no adapter folder at '{tmp_path / 'none'}': check the path."
    assert why(tmp_path).startswith(f"'{tmp_path}' has no adapter_config.json")
    assert "of the kind IA3" in why(written(tmp_path / "ia3", peft_type="IA3"))
    assert "modules_to_save" in why(written(tmp_path / "whole", modules_to_save=["lm_head"]))
    assert "own weights (pissa)" in why(written(tmp_path / "begun", init_lora_weights="pissa"))
    assert "megatron_config" in why(written(tmp_path / "code", megatron_config={"x": 1}))
    folder = written(tmp_path / "a")
    monkeypatch.setattr("engine.model.source.find_spec", lambda name: None)
    assert why(folder) == "An adapter needs peft, which is not installed: pip install 'kvloupe[adapters]'."
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:100])
    assert "damaged or cut short" in why(folder)
    (folder / FILE).unlink()
    assert f"has no {FILE}" in why(folder)
    (folder / PICKLED).touch()
    assert f"has only pickled weights ({PICKLED})" in why(folder)


def test_a_model_with_an_adapter_in_its_folder_is_refused_where_it_would_be_put_on_unasked(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / ADAPTER).write_text("{}")
    monkeypatch.setattr("engine.model.source.find_spec", lambda name: name)
    assert "holds a model and an adapter" in refused(copy)


def test_the_numbers_are_those_of_the_model_with_the_product_added(base: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    folder = written(tmp_path / "a")
    adapted, plain = load(on(base, folder)), load(on(base))
    assert adapted.info.name == f"{plain.info.name} + a"
    assert len({load(on(base, folder)).info.fingerprint, adapted.info.fingerprint, plain.info.fingerprint}) == 2
    assert adapted.runners.decoder is None, "it does not compute what stands beside the weights"
    assert plain.runners.decoder is not None
    ids = torch.tensor([IDS])
    before = plain.reference_logits(ids)
    with torch.no_grad():
        for name, weight in plain.model.named_parameters():
            if name.endswith("q_proj.weight"):
                key = f"base_model.model.{name.removesuffix('.weight')}"
                weight += ALPHA / RANK * (matrices()[f"{key}.lora_B.weight"] @ matrices()[f"{key}.lora_A.weight"])
    expected = plain.reference_logits(ids)
    assert not torch.allclose(before, expected, atol=1e-3)
    assert torch.allclose(adapted.reference_logits(ids), expected, atol=1e-5)
    for layout in ("growing", "paged"):
        session = Session(adapted, CacheSpec(layout))
        seq_id = session.submit(Prompt(token_ids=IDS))
        session.force(seq_id, IDS[:4])
        for _ in range(3):
            session.step()
        logits = session.logits(seq_id)
        assert logits is not None
        assert torch.allclose(logits, adapted.reference_logits(torch.tensor([[*IDS, *IDS[:2]]]))[-1], atol=1e-4)


def test_what_it_takes_is_forecast_and_a_fault_of_it_is_told_before_it_is_loaded(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.model.source.find_spec", lambda name: name)
    folder = written(tmp_path / "a")
    plain, adapted = (forecast(ForecastLoad(spec, CacheSpec(), 20), 0) for spec in (on(base), on(base, folder)))
    assert not adapted.problem
    assert adapted.weight_bytes - plain.weight_bytes == sum(each.nbytes for each in matrices().values())
    (folder / FILE).unlink()
    assert FILE in forecast(ForecastLoad(on(base, folder), CacheSpec(), 20), 0).problem


@pytest.mark.parametrize(
    ("architecture", "inputs", "says"),
    [
        ("llama", 32, "q_proj.lora_A.default.weight has another size. Load the model that it was made for."),
        ("gpt2", 64, "not found in the base model"),
    ],
)
def test_an_adapter_of_another_model_is_refused(architecture: str, inputs: int, says: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_dict(architecture), default=str))
    folder = written(tmp_path / "a", inputs)
    with pytest.raises(InputError) as told:
        load(on(f"shape:{path}", folder))
    assert str(told.value).startswith(f"The adapter in '{folder}' is not of this model: ")
    assert says in str(told.value)


def test_an_adapter_that_lacks_a_layer_or_has_one_too_many_is_refused(base: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    folder, held = written(tmp_path / "a"), matrices()
    first = min(held)
    save_file({name: each for name, each in held.items() if name != first}, folder / FILE)
    with pytest.raises(InputError, match=r"it lacks model.layers.0.*, 1 in all"):
        load(on(base, folder))
    save_file({**held, first.replace(".0.", ".7."): held[first].clone()}, folder / FILE)
    with pytest.raises(InputError, match=r"it has and the model has not .*layers.7.*, 1 in all"):
        load(on(base, folder))
