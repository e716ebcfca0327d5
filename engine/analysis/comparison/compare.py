"""Compares two runs at the same number of tokens: their logits, newest rows, newest attention, and all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from engine.analysis.comparison.sides import ComparedRun
from engine.analysis.rounding import largest, row_errors
from engine.analysis.tolerance import Tolerance
from engine.geometry.dimensions import LayerGeometry
from engine.look.candidates import kl_divergence
from engine.look.source import NO_POSITION, PARTS, Rows, Source, gather_rows, slots_of
from engine.session.sampler import choose
from engine.spec.codec import Part
from engine.spec.sampling import SamplingParams
from engine.wire.comparison import ComparedStep, FirstDifference, TokenDivergence
from engine.wire.records import Candidate, read_only_floats

NUM_TOP = 5


@torch.inference_mode()
def step_of(
    a: ComparedRun,
    b: ComparedRun,
    num_tokens: int,
    tolerance: Tolerance,
    has_rows: bool,
    text_of: Callable[[int], str],
    divergence: TokenDivergence | None = None,
) -> ComparedStep:
    """Compare both sides when they had `num_tokens`. With a `divergence` they were given different tokens before, so
    that `is_beyond_rounding` is None."""
    mine, theirs = a.logits(num_tokens), b.logits(num_tokens)
    kl = far = agrees = None
    if mine is not None and theirs is not None:
        one, other = mine.float().cpu(), theirs.float().cpu()
        kl, far = kl_divergence(one, other), largest(other, one)
        if one.isnan().any() or other.isnan().any():
            kl = float("inf")
        agrees = int(one.argmax()) == int(other.argmax())
    keys, values = row_differences(a, b, num_tokens) if has_rows else (no_layers(a), no_layers(a))
    tolerances = np.array([tolerance.of_row(layer.index) for layer in a.geometry.attention_layers])
    is_beyond = bool((np.fmax(keys, values) > tolerances).any()) or (far is not None and far > tolerance.logit)
    (a_ms, a_bytes), (b_ms, b_bytes) = a.cost(num_tokens), b.cost(num_tokens)
    return ComparedStep(
        step=a.step_with(num_tokens) or 0,
        num_tokens=num_tokens,
        kl=kl,
        max_abs_logit_diff=far,
        top1_agrees=agrees,
        top=(top_of(mine, text_of), top_of(theirs, text_of)),
        keys=keys,
        values=values,
        attention=attention_distance(a, b, num_tokens) if has_rows else no_layers(a),
        is_beyond_rounding=None if divergence is not None else is_beyond,
        ms=(a_ms, b_ms),
        kv_bytes=(a_bytes, b_bytes),
        divergence=divergence,
    )


def not_compared(a: ComparedRun, num_tokens: int) -> ComparedStep:
    """The `ComparedStep` for a step of side A without a second set of numbers to compare: only the rows as held now are
    compared."""
    none = no_layers(a)
    step = a.step_with(num_tokens) or 0
    return ComparedStep(
        step, num_tokens, None, None, None, ((), ()), none, none, none, None, (None, None), (None, None)
    )


def no_layers(run: ComparedRun) -> np.ndarray:
    """An array `[L]` of NaN: nothing is known of any layer."""
    return read_only_floats(np.full(len(run.geometry.attention_layers), np.nan))


def top_of(logits: torch.Tensor | None, text_of: Callable[[int], str]) -> tuple[Candidate, ...]:
    """The `NUM_TOP` most probable next tokens."""
    if logits is None:
        return ()
    chosen = choose(logits, SamplingParams(), 0, text_of)
    return chosen.candidates[:NUM_TOP]


def row_differences(a: ComparedRun, b: ComparedRun, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Relative errors of the newest row of K and of V, `[L]` each, as described in `ComparedStep`."""
    found = {tensor: no_layers(a).copy() for tensor in PARTS}
    mine, theirs = a.newest(num_tokens), b.newest(num_tokens)
    for number, layer in enumerate(a.geometry.attention_layers):
        if layer.index not in mine or layer.index not in theirs:
            continue
        for tensor, row, true in zip(PARTS, theirs[layer.index], mine[layer.index], strict=True):
            one, other = true.float().cpu(), row.float().cpu()
            size = one.square().mean(-1).sqrt().clamp(min=1e-6)
            errors = (other - one).square().mean(-1).sqrt() / size
            # NaN errors count as infinite, since NaN means that there is no such row
            found[tensor][number] = float(errors.nan_to_num(torch.inf, torch.inf).max())
    return read_only_floats(found["keys"]), read_only_floats(found["values"])


def attention_distance(a: ComparedRun, b: ComparedRun, num_tokens: int) -> np.ndarray:
    """Total variation distance of the attention rows of the newest query, `[L]`, in the head where it is largest."""
    mine, theirs = a.attention(num_tokens), b.attention(num_tokens)
    found = no_layers(a).copy()
    for number, layer in enumerate(a.geometry.attention_layers):
        if layer.index in mine and layer.index in theirs:
            one, other = aligned(mine[layer.index], theirs[layer.index])
            difference = one.nan_to_num(0.0) - other.nan_to_num(0.0)
            found[number] = float(difference.abs().sum(1).max()) / 2
    return read_only_floats(found)


def aligned(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad attention rows `[H, S]` of the same query on the left with NaN to the length of the longer one."""
    width = max(one.shape[1], other.shape[1])
    rows = [
        torch.nn.functional.pad(row.float().cpu(), (width - row.shape[1], 0), value=torch.nan) for row in (one, other)
    ]
    return rows[0], rows[1]


@torch.inference_mode()
def first_difference(
    mine: Source,
    theirs: Source,
    layers: Iterable[LayerGeometry],
    tolerance: Tolerance,
    check: Callable[[], None] = lambda: None,
) -> FirstDifference | None:
    """The first position, and in it the lowest layer, whose row differs by more than rounding, among the rows that both
    hold. `check` is called between layers and raises to cancel."""
    first: FirstDifference | None = None
    for layer in layers:
        check()
        for tensor in PARTS:
            held, others = mine.rows(layer.index, tensor), theirs.rows(layer.index, tensor)
            if held is None or others is None or not held.numbers.shape[1] or not others.numbers.shape[1]:
                continue
            found = difference_of_tensor(held, others, layer, tensor, tolerance.of_row(layer.index))
            if found is not None and (first is None or found.position < first.position):
                first = found
    return first


def difference_of_tensor(
    held: Rows, others: Rows, layer: LayerGeometry, tensor: Part, tolerance: float
) -> FirstDifference | None:
    """The first row of K or V of one layer that differs by more than the tolerance; None if none does."""
    rows, expected = others.numbers.float(), held.numbers.float()  # [H_kv, S, D]
    here, there = others.places, held.places
    slots, is_held = slots_of(here, there)
    rows = gather_rows(rows, slots)
    errors = row_errors(rows, expected)  # [H_kv, S]
    is_wrong = ~(errors <= tolerance) & is_held  # NaN counts as wrong
    if not bool(is_wrong.any()):
        return None
    position = int(there.masked_fill(~is_wrong, NO_POSITION).min())
    at = is_wrong & (there == position)
    head = int(errors.masked_fill(~at, -1.0).nan_to_num(torch.inf).amax(1).argmax())
    slot = int(at[head].int().argmax())
    one, other = expected[head, slot], rows[head, slot]
    channel = int((one - other).abs().nan_to_num(torch.inf).argmax())
    return FirstDifference(
        position, layer.index, tensor, head, channel, float(one[channel]), float(other[channel]),
        float(errors[head, slot]), tolerance,
    )  # fmt: skip
