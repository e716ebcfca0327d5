"""The measured effect of an edit by hand."""

from __future__ import annotations

from engine.wire.message import EventMessage, Part
from engine.wire.records import Candidate, Floats, Provenance


class KeptRows(Part, frozen=True, eq=False):
    """How much kept rows differ from those that a re-prefill of the new tokens would give: the norm of the difference
    relative to that of the re-prefilled rows, `[L, T]` each for K and V, for `layers` and the positions from
    `first_position` on; NaN where the cache holds no row."""

    layers: tuple[int, ...]
    first_position: int
    keys: Floats
    values: Floats


class EditMeasured(EventMessage, frozen=True, eq=False):
    """What the edit at node `step` changed in the prediction of the next token, measured by feeding the newest token
    again to the edited cache.

    `before` and `after` are the top candidates before and after the edit; `entropy` is that of the distribution after
    it, in nats; `kl` is the divergence of the distribution after from the one before, None if there were no logits
    before. `took_ms` is the time of the edit, `measured_ms` that of the measurement. `kept` is given if tokens were
    replaced while the rows behind them stayed; `provenance` says what the compared rows are.
    """

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
