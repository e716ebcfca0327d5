"""The breakpoints of a session: evaluates their conditions after each step, halts the run, and reports which held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.errors import InputError
from engine.loop.comparing import Comparing
from engine.loop.inbox import StepsToDo
from engine.loop.reporter import Reporter
from engine.predict.capacity import setting_of
from engine.spec.condition import MAX_BREAKPOINTS, Breakpoint, ConditionSetting, comparisons_of, why_never
from engine.wire.breakpoints import BreakpointHit, BreakpointState, MeasureAttention, SetBreakpoints
from engine.wire.commands import Run
from engine.wire.records import StepRecord
from engine.wire.status import EngineStatus

if TYPE_CHECKING:
    from engine.session.session import Session


class Breakpoints:
    """Holds the breakpoints, and evaluates the enabled ones after each step."""

    def __init__(self, reporter: Reporter, steps: StepsToDo, comparing: Comparing) -> None:
        self._reporter, self._steps, self._comparing = reporter, steps, comparing
        self._breakpoints: tuple[Breakpoint, ...] = ()
        self._too_slow: set[str] = set()  # patterns
        self._halted_by: BreakpointHit | None = None

    def set(self, command: SetBreakpoints) -> None:
        """Replace the breakpoints; raises `InputError` and keeps the old ones if the new ones are not allowed."""
        if len(command.breakpoints) > MAX_BREAKPOINTS:
            raise InputError(
                f"{len(command.breakpoints)} breakpoints are too many: at most {MAX_BREAKPOINTS} "
                "are asked after every step."
            )
        if len({breakpoint.id for breakpoint in command.breakpoints}) < len(command.breakpoints):
            raise InputError("Two breakpoints have the same id: give each its own.")
        self._breakpoints = command.breakpoints
        self._too_slow.clear()

    @property
    def is_evaluating(self) -> bool:
        """Whether a condition is evaluated after every step."""
        return bool(self._steps.until) or any(breakpoint.is_enabled for breakpoint in self._breakpoints)

    def forget(self) -> None:
        """Forget what was found, because the history was cleared."""
        self._too_slow.clear()
        self._halted_by = None

    def leave_halt(self) -> None:
        """Note that the session went to another step than the one that halted it."""
        self._halted_by = None

    def begin(self, command: Run, session: Session) -> None:
        """Check the condition of a run that begins; `InputError` if it can never hold."""
        from engine.session.conditions import check_can_hold

        if command.until:
            check_can_hold(command.until, self._setting(session))
        self._halted_by = None

    def measure(self, session: Session, command: MeasureAttention) -> None:
        """Answer the attention mass of past steps, for a search of earlier hits."""
        from engine.session.conditions import measured

        self._reporter.reply(measured(session, command))

    # ---- after a step --------------------------------------------------------------------------------------------

    def evaluate(self, session: Session, record: StepRecord) -> bool:
        """Evaluate all conditions, including the one that the run goes to, at the step just done; whether one holds.
        Hits are reported, and the run ends. O(1) without conditions."""
        self._halted_by = None
        if not self.is_evaluating:
            return False
        from engine.session.conditions import hits_at

        asked: list[tuple[int | None, str]] = [(each.id, each.text) for each in self._breakpoints if each.is_enabled]
        if self._steps.until:
            asked.append((None, self._steps.until))
        for hit in hits_at(session, record, asked, self._comparing.differs, self._too_slow):
            told = replace(hit, reply_to=self._steps.asked_by)
            self._halted_by = self._halted_by or told
            self._reporter.emit(told)
        if self._halted_by is not None:
            self._steps.end()
        return self._halted_by is not None

    # ---- status --------------------------------------------------------------------------------------------------

    def added_to(self, status: EngineStatus, session: Session | None) -> EngineStatus:
        """The status with the state of the breakpoints added."""
        if not self._breakpoints and self._halted_by is None:
            return status
        setting = self._setting(session) if self._breakpoints and session is not None else None
        states = tuple(BreakpointState(each, self._problem(each, setting)) for each in self._breakpoints)
        return replace(status, breakpoints=states, halted_by=self._halted_by)

    def _problem(self, breakpoint: Breakpoint, setting: ConditionSetting | None) -> str:
        """Why a breakpoint cannot hold; empty where it can."""
        patterns = {each.value for each in comparisons_of(breakpoint.condition) if each.sign == "~"}
        if patterns & self._too_slow:
            return "Its pattern takes too long, and is not asked any more: write a simpler one."
        return why_never(breakpoint.condition, setting) if setting is not None else ""

    def _setting(self, session: Session) -> ConditionSetting:
        return setting_of(session.model.info, session.cache, is_compared=self._comparing.is_on)
