"""Snapshot files changed at random: any bytes, or fields of the format with true checksums."""

from __future__ import annotations

import hashlib
import json
import random
from functools import cache
from typing import Any

from tests.engine.snapshot.crafted import Crafted

WORDS = (
    b"0",
    b"-1",
    b"4294967296",
    b"1e9",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"true",
    b"9" * 30,
    b'"F32"',
    b"[1,2]",
    b"\xff",
)


def mutated(raw: bytes, seed: int) -> bytes:
    """The file after a few random changes: bits, bytes, pieces cut or doubled, numbers and words of the header."""
    chance = random.Random(seed)
    made = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        length = min(int.from_bytes(raw[:8], "little"), len(made) - 8)
        place = 8 + chance.randrange(max(1, length)) if chance.random() < 0.7 else chance.randrange(max(1, len(made)))
        place = min(place, max(0, len(made) - 1))
        match chance.randrange(7):
            case 0:
                made[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                made[place : place + chance.randint(1, 64)] = b""
            case 2:
                made[place:place] = made[place : place + chance.randint(1, 64)]
            case 3:
                made = bytearray(in_header(bytes(made), chance))
            case 4:
                del made[max(8, place) :]
            case 5:
                made[place : place + 8] = chance.choice((b"\0" * 8, b"\xff" * 8, (1 << 62).to_bytes(8, "little")))
            case _:
                made = bytearray(one_value(bytes(made), chance))
        if not made:
            break
    return bytes(made)


def in_header(raw: bytes, chance: random.Random) -> bytes:
    """A number or a string of the header in the place of another one, its length being kept true."""
    length = int.from_bytes(raw[:8], "little")
    text = raw[8 : 8 + length]
    marks = [i for i, c in enumerate(text) if c in b",:["]
    if not marks:
        return raw
    begin = chance.choice(marks) + 1
    end = begin
    while end < len(text) and text[end] not in b",]}":
        end += 1
    text = text[:begin] + chance.choice(WORDS) + text[end:]
    return len(text).to_bytes(8, "little") + text + raw[8 + length :]


def one_value(raw: bytes, chance: random.Random) -> bytes:
    """A field of the manifest that says something else; where the header is none any more, nothing."""
    length = int.from_bytes(raw[:8], "little")
    try:
        header = json.loads(raw[8 : 8 + length])
        manifest = header["__metadata__"]
        name = chance.choice(sorted(manifest))
        value = str(manifest[name])
    except (ValueError, KeyError, TypeError, IndexError):
        return raw
    place = chance.randrange(len(value) + 1)
    word = chance.choice(WORDS).decode("latin-1")
    manifest[name] = value[:place] + word + value[place + chance.randint(0, 4) :]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + raw[8 + length :]


NUMBERS = (0, 1, -1, 2, 3, 7, 12, 24, 25, 1 << 20, 1 << 24, 1 << 31, 1 << 62, None, True, 0.5, "", "kivi-2", [], {})
FORGED = (
    "num_tokens",
    "layers",
    "tables",
    "pyramid",
    "sequence",
    "cache_spec",
    "layer_kinds",
    "prompt_ended_at",
    "step",
)
BYTES = (b"\0", b"\xff", b"\x7f", b"\x80", b"\x01", b"\x10")


def forged(raw: bytes, seed: int) -> bytes:
    """What somebody makes who knows the format: single values of the manifest and numbers of tensors that are others,
    with true checksums."""
    chance, made = random.Random(seed), taken_apart(raw)
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.5:
            name = chance.choice(FORGED)
            made.manifest[name] = json.dumps(another_leaf(json.loads(made.manifest[name]), chance))
            continue
        begin, end = chance.choice([entry["data_offsets"] for entry in made.entries.values()])
        place = chance.randrange(begin, max(begin + 1, end)) // 8 * 8
        run = (chance.choice(BYTES) * 8 * chance.randint(1, 4))[: max(0, end - place)]
        made.data = made.data[:place] + run + made.data[place + len(run) :]
    text = made.sealed().say(header_checksum="0" * 64).bytes()
    length = int.from_bytes(text[:8], "little")
    return made.say(header_checksum=hashlib.sha256(text[8 : 8 + length]).hexdigest()).bytes()


@cache
def _parts_of(raw: bytes) -> Crafted:
    return Crafted.of(raw)


def taken_apart(raw: bytes) -> Crafted:
    """A sound file, to be changed: there are a few, and each is parsed once."""
    made = _parts_of(raw)
    return Crafted(dict(made.manifest), made.entries, made.data)


def another_leaf(value: Any, chance: random.Random) -> Any:
    """A value of JSON of which one number, word or list, somewhere inside, is another one."""
    if chance.random() < 0.1 or not value or not isinstance(value, (dict, list)):
        return chance.choice(NUMBERS)
    place = chance.choice(sorted(value)) if isinstance(value, dict) else chance.randrange(len(value))
    value[place] = another_leaf(value[place], chance)
    return value
