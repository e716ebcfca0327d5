"""Builds the torch module with its weights, as stored or quantised: from a folder (safetensors only), or random from a
config.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, TorchAoConfig

from engine.device import device_now
from engine.errors import Cancelled, InputError, first_line, is_of_machine
from engine.model.device import Placement
from engine.spec.model import INT4_GROUP

OFFLOADED = ("disk", "meta")
SHAPE_SEED = 0


def device_map_of(placement: Placement) -> Any:
    """The `device_map` argument for transformers: "auto" for a split model; the device for weights that are quantised
    while loading, so that the device never holds them unquantised; None to load the whole model and then move it."""
    if placement.is_split:
        return "auto"
    return {"": placement.device} if placement.weights != "stored" else None


def check_map(device_map: Mapping[str, Any]) -> None:
    """Raise `InputError` for a device map that leaves weights on no computing device: they would be copied in every
    forward."""
    places = [str(place) for place in device_map.values()]
    far = [place for place in places if place in OFFLOADED or (place == "cpu" and set(places) != {"cpu"})]
    if far:
        where = "on the disk" if "disk" in far else "in main memory" if "cpu" in far else "nowhere"
        raise InputError(
            f"{len(far)} of the model's {len(places)} parts would be {where}, because the GPUs have too little memory: "
            "take int8 or int4 weights, a narrower dtype, or the device cpu."
        )


def move_to_devices(model: Any, placement: Placement) -> Any:
    """Move a model that was built in main memory to its devices."""
    if not placement.is_split:
        return model.to(placement.device)
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    keep_whole = list(getattr(model, "_no_split_modules", None) or ())
    # as transformers does for "auto"; without it a model that fits on the first GPU would stay there
    most = get_balanced_memory(model, no_split_module_classes=keep_whole)
    device_map = infer_auto_device_map(model, most, no_split_module_classes=keep_whole)
    check_map(device_map)
    return dispatch_model(model, device_map)


def layer_devices(layers: Mapping[int, torch.nn.Module]) -> tuple[str, ...]:
    """The device of each layer (of its first weight); empty where all layers are on one device."""
    found = [str(next(layers[index].parameters()).device) for index in sorted(layers)]
    return tuple(found) if len(set(found)) > 1 else ()


def load_weights(folder: Path, config: Any, placement: Placement, attention: str | None) -> Any:
    """The model with the weights in a folder, on its devices; raises `InputError` if these are damaged or of another
    model."""
    try:
        model, report = auto_class(config).from_pretrained(
            folder,
            config=config,
            dtype=placement.dtype,
            attn_implementation=attention,
            device_map=device_map_of(placement),
            quantization_config=quantization_config_of(placement, TorchAoConfig),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            output_loading_info=True,
        )
    except (Cancelled, InputError):
        raise
    except Exception as error:  # a folder can be broken in more ways than transformers names
        if is_of_machine(error):
            raise
        raise InputError(f"The weights in '{folder}' do not fit its config: {first_line(error)}") from None
    check_map(getattr(model, "hf_device_map", {}))
    for kind, words in (("missing_keys", "lack"), ("mismatched_keys", "have another shape for")):
        names = report.get(kind)
        if names:
            raise InputError(
                f"The weights in '{folder}' {words} {sorted(map(key_name, names))[0]} ({len(names)} in all): "
                "config and weights are not of one model."
            )
    return model if hasattr(model, "hf_device_map") else model.to(placement.device)


def auto_class(config: Any) -> Any:
    """transformers' auto class for a config: with an encoder or without."""
    return AutoModelForSeq2SeqLM if getattr(config, "is_encoder_decoder", False) else AutoModelForCausalLM


def key_name(key: str | tuple[Any, ...]) -> str:
    """The name of a tensor; mismatched ones are listed with both shapes."""
    return key if isinstance(key, str) else str(key[0])


def build_shape(config: Any, dtype: torch.dtype, source: str, attention: str | None) -> Any:
    """A model of random weights for a config, the same every time."""
    with as_input_errors(source), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SHAPE_SEED)
        return auto_class(config).from_config(
            config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
        )


def place_and_quantise(model: Any, placement: Placement, source: str) -> Any:
    """Move a model that was built in main memory to its devices, and quantise its weights as asked."""
    with as_input_errors(source):
        return quantise_linears(move_to_devices(model, placement), placement)


@contextmanager
def as_input_errors(source: str) -> Iterator[None]:
    """Turn exceptions of building a model into an `InputError` with one sentence."""
    try:
        yield
    except (Cancelled, InputError):
        raise
    except RuntimeError as error:
        if is_of_machine(error):
            raise
        raise InputError(f"The architecture of '{source}' does not fit here: {first_line(error)}") from None
    except MemoryError:
        raise
    except Exception as error:  # a config can be wrong in more ways than transformers names
        raise InputError(f"'{source}' describes no decoder that can be built: {first_line(error)}") from None


GPU_FORMAT = "tile_packed_to_4d"  # the layout of int4 matrices that torch's GPU kernel reads


def quantization_config_of(placement: Placement, config: Callable[..., Any]) -> Any:
    """transformers' quantisation config for a placement, made by `config`; None where weights stay as stored."""
    return None if placement.weights == "stored" else config(quant_type=_torchao_config(placement))


def quantise_linears(model: Any, placement: Placement) -> Any:
    """Quantise the linear layers of a model in place, all but the head."""
    if placement.weights == "stored":
        return model
    config, head = _torchao_config(placement), model.get_output_embeddings()
    from torchao.quantization import quantize_

    quantize_(model, config, lambda module, _name: isinstance(module, torch.nn.Linear) and module is not head)
    return model


def _torchao_config(placement: Placement) -> Any:
    if placement.weights == "int8":
        from torchao.quantization import Int8WeightOnlyConfig

        return Int8WeightOnlyConfig()
    if placement.device.type == "cpu":
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

        return PrototypeInt4WeightOnlyConfig(group_size=INT4_GROUP)
    from torchao.quantization import Int4WeightOnlyConfig

    return Int4WeightOnlyConfig(group_size=INT4_GROUP, int4_packing_format=GPU_FORMAT)


def held_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a weight; of a quantised one, its codes, scales and offsets."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.numel() * tensor.element_size()
    names, _ = tensor.__tensor_flatten__()
    return sum(held_bytes(getattr(tensor, name)) for name in names)


# ---- how long the matrix products take alone: a lower bound for a forward of one token ------------------------------


TIMES = 5


@torch.inference_mode()
def products_ms(model: nn.Module, device: torch.device) -> float:
    """Milliseconds to multiply one vector with every weight of every linear layer and nothing else: the median of a few
    runs after a warm-up. 0 where a model has no plain linear layers."""
    maps = [module for module in model.modules() if type(module) is nn.Linear]
    if not maps:
        return 0.0
    vectors = {(m.in_features, m.weight.dtype, m.weight.device): m.weight.new_ones(1, m.in_features) for m in maps}
    work = [(m.weight, vectors[m.in_features, m.weight.dtype, m.weight.device]) for m in maps]
    times = [_once(work, device) for _ in range(TIMES + 1)]
    return statistics.median(times[1:])


def _once(work: Sequence[tuple[torch.Tensor, torch.Tensor]], device: torch.device) -> float:
    began = device_now(device)
    for weight, vector in work:
        nn.functional.linear(vector, weight)
    return device_now(device).ms_since(began)
