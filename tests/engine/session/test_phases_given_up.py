"""A step in phases that is given up, or fails, at any point leaves the session as it was before the step."""

from __future__ import annotations

from itertools import product

import pytest

from engine.errors import Cancelled
from engine.session.session import Session
from engine.wire.pictures import WallRequest
from engine.wire.records import StepRecord
from engine.wire.status import PhaseReached
from tests.effort import effort
from tests.engine.faults import Injected, counting, failing_at
from tests.engine.session.phases import MODES, PHASES, phased
from tests.engine.session.sessions import facts, prepared, same, tensors


@pytest.mark.parametrize(
    ("mode", "phase"),
    [*product(MODES, PHASES), *product(("growing", "paged", "paged int8", "int8", "none"), ["two sequences"])],
)
def test_given_up_at_any_phase_it_changes_nothing(mode: str, phase: str) -> None:
    """Rows, page tables, reference counts and journals are as before; the step, done again, gives the same."""
    session, twin = prepared("llama", MODES[mode], phase), prepared("llama", MODES[mode], phase)
    before, held, pages = facts(session), tensors(session), page_state(session)
    _, seen = phased(prepared("llama", MODES[mode], phase))
    for last in range(len(seen) - 1):
        left = iter(range(last))

        def give_up(event: PhaseReached, left: object = left) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]
                session.take_picture(WallRequest(0, 99, 99, "keys", False, 50, 8))
                raise Cancelled

        with pytest.raises(Cancelled):
            session.step(reached=give_up)
        assert session.stepper.phases is None
        assert facts(session) == before
        assert page_state(session) == pages
        assert same(tensors(session), held)
    twin.step()
    session.step()
    assert same(tensors(session), tensors(twin))


def page_state(session: Session) -> object:
    """Pages of every sequence, and the reference count of each."""
    store = session.live.mode.store
    if store is None:
        return None
    tables = [[tuple(table.page_ids) for table in group.tables] for group in store.groups]
    counts = [{i: group.pool.ref_count(i) for t in group.tables for i in t.page_ids if i} for group in store.groups]
    return tables, counts, [group.pool.counts() for group in store.groups]


@pytest.mark.parametrize("mode", ["growing", "paged", "kivi", "h2o"])
def test_a_failure_at_any_site_changes_nothing(mode: str) -> None:
    def step() -> StepRecord:
        return phased(session)[0]

    session = prepared("llama", MODES[mode], "decode")
    with counting() as clean:
        step()
    session, twin = prepared("llama", MODES[mode], "decode"), prepared("llama", MODES[mode], "decode")
    before, held = facts(session), tensors(session)
    for site in list(clean.sites)[:: effort(3, 1)]:
        outcome = failing_at(1, step, site)
        if isinstance(outcome, Injected):
            if session.last_step != before["step"]:  # it failed once the step was done, while its record was built
                session = prepared("llama", MODES[mode], "decode")
                continue
            assert facts(session) == before, f"{outcome} {site}"
            assert same(tensors(session), held), f"{outcome} {site}"
        else:
            session = prepared("llama", MODES[mode], "decode")
    step()
    twin.step()
    assert same(tensors(session), tensors(twin))
