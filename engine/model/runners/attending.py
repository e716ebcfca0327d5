"""Attention of one layer once its new rows are written: over one cache, over the rows of several sequences separately,
or over pages in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.cache.attention_probe import NewestQuery, Probe
from engine.cache.contract import Pair
from engine.cache.part_timer import timed
from engine.device import to_device
from engine.model.attention import (
    LONG_CONTEXT,
    attention,
    explicit_weights,
    weighted_values,
)
from engine.model.batch import AttentionArguments, Batch

# attention module, queries [B, H, T, D], new keys and values [B, H_kv, T, D] -> attention output, [B, T, H, D]
Attend = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
# index of a layer, its new keys and values [B, H_kv, 1, D] -> all rows of each sequence, [1, H_kv, S, D]; if these are
# more than LONG_CONTEXT rows, the next sequence's may overwrite them
AppendBySequence = Callable[[int, torch.Tensor, torch.Tensor], Iterable[Pair]]


class RowMask(NamedTuple):
    """Which rows a query reads, `[1, 1, T, S]`: `kept` is true there, `bias` is added to the scores. Both None: causal
    attention."""

    kept: torch.Tensor | None
    bias: torch.Tensor | None

    @classmethod
    def of(cls, mask: torch.Tensor | None, hidden: torch.Tensor) -> RowMask:
        """The mask with a bias that all layers share; in transformers every layer computes its own."""
        if mask is None or hidden.shape[1] == 1:
            return cls(mask, mask)
        return cls(mask, torch.zeros_like(mask, dtype=hidden.dtype).masked_fill_(~mask, -torch.inf))


UNMASKED = RowMask(None, None)


@dataclass(frozen=True, eq=False)
class OneCache:
    """Writes the new rows of one sequence to the cache of a batch, and attends to all its rows."""

    batch: Batch
    mask: RowMask
    deferred: ClassVar[None] = None  # no outputs are deferred, as `NewestOfChunk` does

    def __call__(self, attn: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        probe, layer = self.batch.probe, attn.layer_idx
        keys, values = self.batch.cache.update(keys, values, layer)
        hidden = self.batch.hidden.get(layer)
        if probe is None or probe.timer is None:
            return attention_output(attn, query, keys, values, self.mask, probe, hidden)
        with probe.timer.timed("attention", layer):
            return attention_output(attn, query, keys, values, self.mask, probe, hidden)


@dataclass(frozen=True, eq=False)
class BySequence:
    """Writes the new rows of several sequences, and attends to the rows of each sequence separately: without padding
    and mask. One query per sequence."""

    append: AppendBySequence
    probes: list[Probe] | None

    def __call__(self, attn: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        read = []
        for number, (held_keys, held_values) in enumerate(self.append(attn.layer_idx, keys, values)):
            probe = None if self.probes is None else self.probes[number]
            with timed(probe.timer if probe is not None else None, "attention", attn.layer_idx):
                read.append(attention_output(attn, query.narrow(0, number, 1), held_keys, held_values, UNMASKED, probe))
        return torch.cat(read)


@dataclass(frozen=True, eq=False)
class InPlace:
    """Writes the new rows of one or several sequences to pages, and attends to the pages in place."""

    batch: Batch

    def __call__(self, attn: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        batch, layer = self.batch, attn.layer_idx
        assert batch.pages is not None
        batch.cache.layers[layer].write(keys, values)
        asked = AttentionArguments(attn.scaling, hidden=batch.hidden.get(layer))
        with timed(batch.probe.timer if batch.probe is not None else None, "attention", layer):
            return batch.pages.read(layer, query, keys, asked, batch.probe)


def attention_output(
    attn: Any,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: RowMask,
    probe: Probe | None,
    hidden: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention output `[1, T, H, D]` of queries `[1, H, T, D]`, which do not read `hidden` rows `[H_kv, S]`. Where
    possible, torch's kernel is called directly: without the choice that `attention` makes, and without copying K and V
    for every query head."""
    count, is_long = query.shape[2], keys.shape[2] > LONG_CONTEXT
    is_usual = query.device.type == "cpu" if count > 1 else mask.kept is None
    if not is_usual or hidden is not None or (probe is not None and probe.wants_more):
        asked = AttentionArguments(attn.scaling, hidden=hidden)
        return attention(attn, query, keys, values, mask.kept, asked, probe)
    if count == 1 and is_long:  # as in `attention`
        weights = explicit_weights(query, keys, None, attn.scaling, None, None)
        if probe is not None:
            probe.record(attn.layer_idx, weights)
        return weighted_values(weights, values)
    is_causal = mask.kept is None and count > 1
    if is_causal:  # a static cache at its first prefill: the rest of its rows is still empty
        keys, values = keys[:, :, :count], values[:, :, :count]
    if probe is not None:
        last = None if mask.kept is None else mask.kept[:, :, -1]
        probe.seen[attn.layer_idx] = NewestQuery(query.select(2, -1), keys, last, attn.scaling)
    is_grouped = query.shape[1] != keys.shape[1]
    read = scaled_dot_product_attention(
        query, keys, values, mask.bias, is_causal=is_causal, scale=attn.scaling, enable_gqa=is_grouped
    )
    return read.transpose(1, 2)


def right_aligned(lengths: Sequence[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The padding mask `[B, S + 1]` of right-aligned sequences of these lengths with one more token each, and the
    positions `[B, 1]` of these tokens."""
    positions = to_device(torch.tensor(lengths), device)[:, None]
    columns = torch.arange(max(lengths) + 1, device=device)
    return (columns >= max(lengths) - positions).long(), positions
