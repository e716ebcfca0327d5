"""Parity of the live sequence: what its steps gave, against the model without any cache on the same tokens."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np
import torch

from engine.cache.adapter import HeldRows, SequenceCache
from engine.commands import CheckParity
from engine.config import CacheSpec
from engine.errors import InputError
from engine.probe import frozen as read_only
from engine.records import ParityReport
from engine.session import Session
from engine.slices import frozen_ints
from engine.truth.frozen import divergence

# what the order of additions may do: to a logit, and to a row of K or V over the row's largest number
LOGIT_TOLERANCE = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 4e-1}
ROW_TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}

Tensor = Literal["keys", "values"]


@torch.inference_mode()
def live_parity(session: Session, request: CheckParity) -> ParityReport:
    """One uncached forward over all tokens gives the truth of every step at once; nothing of the session is changed."""
    began = time.perf_counter()
    model, sequence = session.model, session.sequence(request.seq_id)
    logged = session.logged_logits(request.seq_id)
    if not logged:
        raise InputError("No step of this sequence is recorded: step first, then compare.")
    ids = torch.tensor([sequence.token_ids[: sequence.num_tokens]], device=model.device)
    truth = SequenceCache(CacheSpec(), model.model.config, model.max_length)
    expected = model.reference_logits(ids, truth.live).float()
    rows = [(step, count, logits.float(), expected[count - 1]) for step, count, logits in logged]
    differences = [largest(logits, true) for _, _, logits, true in rows]
    departure = first_departure(session, request.seq_id, truth)
    dtype, spec = model.info.dtype, session.cache
    tolerance = LOGIT_TOLERANCE[dtype]
    return ParityReport(
        request=request,
        cache=spec,
        dtype=dtype,
        steps=frozen_ints(np.array([step for step, _, _, _ in rows])),
        positions=frozen_ints(np.array([count - 1 for _, count, _, _ in rows])),
        max_abs_logit_diff=read_only(np.array(differences)),
        kl=read_only(np.array([divergence(true, logits) for _, _, logits, true in rows])),
        top1_agrees=frozen_ints(np.array([int(logits.argmax() == true.argmax()) for _, _, logits, true in rows])),
        tolerance=tolerance,
        verdict=verdict(max(differences), tolerance, spec),
        layer=departure[0] if departure else None,
        tensor=departure[1] if departure else None,
        position=departure[2] if departure else None,
        took_ms=(time.perf_counter() - began) * 1e3,
    )


def verdict(
    difference: float, tolerance: float, spec: CacheSpec
) -> Literal["within rounding", "lossy, as asked", "departs"]:
    if difference <= tolerance:
        return "within rounding"
    return "lossy, as asked" if spec.is_compact or spec.layout == "quantized" else "departs"


def largest(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference; what is not finite on one side alone is infinitely far."""
    difference = (logits - expected).abs().masked_fill(logits == expected, 0.0)
    return float(difference.nan_to_num(torch.inf, torch.inf).max())


def first_departure(session: Session, seq_id: int, truth: SequenceCache) -> tuple[int, Tensor, int] | None:
    """The lowest layer with a row beyond rounding, and the first such position in it."""
    cache, tolerance = session.cache_of(seq_id), ROW_TOLERANCE[session.model.info.dtype]
    for layer in session.model.info.geometry.attention_layers:
        held, true = cache.rows(layer.index), truth.rows(layer.index)
        if held is None or true is None:
            continue
        found: list[tuple[int, Tensor]] = []
        names: tuple[Tensor, Tensor] = ("keys", "values")
        for name in names:
            position = first_wrong(getattr(held, name), getattr(true, name), held, tolerance)
            if position is not None:
                found.append((position, name))
        if found:
            position, name = min(found)
            return layer.index, name, position
    return None


def first_wrong(mine: torch.Tensor, true: torch.Tensor, held: HeldRows, tolerance: float) -> int | None:
    """The first position where a head's row departs from the truth by more than the tolerance."""
    heads, count = mine.shape[1], mine.shape[2]
    positions = held.positions
    if positions is None:
        positions = torch.arange(held.first, held.first + count, device=mine.device).expand(heads, -1)
    index = positions[..., None].expand(-1, -1, true.shape[3])
    expected = true[0].gather(1, index).float()
    scale = expected.abs().amax(-1).clamp(min=1e-6)
    error = (mine[0].float() - expected).abs().amax(-1) / scale
    is_wrong = ~(error <= tolerance)  # a NaN is wrong
    return int(positions[is_wrong].min()) if bool(is_wrong.any()) else None
