"""Compares two snapshots layer by layer and head by head. No torch.

Rows are compared at the positions that both hold, a bounded number at a time, so that files of any size can be
compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from msgspec import Struct

from engine.analysis.tolerance import tolerance_between
from engine.errors import InputError
from engine.snapshot.format import ROWS_AT_ONCE, Array, LayerEntry
from engine.snapshot.read import SnapshotFile
from engine.spec.codec import PARTS, Part


class HeadDifference(Struct, frozen=True):
    """The difference of K or V of one head.

    `num_rows` rows are in both files, `num_missing` in only one. `norm` is that of the difference, `relative` the same
    relative to A; `largest` is the largest absolute difference. `row_error` is that of the worst row, relative to its
    size. `first_departing` is the first position whose row differs by more than rounding.
    """

    layer: int
    tensor: Part
    kv_head: int
    num_rows: int
    num_missing: int
    norm: float
    relative: float
    largest: float
    row_error: float
    first_departing: int | None


class SnapshotDifference(Struct, frozen=True):
    """The result of a comparison. `first_token` is the first position where token ids or rows differ, None if none do;
    `largest_logit` is None if a file has no logits. `is_same`: all numbers are equal bit for bit."""

    num_tokens: tuple[int, int]
    first_other_id: int | None
    heads: tuple[HeadDifference, ...]
    only_in_one: tuple[int, ...]
    largest_logit: float | None
    logit_tolerance: float
    is_same: bool

    @property
    def first_token(self) -> int | None:
        departing = [head.first_departing for head in self.heads if head.first_departing is not None]
        found = [*departing, *(() if self.first_other_id is None else (self.first_other_id,))]
        return min(found) if found else None

    @property
    def verdict(self) -> Literal["equal", "within rounding", "different"]:
        if self.is_same:
            return "equal"
        is_far = self.largest_logit is not None and self.largest_logit > self.logit_tolerance
        are_others = self.num_tokens[0] != self.num_tokens[1] or bool(self.only_in_one)
        are_missing = any(head.num_missing for head in self.heads)
        return "different" if self.first_token is not None or is_far or are_others or are_missing else "within rounding"


def difference(a: SnapshotFile, b: SnapshotFile) -> Iterator[tuple[int, int] | SnapshotDifference]:
    """Compare two files. Yields progress (heads done, of all), and last the result. Raises `InputError` if the
    dimensions of a layer differ."""
    pairs = list(pairs_of(a, b))
    heads: list[HeadDifference] = []
    for one, other, tensor, head in pairs:
        heads.append(_head(a, b, (one, other), tensor, head))
        yield len(heads), len(pairs)
    mine, theirs = ({layer.index for layer in file.layers} for file in (a, b))
    only_in_one = tuple(sorted(mine ^ theirs))
    first_id, logits = first_other_id(a, b), _logits(a, b)
    is_exact = all(not head.largest and not head.num_missing for head in heads)
    are_alike = a.manifest.num_tokens == b.manifest.num_tokens and first_id is None and not only_in_one
    yield SnapshotDifference(
        (a.manifest.num_tokens, b.manifest.num_tokens),
        first_id,
        tuple(heads),
        only_in_one,
        logits,
        tolerance_between(a.manifest.dtype, b.manifest.dtype).logit,
        is_exact and are_alike and not logits,
    )


def pairs_of(a: SnapshotFile, b: SnapshotFile) -> Iterator[tuple[LayerEntry, LayerEntry, Part, int]]:
    """K and V of every head that both files have."""
    others = {entry.index: entry for entry in b.layers}
    for one in a.layers:
        other = others.get(one.index)
        if other is None:
            continue
        sizes = [(entry.num_kv_heads, entry.key_dim, entry.value_dim) for entry in (one, other)]
        if sizes[0] != sizes[1]:
            raise InputError(
                f"'{a.path}' and '{b.path}' cannot be compared: layer {one.index} has {sizes[0][0]} heads of "
                f"{sizes[0][1]} channels in one and {sizes[1][0]} of {sizes[1][1]} in the other."
            )
        for tensor in PARTS:
            for head in sorted(set(one.heads) & set(other.heads)):
                yield one, other, tensor, head


def first_other_id(a: SnapshotFile, b: SnapshotFile) -> int | None:
    """The first position with different token ids, among those that both have; None if there is none or a file has no
    ids."""
    if "token_ids" not in a or "token_ids" not in b:
        return None
    count = min(a.manifest.num_tokens, b.manifest.num_tokens)
    for start in range(0, count, ROWS_AT_ONCE):
        rows = range(start, min(start + ROWS_AT_ONCE, count))
        others = a.array("token_ids", 0, rows=rows) != b.array("token_ids", 0, rows=rows)
        if others.any():
            return start + int(others.argmax())
    return None


def _logits(a: SnapshotFile, b: SnapshotFile) -> float | None:
    """The largest absolute difference of logits; a value that is not finite on one side only is infinitely far."""
    if "logits" not in a or "logits" not in b or a.entries["logits"].shape != b.entries["logits"].shape:
        return None
    return float(absolute_differences(a.numbers("logits"), b.numbers("logits")).max(initial=0.0))


def absolute_differences(one: Array, other: Array) -> Array:
    """|one − other| as float64: infinite if a value is not finite on one side only, 0 if both are the same non-finite
    value."""
    with np.errstate(invalid="ignore"):
        found = np.abs(one.astype(np.float64) - other)
    found[(one == other) | (np.isnan(one) & np.isnan(other))] = 0
    return np.nan_to_num(found, nan=np.inf, posinf=np.inf)


# ---- one head ----------------------------------------------------------------------------------------------------


def _head(
    a: SnapshotFile, b: SnapshotFile, entries: tuple[LayerEntry, LayerEntry], tensor: Part, head: int
) -> HeadDifference:
    """Compare one head in two passes over the rows: the first finds the size of each channel, the second the error of
    each row in these units."""
    index = entries[0].index
    places = a.positions(index, head), b.positions(index, head)
    shared, slots, others = _shared(*places)
    pieces = list(_pieces(slots, others))
    largest, squares, own = 0.0, 0.0, np.zeros(entries[0].dim(tensor))
    for piece in pieces:
        one, other = _rows(a, b, index, tensor, head, slots[piece], others[piece])
        distance = absolute_differences(one, other)
        largest = max(largest, float(distance.max(initial=0.0)))
        own += np.square(np.nan_to_num(one, nan=0.0, posinf=0.0, neginf=0.0).astype(np.float64)).sum(0)
        squares += float(np.square(distance).sum())
    worst, first = 0.0, None
    if largest:
        sizes = np.sqrt(own / max(1, len(shared)))
        units = np.maximum(sizes, np.sort(sizes)[(len(sizes) - 1) // 2]).clip(1e-6)
        allowed = tolerance_between(entries[0].dtype, entries[1].dtype).of_row(index)
        for piece in pieces:
            one, other = _rows(a, b, index, tensor, head, slots[piece], others[piece])
            errors = row_errors(other, one, units)
            wrong = ~(errors <= allowed)
            worst = max(worst, float(np.nan_to_num(errors, nan=np.inf).max()))
            first = int(shared[piece][wrong.argmax()]) if first is None and wrong.any() else first
    missing = len(places[0]) + len(places[1]) - 2 * len(shared)
    norm, of_own = math.sqrt(squares), math.sqrt(float(own.sum()))
    relative = norm / of_own if of_own else (math.inf if norm else 0.0)
    return HeadDifference(index, tensor, head, len(shared), missing, norm, relative, largest, worst, first)


def _shared(one: Array, other: Array) -> tuple[Array, Array, Array]:
    """The positions that both have, and their slots in each."""
    if len(one) == len(other) and np.array_equal(one, other):
        slots = np.arange(len(one))
        return one, slots, slots
    return np.intersect1d(one, other, assume_unique=True, return_indices=True)


def _pieces(slots: Array, others: Array) -> Iterator[slice]:
    """Slices of the shared rows, each of which spans a bounded number of rows in both files."""
    start = 0
    while start < len(slots):
        ends = (np.searchsorted(each, each[start] + ROWS_AT_ONCE) for each in (slots, others))
        stop = int(min(ends))
        yield slice(start, stop)
        start = stop


def _rows(
    a: SnapshotFile, b: SnapshotFile, layer: int, tensor: Part, head: int, slots: Array, others: Array
) -> tuple[Array, Array]:
    """Rows `[T, D]`, float32, at the given slots of both files."""
    found = []
    for file, wanted in ((a, slots), (b, others)):
        rows = file.rows(layer, tensor, head, range(int(wanted[0]), int(wanted[-1]) + 1))
        found.append(rows if len(rows) == len(wanted) else rows[wanted - wanted[0]])
    return found[0], found[1]


def row_errors(rows: Array, expected: Array, units: Array) -> Array:
    """Errors `[T]` of rows `[T, D]`, relative to the size of each row, as in `engine.analysis.reference.row_errors`:
    root mean squares over the channels, each divided by its size over all rows."""
    with np.errstate(invalid="ignore", over="ignore"):
        own = np.sqrt(np.square(expected / units).mean(1)).clip(1e-6)
        errors: Array = np.sqrt(np.square((rows - expected) / units).mean(1)) / own
    errors[((rows == expected) | (np.isnan(rows) & np.isnan(expected))).all(1)] = 0
    return errors
