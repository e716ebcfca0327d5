"""A model whose layers stand on several devices: transformers' `device_map`, which accelerate makes and serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engine.errors import InputError
from engine.model.device import Placement

OFFLOADED = ("disk", "meta")


def device_map_of(placement: Placement) -> Any:
    """What transformers takes as `device_map`: accelerate's own choice for a model that is split; the device itself for
    weights that are coded as they are loaded, which only then never stand there as they were stored. None: the model is
    loaded whole, and moved."""
    if placement.is_split:
        return "auto"
    return {"": placement.device} if placement.weights != "stored" else None


def check_map(device_map: Mapping[str, Any]) -> None:
    """Refuse a map on which some weights are on no device that computes: they would be read again in every forward."""
    places = [str(place) for place in device_map.values()]
    far = [place for place in places if place in OFFLOADED or (place == "cpu" and set(places) != {"cpu"})]
    if far:
        where = "on the disk" if "disk" in far else "in main memory" if "cpu" in far else "nowhere"
        raise InputError(
            f"{len(far)} of the model's {len(places)} parts would be {where}, because the GPUs have too little memory: "
            "take int8 or int4 weights, a narrower dtype, or the device cpu."
        )


def dispatched(model: Any, placement: Placement) -> Any:
    """A model that was built in main memory, where it belongs."""
    if not placement.is_split:
        return model.to(placement.device)
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    keep_whole = list(getattr(model, "_no_split_modules", None) or ())
    # as transformers does for "auto": a model that fits on the first GPU would else stay there
    most = get_balanced_memory(model, no_split_module_classes=keep_whole)
    device_map = infer_auto_device_map(model, most, no_split_module_classes=keep_whole)
    check_map(device_map)
    return dispatch_model(model, device_map)


def layer_devices(layers: Mapping[int, torch.nn.Module]) -> tuple[str, ...]:
    """The device of each layer, by the first of its weights; empty where all are on one."""
    found = [str(next(layers[index].parameters()).device) for index in sorted(layers)]
    return tuple(found) if len(set(found)) > 1 else ()
