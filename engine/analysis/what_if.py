"""What another cache would do to a sequence: the next token if the cache had been coded or had evicted rows, the damage
of a codec layer by layer, and the regret of each row. The live cache is only read."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from engine.cache.attention_probe import Probe
from engine.cache.compressed.cache import CompressedCache
from engine.cache.compressed.retention import LayerView, Rule, rule_of
from engine.cache.contract import HeldRows
from engine.cache.sequence_cache import SequenceCache
from engine.cache.stacking import on_one_device
from engine.errors import InputError, Progress
from engine.geometry.dimensions import CacheGeometry
from engine.look.candidates import kl_divergence
from engine.model.batch import Batch
from engine.model.loader import LoadedModel
from engine.session.driver import Driver
from engine.session.mode import CacheMode
from engine.session.rerun import Outcome, RowsByLayer, fill
from engine.session.sampler import choose
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, Coding, LayerCoding
from engine.spec.retention import layers_that_evict
from engine.spec.sampling import SamplingParams
from engine.wire.measurements import (
    DamageMap,
    LayerPlanStep,
    MapDamage,
    MeasureRegret,
    Regret,
    Shift,
    TensorDamage,
    WhatIf,
    WhatIfAnswer,
)
from engine.wire.records import Candidate, read_only_floats, read_only_ints

AT_ONCE_S = 0.04  # a longer run is preceded by an estimate, so that the answer follows a dragged slider


def what_if(session: Session, request: WhatIf) -> Generator[Progress | WhatIfAnswer, None, None]:
    """Compute the next token as if `request.cache` had been the mode from the first token on: its rule sees the
    attention it would have seen, and rows written after an eviction are those that would have been written.

    If that takes longer than `AT_ONCE_S`, an estimate comes first: the exact rows, coded or evicted as if the mode had
    been changed before the newest token, by the attention of the step before. Yields progress and answers; the last
    answer is the one that was run. The live cache is not changed, so it can be closed at any time.
    """
    began = time.perf_counter()
    trial = yield from trial_of(session, request.seq_id)
    check_can_be_tried(trial, request.cache)
    before, rows = exact_logits(trial), trial.rows if trial.are_exact else None
    seconds = session.reruns.seconds(request.cache, trial.token_ids, trial.prompt_end, rows is not None)
    if seconds > AT_ONCE_S and (trial.attention or not request.cache.retention.needs_weights):
        yield answer(session, request, trial, before, estimated(trial, request), began, is_estimate=True)
    outcome = yield from session.reruns.run(request.cache, trial.token_ids, trial.prompt_end, rows)
    yield answer(session, request, trial, before, outcome, began, is_estimate=False)


def estimated(trial: Trial, request: WhatIf) -> Outcome:
    """What the mode would do if it had been set just before the newest token."""
    cache = scratch_cache(trial, request.cache)
    kept_ratio, num_bytes = cache.kept_ratio, cache.stored_bytes  # before the forward adds the newest token's row
    return Outcome(newest_logits(trial, cache), kept_ratio, num_bytes)


def answer(
    session: Session,
    request: WhatIf,
    trial: Trial,
    before: torch.Tensor,
    outcome: Outcome,
    began: float,
    *,
    is_estimate: bool,
) -> WhatIfAnswer:
    """The answer that compares the logits `before` with those of an outcome."""
    after, greedy = outcome.logits, SamplingParams()
    shown = [choose(logits, greedy, trial.num_tokens, session.text_of).candidates for logits in (before, after)]
    return WhatIfAnswer(
        request=request,
        step=session.last_step or 0,
        kl=kl_divergence(before, after),
        max_abs_logit_diff=float((after - before).abs().nan_to_num(0.0).max()),
        top1_changed=int(before.argmax()) != int(after.argmax()),
        before=shown[0],
        after=shown[1],
        kept_ratio=outcome.kept_ratio,
        exact_bytes=sum(int(r.keys.nbytes + r.values.nbytes) for r in trial.rows.values()),
        kv_bytes=outcome.num_bytes,
        took_ms=(time.perf_counter() - began) * 1e3,
        note=note(trial, is_estimate),
        shifts=shifts(before, after, shown[0], shown[1], session.text_of),
        is_estimate=is_estimate,
        is_rebuilt=trial.is_rebuilt,
    )


def note(trial: Trial, is_estimate: bool) -> str:
    """What the answer assumes, in words."""
    if is_estimate:
        return "Estimate, as if taken over one step ago; the run follows."
    if trial.num_tokens == trial.num_prompt_tokens:
        return "Run from the first token, the prompt taken to end one token earlier."
    return "Run from the first token."


def shifts(
    before: torch.Tensor,
    after: torch.Tensor,
    listed_before: tuple[Candidate, ...],
    listed_after: tuple[Candidate, ...],
    text_of: Callable[[int], str],
) -> tuple[Shift, ...]:
    """Probability and rank of every listed candidate in two rows of logits `[V]`."""
    ids = list(dict.fromkeys(c.token_id for c in (*listed_before, *listed_after)))
    probs = [logits.softmax(-1)[ids].tolist() for logits in (before, after)]
    ranks = [ranks_of(logits, ids) for logits in (before, after)]
    rows = zip(ids, *probs, *ranks, strict=True)
    found = [Shift(i, text_of(i), was, will, old, new) for i, was, will, old, new in rows]
    return tuple(sorted(found, key=lambda shift: (shift.rank_before, shift.rank_after)))


def ranks_of(logits: torch.Tensor, ids: list[int]) -> list[int]:
    """The rank of each token: how many are more probable. Of equally probable ones, that with the smaller id comes
    first."""
    chosen = logits[ids]
    equal_first = (logits == chosen[:, None]) & (
        torch.arange(len(logits), device=logits.device) < chosen.new_tensor(ids)[:, None]
    )
    return ((logits > chosen[:, None]).sum(1) + equal_first.sum(1)).tolist()


# ---- the damage map of a codec: errors of K and V, of attention and of the next token, and a plan --------------------

LADDER: tuple[str, ...] = ("exact", "int8", "kivi-4", "kivi-2")
PLAN_GROUPS = (32, 16, 8)


def measured_damage(session: Session, request: MapDamage) -> Iterator[tuple[int, int] | DamageMap]:
    """Yield progress `(done, total)` in measured layers, then the map. The live cache is not changed, so this can be
    cancelled at any time."""
    began = time.perf_counter()
    if request.codec.is_exact:
        raise InputError("The exact codec damages nothing: choose one with fewer bits.")
    trial = yield from trial_of(session, request.seq_id)
    total = len(trial.rows) * (1 if request.budget_bytes is None else 2)
    yield 0, total
    before, after = Probe(), Probe()
    baseline = exact_logits(trial, before)
    cache = scratch_cache(trial, CacheSpec(codec=request.codec))
    pairs, num_bytes = {index: cache.rows(index) for index in trial.rows}, cache.stored_bytes
    kl = kl_divergence(baseline, newest_logits(trial, cache, after))
    layers = tuple(trial.rows)
    per_column = max(1, -(-(trial.num_tokens - 1) // max(1, request.max_columns)))
    alone = []
    for index in layers:
        alone.append(layer_kl(trial, baseline, only_layer(request.codec, index)))
        yield len(alone), total
    steps: tuple[LayerPlanStep, ...] = ()
    if request.budget_bytes is not None:
        choices: dict[int, list[LayerPlanStep]] = {}
        for index in layers:
            choices[index] = layer_choices(trial, baseline, index, request.codec.keys)
            yield len(layers) + len(choices), total
        steps = suggested(choices, request.budget_bytes)
    plan = plan_codec(steps)
    yield DamageMap(
        request=request,
        layers=layers,
        keys=tensor_damage([(trial.rows[i].keys, pairs[i].keys) for i in layers], per_column),  # type: ignore[union-attr]
        values=tensor_damage([(trial.rows[i].values, pairs[i].values) for i in layers], per_column),  # type: ignore[union-attr]
        tokens_per_column=per_column,
        attention=attention_shift(before, after, layers),
        kl=kl,
        kl_by_layer=read_only_floats(np.array(alone)),
        exact_bytes=sum(exact_bytes(trial, index) for index in layers),
        kv_bytes=num_bytes,
        plan=steps,
        plan_codec=plan if steps else None,
        plan_kl=layer_kl(trial, baseline, plan) if steps else None,
        plan_bytes=sum(step.num_bytes for step in steps) if steps else None,
        took_ms=(time.perf_counter() - began) * 1e3,
        step=session.last_step or 0,
        num_rows=trial.num_tokens - 1,
        is_rebuilt=trial.is_rebuilt,
    )


def layer_kl(trial: Trial, baseline: torch.Tensor, codec: CodecSpec) -> float:
    """KL (nats) of the next token with the rows coded by `codec`, relative to the `baseline` logits."""
    if codec.is_exact:
        return 0.0
    return kl_divergence(baseline, newest_logits(trial, scratch_cache(trial, CacheSpec(codec=codec))))


def exact_bytes(trial: Trial, layer: int) -> int:
    """Bytes of the exact K and V of a layer."""
    rows = trial.rows[layer]
    return int(rows.keys.nbytes + rows.values.nbytes)


# ---- errors ------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def tensor_damage(pairs: list[tuple[torch.Tensor, torch.Tensor]], per_column: int) -> TensorDamage:
    """Errors of one tensor, from pairs `(exact, read back)` of `[1, H_kv, S, D]` for each layer."""
    by_token, by_channel, max_abs = [], [], []
    for exact, read in pairs:
        true, error = exact[0].float(), (read[0].float() - exact[0].float())
        scale = true.square().mean((1, 2)).sqrt().clamp(min=1e-12)[:, None]  # [H_kv, 1]
        columns = torch.split(error.square().mean(2), per_column, 1)
        by_token.append(torch.stack([c.mean(1) for c in columns], 1).sqrt() / scale)
        by_channel.append(error.square().mean(1).sqrt() / scale)
        max_abs.append(error.abs().amax((1, 2)))
    return TensorDamage(stacked(by_token), stacked(by_channel), stacked(max_abs))


def stacked(tensors: list[torch.Tensor]) -> np.ndarray:
    """Stack tensors of layers that may differ in heads and channels as `[L, …]`, padded with NaN."""
    shape = [max(t.shape[axis] for t in tensors) for axis in range(tensors[0].dim())]
    array = np.full((len(tensors), *shape), np.nan, np.float32)
    for row, tensor in zip(array, tensors, strict=True):
        row[tuple(slice(0, size) for size in tensor.shape)] = tensor.cpu().numpy()
    return read_only_floats(array)


def attention_shift(before: Probe, after: Probe, layers: tuple[int, ...]) -> np.ndarray:
    """Total variation distance of the newest query's attention weights, `[L, H]`: 0 if equal, 1 if disjoint."""
    shifts = [(before.rows()[i][0] - after.rows()[i][0]).abs().sum(-1) / 2 for i in layers if i in before.rows()]
    return stacked(shifts) if shifts else read_only_floats(np.empty((0, 0)))


# ---- a plan for a budget -----------------------------------------------------------------------------------------


def suggested(choices: dict[int, list[LayerPlanStep]], budget: int) -> tuple[LayerPlanStep, ...]:
    """Choose a coding for each layer so that all fit in `budget` bytes: repeatedly take the step to fewer bits that
    costs the least divergence per saved byte. Raises `InputError` if the budget is too small.

    Divergences are those of each layer coded alone; the caller measures the whole plan, which need not be their sum.
    """
    at = dict.fromkeys(choices, 0)
    while sum(choices[i][at[i]].num_bytes for i in choices) > budget:
        moves = [
            ((new.kl - old.kl) / (old.num_bytes - new.num_bytes), index, place)
            for index, options in choices.items()
            for old in [options[at[index]]]
            for place, new in enumerate(options)
            if place > at[index] and new.num_bytes < old.num_bytes
        ]
        if not moves:
            least = sum(min(step.num_bytes for step in options) for options in choices.values())
            raise InputError(f"No plan fits {budget:,} bytes: the smallest takes {least:,}. Raise the budget.")
        _, index, place = min(moves)
        at[index] = place
    return tuple(choices[index][place] for index, place in at.items())


def layer_choices(trial: Trial, baseline: torch.Tensor, layer: int, asked: Coding) -> list[LayerPlanStep]:
    """The codings that a layer can have, with the divergence if only this layer is coded, and the bytes. KIVI keeps the
    residual of the coding `asked`, if that fits."""
    geometry = trial.model.info.geometry.layers[layer]
    steps = [LayerPlanStep(LayerCoding(layer), 0.0, exact_bytes(trial, layer))]
    for name in LADDER[1:]:
        codings = planned_codings(name, geometry.value_dim, asked.residual)
        if codings is None:
            continue
        coding = LayerCoding(layer, *codings)
        cache = scratch_cache(trial, CacheSpec(codec=CodecSpec(layers=(coding,))))
        held = cache.all_bytes()[layer].stored
        steps.append(LayerPlanStep(coding, kl_divergence(baseline, newest_logits(trial, cache)), held))
    return steps


def planned_codings(name: str, value_dim: int, residual: int | None) -> tuple[Coding, Coding] | None:
    """Codings of K and V for a name in `LADDER`, with the largest group that fits; None if none fits."""
    if not name.startswith("kivi"):
        return Coding(name), Coding(name)
    per_word = 32 // int(name.removeprefix("kivi-"))
    group = next((g for g in PLAN_GROUPS if value_dim % g == 0 and g % per_word == 0), None)
    if group is None:
        return None
    fitting = residual if residual is not None and residual % group == 0 else None
    return Coding(name, group, fitting), Coding(name, group, fitting)


def plan_codec(steps: tuple[LayerPlanStep, ...]) -> CodecSpec:
    """The codec of the whole plan."""
    return CodecSpec(layers=tuple(step.coding for step in steps if not step.coding.keys.is_exact))


# ---- regret: what removing each row, or page of rows, does to the next token -----------------------------------------

BATCH = 16


def regret(session: Session, request: MeasureRegret) -> Iterator[Progress | Regret]:
    """Yield progress (tokens computed, then removals done, each of how many), and last the answer. The live cache is
    not changed, so it can be closed at any time.

    A removal masks the rows of one page in every layer and head; sixteen removals are one forward pass.
    """
    began = time.perf_counter()
    if request.page_size < 1:
        raise InputError(f"A page of {request.page_size} rows cannot be removed: give 1 or more.")
    if not session.model.info.captures_attention or not session.model.takes_positions:
        raise InputError("Removing rows by the mask needs a model that takes positions and runs our attention.")
    trial = yield from trial_of(session, request.seq_id)
    starts = list(range(0, trial.num_tokens - 1, request.page_size))
    scores = yield from row_scores(session, trial, request.cache)
    baseline = exact_logits(trial)
    found: list[float] = []
    for first in range(0, len(starts), BATCH):
        yield first, len(starts)
        found += removal_kls(trial, starts[first : first + BATCH], request.page_size, baseline)
    pages = [scores[start : start + request.page_size].mean() for start in starts]
    yield Regret(
        request=request,
        step=session.last_step or 0,
        positions=read_only_ints(np.array(starts)),
        kl=read_only_floats(np.array(found)),
        scores=read_only_floats(np.array([float(page) for page in pages])),
        rank_correlation=rank_correlation(np.array(found), np.array([float(page) for page in pages])),
        took_ms=(time.perf_counter() - began) * 1e3,
        is_rebuilt=trial.is_rebuilt,
    )


def row_scores(session: Session, trial: Trial, spec: CacheSpec) -> Generator[Progress, None, torch.Tensor]:
    """The rule's score of every row `[S]` before the newest token: ranked 0 … 1 in each head, averaged over the heads
    and over the layers that evict rows.

    The rule's memory and attention are as if it had watched all tokens before the newest and evicted nothing. Therefore
    these tokens are computed again into a scratch cache, since attention in the live cache may not have been watched.
    The newest token itself is left out: it is the query of the prediction, and a rule that had seen it would know the
    answer.
    """
    spec.retention.check(trial.model.info.geometry, trial.model.info.captures_attention)
    if spec.retention.keeps_all:
        raise InputError("A cache that keeps all rows ranks none: name a rule, such as h2o.")
    rule, watched = rule_of(spec.retention), None
    if rule.probe() is not None:
        watched = yield from session.reruns.prompt_of(CacheSpec(retention=spec.retention), trial.token_ids[:-1])
    return averaged_ranks(trial, rule, watched)


@torch.inference_mode()
def averaged_ranks(trial: Trial, rule: Rule, watched: Driver | None) -> torch.Tensor:
    """The rank 0 … 1 of every row, averaged over heads and over the layers that evict rows, `[S]`."""
    ranks = []
    for index in layers_that_evict(trial.model.info.geometry):
        keys = trial.rows[index].keys
        heads, count = keys.shape[1], keys.shape[2]
        positions = torch.arange(count, device=keys.device).expand(heads, -1)
        recent = rule.spec.recent(rule.spec.num_kept(count))
        memory, weights = (None, None) if watched is None else (memory_of(watched, index), watched.weights[index][0])
        scores = rule.score(LayerView(index, keys[0], positions, memory, weights, recent))
        ranks.append(scores.argsort(1).argsort(1).float().mean(0) / max(1, count - 1))
    return torch.stack(on_one_device(ranks)).mean(0).cpu()


def memory_of(watched: Driver, layer: int) -> torch.Tensor | None:
    """The accumulated scores that the rule of a cache keeps for a layer."""
    assert isinstance(watched.cache, CompressedCache)
    return dict(watched.cache.compressed_layers)[layer].memory


@torch.inference_mode()
def removal_kls(trial: Trial, starts: list[int], size: int, baseline: torch.Tensor) -> list[float]:
    """KL of the next token after each removal."""
    batch, count = len(starts), trial.num_tokens
    cache = SequenceCache(CacheSpec(), trial.model.model.config, count)
    for index, rows in trial.rows.items():
        cache.model_cache.update(rows.keys.expand(batch, -1, -1, -1), rows.values.expand(batch, -1, -1, -1), index)
    device = trial.model.device
    mask = torch.ones(batch, count, dtype=torch.long, device=device)
    for row, start in enumerate(starts):
        mask[row, start : min(start + size, count - 1)] = 0
    ids = torch.full((batch, 1), trial.token_id, device=device)
    where = torch.full((batch, 1), count - 1, device=device)
    logits = trial.model.forward(Batch(ids, cache.model_cache, padding=mask, positions=where)).logits[:, -1].float()
    return [kl_divergence(baseline, row) for row in logits]


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation: 1 if the rule ranks rows as their removal does, 0 if it ranks them like random
    draws."""
    if len(one) < 2:
        return 0.0
    ranks = [mean_ranks(values) for values in (one, other)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0 up; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[place], dtype=float)


# ---- the newest forward again, on a copy of the cache ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trial:
    """The state before the newest token of a sequence was computed: its tokens, and the rows of all layers without that
    of the newest token.

    `are_exact`: these rows are what an exact cache would hold. `is_rebuilt`: they were computed from the tokens, since
    the live cache does not hold them all. `attention` `[H, S]` by layer is that of the step before, if it was recorded;
    it stands for the attention that a rule would have seen.
    """

    model: LoadedModel
    seq_id: int
    rows: RowsByLayer
    token_ids: list[int]
    num_prompt_tokens: int
    are_exact: bool
    is_rebuilt: bool
    attention: dict[int, torch.Tensor]

    @property
    def token_id(self) -> int:
        """The newest token."""
        return self.token_ids[-1]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def prompt_end(self) -> int:
        """The number of tokens that a mode which evicts or codes at the prompt's end takes as the prompt. If only the
        prompt was computed, its last token counts as the first one after it, since otherwise nothing would be evicted
        before it."""
        return min(self.num_prompt_tokens, self.num_tokens - 1)


def trial_of(session: Session, seq_id: int) -> Generator[Progress, None, Trial]:
    """Prepare the repetition of a sequence's newest forward pass. Rows that the cache does not hold are rebuilt from
    the tokens, by one prefill beside it; meanwhile yields progress (tokens computed, of how many)."""
    sequence, cache = session.sequence(seq_id), session.cache_of(seq_id)
    token_ids = sequence.token_ids[: sequence.num_tokens]
    if len(token_ids) < 2:
        raise InputError("There is nothing to try yet: a sequence needs two tokens in its cache.")
    geometry = session.model.info.geometry
    if geometry.has_encoder:
        raise InputError(
            "The rows of an encoder-decoder are not tried as others here: sweep its modes, or compare two."
        )
    if any(layer.kind == "linear" or layer.state_elements for layer in geometry.layers):
        raise InputError("A recurrent state cannot be tried with other rows: this needs a model of attention alone.")
    lost = cache.num_tokens != len(token_ids) or not holds_all(cache, geometry)
    are_exact = lost or cache.spec.is_append_only or cache.spec.recomputes
    rows = (
        (yield from session.reruns.exact_rows(token_ids[:-1]))
        if lost
        else held_before(cache, geometry, len(token_ids) - 1)
    )
    attention = {} if lost else session.history.attention_with(seq_id, len(token_ids) - 1)
    if any(bool(row.isnan().any()) for row in attention.values()):
        attention = {}  # the mode had evicted rows then
    return Trial(session.model, seq_id, rows, token_ids, sequence.num_prompt_tokens, are_exact, lost, attention)


def holds_all(cache: SequenceCache, geometry: CacheGeometry) -> bool:
    """Whether a cache holds every row of every layer."""
    held = (cache.rows(layer.index) for layer in geometry.attention_layers)
    return all(rows is not None and not rows.first and rows.positions is None for rows in held)


def held_before(cache: SequenceCache, geometry: CacheGeometry, count: int) -> RowsByLayer:
    """The first `count` rows of every layer."""
    found = ((layer.index, cache.rows(layer.index)) for layer in geometry.attention_layers)
    return {i: HeldRows(held.keys[:, :, :count], held.values[:, :, :count], 0) for i, held in found if held is not None}


@torch.inference_mode()
def exact_logits(trial: Trial, probe: Probe | None = None) -> torch.Tensor:
    """Next-token logits `[V]` with the rows as they are, with which every alternative is compared."""
    return newest_logits(trial, scratch_cache(trial, CacheSpec()), probe)


def check_can_be_tried(trial: Trial, spec: CacheSpec) -> None:
    """Raise `InputError` for a mode that this model cannot have, or that changes no rows."""
    if spec.layout != "growing":
        raise InputError("Only codecs and eviction rules can be tried on the frozen cache: other layouts are exact.")
    spec.codec.check(trial.model.info.geometry)
    spec.retention.check(trial.model.info.geometry, trial.model.info.captures_attention)


@torch.inference_mode()
def scratch_cache(trial: Trial, spec: CacheSpec) -> SequenceCache:
    """A scratch cache of another codec or rule, filled with the exact rows and compressed as if the mode were changed
    now. A rule that reads attention ranks by that of the step before."""
    check_can_be_tried(trial, spec)
    cache = CacheMode(trial.model, spec).new_cache(trial.seq_id, trial.prompt_end)
    count = trial.num_tokens - 1
    end = trial.prompt_end if spec.retention.only_at_prompt_end else count
    fill(cache, trial.rows, 0, end)
    cache.num_tokens = end
    cache.compress(end, end, probe_of_attention(trial, cache, end))
    fill(cache, trial.rows, end, count)
    cache.num_tokens = count
    return cache


def probe_of_attention(trial: Trial, cache: SequenceCache, count: int) -> Probe | None:
    """The attention to the first `count` rows for a rule; the recorded step before stands for all that the rule would
    have seen. None if the rule reads no attention."""
    if not cache.spec.retention.needs_weights:
        return None
    if not trial.attention:
        raise InputError("This rule reads attention and none was recorded: step once, then try it.")
    probe = Probe()
    for index, row in trial.attention.items():
        weights = row[None, :, :count]
        probe.weights[index], probe.sums[index], probe.latest[index] = weights, weights.clone(), weights[:, :, None]
    return probe


@torch.inference_mode()
def newest_logits(trial: Trial, cache: SequenceCache, probe: Probe | None = None) -> torch.Tensor:
    """Next-token logits `[V]` after computing the newest token with a scratch cache."""
    ids = torch.tensor([[trial.token_id]], device=trial.model.device)
    return trial.model.forward(Batch(ids, cache.model_cache, probe)).logits[0, -1].float()


def only_layer(codec: CodecSpec, layer: int) -> CodecSpec:
    """A codec that codes one layer only."""
    keys, values = codec.at(layer)
    return CodecSpec(layers=(LayerCoding(layer, keys, values),))
