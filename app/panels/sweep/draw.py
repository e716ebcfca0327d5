"""A sweep as bytes against what they cost: in KL, in agreement, in perplexity, or in facts forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from app.draw.scale import Floats, LogScale, log_scale
from engine.wire.measurements import SweepRow, Unavailable
from engine.wire.sweep_front import LEAST_KL, front

SweepOutcome = SweepRow | Unavailable
Quality = Literal["kl", "disagreement", "perplexity", "forgotten"]
COLUMNS = (
    "cache", "kv_bytes", "tok_per_s", "mean_kl", "top1_agreement", "perplexity", "lossless", "recall", "text",
)  # fmt: skip
OTHERS = ("max_abs_logit_diff", "kind", "num_prompt_tokens", "num_steps")
_RANGES: dict[Quality, tuple[int, int, int]] = {  # decades that are shown in any case, and the lowest of all
    "kl": (-5, 0, -8), "disagreement": (-2, 0, -3), "perplexity": (0, 1, 0), "forgotten": (-2, 0, -3),
}  # fmt: skip


class Cloud(Struct, frozen=True, eq=False):
    """Points of the rows of one text that hold bytes, by their `names`: `x` is the binary logarithm of the bytes, `y`
    the damage as a share of the plot on `scale`. `front` are the points that nobody beats, by rising bytes."""

    names: tuple[str, ...]
    x: Floats
    y: Floats
    is_lossless: npt.NDArray[np.bool_]
    front: tuple[int, ...]
    scale: LogScale


def key_of(row: SweepOutcome) -> str:
    """What tells a row from the others."""
    return f"{row.cache} on {row.text}"


def damage(row: SweepRow, quality: Quality) -> float | None:
    """What a mode costs, the less the better; None where it was not asked for. A KL that rounding explains is none."""
    match quality:
        case "kl":
            return row.mean_kl if row.mean_kl >= LEAST_KL else 0.0
        case "disagreement":
            return 1 - row.top1_agreement
        case "perplexity":
            return row.perplexity
        case "forgotten":
            return None if row.recall is None else 1 - row.recall


def cloud(rows: Sequence[SweepOutcome], text: str = "", quality: Quality = "kl") -> Cloud:
    """A mode that keeps nothing and recomputes has no place on an axis of bytes: it is left out."""
    all_of_it = [row for row in rows if isinstance(row, SweepRow) and row.text == text and row.kv_bytes > 0]
    found = [(row, cost) for row in all_of_it if (cost := damage(row, quality)) is not None]
    num_bytes = np.array([row.kv_bytes for row, _ in found], dtype=np.float64)
    costs = [cost for _, cost in found]
    scale = log_scale(costs, *_RANGES[quality])
    return Cloud(
        names=tuple(row.cache for row, _ in found),
        x=np.log2(num_bytes),
        y=scale.at(costs),
        is_lossless=np.array([row.lossless for row, _ in found], dtype=np.bool_),
        front=front(num_bytes.tolist(), costs),
        scale=scale,
    )


def steps_of(cloud: Cloud) -> tuple[Floats, Floats]:
    """The front as a line of steps: with fewer bytes than a point has, no less damage is had than at the one before."""
    x = np.repeat(cloud.x[list(cloud.front)], 2)[1:]
    y = np.repeat(cloud.y[list(cloud.front)], 2)[:-1]
    return x, y
