"""What if: the next token's distribution had the frozen cache been coded or thinned out. Nothing is altered."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from engine.commands import WhatIf
from engine.config import SamplingParams
from engine.records import Candidate, Shift, WhatIfAnswer
from engine.sampler import choose
from engine.session import Session
from engine.truth.frozen import divergence, exact_logits, freeze, refed, tried


def what_if(session: Session, request: WhatIf) -> WhatIfAnswer:
    """Two forwards of one token: on the rows as they are, and as `request.cache` would keep them."""
    began = time.perf_counter()
    frozen = freeze(session, request.seq_id)
    cache = tried(frozen, request.cache)
    held = [layer.held for _, layer in cache.compact_layers]
    stored = sum(layer.stored.total for _, layer in cache.compact_layers)
    before, after = exact_logits(frozen), refed(frozen, cache)
    greedy = SamplingParams()
    shown = [choose(logits, greedy, frozen.num_tokens, session.text_of).candidates for logits in (before, after)]
    return WhatIfAnswer(
        request=request,
        step=session.last_step or 0,
        kl=divergence(before, after),
        max_abs_logit_diff=float((after - before).abs().nan_to_num(0.0).max()),
        top1_changed=int(before.argmax()) != int(after.argmax()),
        before=shown[0],
        after=shown[1],
        kept_ratio=sum(held) / (len(held) * (frozen.num_tokens - 1)),
        exact_bytes=sum(int(r.keys.nbytes + r.values.nbytes) for r in frozen.rows.values()),
        kv_bytes=stored,
        took_ms=(time.perf_counter() - began) * 1e3,
        note=(
            "Scores come from the newest query's attention, the only row that is kept of each."
            if request.cache.retention.name in ("h2o", "snapkv")
            else ""
        ),
        shifts=shifts(before, after, shown[0], shown[1], session.text_of),
    )


def shifts(
    before: torch.Tensor,
    after: torch.Tensor,
    listed_before: tuple[Candidate, ...],
    listed_after: tuple[Candidate, ...],
    text_of: Callable[[int], str],
) -> tuple[Shift, ...]:
    """Of every candidate on either side of two rows of logits `[V]`, its probability and rank on both."""
    ids = list(dict.fromkeys(c.token_id for c in (*listed_before, *listed_after)))
    probs = [logits.softmax(-1)[ids].tolist() for logits in (before, after)]
    ranks = [ranks_of(logits, ids) for logits in (before, after)]
    rows = zip(ids, *probs, *ranks, strict=True)
    found = [Shift(i, text_of(i), was, will, old, new) for i, was, will, old, new in rows]
    return tuple(sorted(found, key=lambda shift: (shift.rank_before, shift.rank_after)))


def ranks_of(logits: torch.Tensor, ids: list[int]) -> list[int]:
    """How many tokens are more probable than each; of equal ones the first comes first."""
    chosen = logits[ids]
    equal_first = (logits == chosen[:, None]) & (
        torch.arange(len(logits), device=logits.device) < chosen.new_tensor(ids)[:, None]
    )
    return ((logits > chosen[:, None]).sum(1) + equal_first.sum(1)).tolist()
