"""Runs the forwards of a step: a single batched one where the cache can batch sequences of different lengths, else one
for each sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.cache.attention_probe import Probe
from engine.cache.paged.store import PageStore
from engine.cache.part_timer import PartTimer, timed_layers
from engine.cache.sequence_cache import SequenceCache
from engine.history.late_surprisal import LateSurprisal
from engine.look.probe import spread
from engine.look.strip import MeasuredSequence, Strip
from engine.model.loader import LoadedModel
from engine.model.products import products_ms
from engine.model.runners.decoder import LayerCallback
from engine.model.surprisal import Surprisal
from engine.session.ahead import LaunchedAhead
from engine.session.captured import Captured
from engine.session.clock import StepClock
from engine.session.driver import feed
from engine.session.phases import NewestWeightsOf, PhasedStep
from engine.session.scheduler import Batch, SequenceWork
from engine.to_device import to_device


@dataclass(eq=False)
class Forward:
    """What a forward gave one sequence, before sampling: the newest logits `[V]`, the surprisal of the tokens of a
    prefill chunk, and the newest query's attention weights `[H, S]` by layer."""

    work: SequenceWork
    logits: torch.Tensor
    surprisal: Surprisal | None
    weights: dict[int, torch.Tensor]
    probe: Probe | None = None
    strip: MeasuredSequence | None = None  # what was measured within the forward
    num_together: int = 1  # sequences in the same forward, whose weights are views of the same tensors
    is_borrowed: bool = False  # the next forward overwrites `weights`: copy what is kept


class Runner:
    """Runs the batch of a step through a model and collects the attention that the cache's rule needs or that is
    `captured`. `late` says whether surprisals may be computed after the step."""

    def __init__(self, model: LoadedModel, late: LateSurprisal, captured: Captured) -> None:
        self._model, self._vocab, self._late, self._captured = model, vocabulary(model), late, captured
        self._products_ms: float | None = None  # measured once, when layers are first timed

    def run(
        self,
        batch: Batch,
        store: PageStore | None,
        clock: StepClock,
        check: Callable[[], None] | None,
        phases: PhasedStep | None = None,
    ) -> list[Forward]:
        """Run the forwards of a batch. `check` is called between the layers of a prefill and raises to cancel; a decode
        step is short and is not cancelled. With `phases` every forward pauses after each layer."""
        if store is not None and is_fed_together(batch.work, store):
            return self._run_together(batch.work, store, clock, phases)
        check = check if batch.phase == "prefill" else None
        return [self._run_one(work, clock, check, phases, is_last=work is batch.work[-1]) for work in batch.work]

    def _run_one(
        self,
        work: SequenceWork,
        clock: StepClock,
        check: Callable[[], None] | None,
        phases: PhasedStep | None,
        *,
        is_last: bool,
    ) -> Forward:
        """Run the forward of one sequence. `is_last`: no other forward follows in this step, so that the attention that
        it leaves in shared buffers need not be copied."""
        sequence, cache, ids = work.live.sequence, work.live.cache, work.token_ids
        fed = (sequence.token_ids[: sequence.num_tokens] + ids) if cache.spec.recomputes else ids
        probe = self._with_timer(cache.probe(self._captured.attention_rows or self._captured.by_layer), clock)
        surprisal = None
        is_scored = not self._model.info.geometry.has_encoder  # an encoder gives no logits for the tokens it reads
        if self._captured.statistics and self._late.is_wanted and len(ids) > 1 and is_scored:
            surprisal = Surprisal(ids, self._vocab, may_wait=self._late.has_room)
        on_layer, strip = phases.after_layer([work], probe, weights_of_one) if phases else None, self._captured.strip()
        with timed_layers(cache.live, clock.parts):
            logits = feed(self._model, cache, fed, len(ids), probe, surprisal, check, on_layer, strip)
        # a view would keep the logits of the whole chunk in memory where the model computes them all
        logits = logits.clone()
        clock.lap("forward")
        clock.encoder_s += cache.take_encoder_s()
        if probe is not None and not is_last:  # the next sequence's forward would overwrite it before it is measured
            probe.copy_borrowed()
        return self._collect(work, logits, surprisal, probe, measured_alone(strip), clock)

    def launch(
        self, work: list[SequenceWork], chosen: list[torch.Tensor], store: PageStore | None, step: int, clock: StepClock
    ) -> LaunchedAhead:
        """Launch the forward that follows on the `work` of `step`: feed the `chosen` tokens, scalars on the device that
        the host has not read. Their rows are written to the caches but not counted yet. A failure leaves the caches as
        they were."""
        caches, runners = [each.live.cache for each in work], self._model.runners
        together = store is not None and is_fed_together(work, store)
        ids, lengths = torch.stack(chosen)[:, None].to(self._model.device), [each.num_tokens for each in work]
        pairs, strips = list(zip(caches, lengths, strict=True)), list[MeasuredSequence | None]()
        runners.begin()
        try:
            for cache in caches:
                cache.begin(1)
            if store is not None and together:
                probe, strip = self._together_probe(), self._captured.strip()
                probes, logits = [probe], list(self._fed_together(caches, store, ids, lengths, probe, strip))
                strips += [None] * len(work) if strip is None else strip.of_each(len(work))
            else:
                probes = [cache.probe(self._captured.attention_rows) for cache in caches]
                logits = []
                for cache, one, probe in zip(caches, ids[:, None], probes, strict=True):
                    strip = self._captured.strip()
                    logits.append(feed(self._model, cache, one, 1, probe, strip=strip).clone())
                    strips.append(measured_alone(strip))
                    if probe is not None and cache is not caches[-1]:
                        probe.copy_borrowed()
            for cache, length in reversed(pairs):  # pages allocated last are freed first
                cache.uncount_row(length)
        except BaseException:
            for cache, length in reversed(pairs):
                cache.clear_row_ahead(length)
            raise
        clock.lap("forward")
        clock.compile_s = runners.compile_s
        level, used = self._captured.level, runners.used
        return LaunchedAhead(work, caches, lengths, step, level, logits, probes, strips, together, used, clock)

    def take(self, batch: Batch, ahead: LaunchedAhead, clock: StepClock) -> list[Forward]:
        """The forwards of this step, which were launched ahead: their rows are counted from now on."""
        ahead.commit_rows()
        if ahead.together:
            return self._collect_together(batch.work, ahead.logits, ahead.probes[0], ahead.strips, clock)
        seen = zip(batch.work, ahead.logits, ahead.probes, ahead.strips, strict=True)
        return [self._collect(work, logits, None, probe, strip, clock) for work, logits, probe, strip in seen]

    def _collect(
        self,
        work: SequenceWork,
        logits: torch.Tensor,
        surprisal: Surprisal | None,
        probe: Probe | None,
        strip: MeasuredSequence | None,
        clock: StepClock,
    ) -> Forward:
        """The `Forward` of one sequence, with the attention that its probe collected."""
        seen = probe.rows() if probe and self._captured.attention_rows else {}
        weights = {layer: weights_of_one(work, layer, rows) for layer, rows in seen.items()}
        is_borrowed = probe is not None and probe.is_borrowed
        clock.lap("observe")
        return Forward(work, logits, surprisal, weights, probe, strip, is_borrowed=is_borrowed)

    def _run_together(
        self, work: list[SequenceWork], store: PageStore, clock: StepClock, phases: PhasedStep | None
    ) -> list[Forward]:
        """Run one decode step of several sequences as one batched forward."""
        caches, lengths = [each.live.cache for each in work], [each.live.sequence.num_tokens for each in work]
        probe = self._with_timer(self._together_probe(), clock)
        fed = to_device(torch.tensor([each.token_ids for each in work]), self._model.device)
        on_layer = phases.after_layer(work, probe, weights_among(work)) if phases else None
        strip = self._captured.strip()
        with timed_layers(caches[0].live, clock.parts):
            logits = self._fed_together(caches, store, fed, lengths, probe, strip, on_layer)
        clock.lap("forward")
        strips = [None] * len(work) if strip is None else strip.of_each(len(work))
        return self._collect_together(work, list(logits), probe, strips, clock)

    def _together_probe(self) -> Probe | None:
        return Probe() if self._captured.attention_rows or self._captured.by_layer else None

    def _fed_together(
        self,
        caches: Sequence[SequenceCache],
        store: PageStore,
        ids: torch.Tensor,
        lengths: list[int],
        probe: Probe | None,
        strip: Strip | None,
        on_layer: LayerCallback | None = None,
    ) -> torch.Tensor:
        """Feed one token `ids` `[B, 1]` to each sequence, of `lengths` tokens before it and with room for its row;
        returns the logits `[B, V]`."""
        store.plan([cache.tables for cache in caches], 1)
        logits = self._model.forward(ids, caches[0].live, probe, lengths=lengths, on_layer=on_layer, strip=strip)
        return logits[:, -1].clone()

    def _collect_together(
        self,
        work: list[SequenceWork],
        logits: Sequence[torch.Tensor],
        probe: Probe | None,
        strips: Sequence[MeasuredSequence | None],
        clock: StepClock,
    ) -> list[Forward]:
        """The `Forward` of each sequence of a batched forward, with its attention."""
        weights, is_apart = [dict[int, torch.Tensor]() for _ in work], False
        if probe is not None and self._captured.attention_rows:
            is_apart, weights = weights_of_all(work, probe)
        num_together, is_borrowed = (1, probe is not None and probe.is_borrowed) if is_apart else (len(work), False)
        forwards = [
            Forward(each, logits[n], None, weights[n], None, strips[n], num_together, is_borrowed)
            for n, each in enumerate(work)
        ]
        clock.lap("observe")
        return forwards

    def _with_timer(self, probe: Probe | None, clock: StepClock) -> Probe | None:
        """The same probe, set up to time the layers if that is asked for."""
        if self._captured.by_layer and probe is not None:
            if self._products_ms is None:
                self._products_ms = products_ms(self._model.model, self._model.device)
            clock.parts = clock.parts or PartTimer(self._model.device)
            clock.products_ms, probe.timer = self._products_ms, clock.parts
        return probe


def measured_alone(strip: Strip | None) -> MeasuredSequence | None:
    """What the forward of a single sequence measured into its strip; None without a strip."""
    return None if strip is None else strip.of_each(1)[0]


def is_fed_together(work: Sequence[SequenceWork], store: PageStore) -> bool:
    """Whether these sequences can go through one batched forward."""
    return len(work) > 1 and store.can_batch and not any(each.live.cache.needs_own_forward for each in work)


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
    """The newest query's weights `[H, S]` by layer for each sequence of a batched forward, and whether each sequence
    has its own tensors: so it is if attention ran for each sequence apart, and then nothing needs to be copied."""
    rows = [part.rows() for part in probe.parts]
    pairs = zip(work, rows, strict=bool(rows))
    if rows and all(row.shape[2] == each.num_tokens for each, mine in pairs for row in mine.values()):
        return True, [{layer: row[0] for layer, row in mine.items()} for mine in rows]
    weights_of, together = weights_among(work), probe.rows()
    return False, [{layer: weights_of(each, layer, row) for layer, row in together.items()} for each in work]


def vocabulary(model: LoadedModel) -> int:
    """The size of the model's vocabulary."""
    return model.info.geometry.vocab_size or int(model.model.config.get_text_config().vocab_size)
