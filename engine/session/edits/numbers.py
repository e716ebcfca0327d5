"""The numbers that an edit writes into rows: zeros, scaled ones, noise, or rows of another state or file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.cache.by_hand import RowWrite
from engine.cache.contract import HeldRows
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.look.source import chosen, places_of, slots_of
from engine.spec.codec import Part
from engine.spec.edit import AddNoise, Overwrite, Rows, Scale, Zero


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
            f"{'are' if len(gone) > 1 else 'is'} not in the {where} (evicted, or left a window): name rows that are."
        )
    return Places(heads, slots)


class RowsFrom(Protocol):
    """Rows of another state or of a file, from which an edit takes numbers."""

    def numbers(self, layer: LayerGeometry, part: Part, edit: Overwrite) -> torch.Tensor:
        """K or V `[N, T, D]` of the heads and positions that the edit takes; `InputError` where they are not held."""
        ...


def row_writes(
    cache: SequenceCache, geometry: CacheGeometry, edit: Zero | Scale | AddNoise | Overwrite, source: RowsFrom | None
) -> list[RowWrite]:
    """The writes of an edit, in numbers as attention reads them; raises `InputError` where rows are not held."""
    writes = []
    for layer in layers_named(cache, geometry, edit.rows):
        held, places = cache.rows(layer.index), places_in(cache, layer, edit.rows)
        assert held is not None, "rows have places"
        for part in edit.rows.parts:
            numbers = changed_rows(edit, layer, part, held, places, source)
            span = range(edit.rows.start, edit.rows.stop)
            writes.append(RowWrite(layer.index, part, places.heads, places.slots, numbers, span))
    return writes


def changed_rows(
    edit: Zero | Scale | AddNoise | Overwrite,
    layer: LayerGeometry,
    part: Part,
    held: HeldRows,
    places: Places,
    source: RowsFrom | None,
) -> torch.Tensor:
    """The rows `[N, T, D]` with the chosen channels changed."""
    rows = (held.keys if part == "keys" else held.values)[0][places.heads[:, None], places.slots].clone()
    channels = edit.rows.channels
    chosen = torch.arange(rows.shape[2]) if channels is None else torch.tensor(channels)
    old = rows[..., chosen]
    match edit:
        case Zero():
            new = torch.zeros_like(old)
        case Scale(_, _, factor):
            new = old.float() * factor
        case AddNoise():
            new = old.float() + noise(edit, layer.index, part, old)
        case Overwrite():
            assert source is not None, "it was looked for before"
            new = source.numbers(layer, part, edit)[..., chosen].to(rows.device)
    rows[..., chosen] = new.to(rows.dtype)
    return rows


def noise(edit: AddNoise, layer: int, part: Part, old: torch.Tensor) -> torch.Tensor:
    """Normal noise of the shape of `old`, scaled by `edit.ratio` times its standard deviation. It depends only on seed,
    layer and K or V, and is the same on every device."""
    seed = (edit.seed * 1_000_003 + layer * 2 + (part == "values")) % 2**63
    drawn = torch.randn(old.shape, generator=torch.Generator().manual_seed(seed)).to(old.device)
    return drawn * (edit.ratio * old.float().std(correction=0))


def check_shapes(numbers: torch.Tensor, layer: LayerGeometry, part: Part, where: str) -> torch.Tensor:
    """Numbers `[…, D]`, or an `InputError` where D is not the layer's."""
    dim = layer.key_dim if part == "keys" else layer.value_dim
    if numbers.shape[-1] != dim:
        raise InputError(
            f"Rows of layer {layer.index} have {numbers.shape[-1]} channels in {where} and {dim} here: they are of "
            "another model."
        )
    return numbers


@dataclass(frozen=True, eq=False)
class RowsOfStep:
    """The rows of another state by layer, as attention read them; `where` names that state in messages."""

    held: dict[int, HeldRows]
    where: str

    def numbers(self, layer: LayerGeometry, part: Part, edit: Overwrite) -> torch.Tensor:
        held = self.held.get(layer.index)
        positions = torch.zeros(layer.num_kv_heads, 0, dtype=torch.long) if held is None else places_of(held)
        places = places_among(positions, layer, edit.rows, edit.rows.start + edit.shift, self.where)
        assert held is not None, "rows without places are refused"
        return check_shapes(chosen(held, part)[0][places.heads[:, None], places.slots], layer, part, self.where)
