"""Small bar charts that fit into a line of text, and the row norms they often show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from engine.wire.records import RowStats, SequenceStep

Floats = npt.NDArray[np.float32]


class Spark(Struct, frozen=True):
    """`codes` `[height, width]`: 0 empty, 1 bar, 2 marked bar, 3 NaN or Inf. `most` is the value of the full height."""

    codes: npt.NDArray[np.uint8]
    most: float


def spark(values: Sequence[float], width: int, height: int, gap: int, marked: int | None = None) -> Spark:
    """Bars of magnitudes; a value that is not zero has at least one pixel, NaN and Inf a full bar of code 3."""
    count = len(values)
    codes = np.zeros((max(height, 1), max(width, 1)), dtype=np.uint8)
    numbers = np.array(values, dtype=np.float64)
    finite = numbers[np.isfinite(numbers)]
    most = float(np.abs(finite).max()) if finite.size else 0.0
    for index in range(count):
        left, right = index * width // count, (index + 1) * width // count
        right -= gap if right - left > 2 * gap else 0
        value = numbers[index]
        tall = height if not np.isfinite(value) else _bar_height(abs(value), most, height)
        code = 3 if not np.isfinite(value) else 2 if index == marked else 1
        # where bars share a pixel column, the greatest code is kept
        kept = codes[height - tall :, left : max(right, left + 1)]
        kept[...] = np.maximum(kept, code)
    return Spark(codes, most)


class TokenNorms(Struct, frozen=True):
    """L2 norms of one token's K and V rows, the mean over heads of each of `layers`."""

    layers: tuple[int, ...]
    keys: list[float]
    values: list[float]


def token_norms(part: SequenceStep, position: int) -> TokenNorms | None:
    """The norms recorded by the step that wrote a position; None if it recorded none."""
    behind = part.num_tokens - position
    return None if part.rows is None or not 0 < behind <= part.rows.num_rows else norms_of(part.rows.of(-behind))


def norms_of(row: RowStats) -> TokenNorms:
    """The norms of a single row."""
    keys, values = (row_means(norm[:, :, 0]) for norm in (row.key_norm, row.value_norm))
    return TokenNorms(row.layers, keys, values)


def row_norms(layers: tuple[int, ...], rows: tuple[Floats, ...], shown: tuple[int, ...]) -> list[float]:
    """The mean over heads of the L2 norms of one position's rows, `[H_kv, D]` for each of `layers`, in the order of
    `shown`; NaN for a layer without the row."""
    norms = np.full((len(rows), max((len(row) for row in rows), default=0)), np.nan)
    for at, row in enumerate(rows):  # the squares of what an edit has scaled may be too large for 32 bits
        norms[at, : len(row)] = np.linalg.norm(row.astype(np.float64), axis=1)
    found = dict(zip(layers, row_means(norms), strict=True))
    return [found.get(layer, float("nan")) for layer in shown]


def row_means(rows: Floats) -> list[float]:
    """The mean of each row of numbers without its NaN (places that do not exist); NaN if none is left."""
    is_there = ~np.isnan(rows)
    count = is_there.sum(axis=1)
    total = np.where(is_there, rows, 0).sum(axis=1)
    means: list[float] = np.where(count > 0, total / np.maximum(count, 1), np.nan).tolist()
    return means


def _bar_height(value: float, most: float, height: int) -> int:
    if value == 0 or most == 0:
        return 0
    return max(1, round(value / most * height))
