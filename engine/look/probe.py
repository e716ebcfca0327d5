"""What is measured of one step: the new rows of K and V, the newest attention row, and anything not finite.

Costs O(new tokens) and leaves the device as a handful of small arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch

from engine.cache.contract import Pair
from engine.cache.stacking import stacked_view
from engine.wire.arrays import read_only_floats
from engine.wire.records import AttentionSummary, Floats, NonFinite, RowStats

NOTHING: Mapping[int, int] = MappingProxyType({})
RECENT = 16
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


def row_stats(
    rows: dict[int, Pair], num_new: int, offsets: Mapping[int, int] = NOTHING
) -> tuple[RowStats | None, dict[int, int]]:
    """Norms and extremes of the new rows, and a checksum of their bits by layer. Layers with fewer heads, or rows
    already dropped, are NaN there. `offsets` say where in the new rows those of a layer begin which are not the
    latest."""
    if not rows:
        return None, {}
    keys, values = [k for k, _ in rows.values()], [v for _, v in rows.values()]
    if are_alike([*keys, *values], num_new):
        array, sums = measured_at_once(torch.cat([stacked_view(keys), stacked_view(values)]))
        of_keys, of_values = apart(array[: len(keys)]), apart(array[len(keys) :])
        key_sums, value_sums = sums[: len(keys)], sums[len(keys) :]
    else:
        begins = [offsets.get(layer, num_new - pair[0].shape[1]) for layer, pair in rows.items()]
        of_keys, key_sums = measured(keys, num_new, begins)
        of_values, value_sums = measured(values, num_new, begins)
    (key_norm, key_min, key_max), (value_norm, value_min, value_max) = of_keys, of_values
    stats = RowStats(tuple(rows), key_norm, value_norm, key_min, key_max, value_min, value_max)
    return stats, {layer: wrapped(k + 3 * v) for layer, k, v in zip(rows, key_sums, value_sums, strict=True)}


def row_checksums(rows: dict[int, Pair]) -> dict[int, int]:
    """The checksums of the new rows alone, by layer."""
    if not rows:
        return {}
    tensors = [tensor for pair in rows.values() for tensor in pair]
    if are_alike(tensors, tensors[0].shape[1]):
        sums = bit_sums(torch.stack(tensors)).tolist()
    else:
        sums = [int(bit_sums(tensor[None])) for tensor in tensors]
    return {layer: wrapped(sums[2 * n] + 3 * sums[2 * n + 1]) for n, layer in enumerate(rows)}


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a number
AT_ONCE = 1 << 22  # numbers, of which the products take 32 MiB
MIXED = 0x5DEECE66D  # odd: no number's bits are lost, and exchanged ones are seen


def bit_sums(stacked: torch.Tensor) -> torch.Tensor:
    """`[N]` int64: the bits of `[N, H_kv, T, D]` as integers, each times an odd number of its place, summed up with
    wrapping. The order of a sum of integers is nothing to it, so that every device gives the same."""
    bits = stacked.reshape(len(stacked), -1).view(BITS[stacked.element_size()])
    if len(bits) > 1 and bits.numel() > AT_ONCE:
        return torch.cat([bit_sums(part) for part in torch.split(stacked, max(1, AT_ONCE // bits.shape[1]))])
    places = torch.arange(bits.shape[1], device=bits.device).mul_(2 * MIXED).add_(MIXED)
    return (bits * places).sum(1)


def wrapped(number: int) -> int:
    """The number in 64 bits, signed."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def are_alike(tensors: Sequence[torch.Tensor], num_new: int) -> bool:
    """Whether all are of one shape `[H_kv, T, D]` and hold every new row."""
    return tensors[0].shape[1] == num_new and all(t.shape == tensors[0].shape for t in tensors)


def measured_at_once(stacked: torch.Tensor) -> tuple[Floats, list[int]]:
    """`[N, H_kv, T + 2]`: norms, smallest and largest value, of `[N, H_kv, T, D]`; and `bit_sums`.

    One kernel for all layers, and one copy from the device: a step has thirty of them, and each launch costs more than
    its arithmetic.
    """
    wide = stacked.float()
    extremes = (e.unsqueeze(-1) for e in wide.flatten(2).aminmax(dim=-1))
    floats = torch.cat([torch.linalg.vector_norm(wide, dim=-1), *extremes], -1)
    sums = bit_sums(stacked).view(torch.float32)
    flat = torch.cat([floats.flatten(), sums]).cpu().numpy()
    return flat[: -len(sums)].reshape(floats.shape), flat[-len(sums) :].copy().view(np.int64).tolist()


def apart(array: Floats) -> tuple[Floats, Floats, Floats]:
    return read_only_floats(array[..., :-2]), read_only_floats(array[..., -2]), read_only_floats(array[..., -1])


def measured(
    tensors: Sequence[torch.Tensor], num_new: int, begins: Sequence[int]
) -> tuple[tuple[Floats, Floats, Floats], list[int]]:
    """L2 norms `[L, H_kv, T]`, smallest and largest values `[L, H_kv]`, of tensors `[H_kv, t <= T, D]`; and
    `bit_sums`."""
    if are_alike(tensors, num_new):
        array, sums = measured_at_once(stacked_view(tensors))
        return apart(array), sums
    heads = max(t.shape[0] for t in tensors)
    norm = np.full((len(tensors), heads, num_new), np.nan, np.float32)
    low, high = np.full((len(tensors), heads), np.nan, np.float32), np.full((len(tensors), heads), np.nan, np.float32)
    for i, tensor in enumerate(tensors):
        t = tensor.float()
        norm[i, : t.shape[0], begins[i] : begins[i] + t.shape[1]] = t.norm(dim=-1).cpu().numpy()
        low[i, : t.shape[0]] = t.amin((1, 2)).cpu().numpy()
        high[i, : t.shape[0]] = t.amax((1, 2)).cpu().numpy()
    sums = [int(bit_sums(tensor[None])) for tensor in tensors]
    return (read_only_floats(norm), read_only_floats(low), read_only_floats(high)), sums


def find_non_finite(
    rows: dict[int, Pair], stats: RowStats | None, first_position: int, offsets: Mapping[int, int] = NOTHING
) -> tuple[NonFinite, ...]:
    """Every (tensor, layer, head, position) whose new row holds a NaN or an infinity.

    The norms tell whether there is anything to look for, so a sound step costs nothing here.
    """
    if stats is None or all(map(all_finite, (stats.key_norm, stats.value_norm))):
        return ()
    num_new = stats.key_norm.shape[2]
    found = []
    for layer, pair in rows.items():
        for name, tensor in zip(("keys", "values"), pair, strict=True):
            bad = (~tensor.isfinite()).sum(-1)
            # a window may have dropped the first of the new rows
            first = first_position + offsets.get(layer, num_new - tensor.shape[1])
            for head, offset in bad.nonzero().tolist():
                count = int(bad[head, offset])
                found.append(NonFinite(name, layer, head, first + offset, count))  # type: ignore[arg-type]
    return tuple(found)


def all_finite(norms: Floats) -> bool:
    return bool(np.isfinite(norms).all())


def attention_summary(
    weights: dict[int, torch.Tensor], num_tokens: int, num_source: int = 0
) -> tuple[AttentionSummary | None, dict[int, torch.Tensor]]:
    """Sink mass, recent mass and entropy of the newest row, and the rows themselves, `[H, S]` per layer.

    Static caches give a weight (zero) to room that is still empty: it is cut off. The first of a decoder's tokens
    stands behind `num_source` that an encoder read.
    """
    if not weights:
        return None, {}
    rows = [w if w.shape[1] <= num_tokens else w[:, :num_tokens] for w in weights.values()]
    if all(r.shape == rows[0].shape for r in rows):
        stacked = stacked_view(rows).clone()
        packed = summed(stacked, num_tokens, num_source)
        rows = list(stacked)
    else:
        packed = torch.stack([padded(summed(r, num_tokens, num_source), max(r.shape[0] for r in rows)) for r in rows])
        rows = [r.clone() for r in rows]  # views of full matrices, or of reserved room, would keep all of that alive
    array = packed.cpu().numpy()
    sink_mass, recent_mass, entropy = (read_only_floats(array[..., number]) for number in range(3))
    summary = AttentionSummary(tuple(weights), sink_mass, recent_mass, entropy)
    return summary, dict(zip(weights, rows, strict=True))


def summed(rows: torch.Tensor, num_tokens: int, num_source: int = 0) -> torch.Tensor:
    """`[…, H, S]` -> `[…, H, 3]`: mass on position 0 (none once it has left a window), on the last 16, entropy."""
    is_whole = rows.shape[-1] in (num_tokens, num_tokens - num_source)
    first = rows[..., 0] if is_whole else torch.zeros_like(rows[..., 0])
    recent = rows[..., -RECENT:].sum(-1)
    # p log p by hand: torch's own entr is four times slower; where p is 0, log p must not be -inf
    entropy = -rows.clamp_min(SMALLEST).log_().mul_(rows).sum(-1)
    return torch.stack([first, recent, entropy], -1)


def padded(summary: torch.Tensor, heads: int) -> torch.Tensor:
    return torch.nn.functional.pad(summary, (0, 0, 0, heads - summary.shape[0]), value=torch.nan)
