"""Defers most of the last layer of a prompt chunk: the next token needs its output for the newest token only. The
others are computed where surprisal asks for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from engine.cache.part_timer import timed
from engine.model.runners.attending import UNMASKED, OneCache, RowMask, attention_output

if TYPE_CHECKING:
    from engine.model.runners.decoder import Block

MIN_DEFERRED_PRODUCTS = 5 * 10**8  # fewer multiplications, some 50 ms of one core, are not deferred
MOST_COPIED = 4  # limit for K and V that must be copied for it, as a multiple of the numbers in the layer's input


@dataclass(frozen=True, eq=False)
class DeferredOutputs:
    """The last layer's output `[1, T, hidden]` for a chunk, computed on request from the layer's input `hidden`, its
    queries, and K and V `[1, H_kv, S, D]` as they were then."""

    block: Block
    hidden: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.hidden.nbytes + self.queries.nbytes + self.keys.nbytes + self.values.nbytes

    @property
    def shape(self) -> torch.Size:
        return self.hidden.shape

    def clone(self) -> DeferredOutputs:
        """A copy that stays valid while the cache, to which K and V belong, is changed by later steps."""
        return replace(self, keys=self.keys.clone(), values=self.values.clone())

    def narrow(self, dim: int, start: int, length: int) -> torch.Tensor:
        """Compute the outputs of `length` tokens from `start` on, `[1, length, hidden]`."""
        hidden, queries = self.hidden.narrow(dim, start, length), self.queries.narrow(2, start, length)
        stop = self.keys.shape[2] - self.shape[1] + start + length
        rows = torch.arange(stop, device=hidden.device)
        mask = RowMask.of((rows <= rows[stop - length :, None])[None, None], hidden)
        keys, values = self.keys[:, :, :stop], self.values[:, :, :stop]
        return self.block.after_attention(
            hidden, attention_output(self.block.attention, queries, keys, values, mask, None)
        )


@dataclass(eq=False)
class NewestOfChunk:
    """Attends as `others` does, but in the `last` layer only for the newest query; `deferred` then computes the outputs
    of all. `num_tokens` includes the chunk: a static cache has empty rows after these."""

    others: OneCache
    last: Block
    num_tokens: int
    deferred: DeferredOutputs | None = None
    _hidden: torch.Tensor | None = None

    @classmethod
    def of(cls, others: OneCache, last: Block, shape: torch.Size, least_products: int) -> NewestOfChunk | OneCache:
        """For a chunk of this shape `[1, T, hidden]`; returns `others` itself where deferring is not worth it: at most
        `least_products` multiplications, or too much to copy. The decision must depend only on sizes and on what is
        asked of attention, because both ways round differently."""
        _, count, size = shape
        batch = others.batch
        num_tokens = batch.starts[0] + count
        is_long = count > 1 and count * last.num_deferrable_products > least_products
        if not is_long or 2 * num_tokens * last.num_cached > MOST_COPIED * count * size:
            return others
        is_plain = not batch.hidden and not (batch.probe and batch.probe.wants_more)
        return cls(others, last, num_tokens) if is_plain else others

    def set_last_input(self, hidden: torch.Tensor) -> None:
        """Note the last layer's input."""
        self._hidden = hidden

    def __call__(self, attn: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if self._hidden is None:
            return self.others(attn, query, keys, values)
        held_keys, held_values = self.others.batch.cache.update(keys, values, attn.layer_idx)
        held_keys, held_values = held_keys[:, :, : self.num_tokens], held_values[:, :, : self.num_tokens]
        self.deferred = DeferredOutputs(self.last, self._hidden, query, held_keys, held_values)
        probe = self.others.batch.probe
        with timed(probe.timer if probe is not None else None, "attention", attn.layer_idx):
            return attention_output(attn, query[:, :, -1:], held_keys, held_values, UNMASKED, probe)
