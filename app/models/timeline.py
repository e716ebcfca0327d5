"""The history of steps: what happened, in order. Complete in itself, so looking back is an index."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from PySide6.QtCore import QObject, Signal

from app.models.token import Token
from engine.wire.records import CacheBytes, SequenceStep, StepRecord


@dataclass
class _Lane:
    """The tokens of one sequence, and beside each the step that fed it (sorted, so that a step is a bisection)."""

    tokens: list[Token] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    shown: tuple[Token, ...] = ()
    num_awaiting: int = 0  # tokens whose surprisal is still to come

    def begin(self, tokens: Sequence[Token]) -> None:
        """Start with tokens that no step of this sequence fed."""
        self.tokens, self.steps = list(tokens), [token.step for token in tokens]
        self._count_awaiting()

    def _count_awaiting(self) -> None:
        self.num_awaiting = sum(token.awaits_surprisal for token in self.tokens)

    def fill(self, step: int, first_position: int, values: Sequence[float]) -> None:
        """The surprisals of tokens that a step fed, to this sequence or to the one it was forked from."""
        for position, value in enumerate(values, first_position):
            token = self.tokens[position] if position < len(self.tokens) else None
            if token is not None and token.step == step and token.awaits_surprisal:
                self.tokens[position] = replace(token, surprisal=value)
                self.num_awaiting -= 1
                self.shown = ()

    def extend(self, record: StepRecord, part: SequenceStep) -> None:
        # a preempted sequence is fed its own tokens again: they stay where they were
        known = len(self.tokens)
        for offset, (token_id, text) in enumerate(zip(part.token_ids, part.texts, strict=True)):
            position = part.first_position + offset
            if position < known:
                continue
            surprisal = part.surprisal[offset] if offset < len(part.surprisal) else None
            is_prompt = position < part.num_prompt_tokens
            forced = part.forced and not is_prompt
            token = Token(position, token_id, text, surprisal, record.step, forced, is_prompt, num_fed_before=offset)
            self.num_awaiting += token.awaits_surprisal
            self.tokens.append(token)
            self.steps.append(record.step)

    def truncate(self, step: int) -> None:
        keep = bisect_right(self.steps, step)
        del self.tokens[keep:], self.steps[keep:]
        self._count_awaiting()

    def until(self, step: int | None) -> tuple[Token, ...]:
        count = len(self.tokens) if step is None else bisect_right(self.steps, step)
        if len(self.shown) != count or (count and self.shown[-1] is not self.tokens[count - 1]):
            self.shown = tuple(self.tokens[:count])
        return self.shown


@dataclass(frozen=True)
class Birth:
    """A sequence that was forked when `until` was the newest step, from what `parent` had after `step`."""

    parent: int
    step: int
    until: int


class Timeline(QObject):
    """Step records in order. Only the controller writes; every view reads.

    `appended` follows the engine as fast as the window goes. `legible` comes after it, at once while the engine rests
    and no more often than words and numbers can be read while it runs. What follows the first shows a later step then
    than what follows the second, which therefore says which step it shows. `charted` comes with `legible`, of a running
    engine in the tick after it: charts of all steps and words at once would hold the window up. `filled(index)`: the
    surprisals of a long prompt came into the record of an earlier step, or of the newest.
    """

    appended = Signal()
    filled = Signal(int)
    legible = Signal()
    charted = Signal()
    reset = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._records: list[StepRecord] = []
        self._steps: list[int] = []
        self._lanes: dict[int, _Lane] = {}
        self._births: dict[int, Birth] = {}
        self._prompts: dict[int, tuple[tuple[int, str], ...]] = {}  # ids and texts, by sequence
        self._since_change: CacheBytes | None = None
        self._is_untold = False
        self._owes_charts = False

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self._records)

    @property
    def records(self) -> Sequence[StepRecord]:
        """Every record, oldest first; read it, do not keep it."""
        return self._records

    @property
    def latest(self) -> StepRecord | None:
        return self._records[-1] if self._records else None

    @property
    def first(self) -> StepRecord | None:
        return self._records[0] if self._records else None

    @property
    def is_before_change(self) -> bool:
        """Whether the cache mode was changed after the newest record, which therefore tells of the mode before."""
        return self._since_change is not None

    def num_bytes(self, step: int | None) -> CacheBytes | None:
        """What the cache held after a step; for None what it holds now, a change of the mode included."""
        if step is None and self._since_change is not None:
            return self._since_change
        record = self.at(step)
        return record.num_bytes if record is not None else None

    def record(self, step: int) -> StepRecord | None:
        """The record of a step, None where there is none."""
        index = bisect_left(self._steps, step)
        return self._records[index] if index < len(self._steps) and self._steps[index] == step else None

    def since_first(self, seq_id: int) -> Iterator[StepRecord]:
        """The records from the one that fed the first token of a sequence on."""
        lane = self._lanes.get(seq_id)
        if lane is not None and lane.steps:
            yield from map(self._records.__getitem__, range(bisect_left(self._steps, lane.steps[0]), len(self)))

    def at(self, step: int | None) -> StepRecord | None:
        """The record of a step, or the newest one for None: what a view shows for `Selected.step`."""
        return self.latest if step is None else self.record(step)

    def part(self, seq_id: int, step: int | None = None) -> SequenceStep | None:
        """What a step (None: the newest) did to a sequence; None where it did nothing to it. Until a fork is stepped
        itself, its records are those of the sequence it was forked from."""
        record, birth = self.at(step), self._births.get(seq_id)
        if record is None:
            return None
        if birth is not None and record.step <= birth.until:
            return self.part(birth.parent, min(record.step, birth.step))
        return record.of(seq_id)

    def newest_part(self, seq_id: int) -> SequenceStep | None:
        """What the newest step that fed a sequence did to it."""
        record = self.fed(seq_id)
        return self.part(seq_id, record.step) if record is not None else None

    def birth(self, seq_id: int) -> Birth | None:
        """How a sequence was forked; None where it was not."""
        return self._births.get(seq_id)

    def before(self, step: int) -> StepRecord | None:
        """The record just before a step."""
        index = bisect_left(self._steps, step)
        return self._records[index - 1] if index else None

    def neighbour(self, step: int | None, direction: int) -> int | None:
        """The recorded step next to one, as `Selected.step` says it: None is the live step."""
        if not self._steps:
            return None
        live = len(self._steps) - 1
        here = live if step is None else bisect_left(self._steps, step)
        there = min(max(here + direction, 0), live)
        return None if there == live else self._steps[there]

    def fed(self, seq_id: int, step: int | None = None) -> StepRecord | None:
        """The newest record up to a step (None: of all) that fed a sequence: one that has ended beside others stands
        where that step left it. O(log n)."""
        record, lane = self.at(step), self._lanes.get(seq_id)
        if record is None or lane is None or self.part(seq_id, record.step) is not None:
            return record if lane is not None else None
        count = bisect_right(lane.steps, record.step)
        return self.record(lane.steps[count - 1]) if count else None

    def tokens(self, seq_id: int, step: int | None = None) -> tuple[Token, ...]:
        """The tokens of a sequence that are in the cache after a step (None: now)."""
        lane = self._lanes.get(seq_id)
        return lane.until(step) if lane else ()

    def token(self, seq_id: int, position: int) -> Token | None:
        """One token that is in the cache now, None where there is none."""
        lane = self._lanes.get(seq_id)
        return lane.tokens[position] if lane is not None and 0 <= position < len(lane.tokens) else None

    def num_tokens(self, seq_id: int, step: int | None = None) -> int:
        """How many tokens of a sequence are in the cache after a step (None: now)."""
        lane = self._lanes.get(seq_id)
        if lane is None:
            return 0
        return len(lane.steps) if step is None else bisect_right(lane.steps, step)

    def all_ids(self, seq_id: int) -> tuple[int, ...]:
        """The ids of all tokens of a sequence: those in the cache, then what is still to be read of its prompt."""
        fed = tuple(token.token_id for token in self.tokens(seq_id))
        return fed + tuple(token_id for token_id, _ in self._prompts.get(seq_id, ())[len(fed) :])

    def sequence_ids(self) -> tuple[int, ...]:
        """Every sequence that has tokens, oldest first."""
        return tuple(self._lanes)

    def begin(self, seq_id: int, token_ids: Sequence[int], texts: Sequence[str]) -> None:
        """A prompt was taken: its first tokens may be served by a prefix that is there already, and fed by no step."""
        self._prompts[seq_id] = tuple(zip(token_ids, texts, strict=True))

    def append(self, records: Iterable[StepRecord]) -> None:
        """Add records; O(what is new). Emits once."""
        before = len(self._records)
        for record in records:
            self._records.append(record)
            self._steps.append(record.step)
            for part in record.sequences:
                lane = self._lanes.setdefault(part.seq_id, _Lane())
                if not lane.tokens and part.first_position:
                    lane.begin(self._served(record, part))
                lane.extend(record, part)
        if len(self._records) > before:
            self._since_change = None
            self._is_untold = True
            self.appended.emit()

    def replace(self, record: StepRecord) -> int:
        """Another record of a step that is there; of pages it says something else, of tokens it does not. Returns its
        index."""
        index = bisect_left(self._steps, record.step)
        self._records[index] = record
        self._is_untold = True
        return index

    def fill(self, step: int, seq_id: int, first_position: int, values: tuple[float, ...]) -> None:
        """The surprisals of a long prompt's tokens from a position on, which the record of a step left open."""
        record = self.record(step)
        if record is None:
            return
        index = self.replace(record.with_surprisal(seq_id, first_position, values))
        for lane in self._lanes.values():
            lane.fill(step, first_position, values)
        self.filled.emit(index)

    def awaits_surprisal(self, seq_id: int) -> bool:
        """Whether some of a sequence's tokens have no surprisal yet."""
        lane = self._lanes.get(seq_id)
        return lane is not None and lane.num_awaiting > 0

    def _served(self, record: StepRecord, part: SequenceStep) -> list[Token]:
        """The tokens of a prompt before the first that a step fed: those of the prefix it shares."""
        served = self._prompts.get(part.seq_id, ())[: part.first_position]
        return [
            Token(position, token_id, text, None, record.step, False, position < part.num_prompt_tokens, True)
            for position, (token_id, text) in enumerate(served)
        ]

    @property
    def owes_charts(self) -> bool:
        """Whether words were told and the charts of the same steps were not."""
        return self._owes_charts

    def tell(self, *, again: bool = False, charts_later: bool = False) -> None:
        """What was appended since the last time may be read now; `again` even where nothing was. With `charts_later`
        the charts wait for `tell_charts`."""
        if self._is_untold or (again and self._records):
            self._is_untold = False
            self._owes_charts = True
            self.legible.emit()
        if not charts_later:
            self.tell_charts()

    def tell_charts(self) -> None:
        """The charts of what was told may be drawn now, if they are owed."""
        if self._owes_charts:
            self._owes_charts = False
            self.charted.emit()

    def change_mode(self, num_bytes: CacheBytes) -> None:
        """The sequences have moved into another cache, which holds so much, and no step has been taken in it yet."""
        if self._records:
            self._since_change = num_bytes
            self._owes_charts = True
            self.legible.emit()
            self.tell_charts()

    def branch(self, seq_id: int, parent: int, step: int | None, num_tokens: int) -> None:
        """A sequence of `num_tokens` tokens, read or not, has just been forked: until it is stepped it stands where its
        parent stood after `step`."""
        self._prompts[seq_id] = self._prompts.get(parent, ())[:num_tokens]
        if step is not None and self._steps:
            self._births[seq_id] = Birth(parent, step, self._steps[-1])
        if seq_id not in self._lanes and parent in self._lanes:
            self._lanes.setdefault(seq_id, _Lane()).begin(self._lanes[parent].until(step)[:num_tokens])
            self.reset.emit()

    def rewind(self, step: int | None) -> None:
        """Forget everything after a step (None: everything)."""
        keep = 0 if step is None else bisect_right(self._steps, step)
        if keep == len(self._records) and self._since_change is None:
            return
        self._since_change = None
        del self._records[keep:], self._steps[keep:]
        if step is None:
            self._lanes.clear()
        for lane in self._lanes.values():
            lane.truncate(step if step is not None else -1)
        self._lanes = {seq_id: lane for seq_id, lane in self._lanes.items() if lane.tokens}
        last = step if step is not None else -1
        self._births = {child: birth for child, birth in self._births.items() if birth.until <= last}
        self.reset.emit()

    def clear(self) -> None:
        """Begin anew."""
        self._records.clear()
        self._steps.clear()
        self._lanes.clear()
        self._births.clear()
        self._prompts.clear()
        self._since_change = None
        self.reset.emit()
