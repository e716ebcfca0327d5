"""What one step did to the rows of one layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.spec.codec import Part

NO_ROWS = range(0)


@dataclass(frozen=True, slots=True, eq=False)
class RowDelta:
    """What happened to the rows of one layer, given in positions.

    `written`: new rows. `rewritten_keys`, `rewritten_values`: older rows whose numbers changed because a codec
    quantised their group or a sink was rotated again. `evicted`: tensors `[H_kv, E]` of rows that an eviction rule
    evicted. `left_window`: rows that fell out of a sliding window.
    """

    written: range
    rewritten_keys: range = NO_ROWS
    rewritten_values: range = NO_ROWS
    left_window: range = NO_ROWS
    evicted: tuple[torch.Tensor, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether rows were written and nothing else happened."""
        return not (self.rewritten_keys or self.rewritten_values or self.left_window or self.evicted)

    def rewritten(self, part: Part) -> range:
        """Older rows of K or of V whose numbers changed."""
        return self.rewritten_keys if part == "keys" else self.rewritten_values

    def touches(self, position: int) -> bool:
        """Whether anything happened to the row of a position."""
        runs = (self.written, self.rewritten_keys, self.rewritten_values, self.left_window)
        return any(position in run for run in runs) or any(bool((went == position).any()) for went in self.evicted)

    def then(self, later: RowDelta) -> RowDelta:
        """This delta followed by `later`, as one. Runs are joined to the shortest run that covers both, so more rows
        than were changed may count as rewritten."""
        if self.is_plain and later.is_plain:
            return RowDelta(hull(self.written, later.written))
        return RowDelta(
            hull(self.written, later.written),
            hull(self.rewritten_keys, later.rewritten_keys),
            hull(self.rewritten_values, later.rewritten_values),
            hull(self.left_window, later.left_window),
            self.evicted + later.evicted,
        )


def combined_by_layer(earlier: list[RowDelta], later: list[RowDelta]) -> list[RowDelta]:
    """The deltas of two successive steps as one for each layer. Where all layers did the same, as in append-only
    caches, it is computed once."""
    if later and earlier.count(earlier[0]) == later.count(later[0]) == len(later):
        return [earlier[0].then(later[0])] * len(later)
    return [mine.then(after) for mine, after in zip(earlier, later, strict=True)]


def hull(one: range, other: range) -> range:
    """The shortest range that covers both ranges."""
    if not (one and other):
        return one or other
    return range(min(one.start, other.start), max(one.stop, other.stop))


def windowed(written: RowDelta, num_kept: int) -> RowDelta:
    """The same delta for a layer that keeps only the latest `num_kept` rows: older ones have left its window."""
    before, after = (max(0, count - num_kept) for count in (written.written.start, written.written.stop))
    return written if after == before else RowDelta(written.written, left_window=range(before, after))
