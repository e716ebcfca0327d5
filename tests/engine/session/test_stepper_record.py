"""Each field of a record, in every mode, against the value worked out here by hand from what the field describes.

Nothing is as many as anything else: sequences of unequal length, prompts that end within a chunk and within a page,
layers, heads and heads of K and V of other numbers, K and V of other widths.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
import torch

from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import PRESETS
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.records import SequenceStep, StepRecord
from engine.wire.status import Work
from tests.effort import effort
from tests.engine.predict.test_bytes import small
from tests.engine.tiny import model_of, prompt_ids, uneven_model

CHUNK = 5
SAMPLING = (SamplingParams(0.8, top_k=9, seed=3), SamplingParams())
RECENT = 16  # positions whose weights are summed

Dropped = dict[tuple[int, int, int], set[int]]  # positions by sequence, layer and head


def newest(cache: SequenceCache, layer: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """K and V `[H, T, D]` of the newest tokens of a layer."""
    held = cache.rows(layer)
    assert held is not None
    return held.keys[0, :, -count:].numpy(), held.values[0, :, -count:].numpy()


class Told:
    """A session whose every record is checked against the session before and after the step."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.dropped: Dropped = defaultdict(set)
        self.computed: dict[int, int] = defaultdict(int)
        self.logits: dict[int, torch.Tensor | None] = {}
        self.is_forced: frozenset[int] = frozenset()

    def submit(self, length: int, sampling: SamplingParams) -> int:
        return self.session.submit(Prompt(token_ids=prompt_ids(length, seed=length), sampling=sampling))

    def forked(self, parent: int, child: int) -> None:
        self.computed[child], self.logits[child] = self.computed[parent], self.logits[parent]
        for (seq_id, layer, head), positions in [*self.dropped.items()]:
            if seq_id == parent:
                self.dropped[child, layer, head] = set(positions)

    def step(self) -> StepRecord:
        session, pending = self.session, tuple(self.session.history.changes)
        last = session.last_step
        record = session.step()
        assert (record.step, record.parent) == (0 if last is None else last + 1, last)
        assert (record.changes, session.history.changes) == (pending, [])
        assert (record.cache, record.dtype, record.random_weights) == (session.cache, "float32", True)
        assert {part.phase for part in record.sequences} == {record.phase}
        ended = {info.seq_id for info in session.sequences if info.stop is not None}
        others = {info.seq_id for info in session.sequences} - {part.seq_id for part in record.sequences} - ended
        assert set(record.waiting) == (others if record.phase == "decode" else set(record.waiting))
        assert (record.non_finite, record.preempted) == ((), ())
        for part in record.sequences:
            self.check_tokens(part)
            self.check_choice(part)
            self.check_rows(part)
            self.check_attention(record.step, part)
            newest_logits = session.logits(part.seq_id)
            self.logits[part.seq_id] = None if newest_logits is None else newest_logits.clone()
        self.check_evictions(record)
        self.check_bytes(record)
        self.check_status()
        return record

    def check_tokens(self, part: SequenceStep) -> None:
        session, sequence = self.session, self.session.sequence(part.seq_id)
        first = self.computed[part.seq_id]
        assert (part.first_position, part.num_tokens) == (first, sequence.num_tokens)
        assert part.token_ids == tuple(sequence.token_ids[first : sequence.num_tokens])
        assert part.texts == tuple(map(session.text_of, part.token_ids))
        assert len(part.token_ids) == len(part.surprisal) > 0
        is_prompt = first < sequence.num_prompt_tokens
        assert part.phase == ("prefill" if is_prompt else "decode")
        assert part.num_prompt_tokens == sequence.num_prompt_tokens
        if part.seq_id not in self.is_forced:
            assert part.sampled == sequence.sampled
        assert (part.sampled is None) == (part.num_tokens < part.num_prompt_tokens)
        assert part.sampled_text == ("" if part.sampled is None else session.text_of(part.sampled))
        assert part.forced == (not is_prompt and part.seq_id in self.is_forced)
        assert sequence.stop == (None if part.seq_id in self.is_forced else part.stop)
        self.computed[part.seq_id] = part.num_tokens

    def check_choice(self, part: SequenceStep) -> None:
        """Surprisal under the logits before, candidates and entropy of those after it."""
        before, after = self.logits.get(part.seq_id), self.session.logits(part.seq_id)
        expected = None if before is None else -float(before.float().log_softmax(-1)[part.token_ids[0]])
        assert part.surprisal[0] == (None if expected is None else pytest.approx(expected, abs=1e-5))
        if part.sampled is None:
            assert (part.candidates, part.entropy) == ((), None)
            return
        assert after is not None
        logprobs = after.float().log_softmax(-1)
        best = logprobs.topk(20)
        told = {candidate.token_id: candidate for candidate in part.candidates}
        assert set(best.indices[:19].tolist()) <= set(told)
        assert part.sampled in told
        assert part.entropy == pytest.approx(float(-(logprobs.exp() * logprobs).sum()), abs=1e-4)
        assert [c.logprob for c in part.candidates] == sorted((c.logprob for c in part.candidates), reverse=True)
        sampling = self.session.sequence(part.seq_id).sampling
        assert bool(sampling.temperature) or part.sampled == int(after.argmax())
        weights = logprobs.exp()
        if sampling.temperature:
            assert sampling.top_k is not None
            scaled = after.float() / sampling.temperature
            weights = scaled.masked_fill(scaled < scaled.topk(sampling.top_k).values[-1], -math.inf).softmax(-1)
        for token_id, candidate in told.items():
            assert candidate.text == self.session.text_of(token_id)
            assert candidate.logprob == pytest.approx(float(logprobs[token_id]), abs=1e-5)
            assert candidate.prob == pytest.approx(float(logprobs[token_id].exp()), abs=1e-5)
            chance = float(weights[token_id]) if sampling.temperature else float(token_id == part.sampled)
            assert candidate.sampled_prob == pytest.approx(chance, abs=1e-5)

    def check_rows(self, part: SequenceStep) -> None:
        """Norms of the newest rows, where these are held and not coded."""
        cache, count = self.session.cache_of(part.seq_id), len(part.token_ids)
        assert part.stored_bytes == (0 if cache.spec.recomputes else cache.stored_bytes)
        assert part.hit_tokens == cache.page_counts().hit_tokens
        if part.rows is None or not cache.keeps_all_rows or not cache.spec.codec.is_exact or cache.spec.quantizer:
            return
        assert part.rows.layers == tuple(layer.index for layer in self.session.model.info.geometry.attention_layers)
        for number, layer in enumerate(part.rows.layers):
            keys, values = newest(cache, layer, count)
            assert part.rows.key_norm[number] == pytest.approx(np.linalg.norm(keys, axis=-1), abs=1e-4)
            assert part.rows.value_norm[number] == pytest.approx(np.linalg.norm(values, axis=-1), abs=1e-4)

    def check_attention(self, step: int, part: SequenceStep) -> None:
        rows = self.session.history.attention.get((step, part.seq_id))
        assert (rows is None) == (part.attention is None)
        if rows is None or part.attention is None:
            return
        geometry = self.session.model.info.geometry
        assert part.attention.layers == tuple(rows)
        for number, layer in enumerate(part.attention.layers):
            row = rows[layer]
            assert row.shape[0] == geometry.num_heads
            base = part.num_tokens - row.shape[1]  # a window has no row of the tokens before it
            first = row[:, 0].nan_to_num() if base == 0 else torch.zeros(len(row))
            assert part.attention.first_mass[number] == pytest.approx(first.numpy(), abs=1e-6)
            assert part.attention.recent_mass[number] == pytest.approx(row[:, -RECENT:].nansum(-1).numpy(), abs=1e-5)

    def check_evictions(self, record: StepRecord) -> None:
        """Held and dropped rows together are every token, each once."""
        for entry in record.evictions:
            heads = self.session.model.info.geometry.layers[entry.layer].num_kv_heads
            for head in range(heads) if entry.kv_head is None else (entry.kv_head,):
                mine = self.dropped[entry.seq_id, entry.layer, head]
                assert not mine & set(entry.positions.tolist())
                mine |= set(entry.positions.tolist())
            assert len(entry.positions) == len(entry.scores) > 0
            assert (np.diff(entry.positions) > 0).all()
        for part in record.sequences:
            cache = self.session.cache_of(part.seq_id)
            for layer in range(len(cache.layers)):
                held, places = cache.rows(layer), cache.positions(layer)
                if held is not None and not cache.spec.recomputes:
                    stop = part.num_tokens if places is None else max(map(max, places.tolist())) + 1
                    assert held.stop == stop
                if places is None or held is None or held.positions is None:
                    continue
                for head, positions in enumerate(places.tolist()):
                    gone = self.dropped[part.seq_id, layer, head]
                    assert not gone & set(positions)
                    assert gone | set(positions) == set(range(part.num_tokens))

    def check_bytes(self, record: StepRecord) -> None:
        held = self.session.bytes()
        assert record.num_bytes.layers == held.layers
        assert record.num_bytes.weights == held.weights == self.session.model.info.weight_bytes
        assert record.num_bytes.kept == held.kept
        caches = [self.session.cache_of(info.seq_id) for info in self.session.sequences]
        if not self.session.cache.is_paged and not self.session.cache.recomputes:
            assert held.stored == sum(cache.stored_bytes for cache in caches)

    def check_status(self) -> None:
        session, work = self.session, Work("Reading", 3, 8, can_cancel=False, reply_to=5)
        sampling = SamplingParams(0.5, seed=9)
        status = session.status(sampling, work, running=True)
        assert (status.model, status.cache, status.sampling) == (session.model.info, session.cache, sampling)
        assert (status.step, status.running, status.work) == (session.last_step, True, work)
        assert (status.kept, status.kept_bytes) == (session.kept.sizes, session.kept.num_bytes)
        assert (status.kept_limit, status.suspended) == (session.kept.max_bytes, None)
        assert (status.runner, status.capture.level) == (session.model.runners.state, session.captured.level)
        assert status.pending == tuple(session.history.changes)
        assert [info.seq_id for info in status.sequences] == sorted(session.live.ids)
        for info in status.sequences:
            sequence, cache = session.sequence(info.seq_id), session.cache_of(info.seq_id)
            assert (info.num_tokens, info.num_prompt_tokens) == (sequence.num_tokens, sequence.num_prompt_tokens)
            assert (info.sampled, info.stop, info.sampling) == (sequence.sampled, sequence.stop, sequence.sampling)
            assert (info.phase, info.num_preemptions) == (sequence.phase, sequence.num_preemptions)
            tables = getattr(cache, "tables", ())
            pages = [[page for page in table.page_ids if page] for table in tables]
            everyone = [[page for other in group.tables for page in other.page_ids] for group in self.groups]
            assert info.num_pages == sum(map(len, pages))
            assert info.num_shared_pages == sum(
                all_pages.count(page) > 1 for mine, all_pages in zip(pages, everyone, strict=False) for page in mine
            )

    @property
    def groups(self) -> tuple:  # type: ignore[type-arg]
        store = self.session.live.mode.store
        return tuple(store.groups) if store is not None else ()


EVERYWHERE = [(architecture, name) for architecture in ("uneven", "gemma3_text", "deepseek_v3") for name in PRESETS]


@pytest.mark.parametrize(("architecture", "name"), effort(EVERYWHERE[::5], EVERYWHERE))
def test_every_field_is_of_what_it_says(architecture: str, name: str) -> None:
    model = uneven_model() if architecture == "uneven" else model_of(architecture)
    try:
        session = Session(model, small(PRESETS[name]), prefill_chunk=CHUNK)
    except InputError:  # rules that compare keys, group codecs and transformers' own quantised layers need other models
        assert architecture != "uneven"
        return
    told = Told(session)
    first, second = told.submit(13, SAMPLING[0]), told.submit(22, SAMPLING[1])
    early = told.submit(6, SAMPLING[0])  # forced before its prompt is read
    session.force(early, prompt_ids(12, seed=4))
    told.is_forced = frozenset((early,))
    while session.is_prefilling:
        told.step()
    session.force(first, prompt_ids(9, seed=1))
    session.force(second, prompt_ids(9, seed=2))
    told.is_forced |= {first, second}
    for _ in range(4):
        told.step()
    child = session.fork(first).child
    told.forked(first, child)
    session.force(child, prompt_ids(7, seed=3))
    told.is_forced |= {child}
    for _ in range(3):
        told.step()
