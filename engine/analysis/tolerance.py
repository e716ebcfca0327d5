"""What the order of additions may change, by dtype: the one table that tells rounding from a fault. No torch.

`verify`, Parity, a duel and the comparison of snapshots judge by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True)
class Tolerance:
    """What rounding may do in one dtype: to a logit; to a row of K or V in layer 0, by `row_errors`, and in layer 1."""

    logit: float
    first_row: float
    row: float

    def of_row(self, layer_index: int) -> float:
        """What it may do to a row of that layer."""
        return self.row * math.sqrt(layer_index) if layer_index else self.first_row


# Machine epsilon is 1.2e-7, 9.8e-4 and 7.8e-3. At 16 bits a row of layer 0 may be off by about one, as the root mean
# square of its channels; float32 is given far more, for its products are cut up differently for every length and
# processor, and no code that is worth the name comes near. Every layer behind it rounds again, and logits are sums of
# all of them. Healthy caches of the bundled model stay below two thirds of each number, as measured, and the finest
# lossy code, int8 with a scale for each row, lies beyond `first_row` in every dtype. Random weights many times as large
# as trained ones can go beyond it without a fault, where a model caps scores in 16 bits (T5Gemma).
TOLERANCES: Final = {
    "float32": Tolerance(logit=1e-3, first_row=1e-4, row=5e-4),
    "float16": Tolerance(logit=1e-1, first_row=1e-3, row=4e-3),
    "bfloat16": Tolerance(logit=8e-1, first_row=4e-3, row=2.5e-2),
}


def tolerance_between(one: str, other: str) -> Tolerance:
    """What rounding may do to two runs in these dtypes: what it does in the one that rounds more; a dtype that is not
    in the table counts as float32. Of two dtypes a row of layer 0 may differ as one of layer 1: the weights, which two
    runs in one dtype share, were rounded too (the bundled model, bfloat16: 3.5 times `first_row`, 0.6 of `row`)."""
    tolerance = max((TOLERANCES.get(dtype, TOLERANCES["float32"]) for dtype in (one, other)), key=lambda t: t.logit)
    return tolerance if one == other else replace(tolerance, first_row=tolerance.row)
