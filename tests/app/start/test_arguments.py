"""The command line of the window: what it takes, and the one line that refuses the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.start.arguments import parse
from engine.spec.cache import PRESETS, CacheSpec, cache_named
from engine.spec.codec import CodecSpec, Coding


@pytest.mark.parametrize("name", [*PRESETS, "int8/kivi-2", "paged+h2o", "paged+tova+int8", "sliding+exact/fp8"])
def test_a_cache_is_named_as_it_is_printed(name: str) -> None:
    assert parse(["--cache", name]).cache == cache_named(name)


def test_k_and_v_are_named_apart() -> None:
    assert parse(["--cache", "int8/kivi-2"]).cache == CacheSpec(codec=CodecSpec(Coding("int8"), Coding("kivi-2")))


@pytest.mark.parametrize("name", ["warp", "h2o+warp", "dynamic+int8", "h2o+kivi-2", ""])
def test_an_impossible_cache_is_refused_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(["--cache", name])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("kvloupe: ")
    assert said.count("\n") == 1


def test_a_file_is_a_snapshot_to_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"")
    assert parse([str(path)]).snapshot == path
    assert parse([]).snapshot is None
    with pytest.raises(SystemExit):
        parse([str(tmp_path / "none")])
    words = "give a snapshot that was exported, or a session that was saved."
    assert capsys.readouterr().err == f"kvloupe: {tmp_path / 'none'} is no file: {words}\n"
