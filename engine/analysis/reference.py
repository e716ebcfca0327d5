"""Parity of cache modes: each mode compared with the model without any cache, on the same tokens; and what tells
rounding from a fault, by the table in `tolerance`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from engine.analysis.tolerance import TOLERANCES
from engine.cache.contract import HeldRows
from engine.cache.sequence_cache import SequenceCache
from engine.counted import counted
from engine.errors import Check, InputError, never_cancel
from engine.geometry.dimensions import LayerGeometry
from engine.look.source import Rows, gather_rows, places_of, slots_of
from engine.model.loader import LoadedModel
from engine.predict.capacity import num_source
from engine.session.session import Session
from engine.spec.cache import CacheSpec, fitted
from engine.spec.codec import PARTS, Part
from engine.spec.sampling import Prompt


@dataclass(frozen=True)
class Reference:
    """Tokens after a prompt, greedy or forced, and what a forward pass without a cache computes for them: the logits
    `[steps, V]` after the prompt and after each token but the last, and K and V of all these tokens."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logits: torch.Tensor
    cache: SequenceCache


@dataclass(frozen=True)
class Parity:
    """How much a cache mode differs from the forward pass without a cache, over all `steps`.

    `first_divergence` is the first step whose greedy token differs, None if none does; rounding alone may swap two
    tokens of nearly equal probability. `tolerance` is the largest logit difference that rounding explains in this
    dtype; `wrong_row` is the first row of a lossless mode that differs by more than rounding.
    """

    cache: str
    lossless: bool
    steps: int
    max_abs_logit_diff: float
    mean_kl: float
    top1_agreement: float
    first_divergence: int | None
    tolerance: float
    wrong_row: WrongRow | None = None

    @property
    def is_beyond(self) -> bool:
        """Whether some logit differs by more than rounding explains; NaN counts as such."""
        return not self.max_abs_logit_diff <= self.tolerance

    @property
    def passes(self) -> bool:
        """Whether a lossless mode stays within rounding, in logits and rows. Lossy modes always pass: they are only
        measured."""
        return not self.lossless or not (self.is_beyond or self.wrong_row)


def reference(
    model: LoadedModel,
    prompt_ids: tuple[int, ...],
    num_steps: int,
    check: Check = never_cancel,
    forced: tuple[int, ...] | None = None,
) -> Reference:
    """Compute the reference: choose tokens greedily in an exact cache, or take the `forced` ones, then run one forward
    pass over all of them without a cache, with the model's own attention. None of our code takes part in these logits.

    `check` is called before every step and raises to cancel.
    """
    num_steps = num_steps if forced is None else len(forced)
    if len(prompt_ids) + num_steps > model.max_length:
        raise InputError(
            f"{len(prompt_ids)} prompt tokens and {num_steps} steps exceed the model's context of {model.max_length}: "
            "shorten one of them."
        )
    if (chosen := forced) is None:
        steps = given(measured_session(model, CacheSpec()), prompt_ids, num_steps, None, check)
        chosen = tuple(int(logits.argmax()) for logits, _ in steps)
    rows = SequenceCache(
        CacheSpec(), model.model.config, model.max_length, num_source(model.info.geometry, len(prompt_ids))
    )
    ids = torch.tensor([[*prompt_ids, *chosen[:-1]]], device=model.device)
    truth = model.reference_logits(ids, rows.model_cache, range(len(prompt_ids) - 1, ids.shape[1])).float().cpu()
    return Reference(prompt_ids, chosen, truth, rows)


def given(
    session: Session,
    prompt_ids: tuple[int, ...],
    num_steps: int,
    forced: tuple[int, ...] | None = None,
    check: Check = never_cancel,
) -> Iterator[tuple[torch.Tensor, float]]:
    """Give a session a prompt, and after it the forced tokens, or those that it finds most probable. Yields the logits
    `[V]` after the prompt and after each token but the last, and the seconds that their step took. `check` is called
    before every step and between the layers of a prefill, and raises to cancel."""
    seq_id = session.submit(Prompt(token_ids=prompt_ids, has_start=True))
    if forced is not None:
        session.force(seq_id, forced)
    num_left, seconds = num_steps, 0.0
    while num_left:
        check()
        if not session.has_work:
            held = session.sequence(seq_id).num_tokens
            raise InputError(f"The cache is full after {counted(held, 'token')}: give it more room.")
        began = time.perf_counter()
        session.step(check)
        seconds += time.perf_counter() - began
        newest = session.logits(seq_id)
        if newest is None or session.sequence(seq_id).is_prefilling:
            continue
        logits, num_left = newest.float().cpu(), num_left - 1
        yield logits, seconds
        seconds = 0.0
        if forced is None and num_left:
            session.force(seq_id, (int(logits.argmax()),))


def measured_session(model: LoadedModel, spec: CacheSpec) -> Session:
    """A session in which nothing but the logits is measured."""
    return Session(model, spec, capture="off", surprisal=False)


def session_logits(session: Session, prompt_ids: tuple[int, ...], forced: tuple[int, ...]) -> torch.Tensor:
    """Logits `[steps, V]` of a session that is given the prompt and then the forced tokens."""
    return torch.stack([logits for logits, _ in given(session, prompt_ids, len(forced), forced)])


def parity(model: LoadedModel, name: str, spec: CacheSpec, truth: Reference, prefill_chunk: int) -> Parity:
    """Run one mode in a session and compare it with the reference. Raises `PoolCorrupted` if its page pool is
    inconsistent."""
    spec = fitted(spec, len(truth.prompt_ids) + len(truth.token_ids))
    session = Session(model, spec, prefill_chunk=prefill_chunk)
    logits = session_logits(session, truth.prompt_ids, truth.token_ids)
    if session.live.mode.store is not None:
        session.live.mode.store.check()
    info = model.info
    found = measure(name, spec.is_exact, logits, truth.logits, info.dtype)
    if not found.lossless:
        return found
    (sequence,) = session.sequences
    cache = session.cache_of(sequence.seq_id)
    wrong = first_wrong_row(info.geometry.attention_layers, cache, truth.cache, info.dtype)
    return replace(found, wrong_row=wrong)


def measure(name: str, lossless: bool, logits: torch.Tensor, expected: torch.Tensor, dtype: str) -> Parity:
    """Compare logits `[steps, V]` of a model of that dtype. Non-finite differences count as infinite."""
    kl = torch.nn.functional.kl_div(
        logits.log_softmax(-1), expected.log_softmax(-1), log_target=True, reduction="none"
    ).sum(-1)
    agrees = logits.argmax(-1) == expected.argmax(-1)
    departures = (~agrees).nonzero()
    return Parity(
        cache=name,
        lossless=lossless,
        steps=len(logits),
        max_abs_logit_diff=largest(logits, expected),
        mean_kl=max(0.0, float(kl.mean())),
        top1_agreement=float(agrees.float().mean()),
        first_divergence=int(departures[0]) if len(departures) else None,
        tolerance=TOLERANCES[dtype].logit,
    )


# ---- rounding or a fault -------------------------------------------------------------------------------------------

# Logits in few bits can hide one wrong row among many, or a lossy code of all rows. Therefore rows are compared as
# well, with smaller tolerances. Rows of layer 0 depend on the tokens alone and must agree to the last bit or two.
# Rounding errors of a layer propagate to the next ones; errors of independent layers add up like the square root of
# their number.


@dataclass(frozen=True)
class WrongRow:
    """The first position, in the lowest layer that has one, whose row differs by more than rounding or is missing."""

    layer: int
    tensor: Part
    position: int


def largest(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute difference; a value that is not finite on one side only is infinitely far. Equal infinities,
    such as -inf for padded vocabulary entries, do not differ."""
    difference = (logits - expected).abs().masked_fill(logits == expected, 0.0)
    return float(difference.nan_to_num(torch.inf, torch.inf).max())


@torch.inference_mode()
def first_wrong_row(
    layers: Iterable[LayerGeometry], cache: SequenceCache, truth: SequenceCache, dtype: str
) -> WrongRow | None:
    """Compare the rows of both caches, layer by layer; None if all are equal within rounding.

    A missing row that the next token would read is wrong, unless one of the caches evicts rows by a rule or keeps none
    between steps.
    """
    keeps_all = all(each.spec.retention.keeps_all and not each.spec.recomputes for each in (cache, truth))
    for layer in layers:
        held, true = cache.rows(layer.index), truth.rows(layer.index)
        if true is None or not true.keys.shape[2]:
            continue
        required = max(0, true.stop - layer.window + 1) if layer.window is not None else 0
        if held is None or not held.keys.shape[2]:
            if keeps_all:
                return WrongRow(layer.index, "keys", max(required, int(places_of(true).min())))
            continue
        tolerance = TOLERANCES[dtype].of_row(layer.index)
        found = [
            (position, name)
            for name in PARTS
            if (position := first_wrong(held, true, name, tolerance, required if keeps_all else None)) is not None
        ]
        if found:
            position, name = min(found)
            return WrongRow(layer.index, name, position)
    return None


def first_wrong(
    mine: HeldRows, true: HeldRows, name: Part, tolerance: float, required: int | None = None
) -> int | None:
    """The first position where a head's row differs from the true one by more than the tolerance, among the rows that
    both hold, or where a row at `required` or later is missing."""
    rows, expected = Rows.of(mine, name), Rows.of(true, name)
    assert rows is not None
    assert expected is not None
    _, errors, is_held = errors_at(rows, expected)
    is_wrong = ~(errors <= tolerance) & is_held  # NaN counts as wrong
    if required is not None:
        is_wrong |= ~is_held & (expected.places >= required)
    return int(expected.places[is_wrong].min()) if bool(is_wrong.any()) else None


def errors_at(rows: Rows, expected: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """At the positions of the expected rows: the rows `[H, S, D]` in float32, their errors `[H, S]`, and which of them
    are held at all."""
    slots, is_held = slots_of(rows.places, expected.places)
    found = gather_rows(rows.numbers.float(), slots)
    return found, row_errors(found, expected.numbers.float()), is_held


def row_errors(rows: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Errors `[H, S]` of rows `[H, S, D]`, relative to the size of each row.

    Both are root mean squares over the channels, after dividing each channel by its own size over all rows: else a
    channel much larger than the others would decide alone. A channel smaller than the median is divided by the median.
    """
    sizes = expected.square().mean(1, keepdim=True).sqrt()  # [H, 1, D]
    units = torch.maximum(sizes, sizes.median(2, keepdim=True).values).clamp(min=1e-6)
    own = (expected / units).square().mean(2).sqrt().clamp(min=1e-6)
    return ((rows - expected) / units).square().mean(2).sqrt() / own
