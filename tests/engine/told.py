"""What messages say, as lines of text that are compared with a file: words and whole numbers exactly, other numbers in
three digits and but for rounding, arrays by what a permutation, a sign or a missing number changes. What a clock or the
machine decides is left out.

`approve(path, lines)` compares; after a wished change: `KVLOUPE_APPROVE=1 pytest -n 0 tests/engine -k approved`, then
read the difference in git. `approve_story(path, entries)` compares a story of messages by their order, and by what
those of a kind say in each field: the first and the last, and a digest of all.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import unified_diff
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

# a message's kind, and its fields in words
Entry = tuple[str, dict[str, str]]

OF_THE_MACHINE = frozenset(
    (
        *("process", "allocator", "peak", "device", "device_bytes", "total_bytes", "free_bytes", "freed_bytes"),
        *("wall_time", "left_s", "bytes_per_s", "tok_per_s", "created", "written_by", "num_threads", "source"),
        *("spread", "ms_per_step", "overhead_ratio", "ratio", "ratio_spread", "ms", "refused", "refused_pages"),
        *("fingerprint", "tokenizer_fingerprint", "text_fingerprint", "file_bytes", "checksums", "checksum"),
        *("checksum_kind", "header_checksum", "config", "note_ms", "seconds"),
        "rank_correlation",  # of which equal scores are the larger is a matter of the last bit
        "clipped",  # a number may stand on the limit
        "geometry",  # approved in tests/engine/geometry
    )
)
FEW = 3  # of a list, or of the numbers of an array, that are told one by one
# of a number of three digits: one in the last place, or nothing that float32 can tell from 0
RELATIVE, ABSOLUTE = 1.1e-2, 2e-4
MOST_WORDS, FEW_WORDS = 20, 6  # of a line that is told whole; of one that is not
_NUMBER = re.compile(r"-?\d+(?:\.\d+(?:e[-+]\d+)?|e[-+]\d+)")
_CLOCK = re.compile(r"\b[\d,.]+ (ms|s)\b")
_TEMPORARY = re.escape(os.path.realpath(tempfile.gettempdir()))  # which may have spaces in it
_FOLDER = re.compile(rf"{_TEMPORARY}/(?:[\w./-]+/)?|/[\w./-]+/")


def told(value: Any) -> str:
    """A value in words; of a message also what it computes of its fields, and not those that have their default."""
    match value:
        case Struct():
            return f"{type(value).__name__}({', '.join(f'{name}={told(each)}' for name, each in _said(value))})"
        case dict():
            keep = (name for name in value if name not in OF_THE_MACHINE and not str(name).endswith("_ms"))
            return f"{{{', '.join(f'{name}: {told(value[name])}' for name in keep)}}}"
        case tuple() | list() | set() | frozenset():
            if value and all(isinstance(each, float) for each in value) and len(value) > FEW:
                return _array(np.array([*value]))
            each = [*map(told, value)]
            if len(each) > FEW and isinstance(next(iter(value)), Struct):
                each[FEW:-1] = [f"… {len(each)} …"]
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


def entry(value: Struct, without: tuple[str, ...] = ()) -> Entry:
    """A message as its kind and all of its fields, those of messages in it by their path."""
    found = {path: words.replace(" | ", " ¦ ") for path, words in _columns("", [value])}
    found = {path: words for path, words in found.items() if path.partition(".")[0] not in without}
    return type(value).__name__, found


def _columns(path: str, values: list[Any]) -> Iterator[tuple[str, str]]:
    """What stands at a path in each of several messages beside each other."""
    first = values[0]
    if len(values) == 1 and isinstance(first, tuple | list) and first and isinstance(first[0], Struct):
        values = [*first]
        first = values[0]
    if isinstance(first, Struct) and not _is_setting(first) and all(type(each) is type(first) for each in values):
        names = dict.fromkeys(name for each in values for name, _ in _said(each))
        if path and not names:
            yield path, type(first).__name__
        for name in names:
            yield from _columns(f"{path}.{name}".lstrip("."), [_value(each, name) for each in values])
    elif len(values) == 1:
        yield path, told(first)
    elif len(values) > FEW and all(isinstance(each, float) for each in values):
        yield path, _array(np.array(values))
    else:
        words = [*map(told, values)]
        if len(set(words)) == 1:
            words = [f"{words[0]} ×{len(words)}"]
        elif len(words) > FEW + 1:
            words[FEW:-1] = [f"… {len(words)} …"]
        yield path, " / ".join(words)


def _is_setting(value: Struct) -> bool:
    """Whether it says what was asked for, or of what model, which is told whole and not field by field."""
    return type(value).__module__.startswith("engine.spec") or type(value).__name__.endswith(("Request", "ModelInfo"))


def _value(message: Struct, name: str) -> Any:
    """What a message says in a field; of a histogram's counts their sum, for a number may stand on an edge."""
    value = getattr(message, name)
    return int(np.sum(value)) if name == "counts" else value


def _said(message: Struct) -> Iterator[tuple[str, Any]]:
    """The fields of a message that say something, and what it computes of them."""
    for field in fields_of(type(message)):
        value = _value(message, field.name)
        if not _is_left_out(field, value):
            yield field.name, value
    for name in _computed(type(message)):
        if not isinstance(value := getattr(message, name), Struct):
            yield name, value


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


def _is_left_out(field: FieldInfo, value: Any) -> bool:
    is_of_file = field.name == "num_bytes" and type(value) is int  # versions of libraries are in it
    default = field.default if field.default is not NODEFAULT else None
    if default is None and field.default_factory is not NODEFAULT:
        default = field.default_factory()
    is_default = type(value) is type(default) and not isinstance(value, np.ndarray) and bool(value == default)
    return is_of_file or is_default or field.name in OF_THE_MACHINE or field.name.endswith("_ms")


def number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    found = f"{value:.3g}"
    return found if "." in found else f"{value:.2e}" if "e" in found else f"{found}.0"


def _array(array: np.ndarray) -> str:
    shape = "×".join(map(str, array.shape))
    if array.dtype.kind != "f":
        flat = array.reshape(-1).astype(np.int64)
        body = flat.tolist() if len(flat) <= 9 else f"Σ {flat.sum()} {(flat * np.arange(1, len(flat) + 1)).sum()}"
        return f"{shape} {body}"
    flat = array.reshape(-1).astype(np.float64)
    if len(flat) <= FEW:
        return f"{shape} [{', '.join(map(number, flat.tolist()))}]"
    known = flat[np.isfinite(flat)]
    if not len(known):
        return f"{shape} none finite"
    sizes = np.abs(known)
    sums = (
        sizes.mean(),
        (sizes * np.linspace(0, 1, len(known))).mean(),
        *([known.mean()] if known.min() < -ABSOLUTE else []),
    )
    lost = f" {len(flat) - len(known)} not finite" if len(known) < len(flat) else ""
    return f"{shape} ~ {' '.join(map(number, map(float, sums)))}{lost}"


# ---- compared with a file ----------------------------------------------------------------------------------------


def approve(path: Path, lines: Sequence[str], *, whole: bool = False) -> None:
    """Compare with what was approved. Of a long line its first words stand in the file, and a digest of all of them;
    whole: every line as it is."""
    now = [*lines] if whole else [*map(shortened, lines)]
    approved = path.read_text("utf-8").splitlines() if path.exists() else []
    if len(approved) == len(now):
        now = [one if are_alike(one, other) else other for one, other in zip(approved, now, strict=True)]
    if os.environ.get("KVLOUPE_APPROVE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(approved := now) + "\n", "utf-8")
    if changes := [*unified_diff(approved, now, "approved", "now", n=2)]:
        raise AssertionError(
            "if that is meant: KVLOUPE_APPROVE=1, and read the difference in git\n" + "\n".join(changes[:80])
        )


def approve_story(path: Path, entries: Sequence[Entry]) -> None:
    """Compare a story of messages with what was approved: in which order they came, then what all of a kind say."""
    approve(path, [*order_of(entries), "", *said_by_kind(entries)])


def order_of(entries: Iterable[Entry]) -> Iterator[str]:
    """The kinds of the messages that follow each command, a line a command, or for some that are answered alike."""
    lines = []
    for command, followed in _by_command(entries):
        kinds = ("journal" if kind.startswith("  journal") else kind.strip() for kind in followed)
        lines.append(f"{command}: {', '.join(_counted(kinds))}".removesuffix(": "))
    return _counted(lines)


def _counted(words: Iterable[str]) -> Iterator[str]:
    runs = ((word, len([*same])) for word, same in groupby(words))
    return (f"{word} ×{count}" if count > 1 else word for word, count in runs)


def _by_command(entries: Iterable[Entry]) -> Iterator[tuple[str, list[str]]]:
    """Each command with the kinds of what follows it."""
    found: list[tuple[str, list[str]]] = []
    for kind, _ in entries:
        if not found or kind.startswith(">"):
            found.append((kind, []))
        else:
            found[-1][1].append(kind)
    return iter(found)


def said_by_kind(entries: Sequence[Entry]) -> Iterator[str]:
    """What the messages of each kind say in each field: its only value, or the first, the last and a digest."""
    fields: dict[str, dict[str, list[str]]] = {}
    counts = Counter(kind for kind, _ in entries)
    for kind, parts in entries:
        for name, words in parts.items():
            if name.endswith("request"):  # what was asked, which the command says
                continue
            fields.setdefault(kind, {}).setdefault(name, []).append(words)
    fields.pop("EngineStatus", None)  # it says again what the records, the models and the modes say
    for kind, named in fields.items():
        yield f"{kind.strip()} ×{counts[kind]}"
        for name, values in named.items():
            times = f" ({len(values)} times)" if len(values) < counts[kind] else ""
            if all(are_alike(values[0], each) for each in values):
                yield f"  {name}{times}: {shortened(values[0])}"
            else:
                few = " … ".join(_first_words(each, FEW) for each in (values[0], values[-1]))
                yield f"  {name}{times}: {few} {digest(chr(10).join(values))}"


def shortened(line: str) -> str:
    """A line, or its first words and a digest."""
    return line if len(line.split(" ")) <= MOST_WORDS else f"{_first_words(line, FEW_WORDS)} {digest(line)}"


def _first_words(text: str, count: int) -> str:
    words = text.split(" ")
    return text if len(words) <= count else " ".join(words[:count]) + " …"


def digest(text: str) -> str:
    """A checksum of the words and whole numbers of a text, and the mean size of its other numbers."""
    numbers = [abs(float(each)) for each in _NUMBER.findall(text)]
    mean = f" ~ {number(sum(numbers) / len(numbers))} of {len(numbers)}" if numbers else ""
    return f"#{crc32(_NUMBER.sub('#', text).encode()):08x}{mean}"


def are_alike(one: str, other: str) -> bool:
    """The same words, and the same numbers but for rounding."""
    if one == other:
        return True
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=RELATIVE, abs_tol=ABSOLUTE) for a, b in pairs)
