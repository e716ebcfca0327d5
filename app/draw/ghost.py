"""Evicted rows, drawn as empty cells with a hatch, which no colour map uses.

In a column that pools kept and evicted rows, the evicted part is hatched, from the bottom up; the colours of the kept
rows stay visible between the lines.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from app.draw.axis import Flags
from app.draw.colormap import Floats, Pixels
from engine.wire.pictures import WallPicture
from engine.wire.records import Ints


class Hatch(Struct, frozen=True):
    """Diagonal lines: their colour, that of the empty cell below (both 0xAARRGGBB), and their distance in pixels."""

    line: int
    ground: int
    pitch: int


class Ghosts(Struct, frozen=True, eq=False):
    """The evicted fraction of each cell, 0 … 1: `[rows, columns]` from position `start` on. A single row stands for the
    whole height."""

    share: Floats
    start: float
    per_column: int


def shares(absent: Ints, per_column: int, num_positions: int) -> Floats:
    """Counts `[…, columns]` of evicted positions as fractions of the positions that each column covers."""
    room = np.full(absent.shape[-1], per_column, np.float32)
    if room.size:
        room[-1] = max(1, num_positions - (room.size - 1) * per_column)
    return np.minimum(absent / room, 1.0).astype(np.float32)


def ghosts(absent: Ints | None, start: int, stop: int, per_column: int) -> Ghosts | None:
    """The ghosts of counts `[…, columns]` of evicted positions, from `start` to `stop`; None if nothing was evicted."""
    if absent is None or not absent.any():
        return None
    return Ghosts(shares(absent, per_column, stop - start), start, per_column)


def extremes(low: float, high: float, write: Callable[[float], str]) -> str:
    """A cell as text: one number, or its extremes."""
    return write(low) if low == high or (low != low and high != high) else f"{write(low)} … {write(high)}"


def outside_held(picture: WallPicture) -> Ints:
    """How many positions of each column a layer does not hold, `[L, columns]`: those that left its window, or that
    belong to the other group of an encoder-decoder. Positions that a rule evicted are in `picture.absent` instead."""
    starts = np.arange(picture.low.shape[2]) * picture.tokens_per_column
    stops = np.minimum(starts + picture.tokens_per_column, picture.num_tokens)
    if picture.held is None:
        return np.zeros((len(picture.layers), len(starts)), np.int64)
    num_held = np.minimum(stops, picture.held[:, 1:]) - np.maximum(starts, picture.held[:, :1])
    outside: Ints = stops - starts - np.maximum(num_held, 0)
    return outside


def lines(height: int, width: int, left: int, top: int, pitch: int) -> Flags:
    """The pixels of the lines in a rectangle, with the hatch continuing through the whole picture."""
    is_line: Flags = (np.arange(top, top + height)[:, None] + np.arange(left, left + width)[None]) % max(2, pitch) == 0
    return is_line


def foot(share: Floats, height: int) -> Flags:
    """`[height, columns]`: the lower part of each column, as large as `share`, but at least a little if that is not
    zero."""
    rows = np.arange(height, dtype=np.float32)[:, None]
    return (rows >= height * (1 - share)[None] - 0.5) & (share > 0)[None]


def overlay(ghosts: Ghosts, low: float, high: float, width: int, height: int, hatch: Hatch) -> Pixels | None:
    """The overlay of a picture of positions `low … high`: `[height, width]`, transparent where nothing was evicted.
    None if nothing was evicted anywhere."""
    rows, columns = ghosts.share.shape
    positions = low + (np.arange(width) + 0.5) / max(width, 1) * (high - low)
    column = np.floor((positions - ghosts.start) / ghosts.per_column).astype(np.int64)
    inside = (column >= 0) & (column < columns)
    if not columns or not inside.any():
        return None
    part = np.where(inside, ghosts.share[:, column.clip(0, columns - 1)], 0)  # [rows, width]
    if not part.any():
        return None
    edges = np.rint(np.arange(rows + 1) * height / rows).astype(np.int64)
    pixels = np.zeros((height, width), dtype=np.uint32)
    hatched = lines(height, width, 0, 0, hatch.pitch)
    for row in np.flatnonzero(part.any(axis=1)):
        top, stop = int(edges[row]), int(edges[row + 1])
        pixels[top:stop, part[row] >= 1] = hatch.ground
        pixels[top:stop][foot(part[row], stop - top) & hatched[top:stop]] = hatch.line
    return pixels
