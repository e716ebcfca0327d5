"""Models whose layers are on several devices: transformers' `device_map`, which accelerate implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engine.errors import InputError
from engine.model.device import Placement

OFFLOADED = ("disk", "meta")


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
