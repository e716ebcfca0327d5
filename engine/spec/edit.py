"""Edits by hand: of rows of the cache, of the rows that attention sees, and of the logits before sampling; and how
people type them on every surface: `zero pos=4:8 layer=3 head=1`.

An edit is frozen and holds all that is needed to repeat it: applied to the same state in another run it has the same
effect. `start … stop` are positions of a sequence and heads are kv heads; None means all of them. No torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from msgspec import Struct

from engine.counted import counted
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.spec.codec import PARTS, Part

EditedPart = Literal["keys", "values", "both"]
PART_LABELS: dict[EditedPart, str] = {"keys": "K", "values": "V", "both": "K and V"}
Replacement = Literal["overwrite", "re-prefill"]
REPLACEMENT_LABELS: dict[Replacement, str] = {
    "overwrite": "overwrite their K and V alone",
    "re-prefill": "compute what follows anew",
}
MAX_BIAS = 1e4


def none_of(start: int, stop: int) -> str:
    """`is no position 4`, `are no positions 4 … 9`."""
    return f"are no positions {start} … {stop - 1}" if stop - start != 1 else f"is no position {start}"


class Rows(Struct, frozen=True, array_like=True, gc=False):
    """The numbers that an edit changes: those at positions `start … stop - 1` in the given layers, kv heads and
    channels, of K, of V or of both."""

    start: int
    stop: int
    layers: tuple[int, ...] | None = None
    kv_heads: tuple[int, ...] | None = None
    channels: tuple[int, ...] | None = None
    part: EditedPart = "both"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The edited tensors by name: keys, values or both."""
        return PARTS if self.part == "both" else (self.part,)

    def describe(self) -> str:
        """`positions 4 … 7 · layer 3 · kv head 1 · K`: the positions, and whatever is restricted to less than all."""
        words = [
            f"position {self.start}" if self.stop == self.start + 1 else f"positions {self.start} … {self.stop - 1}"
        ]
        for what, chosen in (("layer", self.layers), ("kv head", self.kv_heads), ("channel", self.channels)):
            if chosen is not None:
                words.append(f"{what}{'s' if len(chosen) != 1 else ''} {runs_of(chosen)}")
        if self.part != "both":
            words.append(PART_LABELS[self.part])
        return " · ".join(words)

    def layers_of(self, geometry: CacheGeometry) -> tuple[LayerGeometry, ...]:
        """The layers that are named, or, if none are, all layers that keep rows."""
        layers = geometry.attention_layers
        return layers if self.layers is None else tuple(layer for layer in layers if layer.index in self.layers)

    def check(self, geometry: CacheGeometry, num_tokens: int) -> None:
        """Raise `InputError` if positions, layers, heads or channels do not exist in a sequence of `num_tokens`
        tokens."""
        if not 0 <= self.start < self.stop <= num_tokens:
            last = (
                f"this sequence has positions 0 … {num_tokens - 1}" if num_tokens else "this sequence has no rows yet"
            )
            raise InputError(f"There {none_of(self.start, self.stop)} to edit: {last}.")
        self.check_model(geometry)

    def check_model(self, geometry: CacheGeometry) -> None:
        """Raise `InputError` if the model does not have these layers, heads or channels."""
        with_rows = {layer.index for layer in geometry.attention_layers}
        if not with_rows:
            raise InputError("This model keeps no K and V, so there are no rows to edit.")
        _check_chosen("layer", self.layers, len(geometry.layers))
        for index in self.layers or ():
            if index not in with_rows:
                kind = geometry.layers[index].kind
                raise InputError(f"Layer {index} is {kind} and keeps no K and V of its own: choose another layer.")
        for layer in self.layers_of(geometry):
            _check_chosen("kv head", self.kv_heads, layer.num_kv_heads, f" in layer {layer.index}")
            dims = {"keys": layer.key_dim, "values": layer.value_dim}
            _check_chosen("channel", self.channels, min(dims[part] for part in self.parts), f" in layer {layer.index}")

    def check_whole(self, what: str) -> None:
        """Raise `InputError` unless whole rows are named: all channels, K and V. `what` is the participle in the
        message."""
        if self.channels is not None or self.part != "both":
            raise InputError(f"A row is {what} as a whole: leave channels and K or V out, or zero those instead.")


class _Edit(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all edits: the sequence that is edited. `label` is the name of the edit in lists."""

    label: ClassVar[str] = ""

    seq_id: int

    def describe(self) -> str:
        """What the edit does, in a few words."""
        raise NotImplementedError

    def check(self, geometry: CacheGeometry, num_tokens: int) -> None:
        """Raise `InputError` if the edit cannot be applied to a sequence of `num_tokens` tokens."""
        self.check_model(geometry)

    def check_model(self, geometry: CacheGeometry) -> None:
        """Raise `InputError` if the edit can be applied to no sequence of this model."""
        raise NotImplementedError


class _RowsEdit(_Edit, frozen=True):
    """Base of the edits of rows."""

    rows: Rows

    def describe(self) -> str:
        return f"{self.label.lower()} {self.rows.describe()}"

    def check(self, geometry: CacheGeometry, num_tokens: int) -> None:
        self.check_parameters(num_tokens)
        self.rows.check(geometry, num_tokens)

    def check_model(self, geometry: CacheGeometry) -> None:
        self.rows.check_model(geometry)

    def check_parameters(self, num_tokens: int) -> None:
        """Raise `InputError` if the parameters other than `rows` are impossible."""


class Zero(_RowsEdit, frozen=True):
    """Overwrite numbers of K and V with zeros."""

    label: ClassVar[str] = "Zero"


class Scale(_RowsEdit, frozen=True):
    """Multiply numbers of K and V by a factor."""

    label: ClassVar[str] = "Scale"

    factor: float

    def describe(self) -> str:
        return f"scale by {self.factor:g} {self.rows.describe()}"

    def check_parameters(self, num_tokens: int) -> None:
        if not math.isfinite(self.factor):
            raise InputError("A row cannot be scaled by what is no number: give a finite factor.")


class AddNoise(_RowsEdit, frozen=True):
    """Add Gaussian noise whose standard deviation is `ratio` times that of the edited numbers, drawn with `seed`."""

    label: ClassVar[str] = "Add noise"

    ratio: float
    seed: int = 0

    def describe(self) -> str:
        return f"add noise of {self.ratio:g} standard deviations (seed {self.seed}) {self.rows.describe()}"

    def check_parameters(self, num_tokens: int) -> None:
        if not (math.isfinite(self.ratio) and self.ratio > 0):
            raise InputError(f"Noise of {self.ratio:g} standard deviations is none: give a ratio above 0.")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"Seed {self.seed} is outside 0 … 2^63 - 1.")


class Overwrite(_RowsEdit, frozen=True):
    """Replace rows by those of another state at the same positions plus `shift`.

    The source is a step of any branch (of the sequence `from_seq_id`; None: the edited one) or a snapshot file.
    Published as activation patching.
    """

    label: ClassVar[str] = "Overwrite"

    from_step: int | None = None
    from_seq_id: int | None = None
    from_file: str | None = None
    shift: int = 0

    def describe(self) -> str:
        source = f"file {Path(self.from_file).name}" if self.from_file is not None else ""
        if not source:
            step = "" if self.from_step is None else f"step {self.from_step}"
            sequence = "" if self.from_seq_id is None else f"sequence {self.from_seq_id}"
            source = ", ".join(filter(None, (sequence, step)))
        shift = f" (moved by {self.shift:+})" if self.shift else ""
        return f"overwrite {self.rows.describe()} from {source}{shift}"

    def check_parameters(self, num_tokens: int) -> None:
        if self.from_file is not None and (self.from_step, self.from_seq_id) != (None, None):
            raise InputError("Rows come from a snapshot file or from another step: give one of them.")
        if self.from_file is None and self.from_step is None and self.from_seq_id is None and not self.shift:
            raise InputError("Rows cannot be overwritten by themselves: name a step, a sequence, a file or a shift.")
        if self.rows.start + self.shift < 0:
            raise InputError(f"A shift of {self.shift} begins before position 0: give at least {-self.rows.start}.")


class Mask(_RowsEdit, frozen=True):
    """Hide rows from attention without removing them from the cache (`hidden` False: show them again)."""

    label: ClassVar[str] = "Mask"

    hidden: bool = True

    def describe(self) -> str:
        return f"{'mask' if self.hidden else 'unmask'} {self.rows.describe()}"

    def check_parameters(self, num_tokens: int) -> None:
        self.rows.check_whole("hidden")
        if self.hidden and self.rows.stop >= num_tokens > self.rows.start >= 0:
            raise InputError("The newest token reads its own row, which stays visible: hide it after the next step.")


class Pin(_RowsEdit, frozen=True):
    """Protect rows from being dropped by the retention rule (`pinned` False: end the protection)."""

    label: ClassVar[str] = "Pin"

    pinned: bool = True

    def describe(self) -> str:
        return f"{'pin' if self.pinned else 'unpin'} {self.rows.describe()}"

    def check_parameters(self, num_tokens: int) -> None:
        self.rows.check_whole("pinned")


class Drop(_RowsEdit, frozen=True):
    """Drop rows as a retention rule does. Only undo brings them back."""

    label: ClassVar[str] = "Drop"

    def check_parameters(self, num_tokens: int) -> None:
        self.rows.check_whole("dropped")
        if self.rows.stop >= num_tokens:
            raise InputError("The newest row is what the next token follows on, so it stays: drop older ones.")


class ReplaceTokens(_Edit, frozen=True):
    """Put other tokens at `position` in place of `num_replaced` tokens (None: as many as are given).

    With `overwrite`, only K and V of the new tokens are computed and written, and there must be as many as they
    replace. With `re-prefill`, all tokens after them are computed again as well.
    """

    label: ClassVar[str] = "Replace tokens"

    position: int
    token_ids: tuple[int, ...]
    how: Replacement = "overwrite"
    num_replaced: int | None = None

    @property
    def stop(self) -> int:
        """The position behind the last replaced one."""
        return self.position + (len(self.token_ids) if self.num_replaced is None else self.num_replaced)

    def describe(self) -> str:
        count, replaced = len(self.token_ids), self.stop - self.position
        what = f"{count} token{'s' if count != 1 else ''}" + (f" for {replaced}" if replaced != count else "")
        return f"replace {what} at position {self.position}, {REPLACEMENT_LABELS[self.how]}"

    def check_model(self, geometry: CacheGeometry) -> None:
        _check_tokens(self.token_ids, geometry)

    def check(self, geometry: CacheGeometry, num_tokens: int) -> None:
        self.check_model(geometry)
        if not (0 <= self.position < num_tokens and self.position <= self.stop <= num_tokens):
            raise InputError(
                f"There {none_of(self.position, self.stop)} to replace: this sequence has "
                f"{counted(num_tokens, 'token')} in its cache."
            )
        if self.how == "overwrite" and (not self.token_ids or self.stop - self.position != len(self.token_ids)):
            raise InputError("As many tokens are overwritten as are given: re-prefill to put in more or fewer.")
        if num_tokens + len(self.token_ids) - (self.stop - self.position) < 1:
            raise InputError("A sequence needs a token: replace fewer.")


class BiasLogits(_Edit, frozen=True):
    """From now on add `biases` to the logits before a token is chosen, never choose a token in `banned` and, if `only`
    names any, none but these. Replaces an earlier bias of the sequence; an empty one ends it."""

    label: ClassVar[str] = "Bias logits"

    biases: tuple[tuple[int, float], ...] = ()
    banned: tuple[int, ...] = ()
    only: tuple[int, ...] = ()

    def describe(self) -> str:
        words = [f"{bias:+g} on token {token_id}" for token_id, bias in self.biases[:3]]
        words += [f"{len(self.biases) - 3} more"] if len(self.biases) > 3 else []
        words += [f"ban {runs_of(self.banned)}"] if self.banned else []
        words += [f"only {runs_of(self.only)}"] if self.only else []
        return f"bias logits: {', '.join(words)}" if words else "end the bias of logits"

    def check_model(self, geometry: CacheGeometry) -> None:
        biased = [token_id for token_id, _ in self.biases]
        _check_tokens((*biased, *self.banned, *self.only), geometry)
        if len(set(biased)) != len(biased):
            raise InputError("A token is biased twice: give each token one bias.")
        for token_id, bias in self.biases:
            if not abs(bias) <= MAX_BIAS:  # true for NaN as well
                raise InputError(
                    f"A bias of {bias:g} on token {token_id} is outside ±{MAX_BIAS:g}: ban it, or force it."
                )
        left = set(self.only or range(geometry.vocab_size or 0)) - set(self.banned)
        if not left and (self.only or geometry.vocab_size):
            raise InputError("Every token is banned, so none can be chosen: leave at least one.")


Edit = Zero | Scale | AddNoise | Overwrite | Mask | Pin | Drop | ReplaceTokens | BiasLogits
EDITS: tuple[type[Edit], ...] = (Zero, Scale, AddNoise, Overwrite, Mask, Pin, Drop, ReplaceTokens, BiasLogits)


def runs_of(numbers: Iterable[int]) -> str:
    """Numbers as ranges, `0-3, 7`, which `parse_numbers` reads back."""
    words: list[str] = []
    first = last = None
    for number in [*sorted(set(numbers)), None]:
        if last is not None and number == last + 1:
            last = number
            continue
        if first is not None:
            words.append(str(first) if first == last else f"{first}-{last}")
        first = last = number
    return ", ".join(words)


def _check_chosen(what: str, chosen: tuple[int, ...] | None, count: int, where: str = "") -> None:
    if chosen == ():
        raise InputError(f"No {what} is chosen: name at least one, or leave it out for all.")
    for number in chosen or ():
        if not 0 <= number < count:
            raise InputError(f"There is no {what} {number}{where}: there are 0 … {count - 1}.")


def _check_tokens(token_ids: Iterable[int], geometry: CacheGeometry) -> None:
    vocab = geometry.vocab_size
    for token_id in token_ids:
        if token_id < 0 or (vocab is not None and token_id >= vocab):
            last = f": use 0 … {vocab - 1}" if vocab else ""
            raise InputError(f"Token id {token_id} is outside the vocabulary{f' of {vocab:,}' if vocab else ''}{last}.")


# ---- as people type them ---------------------------------------------------------------------------------------------

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
_MARKED_WORDS = "pos=4:8 [layer=…] [head=…]"
EXAMPLE = "zero pos=4:8 layer=3 head=1"


class RowsVerb(NamedTuple):
    """How an edit of rows is typed: what follows its verb, the fields that words give, and those that the verb does."""

    form: str
    kind: Callable[..., Edit]
    fields: Mapping[str, str] = {}
    given: Mapping[str, bool] = {}


ROWS_VERBS = {
    "zero": RowsVerb(ROWS_WORDS, Zero),
    "scale": RowsVerb(f"by=2 {ROWS_WORDS}", Scale, {"by": "factor"}),
    "noise": RowsVerb(f"ratio=0.1 [seed=0] {ROWS_WORDS}", AddNoise, {"ratio": "ratio", "seed": "seed"}),
    "overwrite": RowsVerb(
        f"step=5 | seq=1 | file=PATH [shift=2] {ROWS_WORDS}",
        Overwrite,
        {"step": "from_step", "seq": "from_seq_id", "file": "from_file", "shift": "shift"},
    ),
    "mask": RowsVerb(_MARKED_WORDS, Mask, given={"hidden": True}),
    "unmask": RowsVerb(_MARKED_WORDS, Mask, given={"hidden": False}),
    "pin": RowsVerb(_MARKED_WORDS, Pin, given={"pinned": True}),
    "unpin": RowsVerb(_MARKED_WORDS, Pin, given={"pinned": False}),
    "drop": RowsVerb(_MARKED_WORDS, Drop),
}
FORMS: dict[str, str] = {
    **{verb: row.form for verb, row in ROWS_VERBS.items()},
    "replace": "pos=4:6 tokens=17,18 [how=overwrite|re-prefill]",
    "bias": "[add=17:+2.5,18:-1] [ban=19] [only=20,21]",
}


def parse_edit(text: str, seq_id: int, num_tokens: int) -> Edit:
    """Parse an edit of a sequence of `num_tokens` tokens. `pos=4:` means all positions from 4 on, and negative
    positions count from the end. Raises `InputError`."""
    verb, _, rest = text.strip().partition(" ")
    if verb not in FORMS:
        raise InputError(f"'{verb[:20]}' is no edit: begin with {', '.join(FORMS)}, as in '{EXAMPLE}'.")
    words = _Words(verb, rest, num_tokens)
    if verb not in ROWS_VERBS:
        return _replace(words, seq_id) if verb == "replace" else _bias(words, seq_id)
    row, read = ROWS_VERBS[verb], {"by": words.number, "ratio": words.number, "file": words.text}
    typed = {field: read.get(word, words.whole)(word) for word, field in row.fields.items()}
    typed = {field: value for field, value in typed.items() if value not in (None, "")}
    return row.kind(seq_id, words.rows(), **row.given, **typed)


def edit_text(edit: Edit) -> str:
    """The text that `parse_edit` reads back as this edit."""
    match edit:
        case ReplaceTokens(_, position, token_ids, how):
            return f"replace pos={position}:{edit.stop} tokens={_list(token_ids)} how={how}"
        case BiasLogits(_, biases, banned, only):
            added = ",".join(f"{token_id}:{bias!r}" for token_id, bias in biases)
            given = {"add": added, "ban": _list(banned), "only": _list(only)}
            return " ".join(("bias", *(f"{name}={value}" for name, value in given.items() if value)))
    of_kind = ((verb, row) for verb, row in ROWS_VERBS.items() if row.kind is type(edit))
    verb, row = next((v, r) for v, r in of_kind if all(getattr(edit, name) is it for name, it in r.given.items()))
    values = {word: getattr(edit, field) for word, field in row.fields.items()}
    shown = {word: f'"{it}"' if isinstance(it, str) else repr(it) for word, it in values.items() if it is not None}
    if not values.get("shift"):
        shown.pop("shift", None)
    return " ".join((verb, *(f"{word}={value}" for word, value in shown.items()), _rows_text(edit.rows)))


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
