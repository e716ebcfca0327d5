"""What a condition can compare: one row for each quantity, read by the parser, its messages, completion, help and the
README."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

# What a quantity is compared with: a number, a text or token id, a regular expression, nothing (a fact that holds or
# not), or, for the attention to a span of tokens, a number.
QuantityKind = Literal["number", "token", "text", "fact", "attention"]
Unit = Literal["", "nats", "ratio", "bytes"]
# What a quantity needs to have a value, or to differ from 0.
Need = Literal["", "pages", "host", "attention", "rule", "comparison"]


@dataclass(frozen=True)
class Quantity:
    """One quantity: its name, its kind, its meaning, a condition as an example, and the largest value (the smallest is
    0)."""

    name: str
    kind: QuantityKind
    meaning: str
    example: str
    unit: Unit = ""
    high: float = inf
    need: Need = ""
    is_count: bool = False  # written without a comparison it means "more than 0"


def _count(name: str, meaning: str, need: Need = "") -> Quantity:
    return Quantity(name, "number", meaning, name, need=need, is_count=True)


ROWS = (
    Quantity("token", "token", "the token just chosen, by its text or id", 'token = " cat"'),
    Quantity("fed", "token", "a token just fed, by its text or id", "fed = 42"),
    Quantity(
        "text", "text", "a match of a regular expression that ends in the newest token", r'text ~ "\bdragons?\b"'
    ),
    Quantity("entropy", "number", "entropy of the next token's distribution", "entropy > 2", "nats"),
    Quantity("probability", "number", "probability of the chosen token", "probability < 0.1", "ratio", 1.0),
    Quantity("margin", "number", "probability of the first token less that of the second", "margin < 5%", "ratio", 1.0),
    Quantity("surprisal", "number", "the largest surprisal of the tokens just fed", "surprisal > 6", "nats"),
    Quantity(
        "differs", "fact", "the compared run puts another token first", "differs", need="comparison"
    ),
    Quantity(
        "attention", "attention", "attention of the newest query to tokens, mean of all heads",
        "attention(0) > 50%", "ratio", 1.0, "attention",
    ),
    Quantity(
        "peak_attention", "attention", "attention of the newest query to tokens, in the head where it is most",
        "peak_attention(3-7) > 0.9", "ratio", 1.0, "attention",
    ),
    Quantity(
        "norm", "number", "the largest new row of K or V, against the median of its head's last 64, from 8 rows on",
        "norm > 3",
    ),
    _count("nonfinite", "NaN and Inf in the new rows and the logits"),
    _count("pages_allocated", "pages taken by a sequence", "pages"),
    _count("pages_shared", "pages that one more sequence refers to", "pages"),
    _count("pages_evicted", "pages that lost their place in the prefix cache", "pages"),
    _count("pages_moved", "pages copied to the host or back", "host"),
    _count("rows_dropped", "tokens that lost rows to the rule of the cache", "rule"),
    _count("preempted", "sequences that gave their pages up", "pages"),
    Quantity("stored", "number", "bytes of K and V in rows that hold tokens", "stored > 1 MiB", "bytes"),
    Quantity("reserved", "number", "bytes of storage of the cache", "reserved > 8 MiB", "bytes"),
    Quantity("step", "number", "number of the step", "step = 40"),
    Quantity("tokens", "number", "tokens of the sequence in the cache", "tokens = 100"),
    Quantity("sequence", "number", "number of the sequence", "sequence = 1 and entropy > 2"),
)  # fmt: skip

QUANTITIES = {row.name: row for row in ROWS}


def names() -> str:
    """All names, separated by commas, for a message."""
    return ", ".join(QUANTITIES)


def help_lines() -> tuple[str, ...]:
    """Each quantity with an example and its meaning, for a terminal and a tool tip."""
    width = max(len(row.example) for row in ROWS)
    return tuple(f"{row.example:<{width}}  {row.meaning}{_in_unit(row)}" for row in ROWS)


def markdown_table() -> str:
    """The same table in Markdown, for the README."""
    rows = (f"| `{row.example}` | {row.meaning}{_in_unit(row)} |" for row in ROWS)
    return "\n".join(("| write | about |", "| --- | --- |", *rows))


def _in_unit(row: Quantity) -> str:
    return " (nats)" if row.unit == "nats" else ""


HOW_TO_COMBINE = "and, or, not and parentheses combine them; a count alone means more than 0"
