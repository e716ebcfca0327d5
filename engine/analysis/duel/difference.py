"""The difference of the rows of two runs, in the form of rows, so that it can be drawn as rows are."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.cache.contract import HeldRows
from engine.look.rows_at import RowsAt, cut, places_of, slots_of
from engine.wire.records import Provenance
from engine.wire.requests import TensorName

NO_POSITION = 1 << 40  # position of a missing row: beyond every length, so that it is never drawn


@dataclass(frozen=True, eq=False)
class RowDifferences(RowsAt):
    """A - B, in float32, at the positions that both hold. Everything else about the cache is that of A."""

    mine: RowsAt | None = None
    other: RowsAt | None = None

    @classmethod
    def of(cls, a: RowsAt, b: RowsAt) -> RowDifferences:
        """The differences of the rows of A and B."""
        return cls(a.cache, min(a.num_tokens, b.num_tokens), a.live_provenance, a.moves, mine=a, other=b)

    @property
    def stamp(self) -> tuple[object, ...]:
        assert self.mine is not None
        assert self.other is not None
        return (self.num_tokens, self.mine.stamp, self.other.stamp)

    @property
    def exact_provenance(self) -> Provenance:
        return "difference"

    def exact_from(self, layer: int, tensor: TensorName) -> int:
        return 0

    def rows(self, layer: int) -> HeldRows | None:
        assert self.mine is not None
        assert self.other is not None
        if layer not in self._kept:
            self._kept[layer] = subtract_known(self.mine.rows(layer), self.other.rows(layer))
        return self._kept[layer]

    def num_final(self, layer: int, tensor: TensorName) -> int:
        assert self.mine is not None
        assert self.other is not None
        return min(self.mine.num_final(layer, tensor), self.other.num_final(layer, tensor))

    def newest(self, layer: int, first: int) -> HeldRows | None:
        assert self.mine is not None
        assert self.other is not None
        if not first:
            return self.rows(layer)
        return subtract_known(self.mine.newest(layer, first), self.other.newest(layer, first))

    def stored(self, layer: int, first: int) -> HeldRows | None:
        assert self.mine is not None
        assert self.other is not None
        return subtract_known(self.mine.stored(layer, first), self.other.stored(layer, first))


@dataclass(frozen=True, eq=False)
class PresentRows(RowsAt):
    """The rows as they are held `now`, limited to the first `num_tokens` positions."""

    now: RowsAt | None = None

    @classmethod
    def of(cls, now: RowsAt, num_tokens: int) -> PresentRows:
        """The rows `now`, limited to the first `num_tokens` positions."""
        return cls(now.cache, num_tokens, now.live_provenance, now.moves, now=now)

    @property
    def stamp(self) -> tuple[object, ...]:
        assert self.now is not None
        return (self.num_tokens, self.now.stamp)

    @property
    def exact_provenance(self) -> Provenance:
        return "as stored now"

    def exact_from(self, layer: int, tensor: TensorName) -> int:
        assert self.now is not None
        return self.now.exact_from(layer, tensor)

    def rows(self, layer: int) -> HeldRows | None:
        assert self.now is not None
        return cut(self.now.rows(layer), self.num_tokens)

    def num_final(self, layer: int, tensor: TensorName) -> int:
        assert self.now is not None
        return min(self.now.num_final(layer, tensor), self.num_tokens)

    def newest(self, layer: int, first: int) -> HeldRows | None:
        assert self.now is not None
        return cut(self.now.newest(layer, first), self.num_tokens)

    def stored(self, layer: int, first: int) -> HeldRows | None:
        assert self.now is not None
        return self.now.stored(layer, first)


def subtract_known(a: HeldRows | None, b: HeldRows | None) -> HeldRows | None:
    """A - B of one layer; None where a side has no rows."""
    return None if a is None or b is None else subtract_rows(a, b)


@torch.inference_mode()
def subtract_rows(a: HeldRows, b: HeldRows) -> HeldRows | None:
    """A - B, `[1, H_kv, S, D]`, at the positions that both hold; None if there are none."""
    if a.positions is None and b.positions is None:
        first, stop = max(a.first, b.first), min(a.stop, b.stop)
        if first >= stop:
            return None
        one, other = (slice(first - rows.first, stop - rows.first) for rows in (a, b))
        keys = a.keys[:, :, one].float() - b.keys[:, :, other].float()
        return HeldRows(keys, a.values[:, :, one].float() - b.values[:, :, other].float(), first)
    here, there = places_of(a), places_of(b)
    slots, is_held = slots_of(there, here)
    if not bool(is_held.any()):
        return None
    positions, order = here.masked_fill(~is_held, NO_POSITION).sort(1)
    differences = (
        mine[0].float() - gather_rows(others[0], slots).float()
        for mine, others in ((a.keys, b.keys), (a.values, b.values))
    )
    keys, values = (gather_rows(rows, order) for rows in differences)
    return HeldRows(keys[None], values[None], int(positions.min()), positions)


def gather_rows(rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Select rows of `[H, R, D]` at the indices `slots` `[H, S]`."""
    return rows.gather(1, slots[..., None].expand(-1, -1, rows.shape[2]))
