"""Prompts read to their end, under each rule, and logits with the columns of dropped rows masked."""

from __future__ import annotations

from typing import Any

import torch

from engine.model.loader import LoadedModel
from engine.session.session import Session


def finish_prompt(session: Session) -> None:
    while session.is_prefilling:
        session.step()


def masked_logits(
    model: LoadedModel, ids: list[int], prompt: int, dropped_at: dict[int, dict[int, Any]]
) -> torch.Tensor:
    """Logits of the last token of a full forward in which every query sees only the rows held when it came."""
    heads = model.info.geometry.num_kv_heads or 1
    group = (model.info.geometry.num_heads or 1) // heads
    total = len(ids)
    masks: dict[int, torch.Tensor] = {}
    for layer in range(len(model.info.geometry.layers)):
        window = model.info.geometry.layers[layer].window or total
        mask = torch.ones(total, total, dtype=torch.bool).tril().triu(1 - window).repeat(1, heads, 1, 1)
        for seen, by_layer in dropped_at.items():
            for head in range(heads):
                for position in by_layer.get((layer, head), []):  # type: ignore[call-overload]
                    mask[0, head, seen:, position] = False
        masks[layer] = mask.repeat_interleave(group, 1)
    module = model.model.model
    handles = []
    for index, layer in enumerate(module.layers):

        def swap(_: Any, args: Any, kwargs: dict[str, Any], index: int = index) -> Any:
            return args, {**kwargs, "attention_mask": masks[index]}

        if hasattr(layer, "self_attn"):
            handles.append(layer.self_attn.register_forward_pre_hook(swap, with_kwargs=True))
    try:
        with torch.inference_mode():
            return model.model(torch.tensor([ids]), use_cache=False).logits[0, -1]  # type: ignore[no-any-return]
    finally:
        for handle in handles:
            handle.remove()
