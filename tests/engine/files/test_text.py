"""Text and JSON are read whole within a limit, from regular files; anything else is one plain sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.errors import InputError
from engine.files.text import MIB, read_json_object, read_text


def test_a_file_of_just_the_limit_is_read_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"x" * MIB)
    assert len(read_text(path, MIB, "prompt file")) == MIB
    path.write_bytes(b"x" * (MIB + 1))
    with pytest.raises(InputError, match="is larger than 1 MiB: give a smaller one"):
        read_text(path, MIB, "prompt file")


def test_text_is_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes("Zoë ⏎\r\n".encode())
    assert read_text(path, MIB, "prompt file") == "Zoë ⏎\r\n"
    path.write_bytes(b"Zo\xeb")
    with pytest.raises(InputError, match=r"The prompt file .* is not UTF-8 text: convert it first"):
        read_text(path, MIB, "prompt file")


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opening it would wait for ever
    for path, said in (
        (pipe, "a device or a pipe and no regular file"),
        (tmp_path, "a folder"),
        (tmp_path / "none", "No such file"),
        (Path("nul\0l"), "null (byte|character)"),
    ):
        with pytest.raises(InputError, match=said):
            read_text(path, MIB, "prompt file")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "holds no JSON object"),
        ("[" * 100_000, "is not valid JSON"),
        (f'{{"a": {"9" * 5000}}}', "a number of thousands of digits"),
    ],
    ids=["cut", "list", "deep", "digits"],
)
def test_json_that_is_none_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_json_object(path, "model config")


def test_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 64}')
    assert read_json_object(path, "model config") == {"hidden_size": 64}
