"""What is measured of the newest attention row, and the checksum of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engine.cache.contract import Pair
from engine.cache.stacking import evenly_spaced, on_one_device
from engine.wire.arrays import read_only_floats
from engine.wire.records import AttentionSummary

RECENT = 16
WASTE = 2  # times what is kept
SMALLEST = torch.finfo(torch.float32).tiny


def spread(weights: torch.Tensor, positions: torch.Tensor | None, num_tokens: int) -> torch.Tensor:
    """Weights `[H, S]` of rows at `positions` `[H_kv, S]` as a row over all tokens, `[H, num_tokens]`: what was dropped
    receives nothing."""
    if positions is None:
        return weights
    places = positions.repeat_interleave(weights.shape[0] // positions.shape[0], 0)
    return weights.new_zeros(weights.shape[0], num_tokens).scatter_(1, places, weights)


def nan_where_dropped(weights: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """The same row `[H, num_tokens]`, NaN where there is no row to attend to."""
    if positions is None:
        return weights
    places = positions.repeat_interleave(weights.shape[0] // positions.shape[0], 0)
    return torch.full_like(weights, torch.nan).scatter_(1, places, weights.gather(1, places))


def row_checksums(rows: dict[int, Pair]) -> dict[int, int]:
    """The checksums of the new rows alone, by layer."""
    if not rows:
        return {}
    tensors = on_one_device(tensor for pair in rows.values() for tensor in pair)
    if are_alike(tensors, tensors[0].shape[1]):
        sums = bit_sums(torch.stack(tensors)).tolist()
    else:
        sums = [int(bit_sums(tensor[None])) for tensor in tensors]
    return {layer: wrapped(sums[2 * n] + 3 * sums[2 * n + 1]) for n, layer in enumerate(rows)}


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a number
AT_ONCE = 1 << 18  # numbers, of which the products take 2 MiB: more are made one tensor after the other, in one place
MIXED = 0x5DEECE66D  # odd: no number's bits are lost, and exchanged ones are seen


def bit_sums(stacked: torch.Tensor) -> torch.Tensor:
    """`[N]` int64: the bits of `[N, H_kv, T, D]` as integers, each times an odd number of its place, summed up with
    wrapping. The order of a sum of integers is nothing to it, so that every device gives the same."""
    bits = stacked.reshape(len(stacked), -1).view(BITS[stacked.element_size()])
    places = torch.arange(bits.shape[1], device=bits.device).mul_(2 * MIXED).add_(MIXED)
    if bits.numel() <= AT_ONCE:
        return (bits * places).sum(1)
    sums, products = places.new_empty(len(bits)), torch.empty_like(places)
    for number, each in enumerate(bits):
        torch.sum(torch.mul(each, places, out=products), 0, out=sums[number])
    return sums


def wrapped(number: int) -> int:
    """The number in 64 bits, signed."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def are_alike(tensors: Sequence[torch.Tensor], num_new: int) -> bool:
    """Whether all are of one shape `[H_kv, T, D]` and hold every new row."""
    return tensors[0].shape[1] == num_new and all(t.shape == tensors[0].shape for t in tensors)


def own_rows(
    weights: Mapping[int, torch.Tensor], num_tokens: int, num_together: int = 1, *, is_borrowed: bool = False
) -> dict[int, torch.Tensor]:
    """The newest query's weights `[H, S]` by layer, to be kept; `num_together` sequences keep rows of the same tensors.
    Static caches give a weight (zero) to room that is still empty: it is cut off. A row that would keep much more than
    itself alive is copied; copying all of them would cost what there is, and not what is new. Rows that `is_borrowed`
    says are overwritten soon are all copied."""
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
    """Whether most of what lies there is no row that is kept."""
    return storage.nbytes() > WASTE * sizes[storage.data_ptr()]


def attention_measures(
    rows: Mapping[int, torch.Tensor], num_tokens: int, num_source: int = 0
) -> dict[str, torch.Tensor]:
    """Of the newest query's weights `[H, S]` by layer: the mass on position 0 (none once it has left a window) and on
    the last 16, `[L, H, 2]`, NaN for heads that a layer does not have: as few numbers are read of a long row as of a
    short one. The first of a decoder's tokens stands behind `num_source` that an encoder read."""
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
    """Masses `[H, 2]`, NaN for heads that are missing."""
    return torch.nn.functional.pad(mass, (0, 0, 0, heads - mass.shape[0]), value=torch.nan)


def attention_summary(measured: Mapping[str, Any], layers: Sequence[int]) -> AttentionSummary | None:
    """What was measured, as a record tells it."""
    masses = measured.get("attention")
    if masses is None:
        return None
    return AttentionSummary(tuple(layers), *(read_only_floats(masses[..., number]) for number in (0, 1)))


def entropy_of(weights: torch.Tensor) -> torch.Tensor:
    """Entropy `[…]` in nats of weights `[…, S]`; what was dropped (NaN) has none."""
    held = weights.nan_to_num(0.0)
    # p log p by hand: torch's own entr is four times slower; where p is 0, log p must not be -inf
    return -held.clamp_min(SMALLEST).log_().mul_(held).sum(-1)
