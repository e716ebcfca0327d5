"""npz both ways, and what of it is refused before room is made for it."""

from __future__ import annotations

import io
import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import InputError
from engine.snapshot.export import export
from engine.snapshot.foreign import snapshot_of_file
from engine.snapshot.npz import from_npz
from engine.snapshot.read import SnapshotFile
from engine.snapshot.verify import verified
from engine.snapshot.write import write_snapshot
from engine.wire.exporting import Export
from tests.engine.snapshot.sessions import begun, kept, small
from tests.engine.snapshot.test_resume import SPECS


@pytest.mark.parametrize("name", ["growing", "h2o", "kivi-4", "paged-fp8"])
def test_out_and_in_again(name: str, tmp_path: Path) -> None:
    session = begun(SPECS[name])
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        progress = list(export(file, Export(tmp_path / "x.npz", 0, kind="npz")))
        assert progress == sorted(progress)
        with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
            for layer in range(2):
                for part in ("keys", "values"):
                    rows = np.stack([file.rows(layer, part, head) for head in range(2)])[None]  # type: ignore[arg-type]
                    assert np.array_equal(arrays[f"layers.{layer}.{part}"], rows)
            assert arrays["token_ids"].tolist() == [list(file.token_ids)]
            assert ("layers.0.positions" in arrays) == (name == "h2o")
    with SnapshotFile(imported(tmp_path / "x.npz")) as again:
        held = session.cache_of(0).rows(1)
        assert held is not None
        assert np.array_equal(again.rows(1, "values", 0), held.values[0, 0].numpy())
        computed = session.sequence(0)
        assert again.token_ids == tuple(computed.token_ids[: computed.num_tokens])
        assert again.manifest.sequence.sampled is None, "nobody said what follows"


def imported(path: Path) -> Path:
    """The snapshot of an npz beside it."""
    for _ in write_snapshot(snapshot_of_file(path), out := path.with_suffix(".again")):
        pass
    return out


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("name", ["h2o", "sliding", "streamingllm", "tova"])
def test_rows_stand_at_their_positions_again(name: str, is_live: bool, tmp_path: Path) -> None:
    session, path = begun(small(name)), tmp_path / "x.npz"
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        list(export(session if is_live else file, Export(path, 0, kind="npz")))
        with SnapshotFile(imported(path)) as again:
            assert again.manifest.num_tokens == file.manifest.num_tokens == 30
            for layer, head in ((0, 0), (1, 1)):
                places = file.positions(layer, head)
                assert places.tolist() != list(range(len(places))), "some were dropped"
                assert again.positions(layer, head).tolist() == places.tolist()
                assert np.array_equal(again.rows(layer, "keys", head), file.rows(layer, "keys", head))
    assert verified(path.with_suffix(".again")).is_sound


def test_chosen_layers_keep_their_numbers(tmp_path: Path) -> None:
    session = begun(small("growing"))
    list(export(session, Export(tmp_path / "x.npz", 0, layers=(1,), kind="npz")))
    with SnapshotFile(imported(tmp_path / "x.npz")) as again:
        held = session.cache_of(0).rows(1)
        assert held is not None
        assert [entry.index for entry in again.layers] == [1]
        assert np.array_equal(again.rows(1, "keys", 1), held.keys[0, 1].numpy())


def test_chosen_heads_are_not_taken_for_others(tmp_path: Path) -> None:
    list(export(begun(small("growing")), Export(tmp_path / "x.npz", 0, kv_heads=(1,), kind="npz")))
    with pytest.raises(InputError, match="some of the kv heads of layer 0"):
        snapshot_of_file(tmp_path / "x.npz")


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_writes(compressed: bool, order: Any, tmp_path: Path) -> None:
    rows = np.arange(2 * 5 * 3, dtype=np.float16).reshape(1, 2, 5, 3)
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "x.npz", **{"layers.0.keys": np.array(rows, order=order), "layers.0.values": rows + 1})  # type: ignore[arg-type]
    found = from_npz(tmp_path / "x.npz")
    assert list(found.layers) == [0]
    assert np.array_equal(found.layers[0].keys, rows)
    assert np.array_equal(found.layers[0].values, rows + 1)
    assert found.token_ids is None


def archive(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return path


def npy(array: Any, **how: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), **how)
    return out.getvalue()


def header(shape: str, content: bytes = b"", descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


K, V = "layers.0.keys.npy", "layers.0.values.npy"
ROWS = npy(np.zeros((1, 1, 4, 2), np.float32))


class Evil:
    def __reduce__(self) -> Any:
        return (Path("/tmp/w-evil").touch, ())


ATTACKS: dict[str, tuple[dict[str, bytes], str]] = {
    "nothing": ({}, "has no layers.0.keys"),
    "other names": ({"x.npy": ROWS}, "has no layers.0.keys"),
    "a gap": ({K: ROWS, V: ROWS, "layers.2.keys.npy": ROWS}, "lacks an array"),
    "keys alone": ({K: ROWS}, "lacks an array"),
    "a path": ({"../../x.npy": ROWS}, "which is no array"),
    "an absolute path": ({"/tmp/x.npy": ROWS}, "which is no array"),
    "a script": ({"run.sh": b"reboot"}, "which is no array"),
    "objects": ({K: header("(1, 1, 4, 2)", pickle.dumps(Evil()), "'|O'"), V: ROWS}, "save plain numbers"),
    "structures": ({K: header("(1,)", b"\0" * 8, "[('a', '<f4'), ('b', '<f4')]"), V: ROWS}, "save plain numbers"),
    "complex numbers": ({K: npy(np.zeros(2, complex)), V: ROWS}, "save plain numbers"),
    "more than it has": ({K: header("(1, 1, 1000000000, 1000)"), V: ROWS}, "are not its bytes"),
    "a negative size": ({K: header("(1, 1, -4, 2)", b"\0" * 32), V: ROWS}, "are not its bytes"),
    "an expression": ({K: header("(__import__('os').getpid(),)"), V: ROWS}, "no npz file that can be read"),
    "no header": ({K: b"\x93NUMPY", V: ROWS}, "no npz file that can be read"),
    "a header of gigabytes": (
        {K: b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100), V: ROWS},
        "no npz file that can be read",
    ),
    "deep brackets": ({K: header("(" * 5000 + ")" * 5000), V: ROWS}, "no npz file that can be read"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_archives_are_refused(name: str, tmp_path: Path) -> None:
    members, said = ATTACKS[name]
    with pytest.raises(InputError, match=said) as caught:
        from_npz(archive(tmp_path / "x.npz", members))
    assert "\n" not in str(caught.value)
    assert not Path("/tmp/w-evil").exists()


POSITIONS = "layers.0.positions.npy"
IDS = npy(np.arange(9))
MISPLACED: dict[str, tuple[dict[str, bytes], str]] = {
    "fewer rows than ids": ({"token_ids.npy": IDS}, "fewer rows than its 9 tokens"),
    "nobody says of how many": ({POSITIONS: npy(np.arange(4)[None])}, "not those of its rows"),
    "of other rows": ({POSITIONS: npy(np.arange(3)[None]), "token_ids.npy": IDS}, "not those of its rows"),
    "fractions": ({POSITIONS: npy(np.arange(4.0)[None]), "token_ids.npy": IDS}, "not those of its rows"),
    "behind the last": ({POSITIONS: npy(np.array([[0, 1, 2, 9]])), "token_ids.npy": IDS}, "do not ascend from 0 to 8"),
    "before the first": (
        {POSITIONS: npy(np.array([[-1, 1, 2, 8]])), "token_ids.npy": IDS},
        "do not ascend from 0 to 8",
    ),
    "twice": ({POSITIONS: npy(np.array([[0, 2, 2, 8]])), "token_ids.npy": IDS}, "do not ascend from 0 to 8"),
}


@pytest.mark.parametrize("name", MISPLACED)
def test_rows_that_stand_nowhere_are_refused(name: str, tmp_path: Path) -> None:
    members, said = MISPLACED[name]
    with pytest.raises(InputError, match=said):
        from_npz(archive(tmp_path / "x.npz", {K: ROWS, V: ROWS, **members}))


def test_bombs_are_refused_before_they_grow(tmp_path: Path) -> None:
    bomb = archive(tmp_path / "x.npz", {K: header("(1, 1, 16777216, 2)", bytes(1 << 27)), V: ROWS}, zipfile.ZIP_LZMA)
    assert bomb.stat().st_size < 1 << 20
    tracemalloc.start()
    with pytest.raises(InputError, match="a bomb"):
        from_npz(bomb)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 and no more")
    os.mkfifo(tmp_path / "pipe.npz")
    refused = {
        "x.npz": "no npz file that can be read",
        "none.npz": "No such file",
        "": "a folder",
        "pipe.npz": "a pipe",
    }
    for name, said in refused.items():
        with pytest.raises(InputError, match=said):
            from_npz(tmp_path / name)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_compression_of_unbounded_memory_is_refused(method: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has layers\.0\.keys compressed in a way that is not read"):
        from_npz(archive(tmp_path / "x.npz", {K: ROWS, V: ROWS}, method))


def test_a_directory_is_not_parsed_before_it_is_known_to_be_small(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.npz", {K: ROWS, V: ROWS})
    raw = path.read_bytes()
    end = raw.rindex(b"PK\x05\x06")
    size, begin = (int.from_bytes(raw[end + at : end + at + 4], "little") for at in (12, 16))
    many = raw[begin : begin + size] * ((9 << 20) // size)
    counts = raw[end : end + 12] + len(many).to_bytes(4, "little") + raw[end + 16 :]
    path.write_bytes(raw[:begin] + many + counts)
    with pytest.raises(InputError, match=r"its directory has 9,4.* bytes, and at most 8,388,608 are read"):
        from_npz(path)


def test_numbers_with_the_highest_byte_first_are_the_same_numbers(tmp_path: Path) -> None:
    rows = np.arange(8, dtype=">f4").reshape(1, 1, 4, 2)
    found = from_npz(archive(tmp_path / "x.npz", {K: npy(rows), V: npy(rows)})).layers[0]
    assert found.keys.dtype == np.dtype("float32")
    assert found.keys.dtype.isnative
    assert (found.values == rows).all()


def test_a_lying_directory_is_an_error(tmp_path: Path) -> None:
    """Bytes that are not those of the checksum."""
    raw = archive(tmp_path / "x.npz", {K: ROWS, V: ROWS}).read_bytes()
    at = raw.index(b"\x93NUMPY") + len(ROWS) - 3
    (tmp_path / "x.npz").write_bytes(raw[:at] + b"\xff" + raw[at + 1 :])
    with pytest.raises(InputError, match="no npz file that can be read"):
        from_npz(tmp_path / "x.npz")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Which of both is read is not the same for everybody."""
    written = io.BytesIO()
    np.save(written, np.zeros(3, np.float32))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        for _ in range(2):
            file.writestr("layers.0.keys.npy", written.getvalue())
    with pytest.raises(InputError, match=r"has a member 'layers\.0\.keys\.npy', which is no array"):
        snapshot_of_file(tmp_path / "x.npz")
