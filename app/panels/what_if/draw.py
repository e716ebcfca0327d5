"""The next token before and after another cache, as pairs of bars."""

from __future__ import annotations

from msgspec import Struct

from app.draw.format import percent, visible
from engine.wire.measurements import Shift, WhatIfAnswer


class TokenPair(Struct, frozen=True):
    """One token. `before` and `after` are bar lengths, 1 the whole width; ranks count from 1; `moved` is how many ranks
    it rises."""

    token_id: int
    text: str
    before: float
    after: float
    number_before: str
    number_after: str
    rank_before: int
    rank_after: int

    @property
    def moved(self) -> int:
        return self.rank_before - self.rank_after

    @property
    def rank(self) -> str:
        """`2`, or `2 → 1` if the rank changed."""
        return f"{self.rank_before} → {self.rank_after}" if self.moved else str(self.rank_after)


def pairs(answer: WhatIfAnswer, most: int) -> tuple[TokenPair, ...]:
    """The tokens that rank highest before or after, in their order before; the new top token is always among them."""
    best = sorted(answer.shifts, key=lambda shift: (min(shift.rank_before, shift.rank_after), shift.rank_before))
    chosen = sorted(best[: max(0, most)], key=lambda shift: (shift.rank_before, shift.rank_after))
    return tuple(_pair(shift) for shift in chosen)


def winners(answer: WhatIfAnswer) -> tuple[str, str]:
    """The most probable token before and after, as shown; empty if none is listed."""
    before = min(answer.shifts, key=lambda shift: shift.rank_before, default=None)
    after = min(answer.shifts, key=lambda shift: shift.rank_after, default=None)
    return (_text(before) if before is not None else "", _text(after) if after is not None else "")


def _pair(shift: Shift) -> TokenPair:
    return TokenPair(
        shift.token_id,
        _text(shift),
        _share(shift.prob_before),
        _share(shift.prob_after),
        percent(shift.prob_before),
        percent(shift.prob_after),
        shift.rank_before + 1,
        shift.rank_after + 1,
    )


def _text(shift: Shift) -> str:
    return visible(shift.text) or "∅"


def _share(prob: float) -> float:
    return min(max(prob, 0.0), 1.0) if prob == prob else 0.0
