"""Computes the surprisals of long prompts when the loop is idle, and reports them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.loop.reporter import Reporter
from engine.wire.records import StepRecord

if TYPE_CHECKING:
    from engine.session.session import Session

LEAST_WAIT_S = 0.1  # until the next step of a run, to compute a slice before it: a slice takes about half of that


class SurprisalReporter:
    """Computes waiting surprisals slice by slice, and reports each slice."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def has_time(self, session: Session | None, wait_s: float | None) -> bool:
        """Whether surprisals wait and there is time for a slice; the next step comes in `wait_s` seconds (None: no step
        follows)."""
        if session is None or not session.history.surprisal.is_waiting:
            return False
        return wait_s is None or (wait_s > LEAST_WAIT_S and not session.is_prefilling)

    def advance(self, session: Session) -> None:
        """Compute and report one slice; a chunk that fails is dropped, and the failure reported."""
        from engine.device import trim_heap  # with torch, which the loop must not import before a model is loaded

        try:
            self._reporter.emit(session.history.surprisal.advance())
            if not session.history.surprisal.is_waiting:
                trim_heap()  # the logits of many tokens were in memory
        except Exception as error:
            self._reporter.reply_to = None
            self._reporter.fail(error, "surprisal")


def with_surprisal(session: Session, records: tuple[StepRecord, ...], reporter: Reporter) -> tuple[StepRecord, ...]:
    """The records, completed with all surprisals of their prompts, which are computed now if they still wait. Can be
    cancelled."""
    late = session.history.surprisal
    for found in late.finish() if records else ():
        reporter.emit(found)
        reporter.progress("Computing the surprisal of the prompt", 0, None)
    return tuple(map(late.filled, records))
