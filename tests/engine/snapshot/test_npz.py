"""npz both ways, and what of it is refused before room is made for it."""

from __future__ import annotations

import io
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import InputError
from engine.snapshot import save_cache
from engine.snapshot.npz import from_npz, to_npz
from engine.snapshot.read import SnapshotFile
from tests.engine.snapshot.sessions import begun, kept
from tests.engine.snapshot.test_resume import SPECS


@pytest.mark.parametrize("name", ["growing", "h2o", "kivi-4", "paged-fp8"])
def test_out_and_in_again(name: str, tmp_path: Path) -> None:
    session = begun(SPECS[name])
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        progress = list(to_npz(file, tmp_path / "x.npz"))
        assert progress == sorted(progress)
        with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
            for layer in range(2):
                for part in ("keys", "values"):
                    rows = np.stack([file.rows(layer, part, head) for head in range(2)])[None]  # type: ignore[arg-type]
                    assert np.array_equal(arrays[f"layers.{layer}.{part}"], rows)
            assert arrays["token_ids"].tolist() == [list(file.token_ids)]
            assert ("layers.0.positions" in arrays) == (name == "h2o")
    pairs, ids = from_npz(tmp_path / "x.npz")
    if name == "h2o":
        return  # where rows were dropped pairs alone say nothing of positions
    with SnapshotFile(save_cache(pairs, tmp_path / "y.safetensors", ids)) as again:
        held = session.cache_of(0).rows(1)
        assert held is not None
        assert np.array_equal(again.rows(1, "values", 0), held.values[0, 0].numpy())
        assert again.token_ids == tuple(session.sequence(0).token_ids)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_writes(compressed: bool, order: Any, tmp_path: Path) -> None:
    rows = np.arange(2 * 5 * 3, dtype=np.float16).reshape(1, 2, 5, 3)
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "x.npz", **{"layers.0.keys": np.array(rows, order=order), "layers.0.values": rows + 1})  # type: ignore[arg-type]
    ((keys, values),), ids = from_npz(tmp_path / "x.npz")
    assert np.array_equal(keys, rows)
    assert np.array_equal(values, rows + 1)
    assert ids is None


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
    "a gap": ({K: ROWS, V: ROWS, "layers.2.keys.npy": ROWS}, "has no layers.0.keys"),
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
    for path in (tmp_path / "x.npz", tmp_path / "none.npz", tmp_path):
        with pytest.raises(InputError, match="no npz file that can be read"):
            from_npz(path)


def test_a_lying_directory_is_an_error(tmp_path: Path) -> None:
    """Bytes that are not those of the checksum."""
    raw = archive(tmp_path / "x.npz", {K: ROWS, V: ROWS}).read_bytes()
    at = raw.index(b"\x93NUMPY") + len(ROWS) - 3
    (tmp_path / "x.npz").write_bytes(raw[:at] + b"\xff" + raw[at + 1 :])
    with pytest.raises(InputError, match="no npz file that can be read"):
        from_npz(tmp_path / "x.npz")
