"""The effect of an edit as bars: the next token before and after it, and the distance of later rows from a
re-prefill."""

from __future__ import annotations

import numpy as np

from app.draw.format import brief, percent, token_label
from app.kit.chart.bars import Bar, BarRow, BarTable
from engine.wire.edits import EditMeasured, KeptRows
from engine.wire.records import Candidate, Floats

_MOST = 6


def next_token_table(found: EditMeasured) -> BarTable:
    """The most probable tokens before or after the edit, ordered by the larger of the two probabilities."""
    before, after = _shares(found.before), _shares(found.after)
    names = {one.token_id: one.text for one in (*found.before, *found.after)}
    order = sorted(names, key=lambda token_id: -max(before.get(token_id, 0.0), after.get(token_id, 0.0)))
    rows = tuple(_token_row(names[token_id], before.get(token_id), after.get(token_id)) for token_id in order[:_MOST])
    return BarTable(("", "before", "after"), rows)


def _shares(candidates: tuple[Candidate, ...]) -> dict[int, float]:
    return {one.token_id: one.prob for one in candidates}


def _token_row(text: str, before: float | None, after: float | None) -> BarRow:
    label = token_label(text, 10)
    tip = f"{label}: {_share_words(before)} before, {_share_words(after)} after"
    return BarRow(label, (_bar(before, "page_used"), _bar(after, "edited")), tip)


def _bar(share: float | None, role: str) -> Bar:
    return Bar(min(max(share or 0.0, 0.0), 1.0), _share_words(share), role)


def _share_words(share: float | None) -> str:
    """A probability as text; for a token not among the most probable ones only an upper bound is known."""
    return "less" if share is None else percent(share)


def kept_table(kept: KeptRows) -> BarTable:
    """For each layer, how far the rows after the new tokens are from those of a re-prefill, as the mean over positions.
    Layer 0 of most models is exact, because its K and V do not depend on other tokens."""
    most = max((float(np.nanmax(part, initial=0.0)) for part in (_means(kept.keys), _means(kept.values))), default=0.0)
    keys, values = _means(kept.keys), _means(kept.values)
    rows = tuple(
        BarRow(
            f"L{layer}",
            (_distance(float(keys[index]), most, "accent"), _distance(float(values[index]), most, "page_shared")),
            f"layer {layer}: K {brief(float(keys[index]))}, V {brief(float(values[index]))} of the norm apart",
        )
        for index, layer in enumerate(kept.layers)
    )
    return BarTable(("L", "K", "V"), rows)


def _means(part: Floats) -> Floats:
    """`[L]`: the mean over the positions that the cache holds; NaN if it holds none."""
    counts = np.isfinite(part).sum(axis=1)
    sums = np.where(np.isfinite(part), part, 0).sum(axis=1)
    means: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).astype(np.float32)
    return means


def _distance(value: float, most: float, role: str) -> Bar:
    share = min(value / most, 1.0) if most > 0 and value == value else 0.0
    return Bar(share, brief(value) if value == value else "–", role)
