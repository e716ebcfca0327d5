"""What-if: the distribution of the next token if the cache had been coded, or had evicted rows. The live cache is not
changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

import torch

from engine.analysis.trial import (
    Trial,
    check_can_be_tried,
    exact_logits,
    newest_logits,
    scratch_cache,
    trial_of,
)
from engine.look.candidates import kl_divergence
from engine.session.rerun import Outcome, Progress, held_by
from engine.session.sampler import choose
from engine.session.session import Session
from engine.spec.sampling import SamplingParams
from engine.wire.measurements import Shift, WhatIf, WhatIfAnswer
from engine.wire.records import Candidate

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
    kept_ratio, num_bytes = held_by(cache)
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
