"""All that messages say, as lines of text that are compared with a file: words and whole numbers exactly, other numbers
but for rounding, arrays by what a permutation, a sign or a missing number changes. What a clock or the machine decides
is left out.

`approve(path, lines)` compares; after a wished change: `KVLOUPE_APPROVE=1 pytest -n 0 tests/engine -k approved`, then
read the difference in git.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from difflib import unified_diff
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

OF_THE_MACHINE = frozenset(
    (
        *("process", "allocator", "peak", "device", "device_bytes", "total_bytes", "free_bytes", "freed_bytes"),
        *("wall_time", "left_s", "bytes_per_s", "tok_per_s", "created", "written_by", "num_threads", "source"),
        *("spread", "ms_per_step", "overhead_ratio", "ratio", "ratio_spread", "ms", "refused", "refused_pages"),
        *(
            "fingerprint",
            "tokenizer_fingerprint",
            "text_fingerprint",
            "file_bytes",
            "checksums",
            "checksum",
            "checksum_kind",
            "header_checksum",
            "config",
            "note_ms",
            "seconds",
        ),
    )
)
LISTED = 9  # numbers of an array that are told one by one
TOLERANCE = 2e-3
_NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]\d+)?")
_CLOCK = re.compile(r"\b[\d,.]+ (ms|s)\b")
_FOLDER = re.compile(r"/[\w./-]+/")


def told(value: Any) -> str:
    """A value in words; of a message also what it computes of its fields, and not those that have their default."""
    match value:
        case Struct():
            pairs = ((field, getattr(value, field.name)) for field in fields_of(type(value)))
            words = [f"{f.name}={_field(f.name, each)}" for f, each in pairs if not _is_left_out(f, each)]
            computed = ((name, getattr(value, name)) for name in _computed(type(value)))
            words += (f"{name} {told(each)}" for name, each in computed if not isinstance(each, Struct))
            return f"{type(value).__name__}({', '.join(words)})"
        case dict():
            keep = (name for name in value if name not in OF_THE_MACHINE and not str(name).endswith("_ms"))
            return f"{{{', '.join(f'{name}: {told(value[name])}' for name in keep)}}}"
        case tuple() | list() | set() | frozenset():
            each = [*map(told, value)]
            if len(each) > LISTED and isinstance(next(iter(value)), Struct):  # the candidates of a token
                each[3:-1] = [f"… {len(each)} …"]
            return f"[{', '.join(each)}]"
        case np.ndarray():
            return _array(value)
        case Path():
            return value.name
        case bytes():
            return f"{len(value)}:{value[:4].hex()}"
        case bool() | int() | None:  # the number of a pool is drawn
            return "…" if value is not None and value > 1 << 32 else str(value)
        case float():
            return number(value)
    return _FOLDER.sub("…/", _CLOCK.sub(r"… \1", repr(value)))


@cache
def fields_of(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    """The fields of a kind of message, whose types are worked out anew wherever they are asked for."""
    return fields(kind)


@cache
def _computed(kind: type) -> tuple[str, ...]:
    """The properties of a message that are not of the machine."""
    if not kind.__module__.startswith(("engine.wire", "engine.saved")):
        return ()
    found = (
        name for each in reversed(kind.__mro__) for name, value in vars(each).items() if isinstance(value, property)
    )
    return tuple(name for name in dict.fromkeys(found) if name not in OF_THE_MACHINE and not name.endswith("_ms"))


def _field(name: str, value: Any) -> str:
    if name == "counts" and isinstance(value, np.ndarray):  # of a histogram: a number may stand on an edge
        return _array(value.astype(float))
    return told(value)


def _is_left_out(field: FieldInfo, value: Any) -> bool:
    is_of_file = field.name == "num_bytes" and type(value) is int  # versions of libraries are in it
    is_default = field.default is not NODEFAULT and type(value) is type(field.default) and bool(value == field.default)
    return is_of_file or is_default or field.name in OF_THE_MACHINE or field.name.endswith("_ms")


def number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    found = f"{value:.5g}"
    return found if "." in found else f"{value:.4e}" if "e" in found else f"{found}.0"


def _array(array: np.ndarray) -> str:
    shape = "×".join(map(str, array.shape))
    if array.dtype.kind != "f":
        flat = array.reshape(-1).astype(np.int64)
        body = flat.tolist() if len(flat) <= LISTED else f"Σ {flat.sum()} {(flat * np.arange(1, len(flat) + 1)).sum()}"
        return f"{shape} {body}"
    flat = array.reshape(-1).astype(np.float64)
    if len(flat) <= LISTED:
        return f"{shape} [{', '.join(map(number, flat.tolist()))}]"
    known = flat[np.isfinite(flat)]
    sums = (
        (np.abs(known).mean(), (np.abs(known) * np.linspace(1, 3, len(known))).mean(), known.mean())
        if len(known)
        else ()
    )
    return f"{shape} mean {' '.join(map(number, map(float, sums)))}, {len(flat) - len(known)} not finite"


def approve(path: Path, lines: Sequence[str]) -> None:
    """Compare with what was approved."""
    if os.environ.get("KVLOUPE_APPROVE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n", "utf-8")
    approved = path.read_text("utf-8").splitlines() if path.exists() else []
    pairs = list(zip_longest(approved, lines, fillvalue=""))
    if all(are_alike(one, other) for one, other in pairs):
        return
    now = [one if are_alike(one, other) else other for one, other in pairs][: len(lines)]
    words = (line.replace(", ", ",\n    ").split("\n") for line in (*[], *now))
    before = (line.replace(", ", ",\n    ").split("\n") for line in approved)
    changes = unified_diff(
        [w for each in before for w in each], [w for each in words for w in each], "approved", "now", n=4
    )
    raise AssertionError(
        "if that is meant: KVLOUPE_APPROVE=1, and read the difference in git\n" + "\n".join([*changes][:80])
    )


def are_alike(one: str, other: str) -> bool:
    """The same words, and the same numbers but for rounding."""
    if one == other:
        return True
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=TOLERANCE, abs_tol=TOLERANCE / 10) for a, b in pairs)
