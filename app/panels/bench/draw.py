"""The curves of a bench: for each mode and batch, a quantity over the number of tokens in the context."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from app.draw.axis import Floats
from app.draw.format import percent, thousands, tick_size
from engine.wire.measurements import BenchRefused, BenchRow

BenchOutcome = BenchRow | BenchRefused
OTHERS = ("ms_per_step", "reserved_bytes", "base", "ratio_spread", "num_steps", "num_turns", "device", "dtype")
_ROOM = 0.08  # margin beside the points, as a fraction of the range


class Quantity(Struct, frozen=True):
    """A field of a row that the plot can show: its name and tip in the list, the title above the plot, and how a number
    at the axis is written. A share has a linear axis, others a logarithmic one."""

    field: str
    label: str
    tip: str
    title: str
    words: Callable[[Any], str]
    is_share: bool = False


QUANTITIES: Mapping[str, Quantity] = {
    each.field: each
    for each in (
        Quantity("tok_per_s", "tok/s", "Decode speed", "tokens a second", thousands),
        Quantity("ttft_ms", "first token", "Time to the first token", "milliseconds to the first token", thousands),
        Quantity("kv_bytes", "KV", "Bytes of K and V", "bytes of K and V", tick_size),
        Quantity("overhead_ratio", "outside forward", "Part of a step that is not spent in the model's forward",
                 "part of a step outside the forward", percent, is_share=True),
    )
}  # fmt: skip


class Curves(Struct, frozen=True, eq=False):
    """The points `[N]` of measured rows, given by the rows' `keys`: `x` is log2 of the context, `y` log2 of the
    quantity, or a fraction as it is (`is_share`). A series is its mode, its batch, and the indices of its points by
    ascending context."""

    keys: tuple[str, ...]
    x: Floats
    y: Floats
    series: tuple[tuple[str, int, tuple[int, ...]], ...]
    is_share: bool = False

    @property
    def home(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The ranges of both axes that show everything."""
        return _range_of(self.x), (-0.02, 1.03) if self.is_share else _range_of(self.y)

    @property
    def named(self) -> tuple[int, ...]:
        """For each series the point beside which its name is written: all at the first or all at the last points,
        wherever these are further apart."""
        first, last = (np.array([points[at] for _, _, points in self.series], dtype=np.int64) for at in (0, -1))
        is_first = len(first) > 0 and float(np.std(self.y[first])) > float(np.std(self.y[last]))
        return tuple((first if is_first else last).tolist())


def _range_of(values: Floats) -> tuple[float, float]:
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    side = max(0.5, (high - low) * _ROOM)
    return low - side, high + side


def key_of(row: BenchOutcome) -> str:
    """What identifies a row: mode, context, batch."""
    return f"{row.cache} {row.context} {row.batch}"


def curves(rows: Sequence[BenchOutcome], quantity: str) -> Curves:
    """The curves of a quantity. Refused rows have no point, nor have zeros on a logarithmic axis."""
    is_share = QUANTITIES[quantity].is_share
    shown = [row for row in rows if isinstance(row, BenchRow) and (is_share or getattr(row, quantity) > 0)]
    names = dict.fromkeys((row.cache, row.batch) for row in shown)
    series = tuple((cache, batch, _points_of(shown, cache, batch)) for cache, batch in names)
    return Curves(
        keys=tuple(key_of(row) for row in shown),
        x=np.array([math.log2(row.context) for row in shown], dtype=np.float64),
        y=np.array([_place(getattr(row, quantity), is_share) for row in shown], dtype=np.float64),
        series=series,
        is_share=is_share,
    )


def _points_of(rows: Sequence[BenchRow], cache: str, batch: int) -> tuple[int, ...]:
    found = [index for index, row in enumerate(rows) if (row.cache, row.batch) == (cache, batch)]
    return tuple(sorted(found, key=lambda index: rows[index].context))


def _place(value: float, is_share: bool) -> float:
    return value if is_share else math.log2(value)
