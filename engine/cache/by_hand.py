"""What was done by hand to a cache beside its numbers: rows hidden from attention, rows pinned, and what an edit makes
unknowable of the states before it. Everything is by position, so that it holds whatever the layout does with rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

from engine.errors import InputError
from engine.spec.codec import Part
from engine.spec.retention import RetentionSpec


@dataclass(frozen=True, eq=False)
class RowMarks:
    """Marked rows: for each layer a mask `[H_kv, P]` over positions, those from P on are not marked."""

    layers: Mapping[int, torch.Tensor] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.layers)

    def marking(self, layer: int, num_heads: int, heads: Iterable[int], span: range, is_marked: bool) -> RowMarks:
        """With these positions of these heads marked, or not any more."""
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
        """Those behind the first tokens, counted from there."""
        return RowMarks({layer: mask[:, num_tokens:] for layer, mask in self.layers.items()}) if num_tokens else self

    def before(self, num_tokens: int) -> RowMarks:
        """Those of the first tokens."""
        cut = {layer: mask[:, :num_tokens] for layer, mask in self.layers.items()}
        return RowMarks({layer: mask for layer, mask in cut.items() if mask.any()})


@dataclass(frozen=True, eq=False)
class ByHand:
    """Edits of one cache: `hidden` and `pinned` rows, and of every edit how many tokens there were and the first
    position that it changed."""

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
        """After one edit more."""
        return replace(self, edits=(*self.edits, (num_tokens, first_position)))

    def knows(self, num_tokens: int) -> bool:
        """Whether the first rows are those of then: every edit came before, or changed none of them."""
        return all(num_tokens >= at or num_tokens <= first for at, first in self.edits)

    def clamped(self, num_tokens: int) -> ByHand:
        """As if every edit had been made when there were at most so many tokens: those rows are to stay as they are."""
        return replace(self, edits=tuple((min(at, num_tokens), first) for at, first in self.edits))

    def back_to(self, num_tokens: int) -> ByHand:
        """Without what was done to later rows."""
        if not self.edits:
            return self
        kept = tuple((at, first) for at, first in self.edits if num_tokens >= at)
        return ByHand(self.hidden.before(num_tokens), self.pinned.before(num_tokens), kept)


UNTOUCHED = ByHand()


def check_budget(retention: RetentionSpec, seen: int, pinned: torch.Tensor, whose: str) -> None:
    """Raises `InputError` where a budget cannot hold pinned rows `[H_kv, P]` beside those that always stay."""
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
    """New numbers `[N, T, D]` for K or V of one layer: of kv heads `[N]`, in slots `[N, T]` of the rows that it holds,
    which are those at `span`."""

    layer: int
    part: Part
    heads: torch.Tensor
    slots: torch.Tensor
    numbers: torch.Tensor
    span: range


def put(rows: torch.Tensor, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
    """Write numbers `[N, T, …]` into rows `[H_kv, S, …]`, in place."""
    rows[heads.to(rows.device)[:, None], slots.to(rows.device)] = numbers.to(rows)
