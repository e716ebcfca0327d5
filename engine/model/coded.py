"""Weights in fewer bits than they were stored in: torchao's, as transformers loads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.model.device import Placement
from engine.spec.model import INT4_GROUP

GPU_FORMAT = "tile_packed_to_4d"  # of int4 matrices, as torch's own kernel for GPUs reads them


def coding_of(placement: Placement, config: Callable[..., Any]) -> Any:
    """transformers' `config` of the coding; None where weights stay as they are."""
    return None if placement.weights == "stored" else config(quant_type=_torchao_config(placement))


def coded(model: Any, placement: Placement) -> Any:
    """A model whose linear layers, but for the head, are coded where they stand."""
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
    """What a weight takes: of a coded one its codes, scales and offsets."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.numel() * tensor.element_size()
    names, _ = tensor.__tensor_flatten__()
    return sum(held_bytes(getattr(tensor, name)) for name in names)
