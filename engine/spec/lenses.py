"""The lenses through which a cache can be looked at: one row for each, without torch.

A new lens is a row here and a function of the same name in `engine.look.lenses`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from engine.spec.codec import Part

Reads = Literal["keys", "values", "weights", "queries"]


class Lens(Struct, frozen=True):
    """What is drawn of each row, and how it is to be understood.

    `reads`: K or V; the attention weights of the newest query; or those of all queries, as far as they were recorded or
    can be computed. `heads`: whose heads its pictures have. `columns`: whether a column is a token that is held, or a
    query. `values`: how many numbers a column has: those of a row ("dims"), one, or one for each token. `scale`:
    whether colours reach from minus to plus, or from zero. `exact`: whether the numbers are those that are stored,
    rather than rounded by undoing something.
    """

    name: str
    label: str
    words: str
    formula: str
    reads: Reads
    heads: Literal["kv", "query"] = "kv"
    columns: Literal["tokens", "queries"] = "tokens"
    values: Literal["dims", "one", "tokens"] = "dims"
    unit: str = ""
    scale: Literal["around zero", "from zero"] = "around zero"
    exact: bool = True

    @property
    def part(self) -> Part | None:
        """The part of the rows that it reads; None if it reads weights."""
        return self.reads if self.reads in ("keys", "values") else None


TABLE = (
    Lens("keys", "K", "Keys", "K[t]", "keys"),
    Lens("values", "V", "Values", "V[t]", "values"),
)
LENSES = {lens.name: lens for lens in TABLE}
