"""Text that a person has read and approved: what the product says is compared with a file, line by line.

    approve(Path(__file__).parent / "approved" / "NAME.txt", lines)

After a wished change, write the files anew and read the difference in git:

    KVLOUPE_APPROVE=1 python -m pytest -n 0 tests/app -k approved

The files say what is meant, not how it came about, so that they hold on any machine: words and whole numbers are
compared exactly, a number with a point but for its last digit, and a number after `~` roughly. Writing keeps every old
line that still holds, so that it changes no line without a reason. `in_words` is how values are written in them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from difflib import SequenceMatcher, unified_diff
from enum import Enum
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from msgspec import NODEFAULT, Struct, structs

LISTED = 8  # elements of a sequence, and numbers of an array, that are written one by one
LONG, BRIEF = 120, 30  # characters of a line that tells of a change, and of one that is never only counted
ROUNDING = 2e-3  # of a number with a point
ROUGHLY, FEW = 0.1, 3  # of a number after "~": a tenth of it, and at least so much
_NUMBER = re.compile(r"~-?\d+|-?\d+\.\d+(?:e[-+]\d+)?")


def approve(path: Path, lines: Sequence[str]) -> None:
    """Fail where these lines differ from those of the file, or write the file if KVLOUPE_APPROVE is set."""
    now = [part for line in lines for part in line.rstrip().split("\n")]
    before = path.read_text("utf-8").splitlines() if path.exists() else []
    if len(before) == len(now) and all(map(are_alike, before, now)):
        return
    matcher = SequenceMatcher(None, [*map(_skeleton, before)], [*map(_skeleton, now)], autojunk=False)
    for start, place, size in matcher.get_matching_blocks():
        pairs = zip(before[start : start + size], now[place : place + size], strict=True)
        now[place : place + size] = [old if are_alike(old, new) else new for old, new in pairs]
    if os.environ.get("KVLOUPE_APPROVE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(now) + "\n", "utf-8")
        return
    changes = [*unified_diff(before, now, f"{path.name}, approved", "now", n=2, lineterm="")]
    hint = "if that is meant: KVLOUPE_APPROVE=1, and read the difference in git"
    raise AssertionError("\n".join([hint, *changes[:80], *(["…"] if len(changes) > 80 else [])]))


def are_alike(one: str, other: str) -> bool:
    """Whether two lines have the same words, and the same numbers but for rounding."""
    if one == other:
        return True
    if _skeleton(one) != _skeleton(other):
        return False
    return all(map(_is_near, _NUMBER.findall(one), _NUMBER.findall(other)))


def _skeleton(line: str) -> str:
    return _NUMBER.sub("#", line)


def _is_near(one: str, other: str) -> bool:
    if one.startswith("~") or other.startswith("~"):
        first, second = int(one.lstrip("~")), int(other.lstrip("~"))
        return abs(first - second) <= max(FEW, ROUGHLY * max(abs(first), abs(second)))
    mantissa, _, exponent = max(one, other, key=len).partition("e")
    last_digit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return math.isclose(float(one), float(other), rel_tol=ROUNDING, abs_tol=1.01 * last_digit)


def changes(before: Sequence[str], after: Sequence[str], told: set[str] | None = None) -> list[str]:
    """The lines that came between two moments, and how many went. Long lines are told by their beginning, and those
    that were `told` earlier in the same file are counted."""
    gone, come, known = list(before), [], 0
    for line in after:
        if line in gone:
            gone.remove(line)
        elif told is not None and line in told and len(line) > BRIEF and "~" not in line:
            known += 1
        else:
            come.append(f"+ {short(line)}")
    if told is not None:
        told |= {*after}
    counts = [*([f"+ {known} lines as above"] if known else []), *([f"- {len(gone)} lines"] if gone else [])]
    return [*come, *counts]


def short(line: str) -> str:
    """The beginning of a long line."""
    return line if len(line) <= LONG else f"{line[:LONG]}…"


# ---- values ------------------------------------------------------------------------------------------------------


def in_words(value: Any, special: Callable[[Any], str | None] = lambda _: None, depth: int = 4) -> str:
    """A value in words: fields that have their defaults are left out, and of arrays a summary is given. `special` may
    know shorter words for some values."""
    known = special(value)
    if known is not None:
        return known

    def inner(each: Any) -> str:
        return in_words(each, special, depth - 1)

    match value:
        case Enum():
            return value.name
        case None | bool() | int() | str():
            return repr(value)
        case float() | np.floating():
            return number(float(value))
        case np.ndarray():
            return _array(value)
        case np.generic():
            return str(value)
        case PurePath():
            return str(value)
        case Struct() if depth:
            return f"{type(value).__name__}({', '.join(f'{name}={inner(each)}' for name, each in _set_fields(value))})"
        case _ if is_dataclass(value) and depth:
            found = ((field.name, getattr(value, field.name)) for field in fields(value))
            return f"{type(value).__name__}({', '.join(f'{name}={inner(each)}' for name, each in found)})"
        case dict():
            return f"{{{', '.join(f'{inner(key)}: {inner(each)}' for key, each in value.items())}}}"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(inner, value)))}}}"
        case tuple() | list() | range():
            return f"[{_listed([*map(inner, value)])}]"
    if isinstance(value, Iterator):
        return inner(list(value))
    if isinstance(value, Sequence):
        return f"{len(value)} of [{', '.join(map(inner, value[-3:]))}]"
    return getattr(value, "__name__", type(value).__name__)


def _listed(words: list[str]) -> str:
    """Many of a kind as the first ones and the last."""
    if len(words) > 3 * LISTED:
        return ", ".join((*words[:LISTED], f"… {len(words)} …", words[-1]))
    return ", ".join(words)


def _set_fields(value: Struct) -> Iterator[tuple[str, Any]]:
    """The fields that differ from their defaults, and of those without one the ones that say something."""
    for field in fields_of(type(value)):
        found = getattr(value, field.name)
        says_nothing = field.default is NODEFAULT and isinstance(found, bool | str | tuple | None) and not found
        if not is_default(field, found) and not says_nothing:
            yield field.name, found


def is_default(field: structs.FieldInfo, value: Any) -> bool:
    default = field.default if field.default_factory is NODEFAULT else field.default_factory()
    return type(value) is type(default) and not isinstance(value, np.ndarray) and bool(value == default)


@cache
def fields_of(kind: type[Struct]) -> tuple[structs.FieldInfo, ...]:
    """Its fields, whose types are worked out anew wherever they are asked for."""
    return structs.fields(kind)


def number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    found = f"{value:.4g}"
    return found if "." in found else f"{value:.3e}" if "e" in found else f"{found}.0"


def _array(array: np.ndarray) -> str:
    """The shape of an array and its numbers, or where there are many: the least, the mean and the largest, and how
    they lie (the mean weighted from 1 to 3), so that a turned or a moved picture has other words."""
    shape = "×".join(map(str, array.shape))
    flat = array.reshape(-1)
    if array.dtype.kind not in "fiub":
        return f"{shape} [{_listed([*map(str, flat.tolist())])}]"
    if len(flat) <= LISTED:
        return f"{shape} [{', '.join(number(float(each)) if array.dtype.kind == 'f' else str(each) for each in flat)}]"
    known = flat[np.isfinite(flat)].astype(float)
    if not len(known):
        return f"{shape} nothing finite"
    spread = float(np.abs(known).max()) or 1.0
    lean = float((known * np.linspace(1, 3, len(known))).mean())
    words = " ".join(number(0.0 if abs(each) < 1e-6 * spread else each) for each in
                     (float(known.min()), float(known.mean()), float(known.max()), lean))  # fmt: skip
    absent = len(flat) - len(known)
    return f"{shape} of {words}" + (f", {absent} not finite" if absent else "")
