"""Snapshots changed at random, most of them with true checksums: each is opened, and what opens is read, verified, or
used in one of the ways in which the program uses a file, drawn by its seed: pictures and steps, a comparison with a
sound one, an npz, a smaller file, going on from it; and npz files changed at random. Anything but an answer or one
sentence is a crash: it is printed with its seed, and the exit status is 1.

    python tests/benchmarks/snapshot_fuzz.py --executions 1000000 --seed 7

A second of processor time is enough for some 500 files: what is drawn is one way a file, so that many files are tried.
The files lie in memory where the system has a place for that.

The suite has a short form of it (`tests/engine/snapshot/test_attacks.py`).
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.opened.description import steps_of
from engine.opened.file import OpenedSnapshot, opened_foreign
from engine.snapshot.diff import difference
from engine.snapshot.export import export
from engine.snapshot.read import SnapshotFile
from engine.snapshot.resume import resumed
from engine.snapshot.verify import verified
from engine.spec.codec import PARTS
from engine.spec.sampling import SamplingParams
from engine.wire.encoding import encode
from engine.wire.exporting import Export
from engine.wire.pictures import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    PictureRequest,
    RowRequest,
    TableRequest,
    WallRequest,
)
from tests.engine.snapshot.mutations import forged, mutated
from tests.engine.tiny import model_of

IN_MEMORY = Path("/dev/shm")  # Linux's folder in memory: writing to a disk would be slower


def check_sentence(error: InputError) -> None:
    if "\n" in str(error):
        raise AssertionError(f"more than a sentence: {error}")


def used(path: Path, sound: Path, model: LoadedModel, chance: random.Random | None = None) -> None:
    """Use an opened file in each way that the program has, each of which may refuse it; with `chance` in one way and
    for a few pictures, so that more files are tried in the same time."""
    uses = (_viewed, _compared, _as_npz, _as_part, _gone_on_from, _verified, _read)
    for use in uses if chance is None else (chance.choice(uses),):
        try:
            use(path, sound, model, chance)
        except InputError as error:
            check_sentence(error)


def _verified(path: Path, sound: Path, model: LoadedModel, chance: random.Random | None) -> None:
    verified(path)


def _read(path: Path, sound: Path, model: LoadedModel, chance: random.Random | None) -> None:
    with SnapshotFile(path) as file:
        read_all(file)


def _viewed(path: Path, sound: Path, model: LoadedModel, chance: random.Random | None) -> None:
    opened = OpenedSnapshot(path)
    try:
        n, last = opened.num_tokens, opened.last_step or 0
        layers = range(len(opened.info.geometry.layers))
        requests: list[PictureRequest] = [AttentionRequest(0, last, layer, 40) for layer in layers[:4]]
        for tensor in PARTS:
            requests += (WallRequest(0, n, n - 1, tensor, change, 30, 20) for change in (False, True))
            requests += (HeadRequest(0, n, tensor, layer, 1, 0, n, 30) for layer in layers[:4])
        requests += (RowRequest(0, n, n // 2), TableRequest(0, n), OutliersRequest(0, n, last))
        for request in requests if chance is None else chance.sample(requests, min(2, len(requests))):
            try:
                opened.take(request)
            except InputError as error:
                check_sentence(error)
        for record in islice(steps_of(opened.file), 50):
            encode(record)
        _ = opened.status(SamplingParams(), None), opened.logits()
    finally:
        opened.close()


def _compared(path: Path, sound: Path, model: LoadedModel, chance: random.Random | None) -> None:
    with SnapshotFile(path) as one, SnapshotFile(sound) as other:
        pairs = ((one, other), (other, one), (one, one))
        for pair in pairs if chance is None else (chance.choice(pairs),):
            for _ in difference(*pair):
                pass


def _as_npz(path: Path, sound: Path, model: LoadedModel, chance: random.Random | None) -> None:
    with SnapshotFile(path) as file:
        for _ in export(file, Export(path.with_suffix(".npz"), 0, kind="npz")):
            pass
    opened_foreign(path.with_suffix(".npz")).close()


def _as_part(path: Path, sound: Path, model: LoadedModel, chance: random.Random | None) -> None:
    with SnapshotFile(path) as file:
        for _ in export(file, Export(path.with_suffix(".part"), 0, kv_heads=(1,), num_tokens=20)):
            pass


def _gone_on_from(path: Path, sound: Path, model: LoadedModel, chance: random.Random | None) -> None:
    with SnapshotFile(path) as file:
        session = resumed(model, file)
    for _ in range(2 if chance is None else 1):
        if session.has_work:
            session.step()


def survives_npz(path: Path) -> str:
    """Open an npz: whether it was refused or read, in words."""
    try:
        opened_foreign(path).close()
    except InputError as error:
        check_sentence(error)
        return "npz refused"
    return "npz read"


def survives(path: Path, chance: random.Random | None = None) -> str:
    """Open a file, read and verify it: whether it was refused or read, damaged or sound, in words. With `chance`
    reading is left to `used`, and one in eight of the refused files is verified."""
    try:
        with SnapshotFile(path) as file:
            if chance is None:
                read_all(file)
            outcome = "read"
    except InputError as error:
        check_sentence(error)
        outcome = "refused"
    if chance is not None and (outcome == "read" or chance.random() < 7 / 8):
        return outcome
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
    _ = file.token_texts, file.waiting_ids, "preview" in file and file.array("preview"), list(file.records)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="ends earlier after so many")
    parser.add_argument("--short", action="store_true", help="500 executions")
    arguments = parser.parse_args()
    executions = 500 if arguments.short else arguments.executions
    torch.set_num_threads(1)
    tried, began, told = Tried(), time.perf_counter(), 0.0
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        sound, model = sound_files(Path(folder)), model_of("llama")
        for number in range(executions):
            tried.one(Path(folder) / "x.safetensors", sound, arguments.seed * 1_000_003 + number, model)
            seconds = time.perf_counter() - began
            if seconds - told > 60:
                told = seconds
                print(f"{tried.count:,} files in {seconds:.0f} s", file=sys.stderr, flush=True)
            if seconds > arguments.seconds:
                break
    for outcome, count in tried.outcomes.most_common():
        print(f"{count:>9,}  {outcome}")
    seconds, memory = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    slowest = f"the slowest took {tried.slowest * 1e3:.0f} ms of processor time (seed {tried.slowest_seed})"
    print(f"{tried.count:,} files in {seconds:.0f} s; {slowest}; {memory:.0f} MiB at most")
    return 1 if tried.outcomes["CRASHED"] else 0


class Tried:
    """How the files tried so far ended."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.slowest, self.slowest_seed = 0.0, 0

    @property
    def count(self) -> int:
        return self.outcomes.total()

    def one(self, path: Path, sound: list[Sound], seed: int, model: LoadedModel) -> None:
        at = time.process_time()
        try:
            self.outcomes[one_execution(path, sound[seed % len(sound)], seed, model)] += 1
        except AssertionError as error:
            self.outcomes["CRASHED"] += 1
            print(error, file=sys.stderr, flush=True)
        took = time.process_time() - at
        if took > self.slowest:
            self.slowest, self.slowest_seed = took, seed


class Sound(NamedTuple):
    """A whole snapshot, and the same as an npz."""

    path: Path
    raw: bytes
    npz: bytes


def one_execution(path: Path, sound: Sound, seed: int, model: LoadedModel) -> str:
    """Try a changed file: how it ended, in words. Any error but a refusal is raised again with the seed."""
    chance = random.Random(seed)
    try:
        if chance.random() < 0.1:
            path.with_suffix(".npz").write_bytes(mutated(sound.npz, seed))
            return survives_npz(path.with_suffix(".npz"))
        path.write_bytes(forged(sound.raw, seed) if chance.random() < 0.6 else mutated(sound.raw, seed))
        outcome = survives(path, chance)
        if outcome.startswith("read"):
            used(path, sound.path, model, chance)
        return outcome
    except BaseException as error:
        raise AssertionError(f"execution with seed {seed}: {error!r}") from error


def sound_files(folder: Path) -> list[Sound]:
    """Whole files of several kinds, a few kilobytes each."""
    from engine.spec.cache import PRESETS, tuned
    from tests.engine.snapshot.sessions import begun, kept, small, step

    specs = (small("growing"), tuned(PRESETS["h2o"].spec, budget=12), small("paged"), small("kivi-4"), small("int8"))
    made = []
    for number, spec in enumerate(specs):
        session = begun(spec, steps=3)
        path = kept(session, folder / f"sound{number}.safetensors", records=(step(session),))
        with SnapshotFile(path) as file:
            for _ in export(file, Export(path.with_suffix(".npz"), 0, kind="npz")):
                pass
        made.append(Sound(path, path.read_bytes(), path.with_suffix(".npz").read_bytes()))
    return made


if __name__ == "__main__":
    sys.exit(main())
