"""Finds the rows that an edit names in a cache, or says which of them are not held."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.look.source import slots_of
from engine.spec.edit import Rows


@dataclass(frozen=True, eq=False)
class Places:
    """Kv heads `[N]` of a layer, and the slots `[N, T]` that the positions of an edit have among the rows held."""

    heads: torch.Tensor
    slots: torch.Tensor


def heads_of(rows: Rows, layer: LayerGeometry) -> list[int]:
    """The kv heads of a layer that an edit names."""
    return list(range(layer.num_kv_heads) if rows.kv_heads is None else rows.kv_heads)


def layers_named(cache: SequenceCache, geometry: CacheGeometry, rows: Rows) -> tuple[LayerGeometry, ...]:
    """The layers that an edit names. If it names none: all layers; of an encoder-decoder the cross-attention layers for
    positions of the source, else the decoder's own. Raises `InputError` for positions in both."""
    layers, source = rows.layers_of(geometry), cache.num_source
    if rows.layers is not None or not source:
        return layers
    if rows.start < source < rows.stop:
        raise InputError(
            f"Positions {rows.start} … {source - 1} were read by the encoder, those from {source} on by the decoder, "
            "and their rows are in different layers: edit one part after the other."
        )
    return tuple(layer for layer in layers if (layer.kind == "cross") == (rows.start < source))


def places_in(cache: SequenceCache, layer: LayerGeometry, rows: Rows) -> Places:
    """Where the rows of an edit are in a layer of a cache; raises `InputError` where one of them is not held."""
    held = cache.held_positions(layer.index)
    return places_among(held.expand(layer.num_kv_heads, -1), layer, rows, rows.start)


def places_among(held: torch.Tensor, layer: LayerGeometry, rows: Rows, start: int, where: str = "cache") -> Places:
    """As `places_in`, for rows held at the positions `held` `[H_kv, S]`: finds as many rows as `rows` names, from
    position `start` on. `where` names the holder in messages."""
    heads = torch.tensor(heads_of(rows, layer), device=held.device)
    wanted = torch.arange(start, start + rows.stop - rows.start, device=held.device).expand(len(heads), -1)
    if not held.shape[1]:
        raise InputError(f"Layer {layer.index} has no rows in the {where}: choose another layer, or step first.")
    slots, are_held = slots_of(held[heads], wanted)
    if not bool(are_held.all()):
        head = int((~are_held).any(1).nonzero()[0])
        gone = wanted[head][~are_held[head]]
        raise InputError(
            f"Position{'s' if len(gone) > 1 else ''} {', '.join(map(str, gone[:4].tolist()))}"
            f"{' …' if len(gone) > 4 else ''} of layer {layer.index}, kv head {int(heads[head])} "
            f"{'are' if len(gone) > 1 else 'is'} not in the {where} (dropped, or left a window): name rows that are."
        )
    return Places(heads, slots)
