"""Numbers to colours: tables of 256 colours, and the 8-bit indices into them.

The last entry of every table is the colour of NaN and Inf, so that these can never be taken for a value. The other 255
entries are an odd number, so that zero of a signed map has an entry of its own, the ground colour.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from engine.wire.pictures import HeadPicture

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.uint8]
Pixels = npt.NDArray[np.uint32]
ColorTable = npt.NDArray[np.uint8]  # [256, 4] red, green, blue, alpha

NON_FINITE = 255
HIGHEST = 254
ZERO = 127

# Björn Ottosson's OKLab (public domain): colours mixed there change evenly to the eye and are not muddy in between.
_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def rgb(colour: str) -> tuple[int, int, int]:
    """The three bytes of `#rrggbb`."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


class ColorScale(Struct, frozen=True, eq=False):
    """The colours of numbers from `-limit` to `limit`; of magnitudes, which are never below zero, from 0 to `limit`.
    `inks`: for each colour, that of text on it."""

    table: ColorTable
    is_signed: bool
    inks: tuple[str, ...] = ()

    def index(self, values: Floats, limit: float) -> Indices:
        return signed_index(values, limit) if self.is_signed else magnitude_index(values, limit)

    def words(self, limit: str) -> str:
        """`±2.1`, or `0–2.1`."""
        return f"±{limit}" if self.is_signed else f"0–{limit}"


def signed_table(negative: str, middle: str, positive: str, loud: str) -> ColorTable:
    """A table from `negative` (index 0) over `middle` (ZERO) to `positive` (HIGHEST); the last entry is `loud`."""
    below = blend((negative, middle), ZERO + 1)
    above = blend((middle, positive), HIGHEST - ZERO + 1)
    return _table(np.concatenate([below, above[1:]]), loud)


def magnitude_table(ground: str, colour: str, top: str, loud: str) -> ColorTable:
    """A table from `ground` (zero) over `colour` to `top` (the largest); the last entry is `loud`."""
    rising = blend((ground, colour), 192)
    return _table(np.concatenate([rising, blend((colour, top), HIGHEST - 190)[1:]]), loud)


def blend(stops: tuple[str, str], count: int) -> npt.NDArray[np.uint8]:
    """`[count, 3]`: even steps from one colour to another, mixed in OKLab."""
    start, end = (_to_oklab(np.array(rgb(stop)) / 255.0) for stop in stops)
    share = np.linspace(0.0, 1.0, count)[:, None]
    walked = np.rint(_from_oklab(start + (end - start) * share) * 255.0).astype(np.uint8)
    walked[0], walked[-1] = rgb(stops[0]), rgb(stops[1])
    return walked


def larger(low: Floats, high: Floats) -> Floats:
    """Of two extremes, cell by cell, the one farther from zero; NaN where either is NaN.

    The larger magnitude is -low or high, and the sum of both has its sign: a quarter of the time of `np.where`.
    """
    if low is high:
        return low
    with np.errstate(over="ignore", invalid="ignore"):  # of two infinities either is right: both are drawn as such
        signs = low + high
        size: Floats = np.negative(low)
        np.maximum(size, high, out=size)
    np.copysign(size, signs, out=size)
    return size


def signed_index(values: Floats, limit: float) -> Indices:
    """`-limit … limit` to `0 … 254`, zero to exactly 127; values beyond the limit are clipped, NaN and Inf become
    255."""
    return _index(values, ZERO / _usable(limit), ZERO)


def magnitude_index(values: Floats, limit: float) -> Indices:
    """`0 … limit` to `0 … 254`; values beyond the limit are clipped, NaN and Inf become 255."""
    return _index(values, HIGHEST / _usable(limit), 0)


def robust_limit(values: Floats, quantile: float = 0.995, sample: int = 8192) -> float:
    """The magnitude below which that fraction of the finite values other than zero lies, estimated from an even sample
    of large arrays. Zeros are left out: where most cells are empty, or were zeroed, the range would collapse.

    Never zero: for a picture of zeros it is 1.
    """
    flat = values.reshape(-1)
    flat = flat[np.isfinite(flat) & (flat != 0)]
    if flat.size > sample:
        flat = flat[:: flat.size // sample]
    magnitudes = np.abs(flat)
    if magnitudes.size == 0:
        return 1.0
    rank = min(int(quantile * magnitudes.size), magnitudes.size - 1)
    return _usable(float(np.partition(magnitudes, rank)[rank]))


def contrast_text(table: ColorTable) -> list[str]:
    """For each entry of a table, black or white: the colour of text that contrasts better with it."""
    light_share = table[:, :3].astype(np.float32) @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    return ["#000000" if share > 140 else "#ffffff" for share in light_share]


def _index(values: Floats, gain: float, zero: int) -> Indices:
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is beyond the limit, and is clipped
        scaled = np.multiply(values, np.float32(gain), dtype=np.float32)
        total = np.add.reduce(values, axis=None)
    # rint keeps the map symmetric: v and -v get indices equally far from zero's
    np.rint(np.clip(scaled, -zero if zero else 0, HIGHEST - zero, out=scaled), out=scaled)
    if not np.isfinite(total):  # the sum shows in one pass whether all are finite; only else each value is tested
        scaled[~np.isfinite(values)] = NON_FINITE - zero
    scaled += zero
    return scaled.astype(np.uint8)


def _usable(limit: float) -> float:
    return limit if np.isfinite(limit) and limit > 1e-30 else 1.0


def _table(colours: npt.NDArray[np.uint8], loud: str) -> ColorTable:
    table = np.full((256, 4), 255, dtype=np.uint8)
    table[:NON_FINITE, :3] = colours
    table[NON_FINITE, :3] = rgb(loud)
    return table


def _to_oklab(colour: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    lab: npt.NDArray[np.float64] = _TO_LAB @ np.cbrt(_TO_LMS @ linear)
    return lab


def _from_oklab(lab: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    linear = ((lab @ np.linalg.inv(_TO_LAB).T) ** 3) @ np.linalg.inv(_TO_LMS).T
    linear = np.clip(linear, 0.0, 1.0)
    return np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)


def packed(table: ColorTable) -> Pixels:
    """A table as 0xAARRGGBB words."""
    return np.ascontiguousarray(table[:, [2, 1, 0, 3]]).view("<u4").reshape(-1).astype(np.uint32)


def histogram(picture: HeadPicture, lowest: float, highest: float, num_pixels: int) -> npt.NDArray[np.float32]:
    """Bar lengths 0 … 1 for pixel rows from the number `highest` at the top to `lowest` at the bottom.

    The square root of the counts, so that small counts remain visible beside large ones.
    """
    lengths = np.zeros(num_pixels, dtype=np.float32)
    if num_pixels < 1 or not picture.counts.size or not picture.counts.any():
        return lengths
    edges = np.linspace(highest, lowest, num_pixels + 1)
    # counts are spread evenly within a bin, so the cumulative count is linear between the bin's edges
    running = np.concatenate([[0], np.cumsum(picture.counts)])
    # a bin of width zero (all values equal) would get no pixel
    bin_edges = np.maximum.accumulate(picture.edges.astype(np.float64) + np.arange(picture.edges.size) * 1e-12)
    share = np.abs(np.diff(np.interp(edges, bin_edges, running)))
    most = share.max()
    return np.sqrt(share / most).astype(np.float32) if most > 0 else lengths
