"""Runs the forwards of a step: a single batched one where the cache can batch sequences of different lengths, else one
for each sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.cache.attention_probe import Probe
from engine.cache.part_timer import PartTimer, timed_layers
from engine.device import to_device
from engine.history.late_surprisal import LateSurprisal
from engine.look.measures import Measured, spread
from engine.model.batch import Batch, Result, Surprisal
from engine.model.loader import LoadedModel
from engine.model.weights import products_ms
from engine.session.captured import Captured
from engine.session.clock import StepClock
from engine.session.live import LiveSequences
from engine.session.phases import NewestWeightsOf, PhasedStep
from engine.session.scheduler import SequenceWork, StepBatch

Check = Callable[[], None]


@dataclass(eq=False)
class Forward:
    """What a forward gave one sequence, before sampling: the newest logits `[V]`, the surprisal of the tokens of a
    prefill chunk, and the newest query's attention weights `[H, S]` by layer."""

    work: SequenceWork
    logits: torch.Tensor
    runners: tuple[str, ...]
    surprisal: Surprisal | None
    weights: dict[int, torch.Tensor]
    probe: Probe | None = None
    strip: Measured | None = None  # what was measured within the forward
    num_together: int = 1  # sequences in the same forward, whose weights are views of the same tensors
    is_borrowed: bool = False  # the next forward overwrites `weights`: copy what is kept


@dataclass(frozen=True, eq=False)
class Computed:
    """One forward of one sequence, or of several together, and its result; the logits are `[B, V]` and stay valid."""

    batch: Batch
    result: Result


class Forwards:
    """Runs the forwards of a step and collects the attention that the cache's rule needs or that is `captured`. `late`
    says whether surprisals may be computed after the step."""

    def __init__(self, model: LoadedModel, live: LiveSequences, late: LateSurprisal, captured: Captured) -> None:
        self._model, self._live, self._late, self._captured = model, live, late, captured
        self._vocab = vocabulary(model)
        self._products_ms: float | None = None  # measured once, when layers are first timed

    def run(self, step: StepBatch, clock: StepClock, check: Check | None, phases: PhasedStep | None) -> list[Forward]:
        """Run the forwards of a step. `check` is called between the layers of a prefill and raises to cancel; a decode
        step is short and is not cancelled. Every forward pauses after each layer if there are `phases`."""
        check = check if step.phase == "prefill" else None
        found, parts = list[Forward](), self.together(step.work)
        for work in parts:
            starts = [each.live.sequence.num_tokens for each in work]
            ids = [self._ids_to_compute(each) for each in work]
            computed = self.compute(
                work, to_device(torch.tensor(ids), self._model.device), starts, clock, check, phases,
                self._new_surprisal(work[0].token_ids),
            )  # fmt: skip
            clock.lap("forward")
            if work is not parts[-1]:
                keep_weights(computed)
            found += self.collected(work, computed, clock)
        return found

    def together(self, work: list[SequenceWork]) -> list[list[SequenceWork]]:
        """The sequences of each forward of a step: all in one where the cache can batch them, else one by one."""
        store = self._live.mode.store
        is_one = len(work) > 1 and store is not None and store.can_batch
        is_one = is_one and not any(each.live.cache.needs_own_forward for each in work)
        return [work] if is_one else [[each] for each in work]

    def compute(
        self,
        work: list[SequenceWork],
        ids: torch.Tensor,
        starts: Sequence[int],
        clock: StepClock,
        check: Check | None = None,
        phases: PhasedStep | None = None,
        surprisal: Surprisal | None = None,
    ) -> Computed:
        """Run one forward of sequences whose caches have room: `ids` `[B, T]`, which may be on the device and unread,
        after the first `starts` tokens of each."""
        cache, store = work[0].live.cache, self._live.mode.store
        is_several = len(work) > 1
        probe = self._with_timer(cache.probe(self._captured.attention_rows or self._captured.by_layer), clock)
        if is_several and store is not None:
            store.plan([each.live.cache.tables for each in work], 1)
        else:
            cache.plan_forward(ids.shape[1])
        weights_of = weights_among(work) if is_several else weights_of_one
        on_layer = None if phases is None else phases.after_layer(work, probe, weights_of)
        batch = Batch(
            ids,
            cache.live,
            probe,
            surprisal,
            self._captured.wanted,
            tuple(starts) if is_several else None,
            hidden=cache.hidden_rows(),
            check=check,
            on_layer=on_layer,
        )
        with timed_layers(cache.live, clock.parts):
            result = self._model.forward(batch)
        clock.encoder_s += cache.take_encoder_s()
        clock.compile_s += result.compile_s
        # a view would keep the logits of the whole chunk in memory where the model computes them all
        return Computed(batch, result._replace(logits=result.logits[:, -1].clone()))

    def collected(self, work: list[SequenceWork], computed: Computed, clock: StepClock) -> list[Forward]:
        """The `Forward` of each sequence that was computed, with the attention that the probe collected."""
        probe, result = computed.batch.probe, computed.result
        weights, is_apart = [dict[int, torch.Tensor]() for _ in work], False
        if probe is not None and self._captured.attention_rows:
            is_apart, weights = weights_of_all(work, probe)
        num_together, is_borrowed = (1, probe is not None and probe.is_borrowed) if is_apart else (len(work), False)
        strips = [None] * len(work) if result.measured is None else result.measured.of_each()
        surprisal, runners = computed.batch.surprisal, result.runners
        forwards = [
            Forward(each, result.logits[n], runners, surprisal, weights[n], probe, strips[n], num_together, is_borrowed)
            for n, each in enumerate(work)
        ]
        clock.lap("observe")
        return forwards

    def _ids_to_compute(self, work: SequenceWork) -> list[int]:
        """The tokens that are computed: all tokens so far where the cache keeps nothing."""
        sequence = work.live.sequence
        is_whole = work.live.cache.spec.recomputes
        return sequence.token_ids[: sequence.num_tokens] + work.token_ids if is_whole else work.token_ids

    def _new_surprisal(self, token_ids: list[int]) -> Surprisal | None:
        if len(token_ids) < 2 or not (self._captured.statistics and self._late.is_wanted):
            return None
        if self._model.info.geometry.has_encoder:
            return None  # it gives no logits for the tokens that the encoder reads
        return Surprisal(token_ids, self._vocab, may_wait=self._late.has_room)

    def _with_timer(self, probe: Probe | None, clock: StepClock) -> Probe | None:
        """The same probe, set up to time the layers if that is asked for."""
        if self._captured.by_layer and probe is not None:
            if self._products_ms is None:
                self._products_ms = products_ms(self._model.model, self._model.device)
            clock.parts = clock.parts or PartTimer(self._model.device)
            clock.products_ms, probe.timer = self._products_ms, clock.parts
        return probe


def keep_weights(computed: Computed) -> None:
    """Copy the attention that a forward left in shared buffers, which the next one overwrites."""
    if computed.batch.probe is not None:
        computed.batch.probe.copy_borrowed()


def runner_of(forwards: Sequence[Forward]) -> str:
    """The names of what computed the forwards of a step, joined by +, and "pages" if pages were read in place."""
    return "+".join(dict.fromkeys(name for forward in forwards for name in forward.runners))


def weights_of_one(work: SequenceWork, layer: int, rows: torch.Tensor) -> torch.Tensor:
    """The newest query's weights `[H, S]` over all tokens, from the weights `[1, H, R]` over the rows that the cache
    held in the forward of one sequence."""
    count = work.num_tokens
    held, own = rows[0], work.live.cache.num_own(layer, count)
    return spread(held if own >= rows.shape[2] else held.narrow(1, 0, own), work.live.cache.positions(layer), count)


def weights_among(work: list[SequenceWork]) -> NewestWeightsOf:
    """As `weights_of_one`, for a sequence of a batched forward: takes its right-aligned row out of `[B, H, R]`."""
    numbers = {each.live.seq_id: number for number, each in enumerate(work)}
    return lambda one, _layer, rows: rows[numbers[one.live.seq_id], :, max(0, rows.shape[2] - one.num_tokens) :]


def weights_of_all(work: list[SequenceWork], probe: Probe) -> tuple[bool, list[dict[int, torch.Tensor]]]:
    """The newest query's weights `[H, S]` by layer for each sequence of a forward, and whether each sequence has its
    own tensors: so it is if attention ran for each sequence apart, and then nothing needs to be copied."""
    if len(work) == 1:
        cache = work[0].live.cache
        if cache.num_source or cache.scattered():
            return True, [{layer: weights_of_one(work[0], layer, row) for layer, row in probe.rows().items()}]
        return True, [{layer: row[0] for layer, row in probe.rows().items()}]
    rows = [part.rows() for part in probe.parts]
    pairs = zip(work, rows, strict=bool(rows))
    if rows and all(row.shape[2] == each.num_tokens for each, mine in pairs for row in mine.values()):
        return True, [{layer: row[0] for layer, row in mine.items()} for mine in rows]
    weights_of, together = weights_among(work), probe.rows()
    return False, [{layer: weights_of(each, layer, row) for layer, row in together.items()} for each in work]


def vocabulary(model: LoadedModel) -> int:
    """The size of the model's vocabulary."""
    return model.info.geometry.vocab_size or int(model.model.config.get_text_config().vocab_size)
