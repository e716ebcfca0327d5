"""Conditions and texts that end a run on the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from engine.predict.capacity import setting_of
from engine.spec.quantities import HOW_TO_COMBINE, help_lines
from engine.spec.stops import parsed

if TYPE_CHECKING:
    from engine.session.session import Session
    from engine.wire.records import StepRecord
    from engine.wire.stopping import StopHit


def add_stop_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that end a run early; the help lists the quantities of conditions."""
    parser.add_argument("--stop", metavar="TEXT", action="append", default=[], help="end where this text is generated")
    parser.add_argument(
        "--stop-when",
        metavar="CONDITION",
        action="append",
        default=[],
        help="a breakpoint: halt after the step where it holds, like 'entropy > 2' (below); repeat it for several",
    )
    lines = "\n".join(f"  {line}" for line in help_lines())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"conditions of a breakpoint (--stop-when):\n{lines}\n  {HOW_TO_COMBINE}".replace("%", "%%")


def stop_conditions(args: argparse.Namespace) -> list[str]:
    """The conditions that were typed; raises `InputError` for an invalid one, before a model is loaded."""
    for text in args.stop_when:
        parsed(text)
    return list(args.stop_when)


class Halting:
    """Evaluates the conditions that end a run; `hits` are those that held at the newest step. Raises `InputError` for a
    condition that can never hold."""

    def __init__(self, session: Session, conditions: list[str]) -> None:
        from engine.session.conditions import ConditionChecker, check_can_hold

        for text in conditions:
            check_can_hold(text, setting_of(session.model.info, session.cache, is_compared=False))
        self._session, self._conditions, self._checker = session, conditions, ConditionChecker()
        self.hits: list[StopHit] = []

    def update(self, record: StepRecord) -> None:
        """Evaluate the conditions at a new step."""
        self.hits = self._checker.hits(self._session, record, enumerate(self._conditions))
