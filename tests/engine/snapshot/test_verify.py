"""What `verify` finds by reading the rows themselves, what it leaves alone, and what is viewed before going on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.cli.snapshot import verify_command
from engine.errors import InputError
from engine.snapshot import save_cache
from engine.snapshot import write as pyramid
from engine.snapshot.read import SnapshotFile
from engine.snapshot.resume import resumed
from engine.snapshot.verify import verified
from engine.spec.codec import PARTS
from engine.wire.pictures import WallRequest
from tests.engine.snapshot.attacks import put
from tests.engine.snapshot.crafted import Crafted, changed
from tests.engine.snapshot.sessions import begun, kept, small
from tests.engine.tiny import model_of


def tall(path: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Two layers of 20,000 and 9,001 rows, which are enough to have extremes."""
    rows = torch.Generator().manual_seed(3)
    pairs = [
        tuple(torch.randn(1, 2, count, 32, generator=rows).to(dtype) for _ in range(2)) for count in (20_000, 9001)
    ]
    pairs[0][0][0, 1, 8500, 3] = torch.nan
    pairs[0][0][0, 1, 12, 30] = torch.inf
    return save_cache(pairs, path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_true_extremes_are_sound(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tall(tmp_path / "x.safetensors", dtype)
    with SnapshotFile(path) as file:
        assert "layers.1.values.low" in file
    assert verified(path).problems == ()


@pytest.mark.parametrize("form", ["stored", "rows"])
@pytest.mark.parametrize("name", ["growing", "kivi-4", "int8"])
def test_true_extremes_of_coded_rows_are_sound(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyramid, "MAX_COLUMNS", 4)
    monkeypatch.setattr(pyramid, "MAX_ROWS", 3)
    path = kept(begun(small(name), prompt=90), tmp_path / "x.safetensors", 96, form=form)
    with SnapshotFile(path) as file:
        assert "layers.1.values.low" in file
    assert verified(path).problems == ()


@pytest.mark.parametrize(
    ("tensor", "place", "value", "said"),
    [
        ("low", (1, 3, 2), -1e9, "are not the extremes"),
        ("high", (0, 150, 0), 1e9, "are not the extremes"),
        ("high", (1, 5, 1), np.nan, "are not the extremes"),
        ("magnitudes", 0, np.nan, "are not the magnitudes"),
        ("magnitudes", 0, -1.0, "are not the magnitudes"),
        ("magnitudes", 1, 7.5, "are not the magnitudes"),
        ("magnitudes", 2, 1.5, "are not the magnitudes"),
    ],
)
def test_extremes_that_lie_are_found(tensor: str, place: object, value: float, said: str, tmp_path: Path) -> None:
    path = tall(tmp_path / "x.safetensors")
    lie = put(f"layers.1.keys.{tensor}", lambda array: array.__setitem__(place, value), "<f4")
    path.write_bytes(lie(path.read_bytes()))
    found = verified(path).problems
    assert len([problem for problem in found if said in problem]) == 1, found
    assert all("layers.1.keys" in problem or "header" in problem for problem in found)


def unknown(name: str, dtype: str, shape: list[int]) -> object:
    def change(file: Crafted) -> None:
        at, size = len(file.data), 8 * int(np.prod(shape))
        file.data += b"\x07" * size
        file.entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        file.sealed()

    return change


@pytest.mark.parametrize("name", ["foo.offsets", "foo.positions", "foo.page_ids", "foo"])
@pytest.mark.parametrize("shape", [[], [2]])
@pytest.mark.parametrize("dtype", ["I64", "F64"])
def test_tensors_that_are_not_known_are_left_alone(name: str, shape: list[int], dtype: str, tmp_path: Path) -> None:
    path = kept(begun(small("growing")), tmp_path / "x.safetensors")
    path.write_bytes(changed(path.read_bytes(), unknown(name, dtype, shape)))  # type: ignore[arg-type]
    assert verified(path).problems == ("the header was changed: its checksum is another one",)


def test_offsets_that_wrap_around_are_out_of_order(tmp_path: Path) -> None:
    path = kept(begun(small("growing")), tmp_path / "x.safetensors")

    def wrap(array: np.ndarray) -> None:
        array[1:4] = 1 << 62, (1 << 63) - 1, -(1 << 63)

    path.write_bytes(put("token_texts.offsets", wrap)(path.read_bytes()))
    assert "'token_texts.offsets' holds numbers out of order" in verified(path).problems


@pytest.mark.parametrize("shape", [[1], [2, 11], [2, 12, 1, 1], [24]])
def test_what_a_rule_remembers_has_its_shape(shape: list[int], tmp_path: Path) -> None:
    path = kept(begun(small("h2o")), tmp_path / "x.safetensors", form="stored")

    def reshaped(file: Crafted) -> None:
        size = 4 * int(np.prod(shape))
        name = "layers.0.memory"
        start, stop = file.entries[name]["data_offsets"]
        file.data = file.data[:start] + bytes(size) + file.data[stop:]
        for entry in file.entries.values():
            begin, end = entry["data_offsets"]
            if begin >= stop:
                entry["data_offsets"] = [begin + size - (stop - start), end + size - (stop - start)]
        file.entry(name, shape=shape, data_offsets=[start, start + size])
        file.sealed()

    with SnapshotFile(path) as file:
        assert file.entries["layers.0.memory"].shape == (2, 12)
    path.write_bytes(changed(path.read_bytes(), reshaped))
    with pytest.raises(InputError, match=r"'layers\.0\.memory' is F32 .* should be"):
        SnapshotFile(path)


def test_a_newer_version_is_not_usable_and_not_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    path = kept(begun(small("growing")), tmp_path / "x.safetensors")
    path.write_bytes(changed(path.read_bytes(), lambda f: f.say(format_version="5")))
    assert verify_command(argparse.Namespace(files=[path], json=False)) == 2
    assert "update it" in capsys.readouterr().err
    path.write_bytes(path.read_bytes()[:-1])
    assert verify_command(argparse.Namespace(files=[path], json=False)) == 1


# ---- before going on ---------------------------------------------------------------------------------------------


def flipped(path: Path, at: int, into: bytes) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:at] + into + raw[at + len(into) :])


@pytest.mark.parametrize("name", ["token_ids", "waiting_ids", "tables.0.page_ids"])
def test_a_bit_of_what_decides_keeps_decoding_from_going_on(name: str, tmp_path: Path) -> None:
    path = kept(begun(small("paged"), steps=-5), tmp_path / "x.safetensors", form="stored")
    with SnapshotFile(path) as file:
        at = file.entries[name].start
        resumed(model_of("llama"), file)
    raw = path.read_bytes()
    flipped(path, at, bytes([raw[at] ^ 1]))
    with SnapshotFile(path) as file, pytest.raises(InputError, match=f"is damaged: '{name}' was changed"):
        resumed(model_of("llama"), file)


@pytest.mark.parametrize("field", ["sampled", "seed"])
def test_a_digit_of_the_header_keeps_decoding_from_going_on(field: str, tmp_path: Path) -> None:
    path = kept(begun(small("growing")), tmp_path / "x.safetensors", form="stored")
    raw = path.read_bytes()
    mark = f'\\"{field}\\":'.encode()
    at = raw.index(mark) + len(mark)
    flipped(path, at, b"1" if raw[at : at + 1] != b"1" else b"2")
    assert json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    with SnapshotFile(path) as file, pytest.raises(InputError, match="is damaged: the header was changed"):
        resumed(model_of("llama"), file)


@pytest.mark.parametrize("kv_heads", [(0,), (1,)])
def test_what_stands_beside_some_heads_is_theirs(
    kv_heads: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the session has counted all of them."""
    monkeypatch.setattr(pyramid, "MAX_COLUMNS", 4)
    monkeypatch.setattr(pyramid, "MAX_ROWS", 3)
    session = begun(small("growing"), prompt=90)
    for tensor in PARTS:
        session.take_picture(WallRequest(0, 99, 99, tensor, False, 100, 100))
    path = kept(session, tmp_path / "x.safetensors", kv_heads=kv_heads)
    with SnapshotFile(path) as file:
        for layer in range(2):
            for tensor in PARTS:
                largest = file.array(f"layers.{layer}.{tensor}.magnitudes")[1]
                assert largest == np.abs(file.rows(layer, tensor, kv_heads[0])).max()
    assert verified(path).problems == ()
