"""The candidates for the next token as bars."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from app.draw.format import percent, probable, visible
from engine.wire.records import SequenceStep, has_chosen

Which = Literal["raw", "sampled"]


class CandidateBar(Struct, frozen=True):
    """One candidate. `share` is the bar's length, 1 the whole width; `other` is its probability on the other scale."""

    token_id: int
    text: str
    share: float
    other: float
    number: str
    is_chosen: bool
    is_out: bool


def candidate_bars(part: SequenceStep, which: Which) -> tuple[CandidateBar, ...]:
    """The candidates in the engine's order, most probable first; `is_out`: a sampling filter removed it."""
    bars = []
    for candidate in part.candidates:
        raw, sampled = candidate.prob, candidate.sampled_prob
        share, other = (raw, sampled) if which == "raw" else (sampled, raw)
        bars.append(
            CandidateBar(
                token_id=candidate.token_id,
                text=visible(candidate.text) or "∅",
                share=probable(share),
                other=probable(other),
                number=percent(share),
                is_chosen=has_chosen(part) and candidate.token_id == part.sampled,
                is_out=sampled == 0,
            )
        )
    return tuple(bars)


def rest(part: SequenceStep, which: Which) -> float:
    """The probability of all tokens that are not listed."""
    listed = sum(c.prob if which == "raw" else c.sampled_prob for c in part.candidates)
    return max(0.0, 1.0 - listed)
