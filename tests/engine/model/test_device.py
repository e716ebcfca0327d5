"""Where a model is loaded and in which numbers: what is forecast is what it takes, and what is not here is refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from msgspec.structs import replace
from transformers import LlamaConfig

from engine.errors import InputError
from engine.model import device, weights
from engine.model import forecast as forecast_module
from engine.model import weights as weights_module
from engine.model.device import Placement, checked_device, devices_here, place
from engine.model.forecast import forecast
from engine.model.loader import load
from engine.predict.loading import WeightTensor
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import BUNDLED_NAME, ModelSpec
from engine.spec.sampling import Prompt
from engine.wire.devices import Device, ForecastLoad
from tests.engine.tiny import write_config

pytestmark = pytest.mark.usefixtures("nothing_runs")


@pytest.mark.parametrize("name", ["cuda:77", "nonsense", "meta"])
def test_a_device_that_is_not_here(whole: Path, name: str) -> None:
    with pytest.raises(InputError, match=name):
        load(ModelSpec(str(whole), device=name, num_threads=1))


def test_the_cpu_is_always_here_and_told_with_what_is_free() -> None:
    cpu = devices_here()[-1]
    assert cpu.name == "cpu"
    assert 0 < cpu.free_bytes < cpu.total_bytes
    assert cpu.num_threads > 0
    assert not cpu.is_gpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_forecast_of_a_folder_and_of_a_shape_is_what_they_take(whole: Path, tmp_path: Path, dtype: str) -> None:
    for source in (str(whole), f"shape:{write_config('gpt2', tmp_path)}"):
        spec = ModelSpec(source, dtype, num_threads=1)  # type: ignore[arg-type]
        found = forecast(ForecastLoad(spec, CacheSpec("static", max_length=40), 30), 0)
        model = load(spec)
        assert (found.problem, found.dtype, found.device, found.context) == ("", dtype, "cpu", 30)
        assert found.weight_bytes == model.info.weight_bytes
        session = Session(model, CacheSpec("static", max_length=40))
        session.submit(Prompt(token_ids=tuple(range(1, 30))))
        session.step()
        assert found.cache_bytes == session.bytes().reserved
        assert found.fits


def test_a_forecast_says_when_the_model_takes_fewer_tokens_than_asked() -> None:
    for asked, notes in ((1024, ()), (8192, ("8,192 tokens are more than the model takes: its context is 1,024.",))):
        found = forecast(ForecastLoad(ModelSpec("bundled"), CacheSpec(), asked), 0)
        assert (found.context, found.notes) == (1024, notes)


def test_a_forecast_of_what_cannot_be_loaded_says_why() -> None:
    found = forecast(ForecastLoad(ModelSpec("/no/such/model"), CacheSpec()), 0)
    assert "check the path" in found.problem
    assert "cuda:77" in forecast(ForecastLoad(ModelSpec(device="cuda:77"), CacheSpec()), 0).problem


def test_a_dtype_that_the_device_lacks_is_named_and_the_next_best_is_used(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "computes_in", lambda _device, dtype: dtype != torch.bfloat16)
    info = load(ModelSpec(str(whole), "bfloat16", num_threads=1)).info
    assert info.dtype == "float16"
    assert "does not compute in bfloat16: float16 is used" in info.note


def test_weights_that_cannot_be_coded_here_stay_as_stored_and_say_so(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    info = load(ModelSpec(str(whole), weights="int8", num_threads=1)).info
    assert info.weights == "stored"
    assert "int8 weights were asked for, and torchao and accelerate is not installed" in info.note


# ---- coded weights ---------------------------------------------------------------------------------------------------


@pytest.fixture
def torchao() -> None:
    pytest.importorskip("torchao")
    pytest.importorskip("accelerate")


@pytest.mark.usefixtures("torchao")
def test_the_bundled_model_in_fewer_bits_is_smaller_says_so_and_has_other_logits() -> None:
    stored = load(ModelSpec(num_threads=1))
    ids = torch.tensor([[5, 6, 7, 8]])
    reference = stored.reference_logits(ids)
    sizes = [stored.info.weight_bytes]
    for kind in ("int8", "int4"):
        spec = ModelSpec(weights=kind, num_threads=1)  # type: ignore[arg-type]
        model = load(spec)
        info, bits = model.info, int(kind[3:])
        assert info.weight_bytes == forecast(ForecastLoad(spec, CacheSpec()), 0).weight_bytes
        assert info.name == f"{BUNDLED_NAME} ({kind} weights)"
        assert f"{kind} weights: the logits are not those" in info.note
        assert info.fingerprint != stored.info.fingerprint
        difference = (model.reference_logits(ids) - reference).abs().max()
        assert 0 < difference < (1 if bits == 8 else 10)
        session = Session(model, CacheSpec())
        session.submit(Prompt(text="Once upon a time"))
        assert session.step().sequences[0].sampled is not None
        sizes.append(info.weight_bytes)
    assert max(sizes[1:]) < sizes[0] / 1.9  # of a model this small much is embedding, which stays as it is


@pytest.mark.usefixtures("torchao")
def test_where_a_coding_fails_the_next_best_is_used_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(placement: Placement) -> object:
        if placement.weights == "int4":
            raise ImportError("Requires a kernel")
        return real(placement)

    real = weights_module._torchao_config
    monkeypatch.setattr(weights_module, "_torchao_config", fails)
    shape = f"shape:{write_config('llama', tmp_path)}"
    info = load(ModelSpec(shape, weights="int4", num_threads=1)).info
    assert info.weights == "int8"
    assert "int4 weights cannot be made here" in info.note
    assert "Requires a kernel" in info.note
    assert "int8 is used" in info.note


# ---- several devices -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_shape", [False, True])
def test_a_split_model_on_a_machine_with_one_device_is_the_same_model(
    whole: Path, tmp_path: Path, is_shape: bool
) -> None:
    pytest.importorskip("accelerate")
    ids = torch.tensor([[5, 6, 7]])
    source = f"shape:{write_config('gpt2', tmp_path)}" if is_shape else str(whole)
    alone, spread = load(ModelSpec(source, num_threads=1)), load(ModelSpec(source, device="split"))
    assert spread.info.layer_devices == ()
    assert torch.equal(alone.reference_logits(ids), spread.reference_logits(ids))


@pytest.mark.parametrize(
    ("device_map", "words"),
    [
        (
            {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "disk"},
            "1 of the model's 3 parts would be on",
        ),
        ({"a": "cpu", "b": 0}, "in main memory"),
        ({"": "meta"}, "nowhere"),
    ],
)
def test_a_map_that_leaves_weights_where_nothing_computes_is_refused(device_map: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        weights.check_map(device_map)
    weights.check_map({"": "cpu"})
    weights.check_map({"a": 0, "b": 1})


def test_without_accelerate_nothing_is_split(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="accelerate is not installed"):
        load(ModelSpec(str(whole), device="split"))


def test_auto_says_why(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placement = place(ModelSpec(str(whole)), None, list)
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert (str(placement.device), placement.why_device) == ("cpu", "torch finds no GPU here")
    assert place(ModelSpec(str(whole), device="cpu"), None, list).why_device == ""


@pytest.mark.parametrize(
    ("spec", "own", "found"),
    [
        (ModelSpec(), torch.bfloat16, ("cuda:0", torch.bfloat16)),
        (ModelSpec(), torch.float16, ("cuda:0", torch.float16)),
        # of which the file does not say: twice as large, and too large
        (ModelSpec(), None, ("cpu", torch.float32)),
        (ModelSpec(dtype="float32"), torch.bfloat16, ("cpu", torch.float32)),
        (ModelSpec(device="cuda:0"), None, ("cuda:0", torch.float32)),
        (ModelSpec(device="cuda:0", dtype="float16"), torch.bfloat16, ("cuda:0", torch.float16)),
        (ModelSpec(device="cpu"), torch.bfloat16, ("cpu", torch.float32)),
    ],
)
def test_a_model_is_as_large_as_its_dtype_where_the_gpu_is_small(
    spec: ModelSpec, own: torch.dtype | None, found: tuple[str, torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Device("cuda:0", "A GPU", 4000, 3000)
    monkeypatch.setattr(device, "devices_here", lambda: (gpu, Device("cpu", "A CPU", 9000, 9000, (), 8)))
    monkeypatch.setattr(device, "checked_device", torch.device)
    monkeypatch.setattr(device, "described", lambda at: replace(gpu, name=str(at)))
    placement = place(spec, own, lambda: [WeightTensor((30, 40))])
    assert (str(placement.device), placement.dtype) == found
    assert bool(placement.why_device) == (spec.device == "auto")


def test_layers_on_several_devices_are_told_one_by_one() -> None:
    layers = {0: torch.nn.Linear(2, 2), 1: torch.nn.Linear(2, 2, device="meta")}
    assert weights.layer_devices(layers) == ("cpu", "meta")
    assert weights.layer_devices({0: layers[0]}) == ()


@pytest.mark.parametrize(
    ("free", "freed", "said"),
    [
        (3, 0, "take int8 weights, int4 weights, a narrower dtype, or take a smaller model."),
        (1.5, 0, "take int8 weights, int4 weights, or take a smaller model."),
        (0.9, 4, "take int4 weights, or unload the present model first."),
        (0.9, 3, "take int4 weights, or take a smaller model."),
        (
            0.2,
            4,
            "GiB are free on cuda:1, too little for int4 weights too (0.8 GiB): unload the present model first.",
        ),
        (0.2, 1, "GiB are free on cuda:1, too little for int4 weights too (0.8 GiB): take a smaller model."),
    ],
)
def test_only_what_would_fit_is_advised_for_a_model_that_does_not(
    monkeypatch: pytest.MonkeyPatch, free: float, freed: float, said: str
) -> None:
    text = said_of_a_large_model(monkeypatch, free, freed)
    assert "its weights take 4.0 GiB in float32" in text
    assert text.endswith(said)
    assert "are free on all GPUs" in said_of_a_large_model(monkeypatch, free, freed, is_split=True)


def said_of_a_large_model(
    monkeypatch: pytest.MonkeyPatch,
    free: float,
    freed: float = 0,
    why: str = "",
    adapter: str | None = None,
    **more: bool,
) -> str:
    """Of one with a GiB of numbers in linear layers: 4 GiB in float32, 1 in int8, and 0.75 in int4 with scales and
    offsets. `why` are these formats not to be had."""
    monkeypatch.setattr(forecast_module, "free_on", lambda placement: int(free * 2**30))
    monkeypatch.setattr(forecast_module, "why_no_format", lambda name: "" if name == "stored" else why)
    monkeypatch.setattr(
        forecast_module, "tensors_of", lambda source, *, is_coded: [WeightTensor((1 << 15, 1 << 15), is_linear=True)]
    )
    source = SimpleNamespace(name="a model", adapter=adapter)
    placement = Placement(torch.device("cuda", 1), torch.float32, **more)
    return forecast_module.too_large_text(cast(Any, source), placement, int(freed * 2**30))


def test_what_weights_in_fewer_bits_need_is_said_where_they_are_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it they would be as stored, and again too large."""
    text = said_of_a_large_model(monkeypatch, 1.5, why="torchao is not installed")
    assert text.endswith(
        "take int8 weights, int4 weights, or take a smaller model. Weights in fewer bits: torchao is not installed."
    )
    assert "torchao" not in said_of_a_large_model(monkeypatch, 0.2, why="torchao is not installed")


def test_below_an_adapter_no_weights_in_fewer_bits_are_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_of_a_large_model(monkeypatch, 1.5, adapter="lora").endswith(
        "too little for a narrower dtype too (2.0 GiB): take a smaller model."
    )


@pytest.mark.parametrize(("width", "is_refused"), [(8, False), (4096, True)])
def test_a_shape_of_any_size_but_a_tiny_one_is_refused_where_it_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, width: int, is_refused: bool
) -> None:
    """It has no folder, and its random weights take as much memory as those of one."""
    monkeypatch.setattr(forecast_module, "free_on", lambda placement: 100)
    monkeypatch.setattr(forecast_module, "tensors_of", lambda source, *, is_coded: [WeightTensor((width, width))])
    config = LlamaConfig(num_hidden_layers=2, hidden_size=width, num_attention_heads=1)
    source = SimpleNamespace(folder=None, config=config, name="a shape", adapter=None)
    placement = Placement(torch.device("cpu"), torch.float32)
    with pytest.raises(InputError, match="not enough memory for a shape") if is_refused else nullcontext():
        forecast_module.check_fits(cast(Any, source), placement, 0)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="a Mac has it")
def test_a_back_end_that_torch_lacks_is_told_in_plain_words() -> None:
    with pytest.raises(InputError, match=r"'mps' cannot be used here \(this torch is built without it\): use cpu"):
        checked_device("mps")
