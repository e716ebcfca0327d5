"""Edits as people type them: `zero pos=4:8 layer=3 head=1`. All surfaces share this parser. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable

from engine.errors import InputError
from engine.spec.edit import (
    REPLACEMENT_LABELS,
    AddNoise,
    BiasLogits,
    Drop,
    Edit,
    Mask,
    Overwrite,
    Pin,
    ReplaceTokens,
    Rows,
    Scale,
    Zero,
    runs_of,
)

MOST = 1 << 16


def parse_numbers(text: str, what: str) -> tuple[int, ...] | None:
    """The numbers in a text, ascending and without duplicates; None for the empty text and for `all`. `what` names in
    the plural what is numbered, for the message. Raises `InputError`."""
    if text.strip().lower() in ("", "all"):
        return None
    found: set[int] = set()
    for part in text.split(","):
        ends = [end.strip() for end in part.replace("–", "-").split("-")]
        if not all(end.isascii() and end.isdecimal() and len(end) < 6 for end in ends) or len(ends) > 2:
            raise InputError(f"'{part.strip()[:20]}' names no {what}: write numbers like 0-3, 7, or all.")
        first, last = int(ends[0]), int(ends[-1])
        if not first <= last < MOST:
            raise InputError(f"'{part.strip()[:20]}' names no {what}: write the smaller number first, as in 0-3.")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


ROWS_WORDS = "pos=4:8 [layer=0-3,7] [head=1] [channel=0-15] [part=keys|values]"
FORMS: dict[str, str] = {
    "zero": ROWS_WORDS,
    "scale": f"by=2 {ROWS_WORDS}",
    "noise": f"ratio=0.1 [seed=0] {ROWS_WORDS}",
    "overwrite": f"step=5 | seq=1 | file=PATH [shift=2] {ROWS_WORDS}",
    "mask": "pos=4:8 [layer=…] [head=…]",
    "unmask": "pos=4:8 [layer=…] [head=…]",
    "pin": "pos=4:8 [layer=…] [head=…]",
    "unpin": "pos=4:8 [layer=…] [head=…]",
    "drop": "pos=4:8 [layer=…] [head=…]",
    "replace": "pos=4:6 tokens=17,18 [how=overwrite|re-prefill]",
    "bias": "[add=17:+2.5,18:-1] [ban=19] [only=20,21]",
}
EXAMPLE = "zero pos=4:8 layer=3 head=1"


def parse_edit(text: str, seq_id: int, num_tokens: int) -> Edit:
    """Parse an edit of a sequence of `num_tokens` tokens. `pos=4:` means all positions from 4 on, and negative
    positions count from the end. Raises `InputError`."""
    verb, _, rest = text.strip().partition(" ")
    if verb not in FORMS:
        raise InputError(f"'{verb[:20]}' is no edit: begin with {', '.join(FORMS)}, as in '{EXAMPLE}'.")
    return _BUILDERS[verb](_Words(verb, rest, num_tokens), seq_id)


def edit_text(edit: Edit) -> str:
    """The text that `parse_edit` reads back as this edit."""
    match edit:
        case Zero(_, rows):
            return f"zero {_rows_text(rows)}"
        case Scale(_, rows, factor):
            return f"scale by={factor!r} {_rows_text(rows)}"
        case AddNoise(_, rows, ratio, seed):
            return f"noise ratio={ratio!r} seed={seed} {_rows_text(rows)}"
        case Overwrite(_, rows, step, source, file, shift):
            given = {"step": step, "seq": source, "file": None if file is None else f'"{file}"', "shift": shift or None}
            words = " ".join(f"{name}={value}" for name, value in given.items() if value is not None)
            return f"overwrite {words} {_rows_text(rows)}"
        case Mask(_, rows, hidden):
            return f"{'mask' if hidden else 'unmask'} {_rows_text(rows)}"
        case Pin(_, rows, pinned):
            return f"{'pin' if pinned else 'unpin'} {_rows_text(rows)}"
        case Drop(_, rows):
            return f"drop {_rows_text(rows)}"
        case ReplaceTokens(_, position, token_ids, how):
            return f"replace pos={position}:{edit.stop} tokens={_list(token_ids)} how={how}"
        case BiasLogits(_, biases, banned, only):
            added = ",".join(f"{token_id}:{bias!r}" for token_id, bias in biases)
            given = {"add": added, "ban": _list(banned), "only": _list(only)}
            return " ".join(("bias", *(f"{name}={value}" for name, value in given.items() if value)))


def _rows_text(rows: Rows) -> str:
    chosen = {"layer": rows.layers, "head": rows.kv_heads, "channel": rows.channels}
    words = [f"pos={rows.start}:{rows.stop}"]
    words += [f"{name}={runs_of(numbers).replace(' ', '')}" for name, numbers in chosen.items() if numbers is not None]
    return " ".join(words + ([] if rows.part == "both" else [f"part={rows.part}"]))


def _list(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


class _Words:
    """The `name=value` words behind the verb of an edit. Each is removed when it is read."""

    def __init__(self, verb: str, rest: str, num_tokens: int) -> None:
        self._form = f"{verb} {FORMS[verb]}"
        self._num_tokens = num_tokens
        self._values: dict[str, str] = {}
        # Edits of whole rows accept channels and a part here, so that their own check can refuse them with the reason.
        known = re.findall(r"(\w+)=", FORMS[verb] + ROWS_WORDS * ("pos=4:8" in FORMS[verb]))
        for word in re.findall(r'\S*"[^"]*"|\S+', rest):
            name, is_given, value = word.partition("=")
            if not is_given or name in self._values:
                raise InputError(f"'{word[:40]}' cannot be read here: write {self._form}.")
            if name not in known:
                raise InputError(f"'{name[:20]}' does not belong to this edit: write {self._form}.")
            self._values[name] = value.strip('"')

    def text(self, name: str) -> str | None:
        """Remove and return the value of a word; None if it was not typed."""
        return self._values.pop(name, None)

    def number(self, name: str) -> float:
        """Read a number; raises `InputError` if it is missing or none."""
        text = self.text(name)
        if text is None:
            raise InputError(f"'{name}=' is missing: write {self._form}.")
        try:
            return float(text)
        except ValueError:
            raise InputError(f"'{name}={text}' is no number: write {self._form}.") from None

    def whole(self, name: str) -> int | None:
        """Read a whole number; None if it was not typed."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise InputError(f"'{name}={text[:20]}' is no whole number: write {self._form}.")
        return int(text)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Read token ids separated by commas; empty if none were typed."""
        text = self.text(name)
        if not text:
            return ()
        if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in text.split(",")):
            raise InputError(f"'{name}={text[:20]}' names no token ids: write them like 17,18.")
        return tuple(map(int, text.split(",")))

    def span(self) -> tuple[int, int]:
        """Read `pos=`: one position, or a range whose end is excluded. Returns start and stop."""
        text = self.text("pos") or ""
        found = re.fullmatch(r"(-?[0-9]{1,9})?(:(-?[0-9]{1,9})?)?", text)
        if not text or found is None or (found[1] is None and found[2] is None):
            raise InputError(f"'pos={text[:20]}' names no positions: write pos=4 or pos=4:8.")
        start = self._place(found[1], 0)
        return start, (start + 1 if found[2] is None else self._place(found[3], self._num_tokens))

    def _place(self, text: str | None, default: int) -> int:
        if text is None:
            return default
        return int(text) + (self._num_tokens if int(text) < 0 else 0)

    def rows(self) -> Rows:
        """Read positions, layers, heads, channels and part."""
        start, stop = self.span()
        named = {name: self.text(name) for name in ("layer", "head", "channel")}
        layers, heads, channels = (
            None if text is None else parse_numbers(text, f"{name}s") for name, text in named.items()
        )
        match self.text("part"):
            case None | "both":
                return Rows(start, stop, layers, heads, channels)
            case "keys" | "k" | "K":
                return Rows(start, stop, layers, heads, channels, "keys")
            case "values" | "v" | "V":
                return Rows(start, stop, layers, heads, channels, "values")
            case other:
                raise InputError(f"'part={other[:20]}' is neither keys nor values: write {self._form}.")


def _overwrite(words: _Words, seq_id: int) -> Edit:
    file, step, source, shift = words.text("file"), words.whole("step"), words.whole("seq"), words.whole("shift")
    return Overwrite(seq_id, words.rows(), step, source, file or None, shift or 0)


def _replace(words: _Words, seq_id: int) -> Edit:
    (start, stop), token_ids, how = words.span(), words.token_ids("tokens"), words.text("how") or "overwrite"
    if how not in REPLACEMENT_LABELS:
        raise InputError(f"'how={how[:20]}' is neither overwrite nor re-prefill: choose one.")
    return ReplaceTokens(seq_id, start, token_ids, how, stop - start)


def _bias(words: _Words, seq_id: int) -> Edit:
    biases: list[tuple[int, float]] = []
    for part in (words.text("add") or "").split(","):
        found = re.fullmatch(r"([0-9]{1,9}):([+-]?[0-9.]+(?:e[+-]?[0-9]+)?)", part)
        if part and found is None:
            raise InputError(f"'add={part[:20]}' names no bias: write a token id and what is added, like 17:+2.5.")
        if found:
            biases.append((int(found[1]), _float(found[2])))
    return BiasLogits(seq_id, tuple(biases), words.token_ids("ban"), words.token_ids("only"))


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"'{text[:20]}' is no number: write one like 2.5.") from None


def _seed(words: _Words) -> int:
    return words.whole("seed") or 0


_BUILDERS: dict[str, Callable[[_Words, int], Edit]] = {
    "zero": lambda words, seq_id: Zero(seq_id, words.rows()),
    "scale": lambda words, seq_id: Scale(seq_id, words.rows(), words.number("by")),
    "noise": lambda words, seq_id: AddNoise(seq_id, words.rows(), words.number("ratio"), _seed(words)),
    "overwrite": _overwrite,
    "mask": lambda words, seq_id: Mask(seq_id, words.rows()),
    "unmask": lambda words, seq_id: Mask(seq_id, words.rows(), hidden=False),
    "pin": lambda words, seq_id: Pin(seq_id, words.rows()),
    "unpin": lambda words, seq_id: Pin(seq_id, words.rows(), pinned=False),
    "drop": lambda words, seq_id: Drop(seq_id, words.rows()),
    "replace": _replace,
    "bias": _bias,
}
