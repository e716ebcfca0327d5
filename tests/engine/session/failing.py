"""Every call that a step makes fails in turn, and must have changed nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.session.session import Session
from engine.spec.cache import CacheSpec
from tests.engine.faults import Injected, counting, failing_at
from tests.engine.session.sessions import facts, prepared, same, stale, tensors


@dataclass
class Failures:
    """What became of the calls of a step that failed: those that left something changed, in words."""

    num_sites: int
    has_dropped: bool
    num_failed: int = 0
    num_missed: int = 0
    not_undone: list[str] = field(default_factory=list)


def noted(session: Session) -> list[tuple[int, int]]:
    """Bytes of what journals and rules have of each layer."""
    return [(held.journal, held.scores) for cache in session.live.caches for held in cache.all_bytes()]


def failures(
    spec: CacheSpec,
    phase: str,
    numbers: Callable[[int], Iterable[int]],
    architecture: str = "tiniest",
    *,
    of_torch: bool = False,
    within: str = "",
    every: int = 1,
    first: int = 0,
) -> Failures:
    """Every so many lines, from the `first`, `within` these files that call something: of each those calls fail whose
    `numbers` are given for how many there are. Facts, rows and their positions, what journals and rules remember, in
    bytes, stay as they were; a step that follows gives what it should."""
    twin, counted = (prepared(architecture, spec, phase) for _ in range(2))
    twin.step()
    with counting(of_torch=of_torch) as clean:  # what is made once was made by the first
        record = counted.step()
    found = Failures(len(clean.sites), bool(record.evictions))
    session = prepared(architecture, spec, phase)
    before, held, before_noted = facts(session), tensors(session), noted(session)
    sites = [(site, count) for site, count in clean.sites.items() if within in site[0]]
    for site, count in sites[first % every :: every]:
        for number in sorted(numbers(count)):
            outcome = failing_at(number, session.step, site, of_torch=of_torch)
            if isinstance(outcome, Injected):
                found.num_failed += 1
                now, are_stale = tensors(session), stale(session)
                kept = {k: v for k, v in held.items() if k in now or k[0] not in are_stale}
                if facts(session) == before and same(kept, now) and (are_stale or noted(session) == before_noted):
                    if not are_stale:
                        continue
                else:
                    found.not_undone.append(f"{outcome}, call {number} of {count} from line {site[2]}")
            else:
                found.num_missed += 1
            session.close()
            session = prepared(architecture, spec, phase)
    session.step()
    if not same(tensors(session), tensors(twin)):
        found.not_undone.append("the step that was done in the end gave something else")
    return found
