"""The lenses through which a cache can be looked at: one row for each, without torch.

A new lens is a row here; where it computes something from rows, also a function of each row alone, under its name in
`COMPUTE` of `engine.look.lenses`. Whatever reads the attention of all queries is measured in `engine.session.pictures`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from msgspec import Struct

from engine.spec.codec import Part


class Lens(Struct, frozen=True, dict=True):
    """What is drawn of each row, and how it is to be understood.

    `reads`: K or V; the attention weights of the newest query; or those of all queries, as far as they were recorded or
    can be computed again. `heads`: whose heads its pictures have. `columns`: whether a column is a token that is held,
    or a query. `values`: how many numbers a column has: those of a row ("dims"), one for each token, or 1. `exact`:
    whether the numbers are those that are stored or were computed, rather than rounded by undoing something.
    `is_signed`: whether they may be below zero. `unit`: of the numbers, where they have one.
    """

    name: str
    label: str
    words: str
    formula: str
    reads: Literal["keys", "values", "weights", "queries"]
    heads: Literal["kv", "query"] = "kv"
    columns: Literal["tokens", "queries"] = "tokens"
    values: Literal["dims", "tokens", 1] = "dims"
    exact: bool = True
    is_signed: bool = True
    unit: str = ""

    @cached_property
    def part(self) -> Part | None:
        """The part of the rows that it reads; None if it reads attention."""
        return self.reads if self.reads == "keys" or self.reads == "values" else None

    @property
    def head_word(self) -> str:
        """What a head of its pictures is called."""
        return "head" if self.heads == "query" else "kv head"

    @cached_property
    def is_of_every_head(self) -> bool:
        """Whether the wall can show it: a picture of tokens by tokens is of one head."""
        return self.values != "tokens"


TABLE = (
    Lens("keys", "K", "Keys", "K[t]", "keys"),
    Lens("values", "V", "Values", "V[t]", "values"),
    Lens("keys-norm", "|K|", "Length of each key", "‖K[t]‖₂", "keys", values=1, is_signed=False),
    Lens("values-norm", "|V|", "Length of each value", "‖V[t]‖₂", "values", values=1, is_signed=False),
    Lens(
        "keys-before-rotation", "K before rotation", "Keys before they were turned by their position",
        "R(t)⁻¹ K[t], with the angles t·f of the model's rotary embedding", "keys", exact=False,
    ),
    Lens(
        "attention", "attention", "Attention of the newest token", "softmax(q·K[t] / √d) of the newest query q",
        "weights", "query", values=1, is_signed=False,
    ),
    Lens(
        "attention-received", "attention received", "Attention that each token received, summed over the queries",
        "Σ_q softmax(q·K / √d)[t]", "queries", "query", values=1, is_signed=False,
    ),
    Lens(
        "attention-entropy", "attention entropy", "How widely each query looked, in nats", "−Σ_t a_q[t] ln a_q[t]",
        "queries", "query", "queries", 1, is_signed=False, unit="nats",
    ),
    Lens(
        "attention-map", "attention map", "Attention of one head: queries by tokens", "a_q[t]", "queries", "query",
        "queries", "tokens", is_signed=False,
    ),
)  # fmt: skip
LENSES = {lens.name: lens for lens in TABLE}
