"""The points of a sweep: bytes against damage, measured as KL, disagreement, perplexity or forgotten facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from app.draw.axis import Floats, LogScale, log_scale
from engine.wire.measurements import LEAST_KL, SweepRow, Unavailable, front

SweepOutcome = SweepRow | Unavailable
OTHERS = ("max_abs_logit_diff", "kind", "num_prompt_tokens", "num_steps")


class Quality(Struct, frozen=True):
    """A damage that the plot can set against bytes: its name and tip in the list, the title above the plot, the decades
    that are always shown (lowest, highest) with the floor, and its number of a row, less being better; None if it was
    not measured. `has_none`: some modes do no damage of this kind, and are marked at the floor."""

    name: str
    label: str
    tip: str
    title: str
    decades: tuple[int, int, int]
    of: Callable[[SweepRow], float | None]
    has_none: bool = True


# A KL that rounding explains counts as zero.
QUALITIES: Mapping[str, Quality] = {
    each.name: each
    for each in (
        Quality("kl", "KL", "KL of the next token against the model without a cache", "mean KL in nats", (-5, 0, -8),
                lambda row: row.mean_kl if row.mean_kl >= LEAST_KL else 0.0),
        Quality("disagreement", "top-1", "Steps whose most probable token is another",
                "steps with another most probable token", (-2, 0, -3), lambda row: 1 - row.top1_agreement),
        Quality("perplexity", "perplexity", "Perplexity of the tokens that followed", "perplexity", (0, 1, 0),
                lambda row: row.perplexity, has_none=False),
        Quality("forgotten", "forgotten", "The part of a planted fact that does not come out",
                "part of the fact forgotten", (-2, 0, -3), lambda row: None if row.recall is None else 1 - row.recall),
    )
}  # fmt: skip


class Cloud(Struct, frozen=True, eq=False):
    """The points of the rows of one text that store bytes, by `names`: `x` is log2 of the bytes, `y` the damage, 0 … 1
    on `scale`. `front`: the points of the Pareto front, by ascending bytes."""

    names: tuple[str, ...]
    x: Floats
    y: Floats
    is_lossless: npt.NDArray[np.bool_]
    front: tuple[int, ...]
    scale: LogScale


def key_of(row: SweepOutcome) -> str:
    """What identifies a row."""
    return f"{row.cache} on {row.text}"


def cloud(rows: Sequence[SweepOutcome], text: str = "", quality: str = "kl") -> Cloud:
    """The points of a text. A mode that stores nothing has no place on an axis of bytes, and is left out."""
    shown = QUALITIES[quality]
    all_of_it = [row for row in rows if isinstance(row, SweepRow) and row.text == text and row.kv_bytes > 0]
    found = [(row, cost) for row in all_of_it if (cost := shown.of(row)) is not None]
    num_bytes = np.array([row.kv_bytes for row, _ in found], dtype=np.float64)
    costs = [cost for _, cost in found]
    scale = log_scale(costs, *shown.decades)
    return Cloud(
        names=tuple(row.cache for row, _ in found),
        x=np.log2(num_bytes),
        y=scale.at(costs),
        is_lossless=np.array([row.lossless for row, _ in found], dtype=np.bool_),
        front=front(num_bytes.tolist(), costs),
        scale=scale,
    )


def steps_of(cloud: Cloud) -> tuple[Floats, Floats]:
    """The front as a step line: between two points, no mode with fewer bytes than the second does less damage than the
    first."""
    x = np.repeat(cloud.x[list(cloud.front)], 2)[1:]
    y = np.repeat(cloud.y[list(cloud.front)], 2)[:-1]
    return x, y
