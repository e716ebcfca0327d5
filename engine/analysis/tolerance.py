"""Tolerances for rounding by dtype: the differences that another order of additions explains. No torch.

`verify`, parity, comparisons and the comparison of snapshots use this table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True)
class Tolerance:
    """What rounding may change in one dtype: a logit; a row of K or V in layer 0, measured by `row_errors`; and one in
    layer 1."""

    logit: float
    first_row: float
    row: float

    def of_row(self, layer_index: int) -> float:
        """The tolerance for a row of the layer."""
        return self.row * math.sqrt(layer_index) if layer_index else self.first_row


# Machine epsilon is 1.2e-7, 9.8e-4 and 7.8e-3. In 16 bits a row of layer 0 may be off by about one epsilon, as the root
# mean square over its channels. float32 is allowed far more, because its products are split differently for each length
# and processor, and the error of any lossy code is much larger. Every later layer rounds again, and logits sum up all
# layers. Correct caches of the bundled model were measured to stay below two thirds of each number, and the most
# precise lossy code, int8 with a scale per row, exceeds `first_row` in every dtype. Random weights many times as large
# as trained ones can exceed the tolerance without a fault if a model caps scores in 16 bits (T5Gemma).
TOLERANCES: Final = {
    "float32": Tolerance(logit=1e-3, first_row=1e-4, row=5e-4),
    "float16": Tolerance(logit=1e-1, first_row=1e-3, row=4e-3),
    "bfloat16": Tolerance(logit=8e-1, first_row=4e-3, row=2.5e-2),
}


def tolerance_between(one: str, other: str) -> Tolerance:
    """The tolerance for two runs in these dtypes: that of the less precise one. A dtype that is not in the table counts
    as float32.

    If the dtypes differ, `first_row` is that of layer 1, because the weights are rounded differently too (the bundled
    model, bfloat16: 3.5 times `first_row`, 0.6 of `row`).
    """
    tolerance = max((TOLERANCES.get(dtype, TOLERANCES["float32"]) for dtype in (one, other)), key=lambda t: t.logit)
    return tolerance if one == other else replace(tolerance, first_row=tolerance.row)
