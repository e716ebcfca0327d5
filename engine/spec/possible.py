"""Detects conditions that can never hold: because of the range of a quantity, or because of the cache mode and model in
use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.spec.cache import CacheSpec
from engine.spec.condition import And, Condition, ConditionTerm, Not, Or
from engine.spec.presets import cache_label
from engine.spec.quantities import Need, Quantity

Truth = bool | None
ANYTHING: frozenset[Truth] = frozenset((True, False, None))


@dataclass(frozen=True)
class ConditionSetting:
    """What conditions are evaluated in: the cache mode, whether the model's attention is captured, the most tokens that
    a sequence can have (None: no limit), and whether a comparison of two runs is active."""

    cache: CacheSpec
    captures_attention: bool = True
    max_tokens: int | None = None
    is_compared: bool = True


def why_never(condition: Condition, setting: ConditionSetting) -> str:
    """One sentence with a remedy that says why a condition can never hold; empty if it can."""
    if True in _outcomes(condition, setting):
        return ""
    return _reason(condition, setting) or "It contradicts itself, so it never holds: change it."


def _outcomes(condition: Condition, setting: ConditionSetting) -> frozenset[Truth]:
    """The possible outcomes of a condition (None: unknown). Parts are treated as independent, so the result may contain
    an outcome that cannot happen, but misses none."""
    match condition:
        case ConditionTerm():
            return _outcomes_of_comparison(condition, setting)
        case Not(part):
            return frozenset(None if each is None else not each for each in _outcomes(part, setting))
        case And(parts):
            return _combined(False, [_outcomes(part, setting) for part in parts])
        case Or(parts):
            return _combined(True, [_outcomes(part, setting) for part in parts])


def _combined(by: bool, parts: list[frozenset[Truth]]) -> frozenset[Truth]:
    """The possible outcomes of `and` (`by` False) and `or` (`by` True): one part with the outcome `by` decides; the
    opposite outcome needs all parts to have it."""
    found, opposite = set[Truth](), not by
    if any(by in part for part in parts):
        found.add(by)
    if all(opposite in part for part in parts):
        found.add(opposite)
    if any(None in part for part in parts) and all(part != {by} for part in parts):
        found.add(None)
    return frozenset(found)


def _outcomes_of_comparison(test: ConditionTerm, setting: ConditionSetting) -> frozenset[Truth]:
    row = test.row
    if _missing(row.need, setting):
        return frozenset((None,)) if row.need in ("attention", "comparison") else _outcomes_up_to(test, 0.0)
    if row.kind in ("number", "attention"):
        high = row.high
        if row.name == "tokens" and setting.max_tokens is not None:
            high = float(setting.max_tokens)
        return _outcomes_up_to(test, high)
    return ANYTHING


def _outcomes_up_to(test: ConditionTerm, high: float) -> frozenset[Truth]:
    """The possible outcomes of comparing a number from 0 to `high`. Counts and the like are whole numbers and never
    unknown."""
    value, sign = float(test.value or 0.0), test.sign
    is_whole = test.row.is_count or test.quantity in ("step", "tokens", "sequence", "stored", "reserved")
    below, above = value > 0.0, high > value
    equal = 0.0 <= value <= high and (not is_whole or value == math.floor(value))
    can = {"<": below, "<=": below or equal, ">": above, ">=": above or equal, "=": equal, "!=": below or above}
    cannot = {"<": above or equal, "<=": above, ">": below or equal, ">=": below, "=": below or above, "!=": equal}
    found = {True for _ in range(can[str(sign)])} | {False for _ in range(cannot[str(sign)])}
    return frozenset(found if is_whole or high == 0.0 else {*found, None})


def _missing(need: Need, setting: ConditionSetting) -> str:
    """What a quantity needs and the setting lacks, with a remedy; empty if nothing is missing."""
    cache = setting.cache
    match need:
        case "pages" if not cache.is_paged:
            return f"{cache_label(cache)} has no pages: take a paged cache"
        case "host" if cache.layout != "host":
            return f"{cache_label(cache)} moves no pages: take the offloaded cache"
        case "rule" if cache.retention.keeps_all:
            return f"{cache_label(cache)} keeps all rows: take one that drops some"
        case "attention" if not setting.captures_attention:
            return "no attention of this model is captured: take one that runs our attention"
        case "comparison" if not setting.is_compared:
            return "no comparison runs: start one"
    return ""


def _reason(condition: Condition, setting: ConditionSetting) -> str:
    """The sentence for the first comparison that keeps the condition from being true."""
    for test in _blamed(condition, setting):
        if lacks := _missing(test.row.need, setting):
            return f"“{test}” cannot hold: {lacks}."
        return f"“{test}” cannot hold: {_range_words(test.row, setting)}."
    return ""


def _blamed(condition: Condition, setting: ConditionSetting) -> list[ConditionTerm]:
    """The comparisons that keep a condition from being true."""
    if True in _outcomes(condition, setting):
        return []
    match condition:
        case ConditionTerm():
            return [condition]
        case Not(ConditionTerm() as inner):
            return [inner] if inner.row.need else []
        case And(parts) | Or(parts):
            return [test for part in parts for test in _blamed(part, setting)]
        case Not():
            return []


def _range_words(row: Quantity, setting: ConditionSetting) -> str:
    if row.name == "tokens" and setting.max_tokens is not None:
        return f"a sequence has 0 to {setting.max_tokens:,} tokens here; write a whole number between"
    if row.high < math.inf:
        return f"{row.name} is from 0 to {row.high:g}, or to 100 %; write a number between"
    return f"{row.name} is {'a whole number ' if row.is_count else ''}from 0 up; write such a number"
