"""The rows of a sequence as they were at an earlier step, and functions on held rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.cache.contract import HeldRows, StateMatrix
from engine.cache.row_delta import RowDelta
from engine.history.journal import Move, are_kept
from engine.spec.cache import CacheSpec
from engine.spec.codec import Part
from engine.wire.arrays import read_only_ints
from engine.wire.records import Ints, Provenance
from engine.wire.requests import TensorName


class RowSource(Protocol):
    """A source of rows: the cache of a live sequence, or a file. Its methods are described in `SequenceCache`."""

    @property
    def spec(self) -> CacheSpec: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def layers(self) -> Sequence[object]:
        """One item for each layer of the model."""
        ...

    def rows(self, layer_index: int) -> HeldRows | None: ...

    def rows_at(self, layer_index: int, num_tokens: int) -> HeldRows | None: ...

    def newest_rows(self, layer_index: int, first_position: int) -> HeldRows | None: ...

    def newest_rows_at(self, layer_index: int, num_tokens: int, first_position: int) -> HeldRows | None: ...

    def knows(self, num_tokens: int) -> bool: ...

    def num_final(self, layer_index: int, part: Part, num_tokens: int) -> int: ...

    def exact_from(self, layer_index: int, num_tokens: int, part: Part) -> int: ...

    def states(self, layer_index: int) -> tuple[StateMatrix, ...]: ...

    def changes_since(self, num_tokens: int, until: int | None = None) -> list[RowDelta] | None: ...

    def page_ids_at(self, num_tokens: int) -> list[list[int]]: ...


@dataclass(frozen=True)
class HalfWritten:
    """The progress of a suspended step in one sequence: the first `num_passed` of `num_layers` layers have their rows
    of it, up to `num_tokens` tokens; the others have rows of `had` tokens."""

    step: int
    had: int
    num_tokens: int
    num_passed: int
    num_layers: int

    def has_passed(self, layer: int) -> bool:
        """Whether a layer has its rows of the step; a cross layer counts as part of its block."""
        return layer % self.num_layers < self.num_passed

    def rows_of(self, layer: int) -> int:
        """Of how many tokens a layer has rows."""
        return self.num_tokens if self.has_passed(layer) else self.had

    @property
    def note(self) -> str:
        """What a picture says about the suspended step; empty where every layer has its rows."""
        if self.num_passed == self.num_layers:
            return ""
        if not self.num_passed:
            return f"Step {self.step} is scheduled: no layer has its rows yet."
        where = f"Step {self.step} is suspended after layer {self.num_passed - 1}"
        return f"{where}: later layers do not have its rows yet."


@dataclass(frozen=True, eq=False)
class RowsAt:
    """The rows of a sequence when it had `num_tokens` tokens, and their provenance.

    `moves`: when the sequence came into each of its cache modes. `live_provenance` is the provenance of its present
    rows as far as they are exact. `half` tells which layers have the newest rows while a step is suspended. `is_past`:
    some of the moves came after the moment that is meant, even if the sequence had as many tokens then as now.
    """

    cache: RowSource
    num_tokens: int
    live_provenance: Provenance
    moves: tuple[Move, ...] = ()
    half: HalfWritten | None = None
    is_past: bool = False
    _kept: dict[int, HeldRows | None] = field(default_factory=dict, init=False)

    @property
    def stamp(self) -> tuple[object, ...]:
        """What tells these rows from those of another moment of the same sequence: equal if their rows are."""
        return (self.num_tokens, self.cache.num_tokens, self.provenance, self.half)

    @cached_property
    def is_known(self) -> bool:
        """Whether the rows are, bit for bit, those that the sequence held then."""
        # >=, because the last step before a change of mode had equally many tokens, but other rows
        later = (move for move in self.moves if move.had >= self.num_tokens)
        is_present = self.num_tokens >= self.cache.num_tokens and not self.is_past
        return (is_present or are_kept(self.num_tokens, later)) and self.cache.knows(self.num_tokens)

    @property
    def exact_provenance(self) -> Provenance:
        """The provenance of the rows that attention does not read from quantised codes."""
        if not self.is_known:
            return "as stored now"
        is_restored = self.num_tokens < self.cache.num_tokens and not self.cache.spec.retention.keeps_all
        return "recorded" if is_restored else self.live_provenance

    @property
    def provenance(self) -> Provenance:
        """The provenance of all rows together: "dequantised" if any layer reads K or V from codes."""
        return self.provenance_of(range(len(self.cache.layers)))

    def provenance_of(
        self, layers: Iterable[int], tensors: Collection[TensorName] = ("keys", "values"), first: int = 0
    ) -> Provenance:
        """The provenance of these rows from position `first` on: "dequantised" if attention read any from codes."""
        exact = self.exact_provenance
        if exact not in ("live cache", "kept", "recorded"):
            return exact
        is_coded = any(self.exact_from(layer, tensor) > first for layer in layers for tensor in tensors)
        return "dequantised" if is_coded else exact

    def exact_from(self, layer: int, tensor: TensorName) -> int:
        """The position from which on the rows of a layer are exact: those before it are read from quantised codes."""
        return self.cache.exact_from(layer, self.num_tokens if self.is_known else self.cache.num_tokens, tensor)

    def rows(self, layer: int) -> HeldRows | None:
        """The rows of a layer, without those of later tokens; None if it held none. The cache is asked only once for
        each layer, as it may have to dequantise the rows."""
        if layer not in self._kept:
            written = self.num_tokens if self.half is None else self.half.rows_of(layer)
            stored = self.cache.rows_at(layer, self.num_tokens) if self.is_known else self.cache.rows(layer)
            self._kept[layer] = cut(stored, min(self.num_tokens, written))
        return self._kept[layer]

    def num_final(self, layer: int, tensor: TensorName) -> int:
        """How many of the rows of a layer, from position 0 on, have the same numbers at every later step; 0 where some
        were dropped since, or a suspended step may still be undone."""
        if self.half is not None:
            return 0
        return min(self.cache.num_final(layer, tensor, self._shown_at), self.num_tokens)

    def newest(self, layer: int, first: int) -> HeldRows | None:
        """The rows from position `first` on, of a layer with `num_final` rows; earlier ones are not dequantised."""
        if not first:
            return self.rows(layer)
        return cut(self.cache.newest_rows_at(layer, self._shown_at, first), self.num_tokens)

    def stored(self, layer: int, first: int) -> HeldRows | None:
        """What is stored now from position `first` on, of a layer with `num_final` rows, those of later tokens too."""
        return self.cache.newest_rows(layer, first)

    @cached_property
    def _shown_at(self) -> int:
        """The number of tokens at which the cache held these rows: where it no longer knows them, the present."""
        return self.num_tokens if self.is_known else self.cache.num_tokens

    def changes(self, num_tokens: int) -> list[RowDelta]:
        """What happened to the rows of each layer since the sequence had `num_tokens` tokens. If the cache does not
        know, every older row counts as rewritten."""
        written, older = range(num_tokens, self.num_tokens), range(num_tokens)
        if not rewrites(self.cache):
            return [RowDelta(written)] * len(self.cache.layers)
        known = self.cache.changes_since(num_tokens, self.num_tokens) if self.is_known else None
        return known or [RowDelta(written, older, older)] * len(self.cache.layers)

    def before_step(self, num_tokens: int) -> RowsAt:
        """The rows that the step after `num_tokens` tokens started with; if the cache mode was changed at that point,
        those after the change."""
        return replace(self, num_tokens=num_tokens, moves=tuple(m for m in self.moves if m.had > num_tokens))


def chosen(rows: HeldRows, tensor: TensorName) -> torch.Tensor:
    """K or V of some rows, `[1, H_kv, S, D]`."""
    return rows.keys if tensor == "keys" else rows.values


def places_of(rows: HeldRows) -> torch.Tensor:
    """The positions `[H_kv, S]` of rows."""
    if rows.positions is not None:
        return rows.positions
    return torch.arange(rows.first, rows.stop, device=rows.keys.device).expand(rows.keys.shape[1], -1)


def slots_of(held: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For positions `wanted` `[H, S]`: their slots among the `held` ones `[H, R]` (ascending), and which of them are
    held."""
    slots = torch.searchsorted(held.contiguous(), wanted.contiguous()).clamp(max=held.shape[1] - 1)
    return slots, held.gather(1, slots) == wanted


def rewrites(cache: RowSource) -> bool:
    """Whether a step may overwrite older rows: with residuals that are quantised late, scales that wait for the
    prompt's end, or keys that are rotated again."""
    spec = cache.spec
    return spec.retention.rerotate or any(c.is_kivi or c.waits_for_prompt for c in spec.codec.codings)


def cut(rows: HeldRows | None, num_tokens: int) -> HeldRows | None:
    """The rows as they were when the sequence had `num_tokens` tokens.

    Rows whose number would differ between heads are returned whole; they are cut where they are drawn.
    """
    if rows is None or rows.first >= num_tokens:
        return None
    positions, keep = rows.positions, num_tokens - rows.first
    if positions is not None:
        counts = (positions < num_tokens).sum(1)
        keep = int(counts[0])
        if keep == 0 or bool((counts != keep).any()):
            return rows
        positions = positions[:, :keep]
    return HeldRows(rows.keys[:, :, :keep], rows.values[:, :, :keep], rows.first, positions)


def row_at(rows: HeldRows, position: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """K and V `[H_kv, D]` of one position, NaN in heads that have evicted it; None where no head holds it."""
    if rows.positions is None:
        if not rows.first <= position < rows.stop:
            return None
        offset = position - rows.first
        return rows.keys[0, :, offset].float(), rows.values[0, :, offset].float()
    is_here = rows.positions == position
    if not bool(is_here.any()):
        return None
    slots, lost = is_here.int().argmax(1), ~is_here.any(1)
    heads = torch.arange(len(slots), device=slots.device)
    keys, values = (t[0, heads, slots].float().masked_fill(lost[:, None], torch.nan) for t in (rows.keys, rows.values))
    return keys, values


def heads_without(rows: HeldRows, position: int) -> tuple[int, ...]:
    """The heads that do not hold a position."""
    if rows.positions is None:
        return ()
    return tuple((~(rows.positions == position).any(1)).nonzero()[:, 0].tolist())


def holders(held: Iterable[HeldRows], positions: npt.NDArray[np.int64]) -> Ints:
    """For each of the positions `[M]`, how many kv heads and how many layers hold it: `[2, M]`."""
    found = np.zeros((2, len(positions)), np.int64)
    scattered: dict[torch.device, torch.Tensor] = {}
    for rows in held:
        if rows.positions is None:
            is_held = (positions >= rows.first) & (positions < rows.stop)
            found += np.array([[rows.keys.shape[1]], [1]]) * is_held
        elif rows.positions.shape[1]:
            wanted = torch.tensor(positions, device=rows.positions.device).expand(len(rows.positions), -1)
            heads = slots_of(rows.positions, wanted)[1].sum(0)
            here = torch.stack([heads, (heads > 0).long()])
            scattered[here.device] = scattered[here.device] + here if here.device in scattered else here
    for here in scattered.values():
        found += here.cpu().numpy()
    return read_only_ints(found)
