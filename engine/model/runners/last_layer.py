"""The last layer of a chunk: the first token needs its newest output alone; the others are made where somebody asks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from engine.cache.part_timer import timed
from engine.model.runners.attending import UNMASKED, OneCache, RowMask, attended

if TYPE_CHECKING:
    from engine.model.runners.decoder import Block

WORTH_PRODUCTS = 5 * 10**8  # multiplications that are put off, some 50 ms of one core: fewer are made at once
MOST_COPIED = 4  # times the numbers that the layer reads: more of K and V is not copied to be read later


@dataclass(frozen=True, eq=False)
class LaterOutputs:
    """What the last layer makes of a chunk, `[1, T, hidden]`, computed where it is asked for: from the `hidden` of the
    same shape that it read, from its queries, and from the K and V that were there, `[1, H_kv, S, D]`."""

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

    def clone(self) -> LaterOutputs:
        """The same while the cache, whose K and V these are, goes on."""
        return replace(self, keys=self.keys.clone(), values=self.values.clone())

    def narrow(self, dim: int, start: int, length: int) -> torch.Tensor:
        """Those of so many tokens, `[1, length, hidden]`, from `start` on."""
        hidden, queries = self.hidden.narrow(dim, start, length), self.queries.narrow(2, start, length)
        stop = self.keys.shape[2] - self.shape[1] + start + length
        rows = torch.arange(stop, device=hidden.device)
        mask = RowMask.of((rows <= rows[stop - length :, None])[None, None], hidden)
        keys, values = self.keys[:, :, :stop], self.values[:, :, :stop]
        return self.block.ended(hidden, attended(self.block.attention, queries, keys, values, mask, None))


@dataclass(eq=False)
class NewestOfChunk:
    """Queries of a chunk read a cache as in `others`; in the `last` layer the newest alone does, and `later` is what
    gives the outputs of all. `num_tokens` with the chunk: the room of a static cache goes on behind them."""

    others: OneCache
    last: Block
    num_tokens: int
    later: LaterOutputs | None = None
    _hidden: torch.Tensor | None = None

    @classmethod
    def of(cls, others: OneCache, last: Block, shape: torch.Size, least_products: int) -> NewestOfChunk | OneCache:
        """For a chunk `[1, T, hidden]`; `others` itself where nothing is put off: because
        `least_products` are not exceeded, or much would be copied. That depends on sizes, and on what the cache asks of
        attention, alone: other ways round differently."""
        _, count, size = shape
        probe, num_tokens = others.probe, others.cache.get_seq_length() + count
        is_long = count > 1 and count * last.num_later_products > least_products
        if not is_long or 2 * num_tokens * last.num_cached > MOST_COPIED * count * size:
            return others
        is_plain = not others.hidden_rows and not (probe and probe.wants_more)
        return cls(others, last, num_tokens) if is_plain else others

    def enter_last(self, hidden: torch.Tensor) -> None:
        """The last layer reads this."""
        self._hidden = hidden

    def __call__(self, attn: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if self._hidden is None:
            return self.others(attn, query, keys, values)
        held_keys, held_values = self.others.cache.update(keys, values, attn.layer_idx)
        held_keys, held_values = held_keys[:, :, : self.num_tokens], held_values[:, :, : self.num_tokens]
        self.later = LaterOutputs(self.last, self._hidden, query, held_keys, held_values)
        probe = self.others.probe
        with timed(probe.timer if probe is not None else None, "attention", attn.layer_idx):
            return attended(attn, query[:, :, -1:], held_keys, held_values, UNMASKED, probe)
