"""Files that somebody made to do harm, by name: each from a sound one, with what must be said of it."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from tests.engine.snapshot.crafted import Crafted, changed, framed

Attack = Callable[[bytes], bytes]


def header(change: Callable[[Crafted], object]) -> Attack:
    return lambda raw: changed(raw, change)


def text(old: str, new: str) -> Attack:
    """The header's own text, changed where it stands."""

    def attack(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:8], "little")
        assert old.encode() in raw[8 : 8 + length]
        return framed(raw[8 : 8 + length].rstrip().replace(old.encode(), new.encode(), 1), raw[8 + length :])

    return attack


def added(name: str, **entry: object) -> Attack:
    """One more tensor, of four bytes at the end."""

    def change(file: Crafted) -> None:
        at = len(file.data)
        file.data += b"\0\0\0\0"
        file.entries[name] = {"dtype": "F32", "shape": [1], "data_offsets": [at, at + 4], **entry}
        file.sealed()

    return header(change)


def moved(file: Crafted, name: str, start: int, stop: int) -> None:
    begin, end = file.entries[name]["data_offsets"]
    file.entry(name, data_offsets=[begin + start, end + stop])


def twice(raw: bytes) -> bytes:
    """The same name with two descriptions."""
    made = Crafted.of(raw)
    body = json.dumps({"__metadata__": made.manifest, **made.entries})[:-1]
    return framed((body + ', "token_ids": ' + json.dumps(made.entries["token_ids"]) + "}").encode(), made.data)


def without(file: Crafted, name: str) -> None:
    """A tensor cut out, with all that follows moved up."""
    start, stop = file.entries.pop(name)["data_offsets"]
    file.data = file.data[:start] + file.data[stop:]
    for entry in file.entries.values():
        begin, end = entry["data_offsets"]
        if begin >= stop:
            entry["data_offsets"] = [begin - (stop - start), end - (stop - start)]
    file.sealed()


def of_json(make: Callable[[], bytes]) -> Attack:
    return lambda raw: framed(make())


def sequence(**fields: object) -> Attack:
    return header(lambda f: f.say(sequence={**json.loads(f.manifest["sequence"]), **fields}))


def claimed(file: Crafted, num_tokens: int) -> None:
    """More tokens than rows, of which nothing else is said."""
    for name in [name for name in file.entries if not name.startswith("layers.") or name.endswith(".attention")]:
        without(file, name)
    file.say(why_not="for no reason", num_tokens=num_tokens, pyramid=None, tables=[])


def longer(file: Crafted, name: str, more: int) -> None:
    """A tensor of bytes with more of them behind it."""
    start, stop = file.entries[name]["data_offsets"]
    file.data = file.data[:stop] + bytes(more) + file.data[stop:]
    for each, entry in file.entries.items():
        begin, end = entry["data_offsets"]
        if begin >= stop and each != name:
            entry["data_offsets"] = [begin + more, end + more]
    file.entry(name, shape=[stop + more - start], data_offsets=[start, stop + more])
    file.sealed()


def many_heads(file: Crafted) -> None:
    """Layers of as many heads as one may have, of which one is written, without a number in it."""
    layer = {**json.loads(file.manifest["layers"])[0], "num_kv_heads": 1 << 10, "heads": [0], "num_rows": 1}
    layer |= {"key_dim": 1, "value_dim": 1}
    at = len(file.data)
    for index in range(2, 70):
        for part in ("keys", "values"):
            file.entries[f"layers.{index}.{part}"] = {
                "dtype": "F32",
                "shape": [1, 1, 1, 1],
                "data_offsets": [at, at + 4],
            }
            file.data += bytes(4)
            at += 4
    known = json.loads(file.manifest["layers"])
    file.say(layers=[*known, *({**layer, "index": index} for index in range(2, 70))], layer_kinds=[])
    file.sealed()


KEYS = "layers.1.keys"

# refused when they are opened: name -> how, and what is said
REFUSED: dict[str, tuple[Attack, str]] = {
    # the frame
    "empty": (lambda raw: b"", "no header"),
    "seven bytes": (lambda raw: raw[:7], "no header"),
    "length alone": (lambda raw: raw[:8], "cut short"),
    "header of no length": (lambda raw: bytes(8) + raw[8:], "header is empty"),
    "header of 2^63 bytes": (lambda raw: (1 << 63).to_bytes(8, "little") + raw[8:], "claims"),
    "header as long as memory": (lambda raw: (1 << 40).to_bytes(8, "little") + raw[8:], "claims"),
    "header longer than is read": (lambda raw: (20 << 20).to_bytes(8, "little") + bytes(21 << 20), "at most"),
    "header longer than the file": (lambda raw: (len(raw)).to_bytes(8, "little") + raw[8:], "cut short"),
    "header that ends too soon": (of_json(lambda: b'{"token_ids":{"dtype":"I64","shape":[1,'), "not what"),
    "half a file": (lambda raw: raw[: len(raw) // 2], "cut short"),
    "one byte short": (lambda raw: raw[:-1], "cut short"),
    "one byte more": (lambda raw: raw + b"\0", "something was added"),
    "a program behind it": (lambda raw: raw + b"#!/bin/sh\nreboot\n", "something was added"),
    "a pickle": (lambda raw: b"\x80\x04\x95" + bytes(40), "claims|no safetensors"),
    "a zip": (lambda raw: b"PK\x03\x04" + bytes(60), "claims|no safetensors"),
    # the JSON of the header
    "a list": (of_json(lambda: b"[]"), "does not begin with an object"),
    "spaces first": (lambda raw: framed(b"  {}"), "does not begin with an object"),
    "no JSON": (of_json(lambda: b"{" + b"x" * 100 + b"}"), "not what safetensors writes"),
    "no UTF-8": (of_json(lambda: b'{"\xff\xfe":{}}'), "not what safetensors writes|no name"),
    "deep lists": (of_json(lambda: b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), "not what safetensors writes"),
    "deep objects": (of_json(lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "not what safetensors writes"),
    "a number of many digits": (of_json(lambda: b'{"a":' + b"9" * 100_000 + b"}"), "not what safetensors writes"),
    "a million names": (of_json(lambda: b"{" + b",".join(b'"%d":0' % i for i in range(10**6)) + b"}"), "at most"),
    "NaN for a size": (text('"shape":[1,', '"shape":[NaN,'), "not what safetensors writes"),
    "a size of 1e400": (text('"shape":[1,', '"shape":[1e400,'), "not what safetensors writes"),
    "a size in quotes": (text('"shape":[1,', '"shape":["1",'), "not what safetensors writes"),
    "one name twice": (twice, "something twice"),
    "metadata that is a list": (header(lambda f: f.entries.update(__metadata__=[])), "not what safetensors writes"),
    "metadata with numbers": (header(lambda f: f.manifest.update(notes=5)), "not what safetensors writes"),  # type: ignore[arg-type]
    "a field too many": (header(lambda f: f.entry(KEYS, offset=8)), "not what safetensors writes"),
    "a field too few": (header(lambda f: f.entries[KEYS].pop("shape")), "not what safetensors writes"),
    # tensors
    "a path for a name": (added("../../etc/passwd"), "which is no name"),
    "an absolute path for a name": (added("/tmp/x"), "which is no name"),
    "a drive for a name": (added("C:\\x"), "which is no name"),
    "a name with NUL": (added("a\0b"), "which is no name"),
    "a name of nothing": (added(""), "which is no name"),
    "a long name": (added("x" * 10_000), "which is no name"),
    "an unknown dtype": (header(lambda f: f.entry(KEYS, dtype="O")), "dtype 'O'"),
    "another dtype": (header(lambda f: f.entry(KEYS, dtype="I32")), "should be"),
    "a negative size": (header(lambda f: f.entry(KEYS, shape=[1, -2, 30, -16])), "negative or an impossible"),
    "a huge size": (header(lambda f: f.entry(KEYS, shape=[1 << 63, 1 << 63])), "impossible|not what safetensors"),
    "sizes that overflow": (header(lambda f: f.entry(KEYS, shape=[1 << 32, 1 << 32, 30])), "not its size"),
    "many dimensions": (header(lambda f: f.entry(KEYS, shape=[1] * 60)), "dimensions"),
    "more than its bytes": (header(lambda f: f.entry(KEYS, shape=[1, 2, 31, 16])), "not its size"),
    "dimensions the other way round": (header(lambda f: f.entry(KEYS, shape=[1, 30, 2, 16])), "should be"),
    "offsets backwards": (header(lambda f: f.entry(KEYS, data_offsets=[64, 0])), "negative or an impossible|expected"),
    "negative offsets": (header(lambda f: f.entry(KEYS, data_offsets=[-8, 0])), "negative or an impossible"),
    "offsets beyond 2^64": (header(lambda f: f.entry(KEYS, data_offsets=[1 << 70, 1 << 71])), "not what|expected"),
    "an overlap": (header(lambda f: moved(f, KEYS, -4, -4)), "was expected"),
    "a hole": (header(lambda f: moved(f, KEYS, 4, 4)), "was expected"),
    "two tensors in one place": (
        header(lambda f: f.entry(KEYS, data_offsets=f.entries["layers.0.keys"]["data_offsets"])), "was expected",
    ),
    # the manifest
    "another format": (header(lambda f: f.say(format="pt")), "no snapshot of a cache"),
    "no version": (header(lambda f: f.manifest.pop("format_version")), "which is no number"),
    "version minus one": (header(lambda f: f.say(format_version="-1")), "which is no number"),
    "version 1": (header(lambda f: f.say(format_version="1")), "version 1 .* no longer reads: open it"),
    "version 0": (header(lambda f: f.say(format_version="0")), "never was one"),
    "version in Arabic digits": (header(lambda f: f.say(format_version="\u0662")), "which is no number"),
    "a newer version": (header(lambda f: f.say(format_version="5")), "version 5"),
    "no tokens": (header(lambda f: f.say(num_tokens=0)), "about num_tokens .Expected `int` >= 1"),
    "more tokens than there can be": (header(lambda f: f.say(num_tokens=1 << 40)), "nothing readable about num_tokens"),
    "tokens that nothing pays for": (
        header(lambda f: claimed(f, 10_000_000)), "lacks the tensor 'positions'",
    ),
    "tokens without positions": (header(lambda f: without(f, "positions")), "lacks the tensor 'positions'"),
    "more tokens than are read at once": (
        header(lambda f: f.say(num_tokens=(1 << 24) + 1)), "Expected `int` <= 16777216",
    ),
    "texts of megabytes": (header(lambda f: longer(f, "token_texts", 30 << 12)), "more than the 122,880 numbers"),
    "heads that nothing pays for": (header(lambda f: f.layer(1, num_kv_heads=1 << 20)), "Expected `int` <= 1024"),
    "heads in too many layers": (header(lambda f: many_heads(f)), "more heads than the 65,536"),
    "tokens by words": (header(lambda f: f.say(num_tokens="many")), "nothing readable about num_tokens"),
    "no layers": (header(lambda f: f.say(layers=[])), "layers are none"),
    "layers out of order": (header(lambda f: f.say(layers=json.loads(f.manifest["layers"])[::-1])), "not in order"),
    "a layer twice": (header(lambda f: f.layer(0, index=1)), "not in order"),
    "a layer below the first": (header(lambda f: f.layer(0, index=-1)), "about layers .Expected `int` >= 0"),
    "a layer beyond the model": (header(lambda f: f.layer(1, index=900)), "does not have"),
    "a layer beyond all": (header(lambda f: f.layer(1, index=1 << 12)), "layers .Expected `int` <= 4095"),
    "heads beyond the layer": (header(lambda f: f.layer(1, heads=[0, 9])), "heads that it cannot have"),
    "a head twice": (header(lambda f: f.layer(1, heads=[0, 0])), "heads that it cannot have"),
    "more rows than tokens": (header(lambda f: f.layer(1, num_rows=31)), "behind the last token"),
    "rows behind the last token": (header(lambda f: f.layer(1, first=5)), "behind the last token"),
    "no channels": (header(lambda f: f.layer(1, key_dim=0)), "about layers .Expected `int` >= 1"),
    "rows of an unknown dtype": (header(lambda f: f.layer(1, dtype="object")), "'object' are not known"),
    "a codec nobody knows": (
        header(lambda f: f.layer(1, keys={"codec": "zstd", "num_coded": 30})), "Unknown codec",
    ),
    "a codec without its codes": (
        header(lambda f: f.layer(1, keys={"codec": "int8", "num_coded": 30})), "lacks the tensor 'layers.1.keys.codes'",
    ),
    "codes for a group of none": (
        header(lambda f: f.layer(1, keys={"codec": "fp8-max", "group": 0, "num_coded": 30})), "cannot share a scale",
    ),
    "more codes than rows": (
        header(lambda f: f.layer(1, keys={"codec": "int8", "num_coded": 31})), "coded rows",
    ),
    "a tensor that is not there": (header(lambda f: without(f, KEYS)), "lacks the tensor"),
    "no token ids": (header(lambda f: without(f, "token_ids")), "lacks the tensor"),
    "offsets without texts": (header(lambda f: without(f, "token_texts")), "without its offsets"),
    "a page of no tokens": (header(lambda f: f.say(tables=[{"layers": [0], "page_size": 0}])), "about tables .Expec"),
    "pages of a layer that is not there": (
        header(lambda f: f.say(tables=[{"layers": [7], "page_size": 4}])), "layers that are not there",
    ),
    "a table without pages": (header(lambda f: f.say(tables=[{"layers": [0], "page_size": 4}])), "lacks the tensor"),
    "a cache mode of nonsense": (
        header(lambda f: f.say(cache_spec={"layout": "paged", "page_size": 3})), "nothing readable about cache_spec",
    ),
    "a seed below 0": (sequence(sampling={"seed": -1}), "nothing readable about sequence"),
    "a token id below 0 to come": (sequence(sampled=-5), "nothing readable about sequence"),
    "a sequence of no number": (sequence(seq_id=-1), "about sequence .Expected `int` >= 0"),
    "a view that is a list": (header(lambda f: f.say(view="[]")), "view is no JSON object"),
    "a deep view": (header(lambda f: f.say(view="[" * 100_000)), "view is no JSON object"),
    "a checksum too short": (
        header(lambda f: f.say(checksums={**json.loads(f.manifest["checksums"]), KEYS: "00"})), "checksum",
    ),
    "checksums of a kind that nobody knows": (
        header(lambda f: f.say(checksum_kind="md5")), "checksum_kind .Invalid enum value 'md5'",
    ),
    "a tensor without a checksum": (
        header(lambda f: f.say(checksums={KEYS: "0" * 8})), "lacks the checksum",
    ),
}  # fmt: skip


def flipped(raw: bytes) -> bytes:
    """One bit of K."""
    start, _ = Crafted.of(raw).entries[KEYS]["data_offsets"]
    at = 8 + int.from_bytes(raw[:8], "little") + start + 9
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def put(name: str, change: Callable[[np.ndarray], object], dtype: str = "<i8") -> Attack:
    """Other numbers, with true checksums."""

    def attack(file: Crafted) -> None:
        array = file.get(name, dtype)
        change(array)
        file.put(name, array)

    return header(attack)


def at(*index: object, value: int) -> Callable[[np.ndarray], object]:
    return lambda array: array.__setitem__(index, value)


# opened, and found by looking at the numbers
FOUND: dict[str, tuple[Attack, str]] = {
    "a bit of a tensor flipped": (flipped, "checksum is another one"),
    "a note changed": (text("a note", "a n0te"), "the header was changed"),
    "a token id below 0": (put("token_ids", at(0, 3, value=-1)), "'token_ids' holds -1"),
    "a token id of 2^60": (put("token_ids", at(0, 3, value=1 << 60)), "no token id"),
    "positions out of order": (put("layers.0.positions", at(0, 0, value=29)), "numbers out of order"),
    "a position twice": (put("layers.0.positions", lambda a: a.__setitem__((0, 1), a[0, 0])), "numbers out of order"),
    "a position below 0": (put("layers.0.positions", at(1, 0, value=-1)), "no position"),
    "a position beyond the last token": (put("layers.0.positions", at(1, -1, value=10**12)), "no position"),
    "the position of the next token": (put("layers.0.positions", at(1, -1, value=30)), "no position"),
    "texts that end outside": (put("token_texts.offsets", at(-1, value=1 << 50)), "does not lead"),
    "texts that run backwards": (put("token_texts.offsets", at(3, value=1 << 50)), "numbers out of order"),
    "texts of no characters": (put("token_texts", at(slice(None), value=0xFF), "<u1"), "is no UTF-8 text"),
    "records of nothing": (put("records", at(slice(None), value=0), "<u1"), "record 0 cannot be read"),
    "records that lie outside": (put("records.offsets", at(0, value=-4)), "does not lead"),
    "records of other fields": (
        header(lambda f: f.say(record_fields={"StepRecord": ["surprise"]})), "other fields",
    ),
    "a page twice": (put("tables.0.page_ids", lambda a: a.__setitem__(slice(None), 1), "<i8"), "names a page twice"),
    "a page that is missing": (put("tables.0.page_ids", at(0, value=0), "<i8"), "other rows"),
}  # fmt: skip
