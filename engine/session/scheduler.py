"""Chooses the batch of a step and makes room for its new rows: one prefill chunk, else a decode step of all running
sequences. Preempts a sequence where the page pool is full."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from msgspec import structs

from engine.cache.attention_probe import Probe
from engine.cache.paged.pool import PoolExhausted
from engine.errors import InputError
from engine.history.history import History
from engine.look.candidates import Sample
from engine.look.measures import PackedMeasures
from engine.model.batch import Surprisal
from engine.session.chunks import WHOLE, PrefillPlan
from engine.session.driver import refresh
from engine.session.states import KeptStates, LiveSequence, LiveSequences
from engine.wire.records import Phase
from engine.wire.tree import PlannedPart, PlannedStep


@dataclass(eq=False)
class SequenceWork:
    """The tokens that one sequence computes in a step, the first of them at `first_position`; and what its forward gave
    it: the newest logits `[V]`, the surprisal of the tokens of a prefill chunk, the newest query's attention weights
    `[H, S]` by layer, and what was measured within the forward; and the next token that was sampled from these (None:
    tokens of the prompt remain to be computed)."""

    live: LiveSequence
    token_ids: list[int]
    first_position: int
    phase: Phase = "decode"
    logits: torch.Tensor = field(init=False)
    runners: tuple[str, ...] = ()
    surprisal: Surprisal | None = None
    weights: dict[int, torch.Tensor] = field(default_factory=dict)
    probe: Probe | None = None
    packed: PackedMeasures | None = None
    num_together: int = 1  # sequences in the same forward, whose weights are views of the same tensors
    is_borrowed: bool = False  # the next forward overwrites `weights`: copy what is kept
    sample: Sample | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequence after the step."""
        return self.first_position + len(self.token_ids)


class Scheduler:
    """Admits waiting sequences while the pool has room and preempts the youngest when it has none. `preempted` are the
    sequences that were preempted for the current step."""

    def __init__(self, live: LiveSequences, history: History, plan: PrefillPlan, kept: KeptStates) -> None:
        self._live, self._history, self._kept = live, history, kept
        self.plan = plan
        self.preempted: list[int] = []

    # ---- who has work --------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> tuple[int, ...]:
        """Sequences that have not ended and have no rows yet."""
        return tuple(live.seq_id for live in self._live if live.sequence.phase == "waiting")

    def check_has_work(self) -> None:
        """Raises with the reason when there is nothing to step."""
        if any(live.sequence.has_work for live in self._live):
            return
        if not len(self._live):
            raise InputError("There is nothing to do: send a prompt first.")
        why = ", ".join(sorted({live.sequence.stop for live in self._live if live.sequence.stop is not None}))
        raise InputError(f"There is nothing to do, every sequence has ended ({why}): go back, or send another prompt.")

    # ---- the next batch ------------------------------------------------------------------------------------------

    def next_batch(self, planned: PlannedStep | None = None) -> list[SequenceWork]:
        """Choose the work of this step, with room for its new rows: of a single sequence in a prefill, of every running
        sequence in a decode step; or that of the `planned` step. Raises `InputError` where nothing can run."""
        self._fill_emptied()
        if planned is not None:
            return self._planned_batch(planned)
        blocked: set[int] = set()
        while True:
            chosen = self._choose(blocked)
            try:
                return self._begin(chosen)
            except PoolExhausted:
                if not self._kept.evict_from(self._live.mode.store):
                    self._make_room(chosen[0], blocked)

    def _planned_batch(self, planned: PlannedStep) -> list[SequenceWork]:
        """The batch of an earlier step that is repeated: the same sequences, tokens and preemptions. Raises
        `InputError` where a sequence does not stand as it did, or the pool is too small."""
        for seq_id in planned.preempted:
            if self._live.get(seq_id).sequence.num_tokens:
                self.preempt(self._live.get(seq_id))
        for part in planned.parts:
            had = self._live.get(part.seq_id).sequence.num_tokens
            if had >= part.num_tokens:
                raise InputError(f"Sequence {part.seq_id} has {had} tokens before step {planned.step}.")
        parts = {part.seq_id: part for part in planned.parts}
        while True:
            try:
                return self._begin([self._live.get(seq_id) for seq_id in parts], parts)
            except PoolExhausted as error:
                if not self._kept.evict_from(self._live.mode.store):
                    raise InputError(
                        f"The page pool cannot hold what it held at step {planned.step} ({error}): make it larger."
                    ) from None

    def _fill_emptied(self) -> None:
        """Compute the rows again that sequences lost to a failed step, before a batch takes room; a sequence whose rows
        no longer fit into the pool is preempted."""
        for live in self._live:
            while live.is_stale:
                try:
                    refresh(self._live.mode.model, self._history, live)
                except PoolExhausted:
                    if not self._kept.evict_from(self._live.mode.store):
                        self.preempt(live)

    def _choose(self, blocked: set[int]) -> list[LiveSequence]:
        """The sequences of the next batch: the first one that is prefilling, else all that decode; never a `blocked`
        one. Raises `InputError` where none is left."""
        working = [live for live in self._live if live.sequence.has_work and live.seq_id not in blocked]
        if not working:
            raise InputError("No sequence that waits fits into the page pool: give it more pages or remove a sequence.")
        prefilling = [live for live in working if live.sequence.is_prefilling]
        return prefilling[:1] or working

    def _begin(self, chosen: list[LiveSequence], planned: dict[int, PlannedPart] | None = None) -> list[SequenceWork]:
        """Reserve room for the next rows of all chosen sequences; on failure of none. `planned`, by `seq_id`, fixes how
        many tokens each computes; None: the prefill plan decides."""
        before = self._live.copies(chosen)
        running = sum(live.sequence.has_work and live.sequence.num_tokens > 0 for live in self._live)
        is_whole, work = self._live.mode.computes_whole_prompts, list[SequenceWork]()
        phase: Phase = "prefill" if chosen[0].sequence.is_prefilling else "decode"
        try:
            for live in chosen:
                if live.is_stale:
                    refresh(self._live.mode.model, self._history, live)
                part = None if planned is None else planned[live.seq_id]
                if live.sequence.num_tokens == 0:
                    at_most = None if part is None else part.first_position
                    num_hit = live.cache.admit(live.sequence.token_ids, running, at_most)
                    live.sequence = structs.replace(live.sequence, num_tokens=num_hit)
                sequence = live.sequence
                if part is not None:
                    chunk = max(1, part.num_tokens - sequence.num_tokens)
                else:
                    has_plan = sequence.is_prefilling and not is_whole
                    chunk = self.plan.next_size(sequence.num_tokens) if has_plan else WHOLE
                    chunk = min(chunk, live.cache.max_forward_tokens or chunk)
                work.append(SequenceWork(live, sequence.next_ids(chunk), sequence.num_tokens, phase))
                live.cache.begin(len(work[-1].token_ids))
        except BaseException:
            for each in work:
                each.live.cache.cancel_begin()
            self._live.restore(before, self._history)
            raise
        return work

    def _make_room(self, first: LiveSequence, blocked: set[int]) -> None:
        """Free pages for `first`, by vLLM V1's rule: a waiting sequence stays out while others run; else the youngest
        sequence is preempted, ended ones before running ones. `blocked` collects who is left out of this step."""
        holders = [live for live in self._live if live.sequence.num_tokens]
        if first.sequence.num_tokens == 0 and any(live.sequence.has_work for live in holders):
            blocked.add(first.seq_id)
            return
        idle = [live for live in holders if not live.sequence.has_work]
        if not holders:
            raise InputError("The page pool cannot hold this sequence: give it more pages.")
        # rows edited by hand cannot be computed again from the tokens
        whole = [live for live in idle or holders if not live.cache.by_hand] or [
            live for live in holders if not live.cache.by_hand
        ]
        if not whole:
            raise InputError(
                "The page pool is full, and every sequence in it has rows that were edited by hand, which would be "
                "lost: remove a sequence, undo its edits, or give the pool more pages."
            )
        victim = max(whole, key=lambda live: live.seq_id)
        self.preempt(victim)
        if any(live.sequence.has_work and live is not victim for live in self._live):
            blocked.add(victim.seq_id)  # admitted again at once, it would be preempted again before anything decodes

    def preempt(self, victim: LiveSequence) -> None:
        """Free all rows of a sequence; it is prefilled again later."""
        self._live.preempt(victim, self._history.path.newest)
        self.preempted.append(victim.seq_id)
