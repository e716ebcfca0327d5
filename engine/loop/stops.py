"""The stops of a session: evaluates their conditions after each step, halts the run, and reports which held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.errors import InputError
from engine.loop.duelling import Duelling
from engine.loop.inbox import StepsToDo
from engine.loop.reporter import Reporter
from engine.predict.capacity import setting_of
from engine.spec.condition import comparisons_of
from engine.spec.stops import MAX_STOPS, ConditionSetting, Stop, why_never
from engine.wire.commands import Run
from engine.wire.records import StepRecord
from engine.wire.status import EngineStatus
from engine.wire.stopping import MeasureAttention, SetStops, StopHit, StopState

if TYPE_CHECKING:
    from engine.session.conditions import ConditionChecker
    from engine.session.session import Session


class StopConditions:
    """Holds the stops, and evaluates the enabled ones after each step."""

    def __init__(self, reporter: Reporter, steps: StepsToDo, duelling: Duelling) -> None:
        self._reporter, self._steps, self._duelling = reporter, steps, duelling
        self._stops: tuple[Stop, ...] = ()
        self._num_hits: dict[int, int] = {}
        self._checker: ConditionChecker | None = None  # not before there is a session
        self._halted_by: StopHit | None = None

    def set(self, command: SetStops) -> None:
        """Replace the stops; raises `InputError` and keeps the old ones if the new ones are not allowed."""
        if len(command.stops) > MAX_STOPS:
            raise InputError(
                f"{len(command.stops)} breakpoints are too many: at most {MAX_STOPS} are asked after every step."
            )
        known = {stop.id: stop.text for stop in self._stops}
        counts = {stop.id: self._num_hits.get(stop.id, 0) for stop in command.stops if known.get(stop.id) == stop.text}
        if len({stop.id for stop in command.stops}) < len(command.stops):
            raise InputError("Two breakpoints have the same id: give each its own.")
        self._stops, self._num_hits = command.stops, counts
        if self._checker is not None:
            self._checker.too_slow.clear()

    @property
    def is_evaluating(self) -> bool:
        """Whether a condition is evaluated after every step."""
        return bool(self._steps.until) or any(stop.is_enabled for stop in self._stops)

    def forget(self) -> None:
        """Forget all hits, because the history was cleared."""
        self._num_hits.clear()
        self._checker = self._halted_by = None

    def set_live_step(self, step: int | None) -> None:
        """Note that the session went to another step."""
        self._halted_by = None
        if self._checker is not None:
            self._checker.live_step = step

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

    def halt(self, session: Session, record: StepRecord) -> bool:
        """Evaluate all conditions, including the one that the run goes to, at the step just done; whether one holds.
        Hits are reported, and the run ends. O(1) without conditions."""
        from engine.session.conditions import ConditionChecker

        self._checker = self._checker or ConditionChecker()
        asked: list[tuple[int | None, str]] = [(stop.id, stop.text) for stop in self._stops if stop.is_enabled]
        if self._steps.until:
            asked.append((None, self._steps.until))
        hits = self._checker.hits(session, record, asked, self._duelling.differs)
        found = [replace(hit, reply_to=self._steps.asked_by) for hit in hits]
        self._halted_by = found[0] if found else None
        for hit in found:
            if hit.stop_id is not None:
                self._num_hits[hit.stop_id] = self._num_hits.get(hit.stop_id, 0) + 1
            self._reporter.emit(hit)
        if found:
            self._steps.end()
        return bool(found)

    # ---- status --------------------------------------------------------------------------------------------------

    def added_to(self, status: EngineStatus, session: Session | None) -> EngineStatus:
        """The status with the state of the stops added."""
        if not self._stops and self._halted_by is None:
            return status
        setting = self._setting(session) if self._stops and session is not None else None
        states = (StopState(stop, self._num_hits.get(stop.id, 0), self._problem(stop, setting)) for stop in self._stops)
        return replace(status, stops=tuple(states), halted_by=self._halted_by)

    def _problem(self, stop: Stop, setting: ConditionSetting | None) -> str:
        """Why a stop cannot hold; empty where it can."""
        patterns = {each.value for each in comparisons_of(stop.condition) if each.sign == "~"}
        if self._checker is not None and patterns & self._checker.too_slow:
            return "Its pattern takes too long, and is not asked any more: write a simpler one."
        return why_never(stop.condition, setting) if setting is not None else ""

    def _setting(self, session: Session) -> ConditionSetting:
        return setting_of(session.model.info, session.cache, is_compared=self._duelling.is_on)
