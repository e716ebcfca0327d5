"""Surprisals of long prompts, told when the engine has time for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.loop.reporter import Reporter
from engine.wire.records import StepRecord

if TYPE_CHECKING:
    from engine.session.session import Session

LEAST_REST_S = 0.1  # between two steps of a run: a slice takes about half of it


class SurprisalTeller:
    """Computes them slice by slice, and tells each slice as it is found."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def has_time(self, session: Session | None, rest_s: float | None) -> bool:
        """Whether there are some to be computed, and time for it: the next step comes in `rest_s` (None: there is
        none)."""
        if session is None or not session.history.surprisal.is_waiting:
            return False
        return rest_s is None or (rest_s > LEAST_REST_S and not session.is_prefilling)

    def go_on(self, session: Session) -> None:
        """One slice; a chunk of which one fails is given up."""
        try:
            self._reporter.emit(session.history.surprisal.advance())
        except Exception as error:
            self._reporter.reply_to = None
            self._reporter.fail(error, "surprisal")


def with_surprisal(session: Session, records: tuple[StepRecord, ...], reporter: Reporter) -> tuple[StepRecord, ...]:
    """The records with all of them; whoever sent the records may not have taken the last ones. Can be cancelled."""
    late = session.history.surprisal
    for found in late.finish() if records else ():
        reporter.emit(found)
        reporter.progress("Computing the surprisal of the prompt", 0, None)
    return tuple(map(late.filled, records))
