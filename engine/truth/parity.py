"""Parity of the live sequence: what its steps gave, against another way to the same tokens: by default, no cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from engine.cache.adapter import HeldRows, SequenceCache
from engine.commands import CheckParity
from engine.config import CacheSpec, Prompt
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
Verdict = Literal["within rounding", "lossy, as asked", "departs"]
Logged = tuple[int, int, torch.Tensor, CacheSpec]
Progress = tuple[int, int]


@dataclass(eq=False)
class OtherWay:
    """The same tokens by another way: logits `[V]` by the number of tokens fed, and a cache with its K and V."""

    logits: dict[int, torch.Tensor]
    cache: SequenceCache


def live_parity(session: Session, request: CheckParity) -> Iterator[Progress | ParityReport]:
    """Yields how many tokens went the other way and of how many, and last the answer. Closing it early leaves no trace;
    nothing of the session is changed."""
    began = time.perf_counter()
    logged = session.logged_logits(request.seq_id)
    if not logged:
        raise InputError("No step of this sequence is recorded: step first, then compare.")
    other = OtherWay({}, SequenceCache(CacheSpec(), session.model.model.config, session.model.max_length))
    if request.against is None:
        yield 0, session.sequence(request.seq_id).num_tokens
        uncached(session, request.seq_id, logged, other)
    else:
        yield from replayed(session, request.seq_id, request.against, logged, other)
    yield report(session, request, [entry for entry in logged if entry[1] in other.logits], other, began)


@torch.inference_mode()
def uncached(session: Session, seq_id: int, logged: list[Logged], other: OtherWay) -> None:
    """One forward over all tokens gives the truth of every step at once."""
    model, sequence = session.model, session.sequence(seq_id)
    ids = torch.tensor([sequence.token_ids[: sequence.num_tokens]], device=model.device)
    expected = model.reference_logits(ids, other.cache.live)
    other.logits.update({count: expected[count - 1].float() for _, count, _, _ in logged})


def replayed(
    session: Session, seq_id: int, against: CacheSpec, logged: list[Logged], other: OtherWay
) -> Iterator[Progress]:
    """The prompt, in chunks of the same length, and then every token that followed, in a session of another mode."""
    sequence = session.sequence(seq_id)
    ids, prompt, total = sequence.token_ids, sequence.num_prompt_tokens, sequence.num_tokens
    mine = Session(session.model, against, prefill_chunk=session.prefill_chunk, observe=False)
    mine_id = mine.submit(Prompt(token_ids=tuple(ids[: min(prompt, total)])))
    if total > prompt:
        mine.force(mine_id, tuple(ids[prompt:total]))
    wanted = {count for _, count, _, _ in logged}
    while (done := mine.sequence(mine_id).num_tokens) < total:
        yield done, total
        if not mine.has_work:
            raise InputError(f"The other cache is full after {done:,} of {total:,} tokens: give it more room.")
        mine.step()
        newest = mine.logits(mine_id)
        if newest is not None and (count := mine.sequence(mine_id).num_tokens) in wanted:
            other.logits[count] = newest.float()
    other.cache = mine.cache_of(mine_id)
    if not other.logits:
        raise InputError("The other cache reads the prompt in other pieces: step once after the prompt, then compare.")


def report(session: Session, request: CheckParity, logged: list[Logged], other: OtherWay, began: float) -> ParityReport:
    """The comparison itself, of the steps that both ways have logits of."""
    pairs = [(logits.float(), other.logits[count]) for _, count, logits, _ in logged]
    differences = np.array([largest(logits, true) for logits, true in pairs])
    is_other_lossy = request.against is not None and is_lossy(request.against)
    may_differ = np.array([is_other_lossy or is_lossy(spec) for _, _, _, spec in logged])
    departure = first_departure(session, request.seq_id, other.cache)
    tolerance = LOGIT_TOLERANCE[session.model.info.dtype]
    return ParityReport(
        request=request,
        cache=session.cache,
        dtype=session.model.info.dtype,
        steps=frozen_ints(np.array([step for step, _, _, _ in logged])),
        positions=frozen_ints(np.array([count - 1 for _, count, _, _ in logged])),
        max_abs_logit_diff=read_only(differences),
        kl=read_only(np.array([divergence(true, logits) for logits, true in pairs])),
        top1_agrees=frozen_ints(np.array([int(logits.argmax() == true.argmax()) for logits, true in pairs])),
        may_differ=frozen_ints(may_differ),
        tolerance=tolerance,
        verdict=verdict(differences, may_differ, tolerance),
        layer=departure[0] if departure else None,
        tensor=departure[1] if departure else None,
        position=departure[2] if departure else None,
        took_ms=(time.perf_counter() - began) * 1e3,
    )


def is_lossy(spec: CacheSpec) -> bool:
    return spec.is_compact or spec.layout == "quantized"


def verdict(differences: np.ndarray, may_differ: np.ndarray, tolerance: float) -> Verdict:
    """A step beyond rounding is as asked where its mode, or the other, is lossy; anywhere else it departs."""
    is_beyond = ~(differences <= tolerance)
    if not is_beyond.any():
        return "within rounding"
    return "lossy, as asked" if bool(may_differ[is_beyond].all()) else "departs"


def largest(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference; what is not finite on one side alone is infinitely far."""
    difference = (logits - expected).abs().masked_fill(logits == expected, 0.0)
    return float(difference.nan_to_num(torch.inf, torch.inf).max())


@torch.inference_mode()
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
            position = first_wrong(held, true, name, tolerance)
            if position is not None:
                found.append((position, name))
        if found:
            position, name = min(found)
            return layer.index, name, position
    return None


def first_wrong(mine: HeldRows, true: HeldRows, name: Tensor, tolerance: float) -> int | None:
    """The first position where a head's row departs from the truth by more than the tolerance, of those both hold."""
    rows, expected = getattr(mine, name)[0].float(), getattr(true, name)[0].float()
    here, there = positions_of(mine), positions_of(true)
    slots = torch.searchsorted(there, here).clamp(max=there.shape[1] - 1)
    is_shared = there.gather(1, slots) == here
    expected = expected.gather(1, slots[..., None].expand(-1, -1, expected.shape[2]))
    scale = expected.abs().amax(-1).clamp(min=1e-6)
    error = (rows - expected).abs().amax(-1) / scale
    is_wrong = ~(error <= tolerance) & is_shared  # a NaN is wrong
    return int(here[is_wrong].min()) if bool(is_wrong.any()) else None


def positions_of(held: HeldRows) -> torch.Tensor:
    """Where the rows held stand, `[H_kv, S]`, ascending."""
    if held.positions is not None:
        return held.positions.contiguous()
    heads, count = held.keys.shape[1], held.keys.shape[2]
    return torch.arange(held.first, held.first + count, device=held.keys.device).repeat(heads, 1)
