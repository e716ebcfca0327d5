"""Measurements of the newest attention row, and checksums of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engine.cache.contract import Pair
from engine.cache.stacking import evenly_spaced, on_one_device
from engine.wire.records import AttentionSummary, read_only_floats

RECENT = 16
WASTE = 2  # a storage larger than this multiple of the rows kept in it is not kept alive
SMALLEST = torch.finfo(torch.float32).tiny


def spread(weights: torch.Tensor, positions: torch.Tensor | None, num_tokens: int) -> torch.Tensor:
    """Weights `[H, S]` of rows at `positions` `[H_kv, S]` as a row over all tokens, `[H, num_tokens]`, zero at evicted
    rows."""
    if positions is None:
        return weights
    places = positions.repeat_interleave(weights.shape[0] // positions.shape[0], 0)
    return weights.new_zeros(weights.shape[0], num_tokens).scatter_(1, places, weights)


def nan_where_evicted(weights: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """A row of weights over all tokens, `[H, num_tokens]`, with NaN where the layer holds no row."""
    if positions is None:
        return weights
    places = positions.repeat_interleave(weights.shape[0] // positions.shape[0], 0)
    return torch.full_like(weights, torch.nan).scatter_(1, places, weights.gather(1, places))


def row_checksums(rows: dict[int, Pair]) -> dict[int, int]:
    """The checksum of the new rows, by layer."""
    if not rows:
        return {}
    tensors = on_one_device(tensor for pair in rows.values() for tensor in pair)
    if are_alike(tensors, tensors[0].shape[1]):
        sums = bit_sums(torch.stack(tensors)).tolist()
    else:
        sums = [int(bit_sums(tensor[None])) for tensor in tensors]
    return {layer: wrapped(sums[2 * n] + 3 * sums[2 * n + 1]) for n, layer in enumerate(rows)}


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a number
AT_ONCE = 1 << 18  # numbers, whose products take 2 MiB; for more, tensors are multiplied one by one in the same memory
MIXED = 0x5DEECE66D  # odd, so that no bits are lost; different at each place, so that exchanged numbers are noticed


def bit_sums(stacked: torch.Tensor) -> torch.Tensor:
    """Checksums `[N]` int64 of `[N, H_kv, T, D]`: the bits as integers, each times an odd number for its place, summed
    with wrapping. The order in which integers are summed does not matter, so every device gives the same."""
    bits = stacked.reshape(len(stacked), -1).view(BITS[stacked.element_size()])
    places = torch.arange(bits.shape[1], device=bits.device).mul_(2 * MIXED).add_(MIXED)
    if bits.numel() <= AT_ONCE:
        return (bits * places).sum(1)
    sums, products = places.new_empty(len(bits)), torch.empty_like(places)
    for number, each in enumerate(bits):
        torch.sum(torch.mul(each, places, out=products), 0, out=sums[number])
    return sums


def wrapped(number: int) -> int:
    """The number as a signed 64-bit integer."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def are_alike(tensors: Sequence[torch.Tensor], num_new: int) -> bool:
    """Whether all have the same shape `[H_kv, T, D]` and contain every new row."""
    return tensors[0].shape[1] == num_new and all(t.shape == tensors[0].shape for t in tensors)


def keepable_rows(
    weights: Mapping[int, torch.Tensor], num_tokens: int, num_together: int = 1, *, is_borrowed: bool = False
) -> dict[int, torch.Tensor]:
    """The newest query's weights `[H, S]` by layer, in a form that can be kept. `num_together` sequences keep rows of
    the same tensors.

    Columns from `num_tokens` on are cut off: static caches give empty room a weight (zero). A row is copied if keeping
    it would keep a much larger tensor alive; copying all rows would cost O(context) at each step. With `is_borrowed`,
    all rows are copied, because the next forward overwrites them.
    """
    rows = {layer: row if row.shape[1] <= num_tokens else row[:, :num_tokens] for layer, row in weights.items()}
    if is_borrowed and len({row.shape for row in rows.values()}) == 1:
        return dict(zip(rows, torch.stack(list(rows.values())), strict=True))
    sizes: dict[int, int] = {}
    for row in rows.values():
        place = row.untyped_storage().data_ptr()
        sizes[place] = sizes.get(place, 0) + row.nbytes * num_together
    return {
        layer: row.clone() if is_borrowed or is_wasteful(row.untyped_storage(), sizes) else row
        for layer, row in rows.items()
    }


def is_wasteful(storage: torch.UntypedStorage, sizes: Mapping[int, int]) -> bool:
    """Whether most of a storage is not rows that are kept."""
    return storage.nbytes() > WASTE * sizes[storage.data_ptr()]


def attention_measures(
    rows: Mapping[int, torch.Tensor], num_tokens: int, num_source: int = 0
) -> dict[str, torch.Tensor]:
    """For the newest query's weights `[H, S]` by layer: the mass on position 0 (none once it has left a window) and on
    the last 16, `[L, H, 2]`, NaN for heads that a layer does not have. Its cost does not grow with the context. The
    first decoder token of an encoder-decoder is at position `num_source`."""
    if not rows:
        return {}
    shapes, whole = {row.shape for row in rows.values()}, (num_tokens, num_tokens - num_source)
    if len(shapes) == 1 and next(iter(shapes))[1] in whole:
        alike = on_one_device(rows.values())
        if (view := evenly_spaced(alike)) is not None:
            first, recent = view[..., 0], view[..., -RECENT:]
        else:
            first, recent = (torch.stack([row[:, part] for row in alike]) for part in (0, slice(-RECENT, None)))
        return {"attention": torch.stack([first, recent.sum(-1)], -1)}
    heads = max(row.shape[0] for row in rows.values())
    firsts = [row[:, 0] if row.shape[1] in whole else torch.zeros_like(row[:, 0]) for row in rows.values()]
    masses = [torch.stack([one, row[:, -RECENT:].sum(-1)], -1) for one, row in zip(firsts, rows.values(), strict=True)]
    return {"attention": torch.stack(on_one_device(padded(mass, heads) for mass in masses))}


def padded(mass: torch.Tensor, heads: int) -> torch.Tensor:
    """Masses `[H, 2]` with NaN for the missing heads."""
    return torch.nn.functional.pad(mass, (0, 0, 0, heads - mass.shape[0]), value=torch.nan)


def attention_summary(measured: Mapping[str, Any], layers: Sequence[int]) -> AttentionSummary | None:
    """The measured masses as part of a record."""
    masses = measured.get("attention")
    if masses is None:
        return None
    return AttentionSummary(tuple(layers), *(read_only_floats(masses[..., number]) for number in (0, 1)))


def entropy_of(weights: torch.Tensor) -> torch.Tensor:
    """Entropy `[…]` in nats of weights `[…, S]`; evicted rows (NaN) count as zero."""
    held = weights.nan_to_num(0.0)
    # p log p written out, because torch's entr is four times slower; clamped, because 0 times log 0 is NaN
    # a single weight gives 0 and not -0; never below it, which rounding may make it
    return held.clamp_min(SMALLEST).log_().mul_(held).sum(-1).clamp_max_(0.0).abs_()
