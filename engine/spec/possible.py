"""Conditions that can never hold: by the range of what they compare, or by the cache mode and model at hand."""

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
    """What conditions are judged in: the cache mode, whether the model's attention is captured, the tokens that a
    sequence can have (None: any number), and whether a comparison runs."""

    cache: CacheSpec
    captures_attention: bool = True
    max_tokens: int | None = None
    is_compared: bool = True


def why_never(condition: Condition, setting: ConditionSetting) -> str:
    """Why a condition cannot hold here, in a sentence with what to do; empty where it can."""
    if True in _outcomes(condition, setting):
        return ""
    return _reason(condition, setting) or "It contradicts itself, so it never holds: change it."


def _outcomes(condition: Condition, setting: ConditionSetting) -> frozenset[Truth]:
    """What may come out of a condition; each part by itself, so that more may seem possible than is."""
    match condition:
        case ConditionTerm():
            return _of_test(condition, setting)
        case Not(part):
            return frozenset(None if each is None else not each for each in _outcomes(part, setting))
        case And(parts):
            return _combined(False, [_outcomes(part, setting) for part in parts])
        case Or(parts):
            return _combined(True, [_outcomes(part, setting) for part in parts])


def _combined(by: bool, parts: list[frozenset[Truth]]) -> frozenset[Truth]:
    """Of parts of which one that is `by` decides, and all must be known for the opposite."""
    found, opposite = set[Truth](), not by
    if any(by in part for part in parts):
        found.add(by)
    if all(opposite in part for part in parts):
        found.add(opposite)
    if any(None in part for part in parts) and all(part != {by} for part in parts):
        found.add(None)
    return frozenset(found)


def _of_test(test: ConditionTerm, setting: ConditionSetting) -> frozenset[Truth]:
    row = test.row
    if _missing(row.need, setting):
        return frozenset((None,)) if row.need in ("attention", "comparison") else _up_to(test, 0.0)
    if row.kind in ("number", "attention"):
        high = row.high
        if row.name == "tokens" and setting.max_tokens is not None:
            high = float(setting.max_tokens)
        return _up_to(test, high)
    return ANYTHING


def _up_to(test: ConditionTerm, high: float) -> frozenset[Truth]:
    """What a comparison of a number from 0 to `high` may give. Counts and the like are known always, and whole."""
    value, sign = float(test.value or 0.0), test.sign
    is_whole = test.row.is_count or test.quantity in ("step", "tokens", "sequence", "stored", "reserved")
    below, above = value > 0.0, high > value
    equal = 0.0 <= value <= high and (not is_whole or value == math.floor(value))
    can = {"<": below, "<=": below or equal, ">": above, ">=": above or equal, "=": equal, "!=": below or above}
    cannot = {"<": above or equal, "<=": above, ">": below or equal, ">=": below, "=": below or above, "!=": equal}
    found = {True for _ in range(can[str(sign)])} | {False for _ in range(cannot[str(sign)])}
    return frozenset(found if is_whole or high == 0.0 else {*found, None})


def _missing(need: Need, setting: ConditionSetting) -> str:
    """What a quantity needs and has not, with what to do."""
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
    """Why the first test that cannot come out as it would have to does not."""
    for test in _blamed(condition, setting):
        if lacks := _missing(test.row.need, setting):
            return f"“{test}” cannot hold: {lacks}."
        return f"“{test}” cannot hold: {_range_words(test.row, setting)}."
    return ""


def _blamed(condition: Condition, setting: ConditionSetting) -> list[ConditionTerm]:
    """The tests of which a condition is not true."""
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
