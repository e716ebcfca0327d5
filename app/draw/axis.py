"""Ticks that fit: which tokens, positions or channels are named beside a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_NICE = (1, 2, 5)


@dataclass(frozen=True)
class Tick:
    """A label in the middle of a cell, in the units of the axis."""

    at: float
    text: str


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
    """Named cells of `start … stop` on that many pixels, as close as labels of that size allow."""
    if stop <= start or pixels <= 0:
        return ()
    step = nice_step(label_pixels * (stop - start) / pixels)
    first = -(-int(start) // step) * step
    return tuple(Tick(cell + 0.5, name(cell)) for cell in range(first, int(-(-stop // 1)), step) if cell + 0.5 <= stop)


def page_borders(start: float, stop: float, page_size: int, pixels: float) -> tuple[int, ...]:
    """The token rows at which a page begins, none where the lines would crowd the picture."""
    if page_size < 1 or stop <= start or pixels / (stop - start) * page_size < 8:
        return ()
    first = (int(start) // page_size + 1) * page_size
    return tuple(range(first, int(-(-stop // 1)), page_size))
