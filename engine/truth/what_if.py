"""What if: the next token's distribution had the frozen cache been coded or thinned out. Nothing is altered."""

from __future__ import annotations

import time

from engine.commands import WhatIf
from engine.config import SamplingParams
from engine.records import WhatIfAnswer
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
    )
