"""What is measured of a step: row statistics, attention, candidates, surprisal, numbers that are not finite.

`measure` runs on the device and reads nothing; `observation_of` turns the numbers into the fields of a record, once
they have left the device.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from msgspec.structs import replace

from engine.cache.contract import Evicted, Pair
from engine.errors import InputError, first_line, is_of_device
from engine.history.history import History
from engine.look.candidates import IDS, NextToken, Sample, candidate_measures, chosen_measures, next_token
from engine.look.measures import (
    EvictedInStep,
    NewRows,
    Norms,
    attention_measures,
    attention_summary,
    keepable_rows,
    nan_where_evicted,
    norm_ratio,
    norms_after,
    norms_before,
    row_checksums,
    wrapped,
)
from engine.look.transfer import Arrays, ObservationRing, Packing, PendingCopy
from engine.model.tokenizer import TokenTexts
from engine.session.forward import Captured, Forward, StepClock
from engine.spec.model import CaptureLevel
from engine.wire.records import AttentionSummary, NonFinite, Phase, RowStats, SequenceStep, StepRecord, StopReason

PACKED = "packed"  # the name of what the forward itself measured, among what is measured after it
PLACES = 1 << 32  # more than a sequence has positions: separates the sequences of a step in checksums


@dataclass(frozen=True, eq=False)
class SequenceMeasures:
    """What was measured of one sequence's forward and is still on the device: `tensors` by name. `new_rows` and
    `layers` say which rows and layers they are about, `packing` how what the forward itself measured is laid out. The
    newest query's `attention` `[H, S]` by layer stays on the device; NaN where no row is held."""

    first_position: int
    num_tokens: int
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    new_rows: NewRows | None = None
    layers: tuple[int, ...] = ()
    attention: dict[int, torch.Tensor] = field(default_factory=dict)
    checksums: dict[int, int] = field(default_factory=dict)  # known already
    packing: Packing | None = None  # of what was measured within the forward


@dataclass(frozen=True, eq=False)
class Observation:
    """What was measured of one sequence's forward, as a record has it. `rows` are K and V of the new tokens as they
    were computed, if these are captured."""

    stats: RowStats | None = None
    summary: AttentionSummary | None = None
    surprisal: float | None = None
    non_finite: tuple[NonFinite, ...] = ()
    checksums: dict[int, int] = field(default_factory=dict)
    next_token: NextToken | None = None
    rows: dict[int, Pair] = field(default_factory=dict)


def measure(
    forwards: Sequence[Forward], choices: Sequence[Sample | None], captured: Captured
) -> list[SequenceMeasures]:
    """Measure the forwards of a step, before their rows are quantised or evicted; the host reads nothing. The new rows
    of all sequences are measured together where they have the same shapes."""
    places = [(forward.work.first_position, forward.work.num_tokens) for forward in forwards]
    if not captured.statistics:
        return [SequenceMeasures(*place) for place in places]
    samples, packed = [choice for choice in choices if choice is not None], [each.packed for each in forwards]
    known = [each for each in packed if each is not None]
    if len(known) < len(packed):  # some forwards did not measure themselves: all are measured here
        known, candidates = [], iter(candidate_measures(samples))
        rows = measured_rows_of(forwards, captured)
    else:
        ids = [each.tensor(IDS) for each, choice in zip(known, choices, strict=True) if choice is not None]
        candidates = iter(chosen_measures(samples, ids))
        rows = [(each.layout.new_rows, {PACKED: each.packed}) for each in known]
    measured = []
    for n, (forward, choice, place, (new_rows, tensors)) in enumerate(
        zip(forwards, choices, places, rows, strict=True)
    ):
        cache = forward.work.live.cache
        tensors |= surprisal_measure(forward) | (next(candidates) if choice is not None else {})
        weights = keepable_rows(forward.weights, place[1], forward.num_together, is_borrowed=forward.is_borrowed)
        if not known:
            tensors |= attention_measures(weights, place[1], cache.num_source)
        scattered = cache.scattered() if weights else {}
        attention = (
            {i: nan_where_evicted(row, scattered.get(i)) for i, row in weights.items()} if scattered else weights
        )
        packing = known[n].layout.packing if known else None
        measured.append(SequenceMeasures(*place, tensors, new_rows, tuple(weights), attention, packing=packing))
    return measured


def measured_rows_of(
    forwards: Sequence[Forward], captured: Captured
) -> list[tuple[NewRows | None, dict[str, torch.Tensor]]]:
    """The new rows of each sequence, and what is measured of them: in one go where their shapes are the same."""
    found = []
    for forward in forwards:
        cache, first = forward.work.live.cache, forward.work.first_position
        rows, offsets = cache.all_newest_rows(first), cache.new_row_offsets(first)
        found.append((NewRows.of(rows, len(forward.work.token_ids), offsets) if rows else None, rows))
    kinds = [new_rows for new_rows, _ in found]
    if (one := kinds[0]) is not None and all(each is not None and each.groups == one.groups for each in kinds):
        together = one.measure_all([rows for _, rows in found], with_rows=captured.new_rows)
        return list(zip(kinds, together, strict=True))
    return [(new, new.measure(rows, with_rows=captured.new_rows) if new is not None else {}) for new, rows in found]


def measure_checksums(forward: Forward) -> SequenceMeasures:
    """Only the checksums of the new rows: for a step in a scratch session, whose record reaches no client."""
    first = forward.work.first_position
    rows = forward.work.live.cache.all_newest_rows(first)
    return SequenceMeasures(first, forward.work.num_tokens, checksums=row_checksums(rows))


def surprisal_measure(forward: Forward) -> dict[str, torch.Tensor]:
    """log p of the first token that was computed, under the logits of the forward before; empty if there are none."""
    token_id, live = forward.work.token_ids[0], forward.work.live
    if live.logprobs is not None:
        return {"surprisal": live.logprobs[token_id]}
    if live.logits is not None:
        return {"surprisal": live.logits[token_id] - live.logits.float().logsumexp(-1)}
    return {}


def observation_of(
    measured: SequenceMeasures, arrays: Arrays, choice: Sample | None, text_of: TokenTexts
) -> Observation:
    """What was measured of one sequence, from its `arrays`, which have left the device; `choice` is the sample that was
    measured."""
    if measured.packing is not None:
        arrays = arrays | measured.packing.unpack(arrays[PACKED])
    stats: RowStats | None = None
    non_finite: tuple[NonFinite, ...] = ()
    checksums, rows = measured.checksums, dict[int, Pair]()
    if measured.new_rows is not None:
        found = measured.new_rows.statistics(arrays, measured.first_position)
        stats, non_finite, checksums = found.stats, found.non_finite, found.checksums
        rows = measured.new_rows.rows_of(arrays)
    following = next_token(arrays, choice.token_id, text_of) if choice and IDS in arrays else None
    if following is not None and following.entropy != following.entropy and following.num_non_finite:
        bad = NonFinite("logits", None, None, measured.num_tokens - 1, following.num_non_finite)
        non_finite = (*non_finite, bad)
    surprisal = -float(arrays["surprisal"]) if "surprisal" in arrays else None
    summary = attention_summary(arrays, measured.layers)
    return Observation(stats, summary, surprisal, non_finite, checksums, following, rows)


def packed_together(parts: Sequence[SequenceMeasures]) -> dict[str, torch.Tensor]:
    """The tensors of all sequences of a step, each name prefixed with the index of its sequence."""
    return {name: tensor for n, part in enumerate(parts) for name, tensor in prefixed(part.tensors, str(n)).items()}


def prefixed(tensors: Mapping[str, torch.Tensor], owner: str) -> dict[str, torch.Tensor]:
    """The same tensors, each name prefixed with that of its owner."""
    return {f"{owner}.{name}": tensor for name, tensor in tensors.items()}


def arrays_of(arrays: Arrays, owner: str) -> Arrays:
    """The arrays of one owner, without the prefix."""
    start = f"{owner}."
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


def checksums_of(firsts: Sequence[int], observations: Sequence[Observation]) -> tuple[int, ...]:
    """One checksum for each layer with rows, over all sequences of a step. Each sequence's checksum is multiplied with
    an odd number made of its index and of the first position of its new rows (`firsts`), so that rows at other places
    give another sum."""
    found: dict[int, int] = {}
    for number, (first, observation) in enumerate(zip(firsts, observations, strict=True)):
        odd = 2 * (first + number * PLACES) + 1
        for layer, checksum in observation.checksums.items():
            found[layer] = wrapped(found.get(layer, 0) + odd * checksum)
    return tuple(found[layer] for layer in sorted(found))


def sequence_step(
    forward: Forward, choice: Sample | None, phase: Phase, stop: StopReason | None, text_of: TokenTexts
) -> SequenceStep:
    """One sequence's part of a record, without anything measured. Called when the cache has committed the step and the
    sequence still is in its state before it."""
    work, sequence, cache = forward.work, forward.work.live.sequence, forward.work.live.cache
    return SequenceStep(
        seq_id=work.live.seq_id,
        phase=phase,
        token_ids=tuple(work.token_ids),
        texts=tuple(map(text_of, work.token_ids)),
        first_position=work.first_position,
        num_tokens=work.num_tokens,
        num_prompt_tokens=sequence.num_prompt_tokens,
        surprisal=(None, *(forward.surprisal.values if forward.surprisal else (None,) * (len(work.token_ids) - 1))),
        sampled=choice.token_id if choice else None,
        sampled_text=text_of(choice.token_id) if choice else "",
        forced=sequence.sampled_is_forced and phase == "decode",
        candidates=(),
        entropy=None,
        stop=stop,
        rows=None,
        attention=None,
        stored_bytes=0 if cache.spec.recomputes else cache.stored_bytes,
        hit_tokens=cache.page_counts().hit_tokens,
    )


def with_observation(part: SequenceStep, observation: Observation) -> SequenceStep:
    """The part of a record, completed with what was measured."""
    following = observation.next_token
    return replace(
        part,
        surprisal=(observation.surprisal, *part.surprisal[1:]),
        candidates=following.candidates if following else (),
        entropy=following.entropy if following else None,
        rows=observation.stats,
        attention=observation.summary,
    )


log = logging.getLogger(__name__)
EVICTED = "evicted"  # the name prefix of what was measured of evicted rows


@dataclass(eq=False)
class PendingMeasures:
    """What was measured of the sequences of one step and of the rows that it evicted; `sent` once it is being copied
    from the device."""

    parts: list[SequenceMeasures]
    choices: list[Sample | None]
    level: CaptureLevel
    evicted: EvictedInStep = field(default_factory=EvictedInStep)
    sent: PendingCopy | None = None


# the record of a finished step whose measurements have not arrived yet, and the clock of that step
OpenRecord = tuple[StepRecord, PendingMeasures, StepClock]


class Observer:
    """Measures what is `captured`; in a session that `is_scratch` only checksums. Completes records in the order of
    their steps: at once, or as many steps late as the ring allows."""

    def __init__(
        self, ring: ObservationRing, captured: Captured, history: History, text_of: TokenTexts, *, is_scratch: bool
    ) -> None:
        self.ring, self._captured = ring, captured
        self._history, self._text_of, self._is_scratch = history, text_of, is_scratch
        self._open: deque[OpenRecord] = deque()
        self._read_errors: list[InputError] = []
        # of the sequences of the newest record: the (step, seq_id) that computed each last, and its norms up to there
        self._norms: dict[int, tuple[tuple[int, int], Norms]] = {}

    def begin(self, forwards: Sequence[Forward], choices: list[Sample | None]) -> PendingMeasures:
        """Measure the forwards of a step, before its rows are quantised or evicted."""
        if self._is_scratch:
            return PendingMeasures([measure_checksums(forward) for forward in forwards], choices, "off")
        return PendingMeasures(measure(forwards, choices, self._captured), choices, self._captured.level)

    def send(self, measuring: PendingMeasures, evicted: Sequence[Evicted]) -> None:
        """Start the one copy that brings all measurements, and those of the `evicted` rows, to the host."""
        if self._is_scratch:
            return
        measuring.evicted = EvictedInStep(evicted)
        tensors = packed_together(measuring.parts) | prefixed(measuring.evicted.measure(), EVICTED)
        if tensors:
            measuring.sent = self.ring.send(tensors)

    def discard(self, measuring: PendingMeasures) -> None:
        """Discard the measurements of a step that failed."""
        if measuring.sent is not None:
            self.ring.undo_send(measuring.sent)

    def complete_later(self, record: StepRecord, measuring: PendingMeasures, clock: StepClock) -> None:
        """Queue the record of a finished step, to be completed when its measurements have arrived."""
        self._open.append((record, measuring, clock))

    @property
    def num_open(self) -> int:
        """The number of finished steps whose records are not complete."""
        return len(self._open)

    def complete(self, num_late: int = 0) -> list[StepRecord]:
        """Complete and return the oldest records until `num_late` are left. Measurements that cannot be read are left
        out of a record, since its step is done; `take_read_errors` gives the reason. A device failure is raised, and
        the remaining records are discarded."""
        return [self._read(*self._open.popleft()) for _ in range(len(self._open) - num_late)]

    def take_read_errors(self) -> list[InputError]:
        """Why measurements could not be read: one error for each such step since the last call."""
        found, self._read_errors = self._read_errors, []
        return found

    def _read(self, record: StepRecord, measuring: PendingMeasures, clock: StepClock) -> StepRecord:
        try:
            return self.completed(record, measuring, clock)
        except Exception as error:
            if is_of_device(error):
                self._open.clear()
                raise
            log.error("reading step %d failed", record.step, exc_info=error)
            self._read_errors.append(read_error(record.step, error))
            return record

    def completed(
        self, record: StepRecord, measuring: PendingMeasures, clock: StepClock, *, is_now: bool = False
    ) -> StepRecord:
        """Wait for the measurements of a step and return its complete record; with `is_now` the step's time includes
        the wait."""
        arrays = self.ring.read(measuring.sent) if measuring.sent is not None else {}
        observations = [
            observation_of(part, arrays_of(arrays, str(n)), choice, self._text_of)
            for n, (part, choice) in enumerate(zip(measuring.parts, measuring.choices, strict=True))
        ]
        checksums = checksums_of([part.first_position for part in measuring.parts], observations)
        for part, seen in zip(record.sequences, observations, strict=True):
            self._history.log_rows(record.step, part.seq_id, seen.rows)
        self._history.tree.set_checksums(record.step, checksums)
        if is_now:
            clock.end()
        timings = clock.timings()
        if record.phase == "decode":
            self._captured.note_cost(measuring.level, timings.observe_ms)
        parts = map(with_observation, record.sequences, observations)
        record = self._with_norm_ratios(replace(record, sequences=tuple(parts)))
        return replace(
            record,
            non_finite=tuple(place for seen in observations for place in seen.non_finite),
            checksums=checksums,
            timings=timings,
            evictions=measuring.evicted.evictions(arrays_of(arrays, EVICTED)),
        )

    def _with_norm_ratios(self, record: StepRecord) -> StepRecord:
        """Log the statistics of a step's rows, and compare them with those before."""
        self._history.log_norms(record)
        parts, known = [], self._norms
        self._norms = {}
        for part in record.sequences:
            if (rows := part.rows) is not None:
                seq_id, parent = part.seq_id, record.parent
                by = None if parent is None else self._history.tree.computed_by(seq_id, parent)
                at, before = known.get(seq_id, (None, None))
                if at is None or at != by:
                    before = norms_before(stats for _, stats in self._history.norms_back(seq_id, parent))
                part = replace(part, norm_ratio=norm_ratio(rows, before))
                self._norms[seq_id] = (record.step, seq_id), norms_after(before, rows)
            parts.append(part)
        return replace(record, sequences=tuple(parts))


def read_error(step: int, error: Exception) -> InputError:
    """The error that says that the measurements of a finished step could not be read."""
    return InputError(
        f"What was measured of step {step} could not be read ({type(error).__name__}: {first_line(error)}); the step "
        "is done, and its record lacks it: measure less of each step, or free memory."
    )
