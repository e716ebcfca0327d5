"""Predicts the memory that a model will take, before it is loaded: from the headers of its weight files, or its
config."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from safetensors import safe_open

from engine.device import free_bytes, release_memory
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.model.device import Placement, place, split_devices, why_no_format
from engine.model.source import WEIGHTS as ADAPTER_FILE
from engine.model.source import ModelSource, find_source
from engine.model.weights import build_shape
from engine.predict.loading import WeightTensor, cache_bytes, context_of, size, weight_bytes
from engine.spec.model import WEIGHTS, ModelSpec
from engine.wire.devices import ForecastLoad, LoadForecast

TINY = 1_000_000  # number of layers times the square of their width


def tensors_of(source: ModelSource, *, is_coded: bool) -> list[WeightTensor]:
    """The shapes of a model's tensors. If weights are to be quantised (`is_coded`), they are taken from the config:
    only its modules tell which tensors are matrices of linear layers."""
    found = [] if source.adapter is None else tensors_of_files([source.adapter / ADAPTER_FILE])
    if source.folder is None or is_coded:
        return found + tensors_of_config(source.config)
    return found + tensors_of_files(sorted(source.folder.glob("*.safetensors")))


def tensors_of_files(files: Iterable[Path]) -> list[WeightTensor]:
    """The tensors in safetensors files, by their headers."""
    found = []
    for file in files:
        with safe_open(file, framework="pt") as weights:
            found += [WeightTensor(tuple(weights.get_slice(key).get_shape())) for key in weights.keys()]  # noqa: SIM118
    return found


def tensors_of_config(config: Any) -> list[WeightTensor]:
    """The tensors of the model that a config describes, built on the meta device."""
    with torch.device("meta"):
        model = build_shape(config, torch.float32, config.model_type, None)
    head = model.get_output_embeddings()
    linear = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head}
    return [WeightTensor(tuple(p.shape), id(p) in linear) for p in model.parameters()]


def own_dtype(config: Any) -> torch.dtype | None:
    """The dtype that a config names, None if it names none."""
    found = getattr(config.get_text_config(), "dtype", None)
    return found if isinstance(found, torch.dtype) else None


def placement_of(spec: ModelSpec, source: ModelSource) -> Placement:
    """The placement of the model of that source."""
    return place(spec, own_dtype(source.config), lambda: tensors_of(source, is_coded=spec.weights != "stored"))


def forecast(asked: ForecastLoad, freed_bytes: int) -> LoadForecast:
    """What loading a model would take. `freed_bytes` are those of the present model. A problem is part of the answer,
    not raised; nothing is downloaded."""
    try:
        return _forecast(asked, freed_bytes)
    except InputError as error:
        return LoadForecast(asked.model, problem=str(error))


def _forecast(asked: ForecastLoad, freed_bytes: int) -> LoadForecast:
    source = find_source(replace(asked.model, allow_download=False), lambda label, done, total: None)
    placement = placement_of(asked.model, source)
    geometry = CacheGeometry.from_config(source.config)
    context, notes = context_of(geometry, asked.context), placement.notes
    if asked.context is not None and asked.context > context:
        notes += (f"{asked.context:,} tokens are more than the model takes: its context is {context:,}.",)
    return LoadForecast(
        asked.model,
        "split" if placement.is_split else str(placement.device),
        placement.dtype_name,
        needed_bytes(source, placement),
        cache_bytes(geometry, asked.cache, placement.dtype_name, context),
        context,
        free_on(placement),
        freed_bytes,
        placement.why_device,
        notes,
    )


def check_fits(source: ModelSource, placement: Placement, freed_bytes: int) -> None:
    """Raise `InputError` for weights larger than the free memory before they are loaded: the system would kill the
    program. `freed_bytes` are those of the present model."""
    if source.folder is None and is_tiny(source.config):
        return
    if needed_bytes(source, placement) > free_on(placement):
        raise InputError(too_large_text(source, placement, freed_bytes))


def needed_bytes(source: ModelSource, placement: Placement) -> int:
    """The bytes of a model's weights as they will be placed."""
    tensors = tensors_of(source, is_coded=placement.weights != "stored")
    return weight_bytes(tensors, placement.dtype_name, placement.weights)


def is_tiny(config: Any) -> bool:
    """Whether a shape is so small that any memory holds it. Such shapes are loaded by the hundred to try
    architectures."""
    text = config.get_text_config()
    layers, hidden = getattr(text, "num_hidden_layers", None), getattr(text, "hidden_size", None)
    return isinstance(layers, int) and isinstance(hidden, int) and layers * hidden * hidden < TINY


def out_of_memory_text(spec: ModelSpec, source: ModelSource, freed_bytes: int) -> str:
    """The message for a model for which memory ran out while loading; frees what was loaded of it."""
    placement = placement_of(spec, source)
    release_memory(placement.device)
    return too_large_text(source, placement, freed_bytes)


def too_large_text(source: ModelSource, placement: Placement, freed_bytes: int) -> str:
    """The message that a model's weights are too large, with the remedies that would help."""
    needed, free = needed_bytes(source, placement), free_on(placement)
    placements = smaller_placements(source, placement)
    smaller = {words: needed_bytes(source, other) for words, other in placements.items()}
    enough = [words for words, num_bytes in smaller.items() if num_bytes <= min(free, needed)]
    why_not_yet = {why for words in enough if (why := why_no_format(placements[words].weights))}
    too_little = ""
    if smaller and not enough:
        least = min(smaller, key=smaller.__getitem__)
        too_little = f", too little for {least} too ({size(smaller[least])})"
    can_unload = freed_bytes > 0 and needed <= free + freed_bytes
    last = "unload the present model first" if can_unload else "take a smaller model"
    return (
        f"There is not enough memory for {source.name}: its weights take {size(needed)} in {placement.dtype_name}, "
        f"with room for a forward beside them, and {size(free)} are free on "
        f"{'all GPUs' if placement.is_split else placement.device}{too_little}: "
        f"{', '.join(['take ' + enough[0], *enough[1:], 'or ' + last]) if enough else last}."
        f"{''.join(f' Weights in fewer bits: {why}.' for why in why_not_yet)}"
    )


def smaller_placements(source: ModelSource, placement: Placement) -> dict[str, Placement]:
    """What would take less memory, by its words: weights in fewer bits, but not below an adapter; a narrower dtype."""
    found: dict[str, Placement] = {}
    if placement.weights == "stored" and source.adapter is None:
        coded = [row.name for row in WEIGHTS.values() if row.bits]
        found = {f"{name} weights": dataclasses.replace(placement, weights=name) for name in coded}
    narrower = dataclasses.replace(placement, dtype=torch.bfloat16)
    if placement.dtype.itemsize > narrower.dtype.itemsize:
        found["a narrower dtype"] = narrower
    return found


def free_on(placement: Placement) -> int:
    """Bytes that can be allocated on the devices of a placement."""
    return sum(map(free_bytes, split_devices() if placement.is_split else [placement.device]))
