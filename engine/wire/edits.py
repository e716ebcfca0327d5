"""What an edit by hand did, measured."""

from __future__ import annotations

from engine.wire.message import EventMessage, Part
from engine.wire.records import Candidate, Floats, Provenance


class KeptRows(Part, frozen=True, eq=False):
    """How far rows that were kept stand from those that a re-prefill of the same tokens would give: the norm of the
    difference over that of the latter, `[L, T]` each, of `layers` and the positions from `first_position` on; NaN where
    the cache holds no row."""

    layers: tuple[int, ...]
    first_position: int
    keys: Floats
    values: Floats


class EditMeasured(EventMessage, frozen=True, eq=False):
    """What the edit that is the node `step` did to the next token of its sequence: measured by feeding the newest token
    once more to the edited cache. `before` and `after` are the candidates as a step tells them, `entropy` that of the
    distribution after it, in nats, and `kl` that of it from the one before; None where there was no logit before.
    `took_ms` for the edit, `measured_ms` for the measurement. `kept` after other tokens were put into the text while
    the rows behind them stayed; `provenance` says what the rows compared are."""

    step: int
    seq_id: int
    kl: float | None
    before: tuple[Candidate, ...]
    after: tuple[Candidate, ...]
    took_ms: float
    measured_ms: float
    kept: KeptRows | None = None
    provenance: Provenance = "live cache"
    entropy: float | None = None
