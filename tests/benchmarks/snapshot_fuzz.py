"""Snapshots changed at random: each is opened, read and verified; anything but an answer or one sentence ends it.

    python tests/benchmarks/snapshot_fuzz.py --executions 1000000 --seed 7

The suite has a short form of it (`tests/engine/snapshot/test_attacks.py`).
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.errors import InputError
from engine.snapshot.format import PARTS
from engine.snapshot.read import SnapshotFile
from engine.snapshot.verify import verified

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


def survives(path: Path) -> str:
    """What became of a file: refused, damaged or sound. All that is in it is read."""
    try:
        with SnapshotFile(path) as file:
            read_all(file)
            outcome = "read"
    except InputError as error:
        if "\n" in str(error):
            raise AssertionError(f"more than a sentence: {error}") from None
        outcome = "refused"
    try:
        return f"{outcome}, {'sound' if verified(path).is_sound else 'damaged'}"
    except InputError:
        return f"{outcome}, of another version"


def read_all(file: SnapshotFile) -> None:
    for entry in file.layers:
        for tensor in PARTS:
            for head in entry.heads:
                assert file.rows(entry.index, tensor, head).shape == (entry.num_rows, entry.dim(tensor))
        file.positions(entry.index, entry.heads[0])
        file.attention(entry.index)
    assert len(file.token_ids) in (0, file.manifest.num_tokens)
    _ = file.token_texts, file.waiting_ids, file.preview, list(file.records)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="500 executions")
    arguments = parser.parse_args()
    executions = 500 if arguments.short else arguments.executions
    outcomes: Counter[str] = Counter()
    slowest, began = 0.0, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        sound = sound_files(Path(folder))
        path = Path(folder) / "x.safetensors"
        for number in range(executions):
            path.write_bytes(mutated(sound[number % len(sound)], arguments.seed * 1_000_003 + number))
            at = time.perf_counter()
            outcomes[survives(path)] += 1
            slowest = max(slowest, time.perf_counter() - at)
    seconds = time.perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for outcome, count in outcomes.most_common():
        print(f"{count:>9,}  {outcome}")
    print(f"{executions:,} files in {seconds:.0f} s, the slowest {slowest * 1e3:.0f} ms; {memory:.0f} MiB at most")
    return 0


def sound_files(folder: Path) -> list[bytes]:
    """Whole files of several kinds, a few kilobytes each."""
    from engine.spec.presets import PRESETS
    from engine.spec.tuning import tuned
    from tests.engine.snapshot.sessions import begun, kept, small, step

    specs = (small("growing"), tuned(PRESETS["h2o"].spec, budget=12), small("paged"), small("kivi-4"), small("int8"))
    made = []
    for spec in specs:
        session = begun(spec, steps=3)
        records = (step(session),)
        made.append(kept(session, folder / "sound.safetensors", records=records).read_bytes())
    return made


if __name__ == "__main__":
    sys.exit(main())
