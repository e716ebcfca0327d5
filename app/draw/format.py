"""Numbers and token texts for people. A model's text is untrusted: no character of it may stay invisible or act."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from engine.counted import significant

SPACE = "·"
NEWLINE = "⏎"
TAB = "⇥"
_DOTTED_CIRCLE = "◌"
_MARKS = {" ": SPACE, "\n": NEWLINE, "\t": TAB, "\\": "\\\\"}
# Characters that stand for others above and could also occur in a text, and letters that fonts draw as nothing
_ESCAPED = frozenset(f"{SPACE}{NEWLINE}{TAB}{_DOTTED_CIRCLE}\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\u034f")
_UNSEEN_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"))
_MARK_CATEGORIES = frozenset(("Mn", "Me", "Mc"))
_MAX_STACKED_MARKS = 2


@lru_cache(maxsize=65536)
def visible(text: str) -> str:
    """A token's text with control characters, bidi and zero-width marks and lone surrogates as escapes.

    Different texts stay different, and the result is safe in any widget that shows plain text.
    """
    shown: list[str] = []
    stacked = 0
    for index, char in enumerate(text):
        is_mark = unicodedata.category(char) in _MARK_CATEGORIES
        stacked = stacked + 1 if is_mark else 0
        if is_mark and index == 0 and not _is_variation(char):
            shown.append(_DOTTED_CIRCLE)  # without it, a combining mark would be drawn over whatever precedes it
        shown.append(escape(char) if stacked > _MAX_STACKED_MARKS else _visible_char(char))
    return "".join(shown)


def escape(char: str) -> str:
    """One character as Python writes it in a string: `\\x00`, `\\u202e`, `\\U000e0001`."""
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str, max_chars: int) -> str:
    """The first `max_chars` characters of a text, with an ellipsis if it was longer."""
    return text if len(text) <= max_chars else text[: max(1, max_chars - 1)] + "…"


def whole_words(text: str, room: float, width: Callable[[str], float]) -> str:
    """As much of a line as fits without cutting a word. Left out, in this order: parts between dots from the end, what
    follows a colon, and words of the first part, which then ends in an ellipsis. The empty text if fewer than two words
    fit."""
    if width(text) <= room:
        return text
    parts = text.split(" · ")
    for count in range(len(parts) - 1, 0, -1):
        if width(shown := " · ".join(parts[:count])) <= room:
            return shown
    head = parts[0]
    while " " in (head := head.rpartition(": ")[0]):
        if width(head) <= room:
            return head
    words = parts[0].split(" ")
    for count in range(len(words) - 1, 1, -1):
        if width(shown := f"{' '.join(words[:count])} …") <= room:
            return shown
    return ""


def token_label(text: str, max_chars: int = 12) -> str:
    """A token's text for an axis or a list; ∅ for an empty text."""
    # cut first: a token may be a million characters long
    return _label(text[: 2 * max_chars], max_chars) if text else "∅"


@lru_cache(maxsize=4096)
def _label(text: str, max_chars: int) -> str:
    """Cached, as the same tokens are named with every picture."""
    return shortened(visible(text), max_chars)


def thousands(number: int) -> str:
    return f"{number:,}"


def byte_size(number: int) -> str:
    """`512 B`, `120.0 KiB`, `3.1 MiB`; negative sizes have a sign."""
    if abs(number) < 1024:
        return f"{number} B"
    size = float(number)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if abs(size) < 1024:
            return f"{decimal(size, 1)} {unit}"
    return f"{decimal(size / 1024, 1)} TiB"


def tick_size(number: int) -> str:
    """A size for an axis, without a zero after the point: `120 KiB`."""
    return byte_size(number).replace(".0 ", " ")


def probable(prob: float) -> float:
    """A probability as the length of a bar, 0 … 1: rounding may have put it beyond."""
    return min(max(prob, 0.0), 1.0) if prob == prob else 0.0


def decimal(number: float, digits: int = 2, *, is_signed: bool = False) -> str:
    """A number with `digits` digits after the point and commas between thousands. What rounds to zero has no minus
    sign."""
    if not math.isfinite(number):
        return exact(number)
    return f"{number:+z,.{digits}f}" if is_signed else f"{number:z,.{digits}f}"


def milliseconds(ms: float) -> str:
    """A time with at most three digits: `0.84 ms`, `12.3 ms`, `140 ms`, `2.10 s`; from 1000 s on with all."""
    if not math.isfinite(ms):
        return "–"
    time, unit = _in_unit(ms)
    return f"{decimal(time, 2 if abs(time) < 9.995 else 1 if abs(time) < 99.95 else 0)} {unit}"


def tick_time(ms: float) -> str:
    """A time on an axis: `20 ms`, `2.5 s`."""
    time, unit = _in_unit(ms)
    return f"{tick_number(time)} {unit}"


def _in_unit(ms: float) -> tuple[float, str]:
    return (ms / 1000, "s") if abs(ms) >= 999.5 else (ms, "ms")


def percent(share: float) -> str:
    """`41.3 %`; `<0.1 %` for small but not zero, `>99.9 %` for almost but not all."""
    if not math.isfinite(share):
        return "–"
    if 0 < share < 0.0005:
        return "<0.1 %"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    return f"{decimal(100 * share, 1)} %"


def exact(value: float) -> str:
    """The shortest text that reads back to the same 32-bit float: the value in the cache, not a rounded one."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(np.float32(value))


def cell_number(value: float, width: float) -> str:
    """A value for a cell of `width` pixels, with the same number of decimals in every cell, so that they compare
    easily."""
    if not math.isfinite(value):
        return exact(value)
    decimals = 2 if width >= 36 else 1
    return f"{value:z.{decimals}f}" if abs(value) < 99.9 else f"{value:z.0f}" if abs(value) < 9999 else f"{value:.0e}"


def times(ratio: float) -> str:
    """`4.1×`, `37×`; `over 100×` for a ratio whose digits say nothing more."""
    return "over 100×" if ratio > 100 else f"{decimal(ratio, 1 if ratio < 9.95 else 0)}×"


def brief_times(ratio: float) -> str:
    """The same in at most four characters: `4.1×`, `37×`, `>99×`."""
    return ">99×" if ratio >= 99.5 else times(ratio)


def brief(value: float, digits: int = 3) -> str:
    """A measured value with `digits` significant digits, zeros at the end as well, so that one that changes does not
    seem more or less exact: `0.100`, `2.50`."""
    return significant(value, digits) if math.isfinite(value) else exact(value)


def tick_number(value: float) -> str:
    """A place on an axis, which nobody measured: `5`, `0.25`, without zeros at the end."""
    return f"{value:z,.6g}"


def _visible_char(char: str) -> str:
    mark = _MARKS.get(char)
    if mark is not None:
        return mark
    if char.isascii() and char.isprintable():
        return char
    if char in _ESCAPED or _is_variation(char) or unicodedata.category(char) in _UNSEEN_CATEGORIES:
        return escape(char)
    return char


def _is_variation(char: str) -> bool:
    code = ord(char)
    return 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF or 0x180B <= code <= 0x180F


def short_dtype(name: str) -> str:
    """`bf16` for `bfloat16`; other names stay as they are."""
    return {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}.get(name, name)


def token_text(text: str) -> str:
    """A token's text with what is not seen made visible, `∅` if it has none."""
    return visible(text) or "∅"


def divergence_words(kl: float) -> str:
    """A divergence in nats; a small one is never shown as zero, and NaN is named."""
    if not math.isfinite(kl):
        return "NaN: no distribution" if math.isnan(kl) else "∞ nats"
    if kl == 0:
        return "0 nats"
    if kl < 1e-6:
        return "<1e-6 nats"
    return f"{brief(kl)} nats"


def bytes_words(before: int, after: int) -> str:
    """`1.2 MiB → 320.0 KiB`."""
    return f"{byte_size(before)} → {byte_size(after)}"


def byte_share(before: int, after: int) -> str:
    """What is left of the bytes, as a percentage."""
    return percent(after / before) if before else "–"


def age_words(seconds: float) -> str:
    """A time in its largest unit, from milliseconds to days; a dash for none."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    if not seconds:
        return "–"
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.0f} ms"
