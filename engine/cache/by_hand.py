"""Edits by hand of one cache, other than changed numbers: rows hidden from attention, pinned rows, and which earlier
states an edit makes impossible to restore. All of it is kept by position, so that it stays valid wherever a layout
moves rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

from engine.errors import InputError
from engine.spec.codec import Part
from engine.spec.retention import RetentionSpec


@dataclass(frozen=True, eq=False)
class RowMarks:
    """Marked rows: for each layer a mask `[H_kv, P]` over positions. Positions from P on are not marked."""

    layers: Mapping[int, torch.Tensor] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.layers)

    def marking(self, layer: int, num_heads: int, heads: Iterable[int], span: range, is_marked: bool) -> RowMarks:
        """These marks with the positions `span` of some heads marked, or unmarked if not `is_marked`."""
        old = self.layers.get(layer)
        count = max(span.stop, 0 if old is None else old.shape[1])
        mask = torch.zeros(num_heads, count, dtype=torch.bool)
        if old is not None:
            mask[:, : old.shape[1]] = old
        mask[list(heads), span.start : span.stop] = is_marked
        others = {index: mask for index, mask in self.layers.items() if index != layer}
        return RowMarks({**others, layer: mask} if mask.any() else others)

    def at(self, layer: int, positions: torch.Tensor) -> torch.Tensor | None:
        """Which rows `[H_kv, S]` at these positions are marked; None where the layer has no mark."""
        mask = self.layers.get(layer)
        if mask is None:
            return None
        padded = torch.nn.functional.pad(mask, (0, 1)).to(positions.device)
        return padded.gather(1, positions.clamp(max=mask.shape[1]))

    def behind(self, num_tokens: int) -> RowMarks:
        """The marks of rows from position `num_tokens` on, counted from there."""
        return RowMarks({layer: mask[:, num_tokens:] for layer, mask in self.layers.items()}) if num_tokens else self

    def before(self, num_tokens: int) -> RowMarks:
        """The marks of the first `num_tokens` positions."""
        cut = {layer: mask[:, :num_tokens] for layer, mask in self.layers.items()}
        return RowMarks({layer: mask for layer, mask in cut.items() if mask.any()})


@dataclass(frozen=True, eq=False)
class ByHand:
    """Edits of one cache: `hidden` and `pinned` rows, and for every edit the number of tokens at that time and the
    first position that it changed."""

    hidden: RowMarks = RowMarks()
    pinned: RowMarks = RowMarks()
    edits: tuple[tuple[int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.edits)

    @property
    def first_position(self) -> int | None:
        """The first position that any edit changed; None where there is no edit."""
        return min((first for _, first in self.edits), default=None)

    def edited(self, num_tokens: int, first_position: int) -> ByHand:
        """These edits and one more."""
        return replace(self, edits=(*self.edits, (num_tokens, first_position)))

    def knows(self, num_tokens: int) -> bool:
        """Whether the first `num_tokens` rows are as they were when the sequence had that many tokens: every edit was
        made before that, or changed later rows only."""
        return all(num_tokens >= at or num_tokens <= first for at, first in self.edits)

    def clamped(self, num_tokens: int) -> ByHand:
        """The same edits as if made when there were at most `num_tokens` tokens: going back to `num_tokens` then keeps
        the edited rows as they are now."""
        return replace(self, edits=tuple((min(at, num_tokens), first) for at, first in self.edits))

    def back_to(self, num_tokens: int) -> ByHand:
        """The edits that remain after going back to `num_tokens` tokens."""
        if not self.edits:
            return self
        kept = tuple((at, first) for at, first in self.edits if num_tokens >= at)
        return ByHand(self.hidden.before(num_tokens), self.pinned.before(num_tokens), kept)


UNTOUCHED = ByHand()


def check_budget(retention: RetentionSpec, seen: int, pinned: torch.Tensor, whose: str) -> None:
    """Raise `InputError` if an eviction rule's budget cannot hold pinned rows `[H_kv, P]` beside the rows that it
    always keeps."""
    num_kept = retention.num_kept(max(seen, retention.budget or 0, retention.sinks + (retention.window or 0)))
    always = retention.sinks + retention.recent(num_kept)
    if retention.is_by_position:
        always = num_kept
    count = int(pinned[:, retention.sinks :].sum(1).max()) if pinned.shape[1] > retention.sinks else 0
    if always + count > num_kept:
        raise InputError(
            f"The {num_kept:,} rows {whose} that this mode keeps cannot hold {count:,} pinned ones beside {always:,} "
            "that always stay: pin fewer, or give a larger budget."
        )


@dataclass(frozen=True, eq=False)
class RowWrite:
    """New numbers `[N, T, D]` for K or V of one layer: of kv heads `[N]`, in slots `[N, T]` of the rows that the layer
    holds. `span` are their positions."""

    layer: int
    part: Part
    heads: torch.Tensor
    slots: torch.Tensor
    numbers: torch.Tensor
    span: range


def write_slots(rows: torch.Tensor, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
    """Write numbers `[N, T, …]` into rows `[H_kv, S, …]` at the given heads `[N]` and slots `[N, T]`, in place."""
    rows[heads.to(rows.device)[:, None], slots.to(rows.device)] = numbers.to(rows)
