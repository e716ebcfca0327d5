"""What is measured of a step: row statistics, attention, candidates, surprisal, numbers that are not finite.

The `Observer` has a step measured on the device by `measure`, which reads nothing, sends the numbers to the host, and
completes the record when they are there: `observed` turns them into its fields.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from msgspec.structs import replace

from engine.cache.contract import Evicted, Pair
from engine.errors import InputError, first_line, is_of_device
from engine.history.history import History
from engine.look.candidates import IDS, Sample, candidate_measures, chosen_measures, next_token
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
from engine.session.forward import Captured, StepClock
from engine.session.scheduler import SequenceWork
from engine.spec.model import CaptureLevel
from engine.wire.records import NonFinite, RowStats, SequenceStep, StepRecord, StopReason

PACKED = "packed"  # the name of what the forward itself measured, among what is measured after it
PLACES = 1 << 32  # more than a sequence has positions: separates the sequences of a step in checksums


log = logging.getLogger(__name__)
EVICTED = "evicted"  # the name prefix of what was measured of evicted rows


@dataclass(eq=False)
class StepMeasures:
    """What was measured of the sequences of one step and of the rows that it evicted; `sent` once it is being copied
    from the device, `clock` is that of the step."""

    parts: list[SequenceMeasures]
    samples: list[Sample | None]
    level: CaptureLevel
    clock: StepClock
    evicted: EvictedInStep = field(default_factory=EvictedInStep)
    sent: PendingCopy | None = None


class Observer:
    """Measures what is `captured`; in a session that `is_scratch` (the records of its steps reach no client) only
    checksums. Completes records in the order of their steps: at once, or as many steps late as the ring allows."""

    def __init__(
        self, ring: ObservationRing, captured: Captured, history: History, text_of: TokenTexts, *, is_scratch: bool
    ) -> None:
        self.ring, self.captured = ring, captured
        self.history, self.text_of, self.is_scratch = history, text_of, is_scratch
        self._open: deque[tuple[StepRecord, StepMeasures]] = deque()  # finished steps, not measured completely
        self._read_errors: list[InputError] = []
        # of the sequences of the newest record: the (step, seq_id) that computed each last, and its norms up to there
        self._norms: dict[int, tuple[tuple[int, int], Norms]] = {}

    def begin(self, work: Sequence[SequenceWork], clock: StepClock) -> StepMeasures:
        """Measure the forwards of a step, before its rows are quantised or evicted."""
        samples = [each.sample for each in work]
        if not self.is_scratch:
            return StepMeasures(measure(work, self.captured), samples, self.captured.level, clock)
        rows = (each.live.cache.all_newest_rows(each.first_position) for each in work)
        return StepMeasures([SequenceMeasures(checksums=row_checksums(each)) for each in rows], samples, "off", clock)

    def send(self, measuring: StepMeasures, evicted: Sequence[Evicted]) -> None:
        """Start the one copy that brings all measurements, and those of the `evicted` rows, to the host."""
        if self.is_scratch:
            return
        measuring.evicted = EvictedInStep(evicted)
        owners = {str(n): part.tensors for n, part in enumerate(measuring.parts)}
        owners[EVICTED] = measuring.evicted.measure()
        tensors = {f"{owner}.{name}": tensor for owner, found in owners.items() for name, tensor in found.items()}
        if tensors:
            measuring.sent = self.ring.send(tensors)

    def discard(self, measuring: StepMeasures) -> None:
        """Discard the measurements of a step that failed."""
        if measuring.sent is not None:
            self.ring.undo_send(measuring.sent)

    def complete_later(self, record: StepRecord, measuring: StepMeasures) -> None:
        """Queue the record of a finished step, to be completed when its measurements have arrived."""
        self._open.append((record, measuring))

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

    def _read(self, record: StepRecord, measuring: StepMeasures) -> StepRecord:
        try:
            return self.completed(record, measuring)
        except Exception as error:
            if is_of_device(error):
                self._open.clear()
                raise
            log.error("reading step %d failed", record.step, exc_info=error)
            self._read_errors.append(read_error(record.step, error))
            return record

    def completed(self, record: StepRecord, measuring: StepMeasures, *, is_now: bool = False) -> StepRecord:
        """Wait for the measurements of a step and return its complete record; with `is_now` the step's time includes
        the wait."""
        arrays: dict[str, Arrays] = {owner: {} for owner in (*map(str, range(len(measuring.parts))), EVICTED)}
        for name, array in self.ring.read(measuring.sent).items() if measuring.sent is not None else ():
            owner, _, name = name.partition(".")
            arrays[owner][name] = array
        parts = zip(record.sequences, measuring.parts, arrays.values(), measuring.samples, strict=False)
        seen = [observed(*each, self.text_of) for each in parts]
        firsts = [part.first_position for part in record.sequences]
        checksums = checksums_of(firsts, [each.checksums for each in seen])
        for part, _, _, rows in seen:
            if rows:
                self.history.log_rows(record.step, part.seq_id, rows)
        self.history.tree.set_checksums(record.step, checksums)
        if is_now:
            measuring.clock.end()
        timings = measuring.clock.timings()
        if record.phase == "decode":
            self.captured.note_cost(measuring.level, timings.observe_ms)
        record = replace(
            record,
            sequences=tuple(each.part for each in seen),
            non_finite=tuple(place for each in seen for place in each.non_finite),
            checksums=checksums,
            timings=timings,
            evictions=measuring.evicted.evictions(arrays[EVICTED]),
        )
        self.history.log_norms(record)
        return self._with_norm_ratios(record)

    def _with_norm_ratios(self, record: StepRecord) -> StepRecord:
        """The record of a step, whose rows are compared with those before."""
        parts, known = [], self._norms
        self._norms = {}
        for part in record.sequences:
            if (rows := part.rows) is not None:
                seq_id, parent = part.seq_id, record.parent
                by = None if parent is None else self.history.tree.computed_by(seq_id, parent)
                at, before = known.get(seq_id, (None, None))
                if at is None or at != by:
                    before = norms_before(stats for _, stats in self.history.norms_back(seq_id, parent))
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


# ---- one sequence ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SequenceMeasures:
    """What was measured of one sequence's forward and is still on the device: `tensors` by name. `new_rows` and
    `layers` say which rows and layers they are about, `packing` how what the forward itself measured is laid out. The
    newest query's `attention` `[H, S]` by layer stays on the device; NaN where no row is held."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    new_rows: NewRows | None = None
    layers: tuple[int, ...] = ()
    attention: dict[int, torch.Tensor] = field(default_factory=dict)
    checksums: dict[int, int] = field(default_factory=dict)  # known already
    packing: Packing | None = None  # of what was measured within the forward


class Observation(NamedTuple):
    """A sequence's part of a record with what was measured, and what goes elsewhere: its numbers that are not finite,
    the checksums of its new rows by layer, and K and V of the new tokens as they were computed, if these are
    captured."""

    part: SequenceStep
    non_finite: tuple[NonFinite, ...]
    checksums: dict[int, int]
    rows: dict[int, Pair]


def measure(work: Sequence[SequenceWork], captured: Captured) -> list[SequenceMeasures]:
    """Measure the forwards of a step, before their rows are quantised or evicted; the host reads nothing. The new rows
    of all sequences are measured together where they have the same shapes."""
    if not captured.statistics:
        return [SequenceMeasures() for _ in work]
    samples, known = [each.sample for each in work if each.sample], [each.packed for each in work if each.packed]
    if len(known) < len(work):  # some forwards did not measure themselves: all are measured here
        known, candidates = [], iter(candidate_measures(samples))
        rows = measured_rows_of(work, captured)
    else:
        ids = [packed.tensor(IDS) for packed, each in zip(known, work, strict=True) if each.sample]
        candidates = iter(chosen_measures(samples, ids))
        rows = [(each.layout.new_rows, {PACKED: each.packed}) for each in known]
    measured = []
    for n, (each, (new_rows, tensors)) in enumerate(zip(work, rows, strict=True)):
        cache, num_tokens = each.live.cache, each.num_tokens
        tensors |= surprisal_measure(each) | (next(candidates) if each.sample else {})
        weights = keepable_rows(each.weights, num_tokens, each.num_together, is_borrowed=each.is_borrowed)
        if not known:
            tensors |= attention_measures(weights, num_tokens, cache.num_source)
        scattered = cache.scattered() if weights else {}
        attention = (
            {i: nan_where_evicted(row, scattered.get(i)) for i, row in weights.items()} if scattered else weights
        )
        packing = known[n].layout.packing if known else None
        measured.append(SequenceMeasures(tensors, new_rows, tuple(weights), attention, packing=packing))
    return measured


def measured_rows_of(
    work: Sequence[SequenceWork], captured: Captured
) -> list[tuple[NewRows | None, dict[str, torch.Tensor]]]:
    """The new rows of each sequence, and what is measured of them: in one go where their shapes are the same."""
    found = []
    for each in work:
        cache, first = each.live.cache, each.first_position
        rows, offsets = cache.all_newest_rows(first), cache.new_row_offsets(first)
        found.append((NewRows.of(rows, len(each.token_ids), offsets) if rows else None, rows))
    kinds = [new_rows for new_rows, _ in found]
    if (one := kinds[0]) is not None and all(each is not None and each.groups == one.groups for each in kinds):
        together = one.measure_all([rows for _, rows in found], with_rows=captured.new_rows)
        return list(zip(kinds, together, strict=True))
    return [(new, new.measure(rows, with_rows=captured.new_rows) if new is not None else {}) for new, rows in found]


def surprisal_measure(work: SequenceWork) -> dict[str, torch.Tensor]:
    """log p of the first token that was computed, under the logits of the forward before; empty if there are none."""
    token_id, live = work.token_ids[0], work.live
    if live.logprobs is not None:
        return {"surprisal": live.logprobs[token_id]}
    if live.logits is not None:
        return {"surprisal": live.logits[token_id] - live.logits.float().logsumexp(-1)}
    return {}


def observed(
    part: SequenceStep, measured: SequenceMeasures, arrays: Arrays, sample: Sample | None, text_of: TokenTexts
) -> Observation:
    """A sequence's part of a record, completed with what was measured, from its `arrays`, which have left the device;
    `sample` is the one that was measured."""
    if measured.packing is not None:
        arrays = arrays | measured.packing.unpack(arrays[PACKED])
    stats: RowStats | None = None
    non_finite: tuple[NonFinite, ...] = ()
    checksums, rows = measured.checksums, dict[int, Pair]()
    if measured.new_rows is not None:
        found = measured.new_rows.statistics(arrays, part.first_position)
        stats, non_finite, checksums = found.stats, found.non_finite, found.checksums
        rows = measured.new_rows.rows_of(arrays)
    following = next_token(arrays, sample.token_id, text_of) if sample and IDS in arrays else None
    if sample and following and following.entropy != following.entropy:
        bad = NonFinite("logits", None, None, part.num_tokens - 1, len(sample.logprobs))
        non_finite = (*non_finite, bad)
    part = replace(
        part,
        surprisal=(-float(arrays["surprisal"]) if "surprisal" in arrays else None, *part.surprisal[1:]),
        candidates=following.candidates if following else (),
        entropy=following.entropy if following else None,
        rows=stats,
        attention=attention_summary(arrays, measured.layers),
    )
    return Observation(part, non_finite, checksums, rows)


def checksums_of(firsts: Sequence[int], checksums: Sequence[Mapping[int, int]]) -> tuple[int, ...]:
    """One checksum for each layer with rows, over all sequences of a step. Each sequence's checksum is multiplied with
    an odd number made of its index and of the first position of its new rows (`firsts`), so that rows at other places
    give another sum."""
    found: dict[int, int] = {}
    for number, (first, of_layers) in enumerate(zip(firsts, checksums, strict=True)):
        odd = 2 * (first + number * PLACES) + 1
        for layer, checksum in of_layers.items():
            found[layer] = wrapped(found.get(layer, 0) + odd * checksum)
    return tuple(found[layer] for layer in sorted(found))


def sequence_step(
    work: SequenceWork, choice: Sample | None, stop: StopReason | None, text_of: TokenTexts
) -> SequenceStep:
    """One sequence's part of a record, without anything measured. Called when the cache has committed the step and the
    sequence still is in its state before it."""
    sequence, cache = work.live.sequence, work.live.cache
    return SequenceStep(
        seq_id=work.live.seq_id,
        phase=work.phase,
        token_ids=tuple(work.token_ids),
        texts=tuple(map(text_of, work.token_ids)),
        first_position=work.first_position,
        num_tokens=work.num_tokens,
        num_prompt_tokens=sequence.num_prompt_tokens,
        surprisal=(None, *(work.surprisal.values if work.surprisal else (None,) * (len(work.token_ids) - 1))),
        sampled=choice.token_id if choice else None,
        sampled_text=text_of(choice.token_id) if choice else "",
        forced=sequence.sampled_is_forced and work.phase == "decode",
        candidates=(),
        entropy=None,
        stop=stop,
        rows=None,
        attention=None,
        stored_bytes=0 if cache.spec.recomputes else cache.stored_bytes,
        hit_tokens=cache.page_counts().hit_tokens,
    )
