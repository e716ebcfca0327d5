"""Steps run phase by phase, in every cache mode."""

from __future__ import annotations

from collections.abc import Callable

from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import uniform
from engine.spec.retention import RetentionSpec
from engine.wire.records import StepRecord
from engine.wire.status import PhaseReached

MODES = {
    "growing": CacheSpec("growing"),
    "dynamic": CacheSpec("dynamic"),
    "static": CacheSpec("static"),
    "none": CacheSpec("none"),
    "paged": CacheSpec("paged", page_size=4, num_pages=12),
    "paged int8": CacheSpec("paged", page_size=4, num_pages=12, codec=uniform("int8")),
    "int8": CacheSpec(codec=uniform("int8")),
    "kivi": CacheSpec(codec=uniform("kivi-4", 8, 8)),
    "h2o": CacheSpec(retention=RetentionSpec("h2o", budget=7, window=3)),
    "tova": CacheSpec(retention=RetentionSpec("tova", budget=7)),
    "paged h2o": CacheSpec("paged", page_size=1, num_pages=30, retention=RetentionSpec("h2o", budget=6, window=2)),
    "rotated sinks": CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=5, rerotate=True)),
}
PHASES = ["first chunk", "second chunk", "decode"]


def phased(
    session: Session, look: Callable[[PhaseReached], object] | None = None
) -> tuple[StepRecord, list[PhaseReached]]:
    """Run one step phase by phase; return its record and every phase reached. `look` is called at each phase."""
    seen: list[PhaseReached] = []

    def reached(event: PhaseReached) -> None:
        seen.append(event)
        if look is not None:
            look(event)

    return session.step(reached=reached), seen
