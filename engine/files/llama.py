"""Recognises the files of llama.cpp by their first bytes, and finds the model of a state file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from engine.files.text import first_bytes

SEQUENCE_MAGIC, SESSION_MAGIC, GGUF_MAGIC = b"qsgg", b"nsgg", b"GGUF"
Kind = Literal["state", "gguf", ""]
KINDS: dict[bytes, Kind] = {SEQUENCE_MAGIC: "state", SESSION_MAGIC: "state", GGUF_MAGIC: "gguf"}


def kind_of(path: Path) -> Kind:
    """Which of llama.cpp's files this is: a state, of a sequence or of a whole context, or a model; empty if it is
    none or cannot be read."""
    return KINDS.get(first_bytes(path, 4), "")


def model_beside(path: Path) -> Path | None:
    """The only GGUF in the folder of a state file, else a config.json there; None if there is neither."""
    try:
        found = [each for each in sorted(path.parent.iterdir()) if each.suffix == ".gguf"]
    except OSError:
        return None
    config = path.with_name("config.json")
    return found[0] if len(found) == 1 else config if config.is_file() else None
