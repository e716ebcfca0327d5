"""`snapshot info | verify | diff` as people run it: what is printed and how it exits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.snapshot.read import SnapshotFile
from engine.spec.sampling import SamplingParams
from tests.engine.cli.conftest import IDS, Twin
from tests.engine.snapshot.attacks import FOUND, REFUSED
from tests.engine.snapshot.crafted import changed
from tests.engine.snapshot.sessions import begun, kept, small, step
from tests.engine.snapshot.test_llama_state import CONFIG
from tests.engine.snapshot.test_llama_state import FILES as LLAMA


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    session = begun(small("h2o"), steps=7)
    records = tuple(step(session) for _ in range(2))
    return kept(session, tmp_path / "sound.safetensors", records=records, notes="a\x1b[31mnote")


def told(twin: Twin, *arguments: object) -> tuple[int, list[Any]]:
    status, out, _ = twin.run("snapshot", *arguments, "--json")
    return status, [json.loads(line) for line in out.splitlines()]


def test_info_is_the_manifest_with_shapes_and_bytes(twin: Twin, sound: Path) -> None:
    status, out, _ = twin.run("snapshot", "info", sound)
    assert status == 0
    assert "cache    h2o, live cache, stored" in out
    assert "tokens   30 after step 11" in out
    assert "records  2 steps" in out
    assert "\x1b" not in out
    (facts,) = twin.lines("snapshot", "info", sound)
    assert facts["cache_spec"]["retention"]["budget"] == 12
    assert facts["sequence"]["sampling"]["top_k"] == 40
    assert {"name": "layers.1.keys", "dtype": "F32", "shape": [1, 2, 12, 16], "num_bytes": 1536} in facts["tensors"]
    assert sum(tensor["num_bytes"] for tensor in facts["tensors"]) < facts["file_bytes"] == sound.stat().st_size


def test_what_a_file_says_moves_no_cursor(twin: Twin, sound: Path, tmp_path: Path) -> None:
    """A field of the header, and a codec, whose names are commands to the terminal."""
    one, other = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    evil = "\x1b]0;pwned\x07\nsound"
    one.write_bytes(changed(sound.read_bytes(), lambda f: f.entry("layers.0.keys", **{evil: 1})))
    other.write_bytes(changed(sound.read_bytes(), lambda f: f.layer(0, keys={"codec": evil, "num_coded": 12})))
    for path in (one, other):
        for command in ("info", "verify", "diff"):
            status, out, err = twin.run("snapshot", command, path, *([path] if command == "diff" else []))
            assert status in (1, 2)
            assert "pwned" in out + err
            assert "\x1b" not in out + err
            assert "\nsound" not in out + err


def test_verify_exits_by_what_it_finds(twin: Twin, sound: Path, tmp_path: Path) -> None:
    changed, cut = tmp_path / "changed.safetensors", tmp_path / "cut.safetensors"
    changed.write_bytes(FOUND["a bit of a tensor flipped"][0](sound.read_bytes()))
    cut.write_bytes(REFUSED["half a file"][0](sound.read_bytes()))
    assert twin.run("snapshot", "verify", sound)[:2] == (0, f"{sound}: sound\n")
    status, out, _ = twin.run("snapshot", "verify", sound, changed)
    assert status == 1
    assert f"{changed}: damaged\n  'layers.1.keys' was changed: its checksum is another one\n" in out
    status, lines = told(twin, "verify", sound, cut)
    assert status == 1
    assert [line["sound"] for line in lines] == [True, False]
    assert "cut short" in lines[1]["problems"][0]
    status, _, err = twin.run("snapshot", "verify", tmp_path / "none", sound)
    assert status == 2
    assert "No such file" in err


def test_diff_exits_by_what_it_finds(twin: Twin, sound: Path, tmp_path: Path) -> None:
    other = kept(begun(small("tova")), tmp_path / "tova.safetensors")
    status, out, _ = twin.run("snapshot", "diff", sound, sound)
    assert (status, out.splitlines()[-1]) == (0, "equal")
    status, out, _ = twin.run("snapshot", "diff", sound, other)
    assert status == 1
    assert out.splitlines()[-1].startswith("different, first at token ")
    status, lines = told(twin, "diff", sound, other)
    assert status == 1
    assert [line["event"] for line in lines] == [*["head"] * 8, "done"]
    assert lines[-1]["verdict"] == "different"
    gpt2 = kept(begun(small("growing"), architecture="gpt2"), tmp_path / "gpt2.safetensors")
    status, _, err = twin.run("snapshot", "diff", sound, gpt2)
    assert status == 2
    assert "cannot be compared" in err


def test_export_writes_beside_the_file_what_other_programs_open(twin: Twin, sound: Path) -> None:
    for kind, ending in (("npz", ".npz"), ("script", ".py"), ("table", ".csv"), ("trace", ".trace.json")):
        status, out, _ = twin.run("snapshot", "export", sound, "--to", kind)
        assert (status, out) == (0, f"{sound.with_suffix('')}{ending}\n")
        assert Path(out.strip()).stat().st_size > 100
    assert "are missing" in twin.refused("snapshot", "export", sound, "--to", "session")
    assert "the snapshot itself" in twin.refused("snapshot", "export", sound, "--to", "npz", "--out", sound)


def test_a_part_of_a_file_is_a_file(twin: Twin, sound: Path, tmp_path: Path) -> None:
    chosen = ("--layers", "1", "--heads", "0", "--form", "rows", "--out", tmp_path / "part.safetensors")
    assert twin.run("snapshot", "export", sound, "--to", "snapshot", *chosen)[0] == 0
    _, (facts,) = told(twin, "info", tmp_path / "part.safetensors")
    assert [(entry["index"], entry["heads"]) for entry in facts["layers"]] == [(1, [0])]
    assert twin.run("snapshot", "verify", tmp_path / "part.safetensors")[0] == 0
    assert "has no step 99" in twin.refused("snapshot", "export", sound, "--to", "snapshot", "--steps", "99")


def test_an_export_replaces_nobodys_file(twin: Twin, sound: Path) -> None:
    for kind, ending in (("script", ".py"), ("npz", ".npz"), ("table", ".csv"), ("trace", ".trace.json")):
        mine = sound.with_suffix(ending)
        mine.write_text("print('mine')")
        assert str(mine) in twin.refused("snapshot", "export", sound, "--to", kind)
        assert mine.read_text() == "print('mine')"
    named = ("snapshot", "export", sound, "--to", "script", "--out", sound.with_suffix(".py"))
    assert "no script of a snapshot: rename it" in twin.refused(*named)
    sound.with_suffix(".py").unlink()
    for _ in range(2):  # our own script is replaced
        assert twin.run(*named)[0] == 0


def test_import_makes_a_snapshot_of_an_npz(twin: Twin, sound: Path, tmp_path: Path) -> None:
    whole = kept(begun(small("growing")), tmp_path / "whole.safetensors")
    twin.run("snapshot", "export", whole, "--to", "npz", "--out", tmp_path / "x.npz")
    status, _, _ = twin.run("snapshot", "import", tmp_path / "x.npz", tmp_path / "again.safetensors")
    assert status == 0
    assert twin.run("snapshot", "verify", tmp_path / "again.safetensors")[0] == 0
    status, lines = told(twin, "diff", whole, tmp_path / "again.safetensors")
    assert (status, lines[-1]["verdict"]) == (0, "equal")
    assert "no npz file" in twin.refused("snapshot", "import", whole, tmp_path / "y.safetensors")


def test_import_makes_a_snapshot_of_a_state_of_llama_cpp(twin: Twin, tmp_path: Path) -> None:
    state, out = LLAMA / "f16_transposed_v.bin", tmp_path / "x.safetensors"
    assert "the snapshot needs a name" in twin.refused("snapshot", "import", state, "--config", CONFIG).lower()
    assert "does not say of which model" in twin.refused("snapshot", "import", state, "-o", out)
    assert not out.exists()
    status, printed, _ = twin.run("snapshot", "import", state, "--config", CONFIG, "-o", out)
    assert (status, printed.strip()) == (0, str(out))
    status, lines = told(twin, "info", out)
    assert (status, lines[0]["cache"], lines[0]["dtype"]) == (0, "llama.cpp, K f16, V f16", "float16")


@pytest.mark.parametrize(("cache", "dtype"), [("h2o", "float32"), ("int8", "bfloat16"), ("paged", "float32")])
def test_a_run_goes_on_from_a_snapshot_as_if_it_had_not_ended(
    cache: str, dtype: str, twin: Twin, folder: Path, tmp_path: Path
) -> None:
    """In the numbers of the file, which nobody names again."""
    begin = ("run", "--model", folder, "--cache", cache, "--token-ids", IDS, "--temperature", "1", "--seed", "3")
    begin += ("--dtype", dtype)
    path, later = tmp_path / "x.safetensors", tmp_path / "y.safetensors"
    whole = twin.lines(*begin, "--steps", 20)[-1]["token_ids"]
    assert len(whole) == 20
    assert twin.lines(*begin, "--steps", 8, "--export", path)[-1]["token_ids"] == whole[:8]
    done = twin.lines("run", "--model", folder, "--from", path, "--steps", 12, "--export", later)[-1]
    assert done["token_ids"] == whole[8:]
    assert done["cache"] == cache
    (facts,) = twin.lines("snapshot", "info", later)
    assert facts["num_records"] == 20
    assert facts["dtype"] == dtype
    status, _, err = twin.run("run", "--from", path, "--steps", 3)
    assert status == 2
    assert "made with other weights" in err


def test_a_run_that_goes_on_chooses_as_it_is_told_and_else_as_it_did(twin: Twin, folder: Path, tmp_path: Path) -> None:
    path, later = tmp_path / "x.safetensors", tmp_path / "y.safetensors"
    warm = ("--temperature", 1, "--top-k", 40, "--seed", 3)
    twin.lines("run", "--model", folder, "--token-ids", IDS, *warm, "--steps", 4, "--export", path)
    begin = ("run", "--model", folder, "--from", path, "--steps", 3)
    twin.lines(*begin, "--seed", 9, "--min-p", 0.1, "--stop", "zz", "--codec", "int8", "--export", later)
    with SnapshotFile(later) as file:
        assert file.manifest.sequence.sampling == SamplingParams(1.0, 40, None, 0.1, 9, ("zz",), draws="counter")
        assert file.manifest.cache == "int8"
    assert "leave --force out" in twin.refused(*begin, "--force-ids", "5")
    assert "before a --user turn" in twin.refused(*begin, "--system", "Be brief.")
    assert "-1.0 is not a number from 0 up" in twin.refused(*begin, "--temperature", "-1")


def test_a_run_takes_a_prompt_or_a_snapshot(twin: Twin, sound: Path, source: str) -> None:
    assert "is required" in twin.refused("run", "--model", source)
    assert "not allowed with" in twin.refused("run", "--model", source, "--prompt", "a", "--from", sound)


def test_a_run_exports_what_is_chosen(twin: Twin, source: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    begin = ("run", "--model", source, "--cache", "int8", "--token-ids", IDS, "--steps", 3, "--export", path)
    twin.lines(*begin, "--export-layers", "1", "--export-heads", "0", "--export-form", "rows")
    (facts,) = twin.lines("snapshot", "info", path)
    assert [(layer["index"], layer["heads"], layer["keys"]["codec"]) for layer in facts["layers"]] == [
        (1, [0], "exact")
    ]
    assert "names no layers" in twin.refused(*begin, "--export-layers", "a")
    assert "There is no layer 7" in twin.run(*begin, "--json", "--export-layers", "7")[2]
