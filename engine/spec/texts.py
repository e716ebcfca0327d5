"""The texts of a sweep: what each mode is fed, and what it is asked for. No torch."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from engine.errors import InputError
from engine.spec.sampling import Prompt

TextKind = Literal["greedy", "given", "recall"]


class SweepText(Struct, frozen=True, array_like=True):
    """A text of a sweep, under its name.

    `greedy`: the prompt is fed, and the steps are those that the exact model chooses after it. `given`: the steps are
    the last tokens of the prompt itself, of which as many are read as the context holds: perplexity is of a text that
    somebody wrote. `recall`: a fact is
    planted in the prompt at `depth` (0 its beginning, 1 its end) and asked for at the end, `num_tokens` in all (None:
    all of the prompt's, as far as the context holds them); the steps are the fact's own tokens.
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
