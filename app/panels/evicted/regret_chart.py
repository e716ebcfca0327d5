"""The scatter of policy regret: a dot a row, by what the rule thinks of it and by what its removal does."""

from __future__ import annotations

import numpy as np

from app.draw.axis import FixedTicks, Tick
from app.draw.format import decimal
from app.kit.chart.marks import Chart, Dots, Mark
from app.panels.evicted import regret_draw as draw
from engine.wire.measurements import Regret

MEANING = (
    "Each mark is a row, or a page of rows. Rank correlation is Spearman's, over all marks.\n"
    "○ kept whatever the score: sinks and the latest\n■ a low score, and yet among those that matter most"
)
_MANY = 200
_ENDS = FixedTicks((Tick(0.08, "← goes first"), Tick(0.86, "the rule keeps it longest →")))


def regret_chart(regret: Regret, num_rows: int, marked: int | None) -> Chart:
    """`num_rows` were in the cache: with them the rule knows which it would never drop. `marked` has a ring."""
    found = draw.scatter(regret, num_rows)
    size = 6.0 if len(found.x) < _MANY else 4.5
    x, y, missed, kept = found.x, found.y, found.is_missed, found.is_protected
    plain = ~missed & ~kept
    marks: list[Mark] = [
        Dots(x[kept], y[kept], "muted", size=size),
        Dots(x[plain], y[plain], "accent", size=size, fill="accent", alpha=200),
        Dots(x[missed], y[missed], "bad", "s", size, fill="bad"),
    ]
    if marked is not None and marked < len(x):
        marks.append(Dots(x[marked : marked + 1], y[marked : marked + 1], "selected", size=size + 7))
    note = f"rank correlation {decimal(regret.rank_correlation, is_signed=True)}"
    if kept.any():
        note += f" · ○ {int(kept.sum())} never dropped"
    return Chart(
        tuple(marks),
        np.column_stack([x, y]),
        ((-0.03, 1.03), (-0.05, 1.05)),
        _ENDS,
        found.scale,
        "KL without it, nats",
        note,
        reach=9.0,
        can_zoom_y=True,
    )
