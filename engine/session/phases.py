"""A step that pauses at each of its phases, so that a user can watch them one at a time, and what it has computed so
far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from engine.cache.attention_probe import Probe
from engine.cache.sequence_cache import SequenceCache
from engine.look.candidates import Sample
from engine.look.measures import nan_where_evicted
from engine.look.source import HalfWritten
from engine.model.batch import LayerCallback
from engine.model.tokenizer import TokenTexts
from engine.session.clock import StepClock
from engine.session.sampler import SampledToken, with_candidates
from engine.session.scheduler import SequenceWork, StepBatch
from engine.wire.pages import PageAllocated
from engine.wire.records import SequenceStep, StepRecord, read_only_floats
from engine.wire.status import (
    Chosen,
    ChosenToken,
    LayerDone,
    NewRow,
    PhaseReached,
    Scheduled,
    ScheduledSequence,
    StepPhase,
    SuspendedStep,
    Written,
    WrittenRows,
)

Reached = Callable[[PhaseReached], None]
NewestWeightsOf = Callable[
    [SequenceWork, int, torch.Tensor], torch.Tensor
]  # a sequence's `[H, S]` of a layer's `[B, H, S]`


class PhasedStep:
    """Calls `reached` at every phase of a step; the step continues when it returns, and is given up when it raises. The
    time spent there is not counted in the step. During the forward the layers already computed hold the new rows, and
    later layers do not yet: `half_written` says which."""

    def __init__(self, step: int, num_layers: int, text_of: TokenTexts, clock: StepClock, reached: Reached) -> None:
        self._step, self._num_layers = step, num_layers
        self._text_of, self._clock, self._reached = text_of, clock, reached
        self._work: dict[int, SequenceWork] = {}
        self._passed: dict[int, int] = {}  # number of layers computed, by sequence
        self._layer: int | None = None
        self._is_chosen = False
        self._weights: dict[tuple[int, int], torch.Tensor] = {}  # `[H, S]` by sequence and layer

    # ---- what the step has computed so far -----------------------------------------------------------------------

    @property
    def suspended(self) -> SuspendedStep | None:
        """How far the step has come; None before anything is scheduled."""
        if not self._work:
            return None
        lengths = tuple(work.num_tokens for work in self._work.values())
        return SuspendedStep(
            self._step, self._num_layers, tuple(self._work), lengths, self._layer, self._is_chosen
        )  # fmt: skip

    @property
    def step(self) -> int:
        return self._step

    @property
    def seq_ids(self) -> tuple[int, ...]:
        """The sequences that this step computes."""
        return tuple(self._work)

    def half_written(self, seq_id: int) -> HalfWritten | None:
        """Which layers hold the new rows of a sequence already; None for one that this step does not compute."""
        work = self._work.get(seq_id)
        if work is None:
            return None
        had = 0 if work.live.cache.spec.recomputes else work.live.sequence.num_tokens
        weights = {layer: rows for (of, layer), rows in self._weights.items() if of == seq_id}
        return HalfWritten(self._step, had, work.num_tokens, self._passed.get(seq_id, 0), self._num_layers, weights)

    # ---- phases --------------------------------------------------------------------------------------------------

    def scheduled(self, batch: StepBatch, preempted: Sequence[int]) -> None:
        """Report the phase *scheduled*: the batch is chosen and has room."""
        with self._clock.stopped("prepare"):
            self._work = {work.live.seq_id: work for work in batch.work}
            parts = tuple(self._scheduled_part(work, batch) for work in batch.work)
            self._tell(Scheduled(parts, tuple(preempted)))

    def _scheduled_part(self, work: SequenceWork, batch: StepBatch) -> ScheduledSequence:
        first, cache = work.live.sequence.num_tokens, work.live.cache
        pages: tuple[int, ...] = ()
        if cache.spec.is_paged:
            begun = first // cache.spec.page_size
            new = [ids[begun:] for ids in cache.page_ids_at(work.num_tokens)]
            pages = tuple(page_id for ids in new for page_id in ids)
        texts = tuple(map(self._text_of, work.token_ids))
        hits = cache.page_counts().hit_tokens
        return ScheduledSequence(work.live.seq_id, batch.phase, first, tuple(work.token_ids), texts, pages, hits)

    def after_layer(
        self, works: Sequence[SequenceWork], probe: Probe | None, weights_of: NewestWeightsOf
    ) -> LayerCallback:
        """The callback that a forward of these sequences calls after each layer, with the layer's index and output
        `[B, T, hidden]`."""

        def on_layer(layer: int, output: torch.Tensor) -> None:
            with self._clock.stopped("forward"):
                self._layer = layer
                for work in works:
                    self._passed[work.live.seq_id] = layer + 1
                    for one in (layer, self._num_layers + layer):  # the second is the block's cross-attention layer
                        if probe is not None and (rows := probe.row(one)) is not None:
                            mine, positions = weights_of(work, one, rows), work.live.cache.positions(one)
                            self._weights[work.live.seq_id, one] = nan_where_evicted(mine, positions)
                norms = output[:, -1].float().norm(dim=-1).tolist()
                self._tell(LayerDone(layer, tuple(map(self._new_row, works, [layer] * len(works), norms))))

        return on_layer

    def _new_row(self, work: SequenceWork, layer: int, output_norm: float) -> NewRow:
        seq_id = work.live.seq_id
        newest, weights = (
            work.live.cache.rows_at(layer, first_position=work.num_tokens - 1),
            self._weights.get((seq_id, layer)),
        )
        position, weight = None, None
        if weights is not None and weights.shape[1]:
            mean = weights.float().nan_to_num(0.0).mean(0)
            position, weight = int(mean.argmax()), float(mean.max())
            position += work.num_tokens - len(mean)
        if newest is None or not newest.keys.shape[2]:
            return NewRow(seq_id, output_norm=output_norm, position=position, weight=weight)
        keys, values = (part[0, :, -1].float().norm(dim=-1).cpu().numpy() for part in (newest.keys, newest.values))
        return NewRow(seq_id, read_only_floats(keys), read_only_floats(values), output_norm, position, weight)

    def chosen(self, choices: Sequence[Sample | None]) -> None:
        """Report the phase *chosen*: the next tokens are sampled. Within a prompt nothing is, and nothing is
        reported."""
        self._layer, self._is_chosen = None, True
        self._passed = dict.fromkeys(self._work, self._num_layers)
        pairs = [(w, c) for w, c in zip(self._work.values(), choices, strict=True) if c is not None]
        if pairs:
            with self._clock.stopped("sample"):
                found = [(work, with_candidates(choice, self._text_of)) for work, choice in pairs]
                self._tell(Chosen(tuple(self._chosen_part(work, choice) for work, choice in found)))

    def _chosen_part(self, work: SequenceWork, choice: SampledToken) -> ChosenToken:
        sampling = work.live.sequence.sampling
        return ChosenToken(
            work.live.seq_id,
            choice.token_id,
            self._text_of(choice.token_id),
            choice.candidates,
            choice.entropy,
            work.num_tokens,
            None if sampling.is_greedy else sampling.seed,
        )

    def written(self, record: StepRecord, caches: Mapping[int, SequenceCache]) -> None:
        """Report the phase *written*: the step is done. `caches` are those of the sequences that were computed."""
        self._tell(Written(tuple(written_rows(part, caches[part.seq_id], record) for part in record.sequences)))

    def _tell(self, phase: StepPhase) -> None:
        self._reached(PhaseReached(self._step, self._num_layers, phase))


def written_rows(part: SequenceStep, cache: SequenceCache, record: StepRecord) -> WrittenRows:
    """What a step did to the rows and pages of a sequence."""
    deltas = cache.changes_since(part.first_position) or []
    changed = sum(max(len(delta.rewritten_keys), len(delta.rewritten_values)) for delta in deltas)
    gone = sum(len(delta.left_window) + sum(went.shape[1] for went in delta.evicted) for delta in deltas)
    pages = sum(isinstance(e, PageAllocated) and e.seq_id == part.seq_id for e in record.page_events)
    return WrittenRows(part.seq_id, sum(len(delta.written) for delta in deltas), changed, gone, pages)
