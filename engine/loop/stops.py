"""The stops of a session: which conditions hold at the step just done, and what is told of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.errors import InputError
from engine.loop.duelling import Duelling
from engine.loop.reporter import Reporter
from engine.loop.steps_to_do import StepsToDo
from engine.predict.capacity import context_length
from engine.spec.condition import Condition, comparisons_of
from engine.spec.possible import Setting, why_never
from engine.spec.stops import MAX_STOPS, Stop, parsed
from engine.wire.commands import MeasureAttention, Run, SetStops
from engine.wire.condition_values import Judge
from engine.wire.events import AttentionMass, AttentionMeasured, EngineStatus, StopHit, StopState
from engine.wire.records import StepRecord
from engine.wire.row_norms import Norms, with_rows

if TYPE_CHECKING:
    from engine.session.session import Session

KEPT_STEPS = 256  # after which norms of rows are known, so that going back does not forget them
MAX_PLACES = 4096


class Stops:
    """Holds the conditions, and says after each step which of them hold."""

    def __init__(self, reporter: Reporter, steps: StepsToDo, duelling: Duelling) -> None:
        self._reporter, self._steps, self._duelling = reporter, steps, duelling
        self._stops: tuple[Stop, ...] = ()
        self._num_hits: dict[int, int] = {}
        self._too_slow: set[str] = set()
        self._norms: OrderedDict[int, dict[int, Norms]] = OrderedDict()  # after a step, by sequence
        self._moment: int | None = None  # the step that the next one follows
        self.halted_by: StopHit | None = None

    def set(self, command: SetStops) -> None:
        """Take these in place of those before; raises `InputError` and keeps those where they cannot be."""
        ids = [stop.id for stop in command.stops]
        if len(ids) > MAX_STOPS:
            raise InputError(f"{len(ids)} stops are too many: at most {MAX_STOPS} are asked after every step.")
        if len(set(ids)) < len(ids):
            raise InputError("Two stops have the same id: give each its own.")
        self._num_hits = {stop.id: self._num_hits.get(stop.id, 0) for stop in command.stops if stop in self._stops}
        self._stops = command.stops
        self._too_slow.clear()

    def forget(self) -> None:
        """History begins anew: nothing has held yet."""
        self._num_hits.clear()
        self._norms.clear()
        self._moment, self.halted_by = None, None

    def stand_at(self, step: int | None) -> None:
        """The moment after that step is the live one."""
        self._moment, self.halted_by = step, None

    def check_until(self, command: Run, session: Session) -> None:
        """Raises `InputError` where a run to its condition would never get there."""
        if command.until and (problem := why_never(parsed(command.until), self._setting(session))):
            raise InputError(problem)
        self.halted_by = None

    # ---- after a step --------------------------------------------------------------------------------------------

    def halt(self, session: Session, record: StepRecord) -> bool:
        """Whether a condition holds at the step just done, the one that the run goes to among them: it is told, and no
        further step is made. O(1) without conditions."""
        asked: list[tuple[int | None, str]] = [(stop.id, stop.text) for stop in self._stops if stop.is_enabled]
        if self._steps.until:
            asked.append((None, self._steps.until))
        found = self._found(session, record, asked) if asked else []
        self._moment = record.step
        self.halted_by = found[0] if found else None
        for hit in found:
            if hit.stop_id is not None:
                self._num_hits[hit.stop_id] = self._num_hits.get(hit.stop_id, 0) + 1
            self._reporter.emit(hit)
        if found:
            self._steps.end()
        return bool(found)

    def _found(self, session: Session, record: StepRecord, asked: list[tuple[int | None, str]]) -> list[StopHit]:
        from engine.session.surroundings import SessionSurroundings

        conditions = [parsed(text) for _, text in asked]
        norms = self._norms_before(record, conditions)
        judge = Judge(SessionSurroundings(session, norms, self._duelling.differs))
        judge.too_slow = self._too_slow
        found = []
        for (stop_id, text), condition in zip(asked, conditions, strict=True):
            verdict = judge.verdict(condition, record)
            if verdict.holds and verdict.seq_id is not None:
                found.append(StopHit(stop_id, text, record.step, verdict.seq_id, verdict.value))
        return found

    def _norms_before(self, record: StepRecord, conditions: list[Condition]) -> dict[int, Norms]:
        """The norms of the rows before the step, where a condition is about them; those after it are kept."""
        if not any(test.quantity == "norm" for each in conditions for test in comparisons_of(each)):
            return {}
        parent = self._moment if record.parent is None else record.parent
        before = self._norms.get(parent, {}) if parent is not None else {}
        new = {part.seq_id: with_rows(before.get(part.seq_id), part.rows) for part in record.sequences if part.rows}
        self._norms[record.step] = {**before, **new}
        if len(self._norms) > KEPT_STEPS:
            self._norms.popitem(last=False)
        return before

    # ---- what is told --------------------------------------------------------------------------------------------

    def told_in(self, status: EngineStatus, session: Session | None) -> EngineStatus:
        """The status with what there is to say of stops."""
        if not self._stops and self.halted_by is None:
            return status
        return replace(status, stops=self._states(session), halted_by=self.halted_by)

    def _states(self, session: Session | None) -> tuple[StopState, ...]:
        """Each stop with how often it held, and what keeps it from it."""
        setting = self._setting(session) if session is not None else None
        return tuple(
            StopState(stop, self._num_hits.get(stop.id, 0), self._problem(stop, setting)) for stop in self._stops
        )

    def _problem(self, stop: Stop, setting: Setting | None) -> str:
        if slow := next(
            (t for t in comparisons_of(stop.condition) if t.sign == "~" and t.value in self._too_slow), None
        ):
            return f"The pattern of “{slow.quantity}” takes too long, and is not asked any more: write a simpler one."
        return why_never(stop.condition, setting) if setting is not None else ""

    def _setting(self, session: Session) -> Setting:
        info, mode = session.model.info, session.live.mode
        most = None if mode.is_endless else context_length(info.geometry)
        return Setting(session.cache, info.captures_attention, most, self._duelling.is_on)


def measured(session: Session, command: MeasureAttention) -> AttentionMeasured:
    """The attention that past queries gave, where their rows are kept."""
    from engine.look.attention_mass import attention_mass

    if len(command.places) * len(command.spans) > MAX_PLACES:
        raise InputError(f"Attention is measured at {MAX_PLACES:,} places at most: ask for fewer at once.")
    masses = []
    for place in command.places:
        rows = session.history.attention.get((place.step, place.seq_id)) or {}
        for span in command.spans:
            if (mass := attention_mass(rows, place.num_tokens, span)) is not None:
                masses.append(AttentionMass(place.step, place.seq_id, span, mass.mean, mass.peak))
    return AttentionMeasured(tuple(masses))
