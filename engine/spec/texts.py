"""The texts of a sweep: what each mode is fed, and which tokens are measured. No torch."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from engine.errors import InputError
from engine.spec.sampling import Prompt

TextKind = Literal["greedy", "given", "recall"]


class SweepText(Struct, frozen=True, array_like=True):
    """A text of a sweep, under its name.

    `greedy`: the prompt is fed, and the measured steps are the tokens that the exact model chooses greedily after it.
    `given`: the measured steps are the last tokens of the prompt itself, of which as many are read as the context
    holds; this gives the perplexity of a text written by a person. `recall`: a fact is inserted into the prompt at
    `depth` (0: at its beginning, 1: at its end) and asked for at the end, `num_tokens` in all (None: all of the
    prompt's, as far as the context holds them); the measured steps are the tokens of the fact.
    """

    name: str
    prompt: Prompt
    kind: TextKind = "greedy"
    num_tokens: int | None = None
    depth: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in get_args(TextKind):
            raise InputError(f"Unknown kind of text '{self.kind}': choose one of {', '.join(get_args(TextKind))}.")
        if not 0 <= self.depth <= 1:
            raise InputError(f"A depth of {self.depth:g} is outside the text: give 0 for its beginning up to 1.")
        if self.num_tokens is not None and self.num_tokens < 1:
            raise InputError(f"A text of {self.num_tokens} tokens holds nothing: give 1 or more.")
