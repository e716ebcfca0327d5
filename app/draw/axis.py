"""Axis ticks: which tokens, positions or values are named beside a picture, so that the names do not overlap."""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

_NICE = (1, 2, 5)


class Tick(Struct, frozen=True):
    """A name at a place of an axis, in the axis's units; for a cell, at its middle."""

    at: float
    text: str


class LinearTicks(Struct, frozen=True):
    """Ticks 1, 2 or 5 times a power of ten apart, or with `is_binary` (for bytes) a power of two, but at least
    `least`."""

    name: Callable[[float], str]
    least: float = 0.0
    is_binary: bool = False

    def ticks(self, most: int, low: float, high: float) -> tuple[Tick, ...]:
        """The ticks between two values, at most `most`."""
        wanted = max((high - low) / max(1, most), self.least)
        if not wanted > 0:
            return ()
        if self.is_binary:
            step = 2.0 ** math.ceil(math.log2(wanted))
        else:
            power = 10.0 ** math.floor(math.log10(wanted))
            step = next(factor * power for factor in (*_NICE, 10) if factor * power >= wanted * 0.999999)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return tuple(Tick(n * step, self.name(n * step)) for n in range(first, last + 1))


class ByteTicks(Struct, frozen=True):
    """Ticks for byte sizes on a binary logarithmic axis: powers of two, or round sizes if less than two powers are
    visible."""

    name: Callable[[int], str]

    def ticks(self, most: int, low: float, high: float) -> tuple[Tick, ...]:
        """The ticks between two logarithms, at most `most`."""
        if high - low >= 2:
            step = max(1, math.ceil((math.ceil(high) - math.floor(low)) / max(1, most)))
            found = range(math.ceil(low / step) * step, math.floor(high) + 1, step)
            return tuple(Tick(float(power), self.name(2**power)) for power in found if power >= 0)
        linear = LinearTicks(str, least=1.0, is_binary=True).ticks(most, 2.0**low, 2.0**high)
        return tuple(Tick(math.log2(tick.at), self.name(round(tick.at))) for tick in linear)


class FixedTicks(Struct, frozen=True):
    """Ticks at given places, whatever range is visible."""

    names: tuple[Tick, ...]

    def ticks(self, most: int, low: float, high: float) -> tuple[Tick, ...]:
        return tuple(tick for tick in self.names if low <= tick.at <= high)


def nice_step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50 … that is not below `least`."""
    power = 1
    while True:
        for factor in _NICE:
            if factor * power >= least:
                return factor * power
        power *= 10


def ticks(
    start: float, stop: float, pixels: float, label_pixels: float, name: Callable[[int], str]
) -> tuple[Tick, ...]:
    """Ticks at the middles of cells of `start … stop`, drawn `pixels` wide, as close as labels of `label_pixels`
    allow."""
    if stop <= start or pixels <= 0:
        return ()
    step = nice_step(label_pixels * (stop - start) / pixels)
    first = -(-int(start) // step) * step
    return tuple(Tick(cell + 0.5, name(cell)) for cell in range(first, int(-(-stop // 1)), step) if cell + 0.5 <= stop)
