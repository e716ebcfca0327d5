"""A grid of cache modes: each mode in several sizes, and written by several codecs for K and V. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec
from engine.spec.presets import cache_name
from engine.spec.tuning import fitted, with_budget

BudgetValue = int | float | None  # rows kept; a share of a text's tokens; None: as the mode says


class SweepMode(Struct, frozen=True, array_like=True):
    """A mode of a sweep under its name. `share`: its rule keeps that part of each text's tokens."""

    name: str
    cache: CacheSpec
    share: float | None = None

    def fitted(self, num_tokens: int) -> CacheSpec:
        """The cache for a text of so many tokens."""
        return fitted(self.cache, num_tokens, self.share)


def grid(
    modes: Mapping[str, CacheSpec],
    budgets: Iterable[BudgetValue] = (None,),
    codecs: Iterable[CodecSpec | None] = (None,),
) -> tuple[SweepMode, ...]:
    """Every mode × every budget × every codec, each once. A mode that drops no rows has no budgets, and one that has a
    codec of its own, or a layout without, takes no other; what does not go together is left out. Where budgets are
    shares, an exact residual is as short as it can be, so that a short text feels what a long one would."""
    found: dict[str, SweepMode] = {}
    budgets, codecs = tuple(budgets), tuple(codecs)
    share = next((budget for budget in budgets if isinstance(budget, float)), None)
    for name, spec in modes.items():
        for codec in codecs if takes_codecs(spec) else (None,):
            for budget in budgets if not spec.retention.keeps_all else (None,):
                point = point_of(name, spec, budget, codec)
                if point is not None:
                    found.setdefault(point.name, replace(point, share=share) if spec.retention.keeps_all else point)
    return tuple(found.values())


def takes_codecs(spec: CacheSpec) -> bool:
    """Whether the rows of a mode can be written otherwise, and are not yet."""
    return spec.codec.is_exact and spec.quantizer is None and not spec.row.takes_no


def point_of(name: str, spec: CacheSpec, budget: BudgetValue, codec: CodecSpec | None) -> SweepMode | None:
    """One point of the grid; None where the mode and the codec do not go together, or the budget is too small."""
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
    """Budgets as they are typed, separated by commas: `64`, `25%`, and `own` for what the mode has."""
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
