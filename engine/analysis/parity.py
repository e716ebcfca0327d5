"""Parity of the live sequence: compares the logits and rows of its steps with those of the same tokens computed in
another way, by default without a cache."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from engine.analysis.reference import first_wrong_row, largest
from engine.analysis.tolerance import TOLERANCES
from engine.cache.paged.pool import PoolExhausted
from engine.cache.sequence_cache import SequenceCache
from engine.counted import counted
from engine.errors import InputError, Progress
from engine.geometry.dimensions import LayerGeometry
from engine.history.history import LoggedLogits
from engine.look.candidates import kl_divergence
from engine.session.edits import EditThen, edits_of, recompute_with_edits
from engine.session.mode import CacheMode
from engine.session.session import Session
from engine.spec.cache import CacheSpec, fitted
from engine.wire.measurements import CheckParity, ParityReport, Verdict
from engine.wire.records import read_only_floats, read_only_ints


@dataclass(frozen=True, eq=False)
class ComparisonRun:
    """The same tokens computed in another way: logits `[V]` by the node that has the same, and a cache with their K and
    V. `is_edited`: the edits by hand were made on the way."""

    logits: dict[int, torch.Tensor]
    cache: SequenceCache
    is_edited: bool = False


def live_parity(session: Session, request: CheckParity) -> Iterator[Progress | ParityReport]:
    """Yield progress (tokens computed in the comparison run, of how many), and last the report. Nothing in the session
    is changed, so it can be closed at any time."""
    began = time.perf_counter()
    logged = session.history.logged_logits(request.seq_id)
    if not logged:
        raise InputError("No step of this sequence is recorded: step first, then compare.")
    held = session.sequence(request.seq_id).num_tokens
    try:
        session.refresh(session.live.get(request.seq_id))  # its rows may have been lost in a failed step
    except PoolExhausted as error:
        raise InputError(
            f"The rows of sequence {request.seq_id} are to be computed again, and the page pool has no room ({error})."
        ) from None
    logged = [entry for entry in logged if entry.num_tokens <= held]
    if not logged:
        raise InputError(
            f"Sequence {request.seq_id} waits for room in the page pool, and its rows are computed anew then: "
            "let it go on, then compare."
        )
    other = None
    if edits := repeatable_edits(session, request):
        other = yield from recomputed(session, request, logged, edits)
    if other is None and request.against is None:
        yield 0, held
        other = compute_uncached(session, request.seq_id, logged)
    elif other is None:
        other = yield from recomputed(session, request, logged, [])
    assert other is not None, "only an edit may be impossible"
    yield report(session, request, [entry for entry in logged if entry.step in other.logits], other, began)


@torch.inference_mode()
def compute_uncached(session: Session, seq_id: int, logged: list[LoggedLogits]) -> ComparisonRun:
    """Compute the logits of all steps with a single forward pass over all tokens, without a cache."""
    model, sequence = session.model, session.sequence(seq_id)
    cache = SequenceCache(CacheSpec(), model.model.config, model.max_length, session.cache_of(seq_id).num_source)
    ids = torch.tensor([sequence.token_ids[: sequence.num_tokens]], device=model.device)
    expected = model.reference_logits(ids, cache.model_cache, [entry.num_tokens - 1 for entry in logged])
    return ComparisonRun({entry.step: row.float() for entry, row in zip(logged, expected, strict=True)}, cache)


@torch.inference_mode()
def recomputed(
    session: Session, request: CheckParity, logged: list[LoggedLogits], edits: list[EditThen]
) -> Generator[Progress, None, ComparisonRun | None]:
    """Compute the same tokens into a cache in the other mode (None: a growing one), in the same chunks if that mode
    allows it, and make the edits on the way. Yields progress. None where an edit cannot be made there."""
    model, sequence, found = session.model, session.sequence(request.seq_id), dict[int, torch.Tensor]()
    total, prompt = sequence.num_tokens, min(sequence.num_prompt_tokens, sequence.num_tokens)
    mode = CacheMode(model, fitted(request.against or CacheSpec(), total))
    live = session.live.get(request.seq_id).copied(mode.new_cache(request.seq_id, sequence.num_prompt_tokens))
    capacity = live.cache.capacity
    if not edits:
        mode.check_fits(prompt, live.cache)
        if capacity is not None and capacity < total:
            raise InputError(f"The other cache is full after {capacity:,} of {total:,} tokens: give it more room.")
    made_steps = {then.step for then in edits if not then.is_prefill}
    wanted = steps_by_length([entry for entry in logged if entry.step not in made_steps])
    lengths = sorted(wanted) if mode.spec.recomputes else session.history.path.forward_lengths(request.seq_id)
    yield 0, total
    done = 0
    try:
        for done, logits, edit_step in recompute_with_edits(model, live, edits, lengths, is_every=True):
            steps = wanted.get(done, ()) if edit_step is None else (edit_step,)
            if logits is not None:
                found = dict.fromkeys(steps, logits.float()) | found
            yield min(done, total), total
    except (InputError, PoolExhausted) as error:
        if edits:
            return None  # compared without the edits, which the report says
        if isinstance(error, InputError):
            raise
        raise InputError(f"The page pool is full after {counted(done, 'token')}: give it more pages.") from None
    if not found:
        raise InputError("The other cache reads the prompt in other pieces: step once after the prompt, then compare.")
    return ComparisonRun(found, live.cache, bool(edits))


def steps_by_length(logged: list[LoggedLogits]) -> dict[int, list[int]]:
    """The nodes of logged logits by the number of tokens computed."""
    found: dict[int, list[int]] = {}
    for entry in logged:
        found.setdefault(entry.num_tokens, []).append(entry.step)
    return found


def repeatable_edits(session: Session, request: CheckParity) -> list[EditThen]:
    """The edits by hand to be made in the comparison run as well; none where it keeps no rows to edit."""
    has_rows = request.against is None or not request.against.recomputes
    is_edited = bool(session.cache_of(request.seq_id).by_hand)
    return edits_of(session.history, request.seq_id) if has_rows and is_edited else []


def report(
    session: Session, request: CheckParity, logged: list[LoggedLogits], other: ComparisonRun, began: float
) -> ParityReport:
    """Compare the steps of which both runs have logits."""
    pairs = [(entry.logits.float(), other.logits[entry.step]) for entry in logged]
    differences = np.array([largest(logits, true) for logits, true in pairs])
    is_other_lossy = request.against is not None and not request.against.is_exact
    cache = session.cache_of(request.seq_id)
    first_edited = None if other.is_edited else cache.by_hand.first_position
    edited_from = sys.maxsize if first_edited is None else first_edited
    may_differ = np.array([is_other_lossy or not e.cache.is_exact or e.num_tokens > edited_from for e in logged])
    info = session.model.info
    wrong = first_wrong_row(info.geometry.attention_layers, cache, other.cache, info.dtype)
    tolerance = TOLERANCES[info.dtype].logit
    # The rows are those of the present mode, which may be lossy although no step was, and may have been edited.
    may_rows_differ = is_other_lossy or not session.cache.is_exact or first_edited is not None
    found = verdict(differences, may_differ, tolerance, wrong is not None and not may_rows_differ)
    if found != "departs" and (found != "within rounding" or wrong is not None):
        beyond = [entry for entry, most in zip(logged, differences, strict=True) if not most <= tolerance]
        found = allowed_cause(session, cache, other.cache, beyond, first_edited)
    return ParityReport(
        request=request,
        cache=session.cache,
        dtype=info.dtype,
        steps=read_only_ints(np.array([entry.step for entry in logged])),
        positions=read_only_ints(np.array([entry.num_tokens - 1 for entry in logged])),
        max_abs_logit_diff=read_only_floats(differences),
        kl=read_only_floats(np.array([kl_divergence(true, logits) for logits, true in pairs])),
        top1_agrees=read_only_ints(np.array([int(logits.argmax() == true.argmax()) for logits, true in pairs])),
        may_differ=read_only_ints(may_differ),
        tolerance=tolerance,
        verdict=found,
        is_edited=other.is_edited,
        layer=wrong.layer if wrong else None,
        tensor=wrong.tensor if wrong else None,
        position=wrong.position if wrong else None,
        took_ms=(time.perf_counter() - began) * 1e3,
    )


def allowed_cause(
    session: Session,
    cache: SequenceCache,
    other: SequenceCache,
    beyond: list[LoggedLogits],
    edited_from: int | None,
) -> Verdict:
    """Why the steps `beyond` rounding, or the present rows, may differ. A rule that has evicted nothing yet is not a
    cause if rows were edited before each of these steps, from the position `edited_from` on (None: in neither
    run, or in both)."""
    if edited_from is None:
        return "lossy, as asked"
    was_lossy = any(not e.cache.is_exact and (e.cache != cache.spec or e.num_tokens <= edited_from) for e in beyond)
    is_edited = not beyond or any(e.num_tokens > edited_from for e in beyond)
    layers = session.model.info.geometry.attention_layers
    loses = was_lossy or any(has_lost(each, layers) for each in (cache, other))
    return "lossy and edited" if loses and is_edited else "edited by hand" if is_edited else "lossy, as asked"


def has_lost(cache: SequenceCache, layers: Iterable[LayerGeometry]) -> bool:
    """Whether the cache holds its rows in fewer bits, or fewer rows than without a retention rule."""
    if cache.spec.is_exact:
        return False
    if not cache.spec.holds_exact_rows:
        return True
    wholes = [layer.index for layer in layers if layer.window is None]
    return any(cache.held_positions(index).shape[1] < cache.num_own(index, cache.num_tokens) for index in wholes)


def verdict(differences: np.ndarray, may_differ: np.ndarray, tolerance: float, is_row_wrong: bool = False) -> Verdict:
    """The verdict for all steps. A difference beyond rounding is allowed if the step's mode, or the other one, is
    lossy, or if rows were edited; else the run "departs".

    It also departs if a row is wrong although the present mode is exact and unedited, whatever the modes of earlier
    steps: such a cache was filled again by exact forward passes, and logits of few bits may hide the wrong row.
    """
    if is_row_wrong:
        return "departs"
    is_beyond = ~(differences <= tolerance)
    if not is_beyond.any():
        return "within rounding"
    return "lossy, as asked" if bool(may_differ[is_beyond].all()) else "departs"
