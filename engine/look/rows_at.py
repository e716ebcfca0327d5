"""The rows of a sequence as they stood when it had fewer tokens, and questions about held rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.cache.contract import HeldRows, StateMatrix
from engine.cache.row_delta import RowDelta
from engine.history.marks import Move, are_kept
from engine.spec.cache import CacheSpec
from engine.spec.codec import Part
from engine.wire.arrays import read_only_ints
from engine.wire.records import Ints, Provenance
from engine.wire.requests import TensorName


class RowSource(Protocol):
    """Where rows come from, as whoever looks at them asks: the cache of a live sequence, or a file. What each question
    means is said at `SequenceCache`."""

    @property
    def spec(self) -> CacheSpec: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def layers(self) -> Sequence[object]:
        """One for each layer of the model."""
        ...

    def rows(self, layer_index: int) -> HeldRows | None: ...

    def rows_at(self, layer_index: int, num_tokens: int) -> HeldRows | None: ...

    def knows(self, num_tokens: int) -> bool: ...

    def num_final(self, layer_index: int, part: Part) -> int: ...

    def states(self, layer_index: int) -> tuple[StateMatrix, ...]: ...

    def changes_since(self, num_tokens: int, until: int | None = None) -> list[RowDelta] | None: ...

    def page_ids_at(self, num_tokens: int) -> list[list[int]]: ...


@dataclass(frozen=True)
class HalfWritten:
    """What a suspended step has written of a sequence: the first `num_passed` of `num_layers` layers have its rows, up
    to `num_tokens`; later ones have those of `had` tokens."""

    step: int
    had: int
    num_tokens: int
    num_passed: int
    num_layers: int

    def has_passed(self, layer: int) -> bool:
        """Whether a layer has the rows of the step; a cross layer is passed with its block."""
        return layer % self.num_layers < self.num_passed

    def rows_of(self, layer: int) -> int:
        """How many tokens a layer has been given rows of."""
        return self.num_tokens if self.has_passed(layer) else self.had

    @property
    def note(self) -> str:
        """What a picture says of it; nothing where every layer has the rows."""
        if self.num_passed == self.num_layers:
            return ""
        if not self.num_passed:
            return f"Step {self.step} is scheduled: no layer has its rows yet."
        behind = f"Step {self.step} is suspended behind layer {self.num_passed - 1}"
        return f"{behind}: later layers do not have its rows yet."


@dataclass(frozen=True, eq=False)
class RowsAt:
    """The rows of a sequence when it had `num_tokens` tokens, and where they come from.

    `moves` are those of the sequence, through the cache modes that it was in. `live_provenance` is that of the present
    rows. `half` says which layers have them, while a step is suspended.
    """

    cache: RowSource
    num_tokens: int
    live_provenance: Provenance
    moves: tuple[Move, ...] = ()
    half: HalfWritten | None = None
    _kept: dict[int, HeldRows | None] = field(default_factory=dict, init=False)

    @property
    def is_known(self) -> bool:
        """Whether the rows are those of then, bit for bit."""
        # the last step before a change of the mode had as many tokens as the change, and other rows
        later = (move for move in self.moves if move.had >= self.num_tokens)
        is_present = self.num_tokens >= self.cache.num_tokens
        return (is_present or are_kept(self.num_tokens, later)) and self.cache.knows(self.num_tokens)

    @property
    def provenance(self) -> Provenance:
        if not self.is_known:
            return "as stored now"
        spec = self.cache.spec
        is_put_back = self.num_tokens < self.cache.num_tokens and not spec.retention.keeps_all and spec.codec.is_exact
        return "recorded" if is_put_back else self.live_provenance

    def rows(self, layer: int) -> HeldRows | None:
        """Asked once of the cache, which may have to decode them."""
        if layer not in self._kept:
            rows = self.cache.rows_at(layer, self.num_tokens) if self.is_known else self.cache.rows(layer)
            written = self.num_tokens if self.half is None else self.half.rows_of(layer)
            self._kept[layer] = cut(rows, min(self.num_tokens, written))
        return self._kept[layer]

    def changes(self, num_tokens: int) -> list[RowDelta]:
        """What became of the rows of each layer since the sequence had so many tokens: where the cache has forgotten,
        any older row may have been written anew."""
        written, older = range(num_tokens, self.num_tokens), range(num_tokens)
        if not rewrites(self.cache):
            return [RowDelta(written)] * len(self.cache.layers)
        known = self.cache.changes_since(num_tokens, self.num_tokens) if self.is_known else None
        return known or [RowDelta(written, older, older)] * len(self.cache.layers)

    def before_step(self, num_tokens: int) -> RowsAt:
        """What the step found that followed on so many tokens: after a change of the mode what that had made of it."""
        return replace(self, num_tokens=num_tokens, moves=tuple(m for m in self.moves if m.had > num_tokens))


def chosen(rows: HeldRows, tensor: TensorName) -> torch.Tensor:
    return rows.keys if tensor == "keys" else rows.values


def places_of(rows: HeldRows) -> torch.Tensor:
    """The positions `[H_kv, S]` of rows."""
    if rows.positions is not None:
        return rows.positions
    return torch.arange(rows.first, rows.stop, device=rows.keys.device).expand(rows.keys.shape[1], -1)


def slots_of(held: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The slots of positions `wanted` `[H, S]` among those `held` `[H, R]`, ascending, and which of them are held."""
    slots = torch.searchsorted(held.contiguous(), wanted.contiguous()).clamp(max=held.shape[1] - 1)
    return slots, held.gather(1, slots) == wanted


def rewrites(cache: RowSource) -> bool:
    """Whether a step may write older rows anew: residuals that are coded late, scales that wait, keys that turn."""
    spec = cache.spec
    return spec.retention.rerotate or any(c.is_kivi or c.waits_for_prompt for c in spec.codec.codings)


def cut(rows: HeldRows | None, num_tokens: int) -> HeldRows | None:
    """The rows as they were when the sequence had `num_tokens` tokens.

    Scattered rows that are not those of then may be of another number in every head: they are cut where they are drawn.
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
    """K and V `[H_kv, D]` of one position, NaN in heads that have dropped it; None where no head holds it."""
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


def without(rows: HeldRows, position: int) -> tuple[int, ...]:
    """The heads that do not hold a position."""
    if rows.positions is None:
        return ()
    return tuple((~(rows.positions == position).any(1)).nonzero()[:, 0].tolist())


def holders(held: Iterable[HeldRows], positions: npt.NDArray[np.int64]) -> Ints:
    """How many kv heads, and how many layers, hold each of those positions `[M]`: `[2, M]`."""
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
