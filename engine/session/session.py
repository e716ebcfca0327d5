"""A session: one model, its sequences and their caches. Synchronous; a failed step changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch
from msgspec.structs import replace

from engine.cache.attention_probe import Probe
from engine.cache.compressed.cache import CompactCache
from engine.cache.compressed.rotary import Turner, turner_of
from engine.cache.memory import check_reserved
from engine.cache.paged.cache import PagedCache
from engine.cache.paged.pool import PoolExhausted
from engine.cache.paged.store import PageStore
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.history.journal import BoundedLog, Checkpoint, Journal, Mark, Moved
from engine.look.magnitudes import SessionMagnitudes
from engine.look.outliers import outliers_slice
from engine.look.probe import attention_summary, find_non_finite, ghosted, row_stats, spread
from engine.look.slices import Past, attention_slice, head_slice, row_slice, table_slice, wall_slice, within
from engine.model.loader import LoadedModel
from engine.model.text import TokenTexts
from engine.session.ledger import cache_bytes
from engine.session.replay import refill, run
from engine.session.rerun import Reruns
from engine.session.sampler import Choice, choose
from engine.session.sequence import Sequence
from engine.snapshot.write import Snapshot, snapshot_of
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_label
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    RowRequest,
    SliceRequest,
    TableRequest,
    WallRequest,
)
from engine.wire.evictions import Eviction
from engine.wire.records import (
    CacheBytes,
    Forked,
    HeadSlice,
    NonFinite,
    OutliersSlice,
    Phase,
    Provenance,
    SequenceInfo,
    SequenceStep,
    Slice,
    StepRecord,
    StopReason,
    Timings,
    WallSlice,
)

PREFILL_CHUNK = 128
MAX_SURPRISAL_LOGITS = 1 << 24
ATTENTION_LOG_BYTES = 256 << 20
LOGITS_LOG_BYTES = 64 << 20


@dataclass(eq=False)
class Forward:
    """What one forward of one sequence gave, before anything is decided."""

    sequence: Sequence
    ids: list[int]
    logits: torch.Tensor
    all_logits: torch.Tensor | None
    weights: dict[int, torch.Tensor]
    probe: Probe | None = None
    probing_s: float = 0.0  # what the newest attention row cost, apart from the forward that it was read from


@dataclass(frozen=True, eq=False)
class Standing:
    """What a failed step gives back to a sequence."""

    mark: Mark
    num_preemptions: int
    logits: torch.Tensor | None


class Session:
    """Sequences of one model in one cache mode.

    `step()` does one unit of work: one prefill chunk of one sequence, else one decode step of every sequence that has
    something to do. `observe` False skips every measurement: it is there to price them.
    """

    def __init__(
        self,
        model: LoadedModel,
        cache: CacheSpec,
        sampling: SamplingParams | None = None,
        *,
        prefill_chunk: int = PREFILL_CHUNK,
        observe: bool = True,
    ) -> None:
        self.model = model
        self.cache = cache
        self.sampling = sampling or SamplingParams()
        self.observe = observe
        # a recurrent state cannot be fed a later chunk of a prompt by every architecture: such prompts go in whole
        linear = any(layer.kind == "linear" for layer in model.info.geometry.layers)
        self.prefill_chunk = 1 << 30 if linear else prefill_chunk
        self.text_of = TokenTexts(model.tokenizer)
        self._process = psutil.Process()
        self._next_id = 0
        self._turner = self._new_turner(cache)
        self._store = self._new_store(cache)
        self._new_cache(cache, self._store, -1).close()  # refuse a cache this model cannot have
        self._sequences: dict[int, Sequence] = {}
        self._caches: dict[int, SequenceCache] = {}
        self._stale: set[int] = set()
        self._logits: dict[int, torch.Tensor] = {}
        self._logprobs: dict[int, torch.Tensor] = {}  # of the newest logits, where they are known already
        self._magnitudes = SessionMagnitudes()
        self._preempted: list[int] = []
        self.reruns = Reruns(model, self.prefill_chunk)
        self.forget_history()

    def _new_store(self, spec: CacheSpec) -> PageStore | None:
        """The pages of a paged layout; refuses impossible sizes before anything is allocated."""
        if not spec.is_paged:
            return None
        model = self.model
        return PageStore(spec, model.info.geometry, model.max_length, getattr(torch, model.info.dtype), model.device)

    def _new_turner(self, spec: CacheSpec) -> Turner | None:
        """What turns sinks, where the spec wants that; refuses models whose keys do not turn."""
        if not spec.retention.rerotate:
            return None
        if not (self.model.takes_positions and self.model.info.captures_attention):
            raise InputError(
                "Re-rotation needs a model that takes positions and runs our attention: keep the positions."
            )
        return turner_of(self.model.model)

    def _new_cache(
        self, spec: CacheSpec, store: PageStore | None, seq_id: int, turner: Turner | None = None
    ) -> SequenceCache:
        config, limit = self.model.model.config, self.model.max_length
        check_reserved(spec, self.model.info.geometry, self.model.info.dtype, self.model.device)
        if spec.is_compact:
            spec.codec.check(self.model.info.geometry)
            spec.retention.check(self.model.info.geometry, self.model.info.captures_attention)
        if store is not None:
            return PagedCache(store, config, limit, seq_id)
        if spec.is_compact:
            return CompactCache(spec, config, limit, seq_id, turner)
        return SequenceCache(spec, config, limit)

    def forget_history(self) -> None:
        """Steps count from 0 again, and there is nothing to go back to."""
        self._journal = Journal()
        self._attention: BoundedLog[torch.Tensor] = BoundedLog(ATTENTION_LOG_BYTES)
        self._logits_log: BoundedLog[torch.Tensor] = BoundedLog(LOGITS_LOG_BYTES)
        self._next_step = 0
        self.reruns.forget()
        if self._store is not None:
            self._store.forget_steps()
        for sequence in self._sequences.values():
            self._journal.begun(sequence.seq_id, self.cache)

    # ---- sequences -----------------------------------------------------------------------------------------------

    def submit(self, prompt: Prompt) -> int:
        """Add a sequence; its prefill begins with the next step. Returns its `seq_id`."""
        ids = self.encode(prompt)
        seq_id = self._next_id
        cache = self._new_cache(self.cache, self._store, seq_id, self._turner)
        try:
            self._check_fits(ids, cache)
        except InputError:
            cache.close()
            raise
        self._next_id += 1
        sequence = self._sequences[seq_id] = Sequence(seq_id, ids, len(ids), prompt.sampling or self.sampling)
        self._caches[seq_id] = cache
        self._journal.put(seq_id, sequence.mark())
        self._journal.begun(seq_id, self.cache)
        return seq_id

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt, special tokens as the model's own tokenizer adds them."""
        vocab = self._vocab
        if prompt.token_ids is not None:
            for token_id in prompt.token_ids:
                if not 0 <= token_id < vocab:
                    raise InputError(
                        f"Token id {token_id} is outside the vocabulary of {vocab:,}: use 0 … {vocab - 1}."
                    )
            return list(prompt.token_ids)
        if self.model.tokenizer is None:
            raise InputError(f"The model '{self.model.info.name}' has no tokenizer: give the prompt as token ids.")
        ids = list(self.model.tokenizer(prompt.text)["input_ids"])
        if not ids:
            raise InputError("The prompt has no tokens: type some text first.")
        if max(ids) >= vocab:
            raise InputError(
                f"The tokenizer gives token id {max(ids)}, outside the vocabulary of {vocab:,}: it belongs to another "
                "model; put the right one beside the config, or none."
            )
        return ids

    def _check_fits(self, ids: list[int], cache: SequenceCache) -> None:
        limit = self.model.max_length if cache.capacity is None else min(cache.capacity, self.model.max_length)
        if len(ids) > limit:
            mine = "the page pool" if cache.spec.is_paged else "the static cache"
            what = mine if cache.capacity == limit else "the model's context"
            raise InputError(f"The prompt has {len(ids):,} tokens and {what} holds {limit:,}: shorten the prompt.")

    def _check_holds(self, sequence: Sequence, cache: SequenceCache, remedy: str = "") -> None:
        """Refuse a cache that has no room for a live sequence, those of its tokens that still wait included."""
        count, context = len(sequence.token_ids), self.model.max_length
        if cache.capacity is not None and count > cache.capacity:
            mine = "page pool" if cache.spec.is_paged else "static cache"
            raise InputError(
                f"Sequence {sequence.seq_id} has {count:,} tokens and this {mine} holds {cache.capacity:,}: "
                f"{remedy or 'make it larger, or go back first'}."
            )
        if count > context and not self._is_endless(cache.spec):
            raise InputError(
                f"Sequence {sequence.seq_id} has {count:,} tokens and the model's context holds {context:,}: only a "
                f"cache that keeps a window goes beyond; {remedy or 'or go back first'}."
            )

    def remove(self, seq_id: int) -> None:
        """End a sequence and free what it holds; its pages stay findable until their room is needed."""
        self.sequence(seq_id)
        self._caches.pop(seq_id).close()
        self._sequences.pop(seq_id)
        self._logits.pop(seq_id, None)
        self._logprobs.pop(seq_id, None)
        self._magnitudes.forget(seq_id)
        self._stale.discard(seq_id)
        self._journal.remove(seq_id)

    def halt(self, seq_id: int) -> None:
        """Stop a sequence where it stands; one that has ended keeps its reason."""
        sequence = self.sequence(seq_id)
        sequence.stop = sequence.stop or "stopped"

    def fork(self, seq_id: int, step: int | None = None) -> Forked:
        """A second sequence as the first stood after `step` (None: as it stands now), exactly, or an `InputError`.

        Paged layouts share every page, others copy the rows; what cannot be copied is computed again.
        """
        parent = self.sequence(seq_id)
        mark = parent.mark() if step is None else self._journal.mark_to_fork(seq_id, step, self.cache)
        child = parent.fork(self._next_id)
        child.go_back(mark)
        cache = self._new_cache(self.cache, self._store, child.seq_id, self._turner)
        try:
            how = self._fill_fork(seq_id, step, child, cache)
        except PoolExhausted as error:
            cache.close()
            raise InputError(f"A fork needs pages that the pool does not have ({error}): remove a sequence.") from None
        except BaseException:
            cache.close()
            raise
        self._next_id += 1
        self._sequences[child.seq_id], self._caches[child.seq_id] = child, cache
        logits = self._logits.get(seq_id) if step is None else self._logged(seq_id, step)
        if logits is not None:
            self._logits[child.seq_id] = logits
        self._journal.fork(seq_id, child.seq_id, step, child.mark(), self.cache)
        return Forked(seq_id, child.seq_id, self.last_step if step is None else step, len(child.token_ids), how)

    def _fill_fork(self, seq_id: int, step: int | None, child: Sequence, cache: SequenceCache) -> str:
        """Give a fork the rows of the first `num_tokens` tokens of its parent; says how."""
        if not child.num_tokens:
            return "its rows are computed when it goes on"
        if self._holds(seq_id, step, child.num_tokens) and cache.fork_from(self._caches[seq_id], child.num_tokens):
            return f"shares {cache.page_counts().shared} pages" if self.cache.is_paged else "copied the rows"
        refill(
            self.model,
            child,
            cache,
            self._journal.fed_lengths(seq_id, step),
            self._journal.moves(seq_id, step),
            self._make,
        )
        return f"replayed {child.num_tokens} tokens: this cache forgets"

    def sequence(self, seq_id: int) -> Sequence:
        if seq_id not in self._sequences:
            raise InputError(f"There is no sequence {seq_id}: it was removed or never started.")
        return self._sequences[seq_id]

    def cache_of(self, seq_id: int) -> SequenceCache:
        self.sequence(seq_id)
        return self._caches[seq_id]

    @property
    def sequences(self) -> tuple[SequenceInfo, ...]:
        return tuple(self._info(s) for s in self._sequences.values())

    def _info(self, sequence: Sequence) -> SequenceInfo:
        cache = self._caches[sequence.seq_id]
        pages = cache.page_counts()
        return SequenceInfo(
            seq_id=sequence.seq_id,
            state=sequence.state,
            num_tokens=sequence.num_tokens,
            num_prompt_tokens=sequence.num_prompt_tokens,
            sampled=sequence.sampled,
            stop=sequence.stop,
            num_pages=pages.held,
            num_shared_pages=pages.shared,
            hit_tokens=pages.hit_tokens,
            num_preemptions=sequence.num_preemptions,
            why_not_reused=pages.why_not_reused,
            sampling=sequence.sampling,
        )

    @property
    def last_step(self) -> int | None:
        return self._next_step - 1 if self._next_step else None

    @property
    def has_work(self) -> bool:
        return any(s.has_work for s in self._sequences.values())

    def check_has_work(self) -> None:
        """Raises with the reason when there is nothing to step."""
        if self.has_work:
            return
        if not self._sequences:
            raise InputError("There is nothing to do: send a prompt first.")
        why = ", ".join(sorted({s.stop for s in self._sequences.values() if s.stop is not None}))
        raise InputError(f"There is nothing to do, every sequence has ended ({why}): go back, or send another prompt.")

    @property
    def is_prefilling(self) -> bool:
        return any(s.has_work and s.is_prefilling for s in self._sequences.values())

    def logits(self, seq_id: int) -> torch.Tensor | None:
        """The newest logits `[V]`, if the sequence has been stepped."""
        return self._logits.get(seq_id)

    # ---- one step ------------------------------------------------------------------------------------------------

    def step(self) -> StepRecord:
        """Do one unit of work. Raises and changes nothing if any part of it fails."""
        began = time.perf_counter()
        before = self._standing(list(self._sequences.values()))
        try:
            batch = self._prepare()
            phase: Phase = "prefill" if batch[0].is_prefilling else "decode"
            prepared = time.perf_counter()
            forwards = self._forward(batch)
            forwarded = time.perf_counter()
            choices = [self._choose(f) for f in forwards]
            sampled = time.perf_counter()
            parts = [self._observe(f, c, phase) for f, c in zip(forwards, choices, strict=True)]
            observed = time.perf_counter()
            evictions = [eviction for f in forwards for eviction in self._condense(f)]
            condensed = time.perf_counter()
            parts = [(self._weighed(part), rows, places) for part, rows, places in parts]
            for forward, choice, (part, rows, _) in zip(forwards, choices, parts, strict=True):
                self._accept(forward, choice, part, rows)
            num_bytes = self.bytes()
            marks = {s.seq_id: s.mark() for s in self._sequences.values()}
            events, pools = self._store.drain(self._next_step) if self._store else ((), ())
            self._journal.add(Checkpoint(self._next_step, marks, self.cache))
        except BaseException:
            self._undo(before)
            raise
        for sequence in batch:
            self._caches[sequence.seq_id].settle()
        now = time.perf_counter()
        condensing, probing = condensed - observed, sum(f.probing_s for f in forwards)
        record = StepRecord(
            step=self._next_step,
            phase=phase,
            cache=self.cache,
            dtype=self.model.info.dtype,
            random_weights=self.model.info.random_weights,
            sequences=tuple(part for part, _, _ in parts),
            timings=Timings(
                prepare_ms=(prepared - began + condensing) * 1e3,
                forward_ms=(forwarded - prepared - probing) * 1e3,
                sample_ms=(sampled - forwarded) * 1e3,
                observe_ms=(now - sampled - condensing + probing) * 1e3,
            ),
            num_bytes=num_bytes,
            non_finite=tuple(place for _, _, places in parts for place in places),
            wall_time=time.time(),
            page_events=events,
            pools=pools,
            preempted=tuple(self._preempted),
            waiting=tuple(s.seq_id for s in self._sequences.values() if s.stop is None and s.num_tokens == 0),
            evictions=tuple(evictions),
        )
        self._preempted.clear()
        self._next_step += 1
        return record

    # ---- what goes next, and room for it -------------------------------------------------------------------------

    def _prepare(self) -> list[Sequence]:
        """The sequences of this step, with room for their new rows. Newcomers wait for room; the youngest gives way."""
        blocked: set[int] = set()
        while True:
            batch = self._next_batch(blocked)
            try:
                self._begin(batch)
                return batch
            except PoolExhausted:
                self._make_room(batch, blocked)

    def _next_batch(self, blocked: set[int]) -> list[Sequence]:
        working = [s for s in self._sequences.values() if s.has_work and s.seq_id not in blocked]
        if not working:
            self.check_has_work()
            raise InputError("No sequence that waits fits into the page pool: give it more pages or remove a sequence.")
        prefilling = [s for s in working if s.is_prefilling]
        return prefilling[:1] or working

    def _begin(self, batch: list[Sequence]) -> None:
        """Room for the next rows of all of them, or of none."""
        before = self._standing(batch)
        running = sum(s.has_work and s.num_tokens > 0 for s in self._sequences.values())
        try:
            for sequence in batch:
                self._refresh_cache(sequence)
                cache = self._caches[sequence.seq_id]
                if sequence.num_tokens == 0:
                    sequence.num_tokens = cache.admit(sequence.token_ids, running)
                cache.begin(self._num_next(sequence))
        except BaseException:
            self._undo(before)
            raise

    def _num_next(self, sequence: Sequence) -> int:
        return len(sequence.next_ids(self._chunk))

    @property
    def _chunk(self) -> int:
        """Prompt tokens fed at once. transformers' quantised cache fixes its scales with the first forward."""
        return 1 << 30 if self.cache.recomputes or self.cache.layout == "quantized" else self.prefill_chunk

    def _make_room(self, batch: list[Sequence], blocked: set[int]) -> None:
        """vLLM V1's rule: nobody is admitted while others run; else the youngest gives its pages up and recomputes."""
        holders = [s for s in self._sequences.values() if s.num_tokens]
        if batch[0].num_tokens == 0 and any(s.has_work for s in holders):
            blocked.add(batch[0].seq_id)
            return
        idle = [s for s in holders if not s.has_work]
        if not holders:
            raise InputError("The page pool cannot hold this sequence: give it more pages.")
        victim = max(idle or holders, key=lambda s: s.seq_id)
        self._caches[victim.seq_id].clear()
        self._magnitudes.forget(victim.seq_id)
        self._journal.begun(victim.seq_id, self.cache, victim.num_tokens)
        victim.preempt()
        self._preempted.append(victim.seq_id)
        if any(s.has_work and s.seq_id != victim.seq_id for s in self._sequences.values()):
            blocked.add(victim.seq_id)  # back in at once, it would be thrown out again before anybody decodes

    def _forward(self, batch: list[Sequence]) -> list[Forward]:
        """One forward for all of them where rows of different lengths can go together, else one each."""
        if len(batch) > 1 and self._store is not None and self._store.can_batch:
            return self._forward_together(batch, self._store)
        return [self._forward_one(sequence) for sequence in batch]

    def _forward_one(self, sequence: Sequence) -> Forward:
        ids = sequence.next_ids(self._chunk)
        cache = self._caches[sequence.seq_id]
        fed = (sequence.token_ids[: sequence.num_tokens] + ids) if self.cache.recomputes else ids
        probe = cache.probe(self.observe)
        wants_all = self.observe and sequence.is_prefilling and len(fed) * self._vocab <= MAX_SURPRISAL_LOGITS
        logits = run(self.model, cache, fed, len(ids), probe, wants_all)
        num_tokens = sequence.num_tokens + len(ids)
        began = time.perf_counter()
        seen = probe.rows() if probe and self.observe else {}
        weights = {
            i: spread(w[0].narrow(1, 0, min(num_tokens, w.shape[2])), cache.positions(i), num_tokens)
            for i, w in seen.items()
        }
        # a view of the last row would keep those of the whole chunk alive for as long as the row is kept
        probing = time.perf_counter() - began
        all_logits = logits[-len(ids) :] if wants_all else None
        return Forward(sequence, ids, logits[-1].clone(), all_logits, weights, probe, probing)

    def _forward_together(self, batch: list[Sequence], store: PageStore) -> list[Forward]:
        """One decode step of several sequences: rows right-aligned, padding masked, positions given."""
        caches = [self._caches[s.seq_id] for s in batch]
        ids = [s.next_ids(1)[0] for s in batch]
        store.plan([cache.tables for cache in caches], 1)
        lengths = torch.tensor([s.num_tokens for s in batch], device=self.model.device)
        longest = store.longest
        columns = torch.arange(longest + 1, device=self.model.device)
        padding = None if bool((lengths == longest).all()) else (columns >= longest - lengths[:, None]).long()
        probe = Probe() if self.observe else None
        fed = torch.tensor(ids, device=self.model.device)[:, None]
        logits = self.model.forward(fed, caches[0].live, probe, False, padding, lengths[:, None])
        began = time.perf_counter()
        all_weights = probe.rows() if probe else {}
        probing = (time.perf_counter() - began) / len(batch)
        forwards = []
        for row, sequence in enumerate(batch):
            weights = {i: w[row, :, max(0, w.shape[2] - sequence.num_tokens - 1) :] for i, w in all_weights.items()}
            forwards.append(Forward(sequence, [ids[row]], logits[row, -1], None, weights, None, probing))
        return forwards

    @property
    def _vocab(self) -> int:
        return self.model.info.geometry.vocab_size or int(self.model.model.config.get_text_config().vocab_size)

    def _choose(self, forward: Forward) -> Choice | None:
        """The next token, unless the prompt goes on."""
        sequence = forward.sequence
        position = sequence.num_tokens + len(forward.ids)
        if position < len(sequence.token_ids):
            return None
        return choose(forward.logits, sequence.sampling, position, self.text_of)

    def _observe(
        self, forward: Forward, choice: Choice | None, phase: Phase
    ) -> tuple[SequenceStep, dict[int, torch.Tensor], tuple[NonFinite, ...]]:
        """Everything the record says of one sequence, its attention rows, and what is not finite."""
        sequence, ids = forward.sequence, forward.ids
        first, num_tokens = sequence.num_tokens, sequence.num_tokens + len(ids)
        cache = self._caches[sequence.seq_id]
        rows = cache.all_newest_rows(first) if self.observe else {}
        stats = row_stats(rows, len(ids))
        summary, weights = attention_summary(forward.weights, num_tokens)
        weights = {i: ghosted(row, cache.positions(i)) for i, row in weights.items()}
        places = find_non_finite(rows, stats, first)
        bad = (
            int((~forward.logits.isfinite()).sum())
            if self.observe and choice and choice.entropy != choice.entropy
            else 0
        )
        if bad:
            places += (NonFinite("logits", None, None, num_tokens - 1, bad),)
        part = SequenceStep(
            seq_id=sequence.seq_id,
            phase=phase,
            token_ids=tuple(ids),
            texts=tuple(map(self.text_of, ids)),
            first_position=first,
            num_tokens=num_tokens,
            num_prompt_tokens=sequence.num_prompt_tokens,
            surprisal=self._surprisal(forward),
            sampled=choice.token_id if choice else None,
            sampled_text=self.text_of(choice.token_id) if choice else "",
            forced=sequence.sampled_is_forced and phase == "decode",
            candidates=choice.candidates if choice else (),
            entropy=choice.entropy if choice else None,
            stop=self._stop_after(num_tokens, choice, cache),
            rows=stats,
            attention=summary,
            stored_bytes=0 if self.cache.recomputes else cache.stored_bytes,
            hit_tokens=cache.page_counts().hit_tokens,
        )
        return part, weights, places

    def _condense(self, forward: Forward) -> tuple[Eviction, ...]:
        """Let the cache code and drop what its spec asks for."""
        sequence = forward.sequence
        num_tokens = sequence.num_tokens + len(forward.ids)
        return self._caches[sequence.seq_id].condense(num_tokens, sequence.num_prompt_tokens, forward.probe)

    def _weighed(self, part: SequenceStep) -> SequenceStep:
        """With the bytes of the cache after rows were coded and dropped."""
        if not self.cache.is_compact:
            return part
        return replace(part, stored_bytes=self._caches[part.seq_id].stored_bytes)

    def _surprisal(self, forward: Forward) -> tuple[float | None, ...]:
        """-log p of every token fed, under the logits before it; None where those were not computed."""
        if not self.observe:
            return (None,) * len(forward.ids)
        seq_id = forward.sequence.seq_id
        known, before = self._logprobs.get(seq_id), self._logits.get(seq_id)
        head: list[float | None] = [None]
        if known is not None:
            head = [-float(known[forward.ids[0]])]
        elif before is not None:
            head = [float(before.float().logsumexp(-1) - before[forward.ids[0]])]
        if forward.all_logits is None or len(forward.ids) == 1:
            return (*head, *(None,) * (len(forward.ids) - 1))
        rows = forward.all_logits[:-1].float()
        targets = torch.tensor(forward.ids[1:], device=rows.device)
        tail = rows.logsumexp(-1) - rows.gather(1, targets[:, None])[:, 0]
        return (*head, *tail.tolist())

    def _stop_after(self, num_tokens: int, choice: Choice | None, cache: SequenceCache) -> StopReason | None:
        if choice is None:
            return None
        if choice.token_id in self.model.end_ids:
            return "end of text"
        return self._full_at(num_tokens, cache)

    def _full_at(self, num_tokens: int, cache: SequenceCache) -> StopReason | None:
        if num_tokens >= self.model.max_length and not self._is_endless(cache.spec):
            return "context full"
        return "cache full" if cache.capacity is not None and num_tokens >= cache.capacity else None

    def _stop_in(self, sequence: Sequence, cache: SequenceCache) -> StopReason | None:
        """Why a sequence rests once this cache is its own: one may be full that was not, or the other way round."""
        if sequence.is_prefilling or sequence.stop not in (None, "cache full", "context full"):
            return sequence.stop
        return self._full_at(sequence.num_tokens, cache)

    def _is_endless(self, spec: CacheSpec) -> bool:
        """Whether a cache keeps so little that a context of any length goes through it."""
        bounded = spec.retention.is_by_position and not spec.is_paged
        return bounded and self.model.info.goes_beyond_context

    def _accept(
        self, forward: Forward, choice: Choice | None, part: SequenceStep, rows: dict[int, torch.Tensor]
    ) -> None:
        sequence = forward.sequence
        if not sequence.is_prefilling:
            sequence.token_ids.append(forward.ids[0])
        sequence.num_tokens = part.num_tokens
        cache = self._caches[sequence.seq_id]
        cache.commit(part.num_tokens)
        cache.publish(sequence.token_ids)
        self._logits[sequence.seq_id] = forward.logits
        self._logprobs.pop(sequence.seq_id, None)
        if choice is not None:
            self._logprobs[sequence.seq_id] = choice.logprobs
        key = (self._next_step, sequence.seq_id)
        if self.observe:
            self._logits_log.put(key, {0: forward.logits})
            if rows:
                self._attention.put(key, rows)
        if choice is not None:
            sequence.take(choice.token_id, part.stop, self._full_at(part.num_tokens, cache))

    def _standing(self, sequences: list[Sequence]) -> dict[int, Standing]:
        """Where these sequences stand, to come back to."""
        return {s.seq_id: Standing(s.mark(), s.num_preemptions, self._logits.get(s.seq_id)) for s in sequences}

    def _undo(self, before: dict[int, Standing]) -> None:
        """After a failure: new rows are dropped, or, where they cannot be, computed again before the next step."""
        for seq_id, standing in before.items():
            cache, sequence = self._caches[seq_id], self._sequences[seq_id]
            if sequence.num_preemptions == standing.num_preemptions:  # one that was preempted stays so
                sequence.go_back(standing.mark)
            self._logits.pop(seq_id, None)
            self._logprobs.pop(seq_id, None)
            if standing.logits is not None:
                self._logits[seq_id] = standing.logits
            for log in (self._attention, self._logits_log):
                log.drop((self._next_step, seq_id))
            self._magnitudes.forget(seq_id)
            if seq_id in self._stale or not cache.crop(sequence.num_tokens):
                cache.clear()
                self._stale.add(seq_id)

    def _refresh_cache(self, sequence: Sequence) -> None:
        if sequence.seq_id in self._stale:
            self._refill(sequence, self._caches[sequence.seq_id])
            self._stale.discard(sequence.seq_id)

    # ---- steering ------------------------------------------------------------------------------------------------

    def force(self, seq_id: int, token_ids: tuple[int, ...]) -> None:
        """The next tokens are these; the first replaces the one already chosen."""
        ids = self.encode(Prompt(token_ids=token_ids))
        sequence = self.sequence(seq_id)
        full = None if sequence.is_prefilling else self._full_at(sequence.num_tokens, self._caches[seq_id])
        if full is not None:
            raise InputError(
                f"Sequence {seq_id} has no room for another token ({full}): rewind it, or take a "
                f"{'larger cache' if full == 'cache full' else 'cache that keeps a window'}."
            )
        sequence.force(ids)

    def force_text(self, seq_id: int, text: str) -> None:
        """As `force`, with the tokens of a text, without special tokens."""
        if self.model.tokenizer is None:
            raise InputError(f"The model '{self.model.info.name}' has no tokenizer: force token ids.")
        Prompt(text=text)  # refuses what is no text
        ids = self.model.tokenizer(text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise InputError("The text to force is empty: type some text first.")
        self.force(seq_id, tuple(ids))

    def set_sampling(self, sampling: SamplingParams, seq_id: int | None = None) -> None:
        """Choose a sequence's tokens differently from now on; one chosen but not yet fed is chosen again, unless it was
        forced. None: what the next prompt takes that brings none of its own."""
        if seq_id is None:
            self.sampling = sampling
            return
        sequence = self.sequence(seq_id)
        sequence.sampling = sampling
        logits = self._logits.get(seq_id)
        if logits is None or sequence.is_prefilling or sequence.sampled_is_forced:
            return
        choice = choose(logits, sampling, sequence.num_tokens, self.text_of)
        stop = self._stop_after(sequence.num_tokens, choice, self._caches[seq_id])
        full = self._full_at(sequence.num_tokens, self._caches[seq_id])
        sequence.take(choice.token_id, "stopped" if sequence.stop == "stopped" else stop, full)

    def rewind(self, step: int) -> str:
        """Make the state after `step` the live one, exactly, in the cache mode of that step; says how each cache went
        back. Refuses, and changes nothing, where that state cannot be had any more."""
        checkpoint = self._journal.checkpoint_to(step, self._sequences)
        moved = self._moved_to(checkpoint) if checkpoint.cache != self.cache else None
        counts = {seq_id: mark.num_tokens for seq_id, mark in checkpoint.marks.items()}
        are_held = {i: self._journal.holds(i, step, counts.get(i, 0)) for i in self._sequences}
        logits = {i: self._logged(i, step) for i in self._sequences}
        before = self.cache
        self._journal.back_to(step)
        if moved is not None:
            self._caches, self._store, self._turner = moved
            self.cache, self._stale, are_held = checkpoint.cache, set(), dict.fromkeys(self._sequences, True)
        replayed = returned = 0
        again: set[int] = set()
        for seq_id, sequence in self._sequences.items():
            mark, cache = checkpoint.marks.get(seq_id), self._caches[seq_id]
            sequence.go_back(mark) if mark else sequence.restart()
            if not sequence.num_tokens:
                self._journal.begun(seq_id, self.cache)
            self._magnitudes.forget(seq_id)
            if seq_id in self._stale or not are_held[seq_id] or not cache.crop(sequence.num_tokens):
                cache.clear()
                self._stale.add(seq_id)
                replayed += sequence.num_tokens
                again.add(seq_id)
            else:
                returned += cache.put_back
            self._logits.pop(seq_id, None)
            self._logprobs.pop(seq_id, None)
            newest = logits[seq_id]
            if newest is not None:
                self._logits[seq_id] = newest
        if self._store is not None:
            self._store.forget_after(step)
        self._attention.drop_after(step)
        self._logits_log.drop_after(step)
        self._next_step = step + 1
        try:
            for sequence in self._sequences.values():
                self._refresh_cache(sequence)
        except (MemoryError, RuntimeError) as error:
            return f"went back; K and V come back with the next step, there was no room for them now ({error})"
        if moved is not None:
            words = "" if self.cache.is_exact and before.is_exact else self._replay_words(set(self._sequences))
            return f"back in the cache mode of that step, {cache_label(self.cache)}{words}"
        if replayed:
            return f"replayed {replayed} tokens: this cache forgets{self._replay_words(again)}"
        return f"put {returned:,} dropped rows back where they were" if returned else "cropped to the rows it had"

    def _replay_words(self, seq_ids: set[int]) -> str:
        """What a replay cannot give back: a step that fed several sequences at once is replayed one by one."""
        is_batched = self._store is not None and self._store.can_batch and self._journal.was_batched(seq_ids)
        return (
            "; steps of several sequences were replayed one by one, which is exact but for rounding"
            if is_batched
            else ""
        )

    def _holds(self, seq_id: int, step: int | None, num_tokens: int) -> bool:
        """Whether the live rows of the first tokens are those of a step (None: of now), bit for bit: rows that were
        computed anew since, in another mode or in other pieces, may differ in their last bit."""
        if seq_id in self._stale or (step is not None and not self._journal.holds(seq_id, step, num_tokens)):
            return False
        return self._caches[seq_id].knows(num_tokens)

    def _moved_to(self, checkpoint: Checkpoint) -> tuple[dict[int, SequenceCache], PageStore | None, Turner | None]:
        """Caches of the mode of an earlier step, with what every sequence had in them then; the live ones stay."""
        spec, caches = checkpoint.cache, dict[int, SequenceCache]()
        turner, store = self._new_turner(spec), self._new_store(spec)
        for seq_id, sequence in self._sequences.items():
            then, mark = sequence.fork(seq_id), checkpoint.marks.get(seq_id)
            then.go_back(mark) if mark else then.restart()
            cache = caches[seq_id] = self._new_cache(spec, store, seq_id, turner)
            try:
                self._check_holds(then, cache, "remove it first")
                if not self._taken_back(then, cache, checkpoint.step):
                    self._refill(then, cache, checkpoint.step)
            except PoolExhausted as error:
                raise InputError(
                    f"The pool cannot hold what it held at that step ({error}): remove a sequence."
                ) from None
            cache.publish(then.token_ids)
        return caches, store, turner

    def _taken_back(self, then: Sequence, cache: SequenceCache, step: int) -> bool:
        """Whether the live rows, exact both then and now, could be copied and cropped."""
        live = self._caches[then.seq_id]
        is_known = self._holds(then.seq_id, step, then.num_tokens)
        has_room = cache.capacity is None or live.num_tokens <= cache.capacity
        if not then.num_tokens:
            return True
        if not (is_known and has_room and self.cache.is_exact and cache.spec.is_append_only):
            return False
        try:
            return cache.take_over(live) and cache.crop(then.num_tokens)
        except PoolExhausted:  # all live rows at once are more than those of then
            return False

    def _refill(self, sequence: Sequence, cache: SequenceCache, step: int | None = None) -> None:
        """Compute once more what a sequence has in its cache, or had after `step`."""
        journal, seq_id = self._journal, sequence.seq_id
        lengths, moves = journal.fed_lengths(seq_id, step), journal.moves(seq_id, step)
        refill(self.model, sequence, cache, lengths, moves, self._make)

    def _make(self, spec: CacheSpec) -> SequenceCache:
        """An empty cache of a mode, beside those of the session."""
        return self._new_cache(spec, self._new_store(spec), -1, self._new_turner(spec))

    def set_cache(self, spec: CacheSpec) -> str:
        """Move the live sequences into another cache mode; says how. All of it succeeds or nothing changes."""
        turner = self._new_turner(spec)
        store = self._new_store(spec)
        caches: dict[int, SequenceCache] = {}
        moved: dict[int, Moved] = {}
        recomputed = dropped = 0
        for seq_id, sequence in self._sequences.items():
            cache = caches[seq_id] = self._new_cache(spec, store, seq_id, turner)
            self._check_holds(sequence, cache)
            try:
                if seq_id in self._stale or not cache.take_over(self._caches[seq_id]):
                    refill(self.model, sequence, cache, self._journal.fed_lengths(seq_id), [], self._make)
                    recomputed += sequence.num_tokens
                    moved[seq_id] = Moved(sequence.num_tokens, is_converted=False)
                else:
                    count = sequence.num_tokens
                    evictions = cache.condense(count, sequence.num_prompt_tokens, None) if count else ()
                    dropped += sum(e.positions.size for e in evictions)
                    moved[seq_id] = Moved(count, is_converted=True, has_dropped=bool(evictions))
                cache.commit(sequence.num_tokens)
                cache.publish(sequence.token_ids)
            except PoolExhausted as error:
                raise InputError(f"The pool cannot hold the live sequences ({error}): give it more pages.") from None
        if not caches:
            self._new_cache(spec, store, -1).close()
        stops = {s.seq_id: self._stop_in(s, caches[s.seq_id]) for s in self._sequences.values()}
        self._journal.moved(spec, moved)
        self._caches, self.cache, self._store, self._stale, self._turner = caches, spec, store, set(), turner
        for seq_id, stop in stops.items():
            self._sequences[seq_id].stop = stop
        if not caches:
            return "nothing to convert"
        if spec.recomputes:
            return "dropped the cache: every step recomputes from now on"
        if recomputed:
            return f"re-prefilled {recomputed} tokens"
        parts = ["converted without recomputing"]
        if not spec.codec.is_exact or spec.layout == "quantized":
            parts.append("the rows held were quantised")
        if dropped:
            parts.append("rows over budget were dropped")
        return ": ".join((parts[0], " and ".join(parts[1:]))) if parts[1:] else parts[0]

    # ---- looking -------------------------------------------------------------------------------------------------

    def bytes(self) -> CacheBytes:
        """What the caches of all sequences hold now."""
        looking = self._attention.num_bytes + self._logits_log.num_bytes + self.reruns.num_bytes
        looking += sum(cache.journal_bytes for cache in self._caches.values())
        rss = int(self._process.memory_info().rss)
        return cache_bytes(self.model.info, self.cache, list(self._caches.values()), self._store, looking, rss)

    @property
    def provenance(self) -> Provenance:
        if self.cache.recomputes:
            return "recomputed"
        return "live cache" if self.cache.codec.is_exact and self.cache.layout != "quantized" else "dequantised"

    def _step_of(self, seq_id: int, num_tokens: int) -> int | None:
        """The step after which a sequence first had so many tokens; the newest where it still has."""
        if num_tokens == self.sequence(seq_id).num_tokens:
            return self.last_step
        for step in range(self._next_step):
            mark = self._journal.mark(seq_id, step)
            if mark is not None and mark.num_tokens >= num_tokens:
                return step
        return self.last_step

    def past(self, seq_id: int, num_tokens: int) -> Past:
        """The rows of a sequence as they were with so many tokens."""
        return Past(self.cache_of(seq_id), num_tokens, self.provenance, self._journal.all_moves(seq_id))

    def take_slice(self, request: SliceRequest) -> Slice:
        """One screen-sized picture of the present; see `engine.look.slices`."""
        geometry = self.model.info.geometry
        cache = self.cache_of(request.seq_id)
        layer = getattr(request, "layer", 0)
        if not 0 <= layer < len(geometry.layers):
            raise InputError(f"There is no layer {layer}: this model has layers 0 … {len(geometry.layers) - 1}.")
        if getattr(request, "kv_head", 0) < 0:
            raise InputError(f"There is no kv head {request.kv_head}: count from 0.")  # type: ignore[union-attr]
        request = within(request, cache.num_tokens)
        past = self.past(request.seq_id, getattr(request, "num_tokens", cache.num_tokens))
        take: dict[type, Callable[[], Slice]] = {
            WallRequest: lambda: wall_slice(request, past, geometry, self._magnitudes.of_wall(request, past, geometry)),  # type: ignore[arg-type]
            HeadRequest: lambda: head_slice(request, past, geometry, self._magnitudes.of_head(request, past)),  # type: ignore[arg-type]
            OutliersRequest: lambda: self._outliers_slice(request, past),  # type: ignore[arg-type]
            RowRequest: lambda: row_slice(request, past, geometry),  # type: ignore[arg-type]
            AttentionRequest: lambda: self._attention_slice(request),  # type: ignore[arg-type]
            TableRequest: lambda: table_slice(request, cache),  # type: ignore[arg-type]
        }
        began = time.perf_counter()
        piece = take[type(request)]()
        if isinstance(piece, WallSlice | HeadSlice | OutliersSlice):  # with what counting its magnitudes took
            return replace(piece, took_ms=(time.perf_counter() - began) * 1e3)
        return piece

    def _outliers_slice(self, request: OutliersRequest, past: Past) -> Slice:
        geometry = self.model.info.geometry
        keys, values = self._magnitudes.of_all(request.seq_id, past, geometry)
        fed_at = self._journal.fed_at(request.seq_id, request.step)
        attention = (self._attention.get(fed_at) if fed_at else None) or {}
        return outliers_slice(request, past, geometry, keys, values, attention)

    def _attention_slice(self, request: AttentionRequest) -> Slice:
        fed_at = self._journal.fed_at(request.seq_id, request.step)
        row = (self._attention.get(fed_at) or {}).get(request.layer) if fed_at else None
        mark = self._journal.mark(request.seq_id, request.step)
        position = 0 if mark is None else mark.num_tokens - 1 if mark.num_tokens else None
        # in another mode since, the row is of rows that the cache may hold no more
        is_newest = (
            fed_at is not None
            and fed_at == self._newest_fed(request.seq_id)
            and not self._journal.has_moved(request.seq_id, fed_at[0])
        )
        return attention_slice(request, row, position, self.model.info.geometry, is_newest)

    def _newest_fed(self, seq_id: int) -> tuple[int, int] | None:
        """The newest step that fed a sequence, and under which `seq_id`."""
        return self._journal.fed_at(seq_id, self.last_step) if self.last_step is not None else None

    def _logged(self, seq_id: int, step: int) -> torch.Tensor | None:
        """The logits `[V]` that a sequence had after a step, if they are still kept."""
        fed_at = self._journal.fed_at(seq_id, step)
        entry = self._logits_log.get(fed_at) if fed_at else None
        return entry[0] if entry else None

    def attention_with(self, seq_id: int, num_tokens: int) -> dict[int, torch.Tensor]:
        """The weights `[H, S]` by layer of the step that brought a sequence to so many tokens, where they are kept."""
        for step in reversed(range(self._next_step)):
            mark, fed_at = self._journal.mark(seq_id, step), self._journal.fed_at(seq_id, step)
            if mark is None or fed_at is None or mark.num_tokens < num_tokens:
                break
            rows = self._attention.get(fed_at)
            if mark.num_tokens == num_tokens and rows is not None:
                return rows
        return {}

    def logged_logits(self, seq_id: int) -> list[tuple[int, int, torch.Tensor, CacheSpec]]:
        """Steps of a sequence whose logits are still kept: the step, the tokens it had then, the logits `[V]`, and the
        cache mode of that step."""
        found = []
        for step in range(self._next_step):
            checkpoint, mark = self._journal.at(step), self._journal.mark(seq_id, step)
            fed_at = self._journal.fed_at(seq_id, step)
            entry = self._logits_log.get(fed_at) if fed_at is not None and fed_at[0] == step else None
            if entry is not None and checkpoint is not None and mark is not None:
                found.append((step, mark.num_tokens, entry[0], checkpoint.cache))
        return found

    # ---- keeping -------------------------------------------------------------------------------------------------

    def snapshot(self, seq_id: int, num_tokens: int | None, cache_name: str, notes: str) -> Snapshot:
        """The cache of a sequence as it was with `num_tokens` tokens (None: now), ready to be written."""
        sequence = self.sequence(seq_id)
        count = sequence.num_tokens if num_tokens is None else num_tokens
        if not 0 < count <= sequence.num_tokens:
            raise InputError(
                f"Sequence {seq_id} has {sequence.num_tokens} tokens in its cache, not {count}: step first."
            )
        step = self._step_of(seq_id, count)
        mark = self._journal.mark(seq_id, step) if step is not None else None
        return snapshot_of(
            self.model,
            self.past(seq_id, count),
            sequence.token_ids,
            cache_name,
            (mark.sampling if mark is not None and num_tokens is not None else sequence.sampling).seed,
            step,
            notes,
        )
