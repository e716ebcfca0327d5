"""The grid of a sweep: cache modes, each at several budgets and with several codecs, on several texts. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from engine.errors import InputError, check_known
from engine.spec.cache import CacheSpec, cache_label, cache_name, fitted, with_budget
from engine.spec.codec import CodecSpec
from engine.spec.sampling import Prompt

BudgetValue = int | float | None  # rows kept; share of a text's tokens that is kept; None: the mode's own budget


class SweepMode(Struct, frozen=True, array_like=True):
    """A mode of a sweep under its name. With a `share`, its rule keeps that share of each text's tokens."""

    name: str
    cache: CacheSpec
    share: float | None = None

    @property
    def label(self) -> str:
        """What people read: the cache's name, with the size if a grid has several."""
        _, at, size = self.name.rpartition("@")
        is_size = at and "=" not in size  # with "=" it is a layer of a codec's plan
        return cache_label(self.cache) + (f" @{size}" if is_size else "")

    def fitted(self, num_tokens: int) -> CacheSpec:
        """The cache spec for a text of `num_tokens` tokens."""
        return fitted(self.cache, num_tokens, self.share)


def grid(
    modes: Mapping[str, CacheSpec],
    budgets: Iterable[BudgetValue] = (None,),
    codecs: Iterable[CodecSpec | None] = (None,),
) -> tuple[SweepMode, ...]:
    """Every combination of mode, budget and codec, each once.

    Budgets are applied only to modes that evict rows, and codecs only to modes that have none yet and whose layout
    accepts one; combinations that are not allowed are left out. If budgets are shares, exact residuals are made as
    short as possible, so that a short text is coded as a long one would be.
    """
    found: dict[str, SweepMode] = {}
    budgets, codecs = tuple(budgets), tuple(codecs)
    share = next((budget for budget in budgets if isinstance(budget, float)), None)
    for name, spec in modes.items():
        for codec in codecs if takes_codecs(spec) else (None,):
            for budget in budgets if not spec.retention.keeps_all else (None,):
                point = grid_point(name, spec, budget, codec)
                if point is not None:
                    found.setdefault(point.name, replace(point, share=share) if spec.retention.keeps_all else point)
    return tuple(found.values())


def takes_codecs(spec: CacheSpec) -> bool:
    """Whether a codec can be given to the mode: it has none yet, and its layout accepts one."""
    return spec.holds_exact_rows and not spec.row.takes_no


def grid_point(name: str, spec: CacheSpec, budget: BudgetValue, codec: CodecSpec | None) -> SweepMode | None:
    """One point of the grid; None if mode and codec cannot be combined, or the budget is too small for the mode."""
    try:
        if codec is not None and not codec.is_exact:
            spec = replace(spec, codec=codec)
            name = cache_name(spec)
        if isinstance(budget, int):
            spec = with_budget(spec, budget)
    except InputError:
        return None
    if budget is None:
        return SweepMode(name, spec)
    if isinstance(budget, int):
        return SweepMode(f"{name}@{budget}", spec)
    return SweepMode(f"{name}@{100 * budget:g}%", spec, budget)


def parse_budgets(text: str) -> tuple[BudgetValue, ...]:
    """Parse budgets separated by commas: `64` rows, `25%` of the tokens, or `own` for the mode's own budget."""
    return tuple(dict.fromkeys(_parse_budget(part.strip()) for part in text.split(",") if part.strip()))


def _parse_budget(text: str) -> BudgetValue:
    if text == "own":
        return None
    number = text.removesuffix("%")
    if number.isascii() and number.isdecimal() and len(number) <= 9 and int(number) > 0:
        if text == number:
            return int(number)
        if int(number) <= 100:
            return int(number) / 100
    raise InputError(f"'{text[:40]}' is no budget: give rows like 64, a share like 25%, or own.")


TextKind = Literal["greedy", "given", "recall"]


class SweepText(Struct, frozen=True, array_like=True):
    """A text of a sweep, under its name.

    `greedy`: the prompt is computed, and the measured steps are the tokens that the exact model chooses greedily after
    it. `given`: the measured steps are the last tokens of the prompt itself, of which as many are read as the context
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
        check_known("kind of text", self.kind, get_args(TextKind))
        if not 0 <= self.depth <= 1:
            raise InputError(f"A depth of {self.depth:g} is outside the text: give 0 for its beginning up to 1.")
        if self.num_tokens is not None and self.num_tokens < 1:
            raise InputError(f"A text of {self.num_tokens} tokens holds nothing: give 1 or more.")
