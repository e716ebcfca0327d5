"""The candidates for the next token before and after, as rows of two bars, and the numbers below them."""

from __future__ import annotations

from app.draw.format import brief, byte_share, bytes_words, counted, divergence_words, percent
from app.kit.chart.bars import Bar, BarRow, BarTable
from app.kit.facts import Reading
from app.panels.what_if import draw
from app.panels.what_if.draw import TokenPair
from engine.wire.measurements import WhatIfAnswer

MOST_ROWS = 12


def shift_table(answer: WhatIfAnswer, tried: str, room: int, *, is_faded: bool) -> BarTable:
    """The top candidates, as many as fit. `tried` names the other cache; `is_faded`: the answer is to an older question
    than the newest."""
    pairs = draw.pairs(answer, min(room, MOST_ROWS))
    after = f"after · {tried}" if tried else "after"
    return BarTable(("", "before", after, "rank"), tuple(_row(pair, is_faded) for pair in pairs))


def _row(pair: TokenPair, is_faded: bool) -> BarRow:
    is_new_top = pair.rank_after == 1 and pair.moved != 0
    after = Bar(pair.after, pair.number_after, "selected" if is_new_top else "accent", is_faded)
    tip = (
        f"{pair.text}  id {pair.token_id}",
        f"before: probability {brief(pair.before, 6)}, rank {pair.rank_before}",
        f"after: probability {brief(pair.after, 6)}, rank {pair.rank_after}",
    )
    return BarRow(
        pair.text,
        (Bar(pair.before, pair.number_before, "page_used"), after),
        "\n".join(tip),
        end=pair.rank,
        end_role="muted" if not pair.moved else "selected" if is_new_top else "text",
        is_bold=1 in (pair.rank_before, pair.rank_after),
    )


def numbers(answer: WhatIfAnswer) -> tuple[Reading, ...]:
    """The divergence, the largest change of a logit, the rows kept and the bytes."""
    exact, kept = answer.exact_bytes, answer.kv_bytes
    share = byte_share(exact, kept)
    kl_tip = f"KL(before ‖ after) of the next token, in nats: {brief(answer.kl, 9)}"
    largest_tip = f"The largest change of any logit: {brief(answer.max_abs_logit_diff, 9)}"
    rows_tip = "Rows that stay, in all layers and heads, of those before the newest token"
    bytes_tip = f"{counted(exact, 'byte')} of exact rows → {counted(kept, 'byte')}, the newest token's own rows aside"
    return (
        Reading("KL divergence", "KL", divergence_words(answer.kl), kl_tip),
        Reading("max |Δ logit|", "max |Δ|", brief(answer.max_abs_logit_diff), largest_tip),
        Reading("rows kept", "rows", percent(answer.kept_ratio), rows_tip),
        Reading(f"K and V, {share} of exact", share, bytes_words(exact, kept), bytes_tip),
    )
