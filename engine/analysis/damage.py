"""The damage map of a codec: errors of K and V, of attention and of the next token, and a plan for a byte budget."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from engine.analysis.trial import Trial, exact_logits, newest_logits, only_layer, scratch_cache, trial_of
from engine.cache.attention_probe import Probe
from engine.errors import InputError
from engine.look.candidates import kl_divergence
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, Coding, LayerCoding
from engine.wire.measurements import DamageMap, LayerPlanStep, MapDamage, TensorDamage
from engine.wire.records import read_only_floats

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
    by_token, by_channel, max_abs, cosine = [], [], [], []
    for exact, read in pairs:
        true, error = exact[0].float(), (read[0].float() - exact[0].float())
        scale = true.square().mean((1, 2)).sqrt().clamp(min=1e-12)[:, None]  # [H_kv, 1]
        columns = torch.split(error.square().mean(2), per_column, 1)
        by_token.append(torch.stack([c.mean(1) for c in columns], 1).sqrt() / scale)
        by_channel.append(error.square().mean(1).sqrt() / scale)
        max_abs.append(error.abs().amax((1, 2)))
        cosine.append(torch.nn.functional.cosine_similarity(true.flatten(1), read[0].float().flatten(1), dim=1))
    return TensorDamage(stacked(by_token), stacked(by_channel), stacked(max_abs), stacked(cosine))


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
