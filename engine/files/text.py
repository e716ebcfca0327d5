"""Opens files, recognises those of llama.cpp, and reads text and JSON completely, up to a size limit. No torch.

Only regular files are opened, since a device or a pipe may never end, or never begin.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from engine.errors import InputError

MIB = 1 << 20
JSON_LIMIT = 64 * MIB


def open_regular(path: Path, what: str) -> int:
    """Open a regular file for reading and return its descriptor. `what` is the file's name in messages, such as "prompt
    file". Raises `InputError` for folders and devices, and for pipes, which might never end."""
    try:
        _refuse_others(path, os.stat(path).st_mode, what)
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        try:
            # checked again, since the file may have been replaced meanwhile
            _refuse_others(path, os.fstat(file).st_mode, what)
        except BaseException:
            os.close(file)
            raise
        return file
    except InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"The {what} '{path}' cannot be opened ({reason}): check the path.") from None


def _refuse_others(path: Path, mode: int, what: str) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe and no regular file"
        raise InputError(f"The {what} '{path}' cannot be opened: it is {kind}; give a file.")


def first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a regular file; none of anything else, or of one that cannot be read."""
    try:
        with open(open_regular(path, "file"), "rb") as stream:
            return stream.read(count)
    except (InputError, OSError):
        return b""


def read_bytes(path: Path, limit: int, what: str) -> bytes:
    """All bytes of a file, at most `limit`; raises `InputError` with the reason."""
    try:
        with open(open_regular(path, what), "rb") as stream:
            content = stream.read(min(limit, os.fstat(stream.fileno()).st_size) + 1)
    except OSError as error:
        raise InputError(f"The {what} '{path}' cannot be read ({error.strerror}): check its drive.") from None
    if len(content) > limit:
        raise InputError(f"The {what} '{path}' is larger than {limit // MIB} MiB: give a smaller one.")
    return content


def read_text(path: Path, limit: int, what: str) -> str:
    """UTF-8 text of at most `limit` bytes; raises `InputError` as `read_bytes` does."""
    content = read_bytes(path, limit, what)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"The {what} '{path}' is not UTF-8 text: convert it first.") from None


def read_json_object(path: Path, what: str) -> dict[str, Any]:
    """The object in a JSON file; raises `InputError` with the reason."""
    text = read_text(path, JSON_LIMIT, what)
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"The {what} '{path}' is not valid JSON ({error}): download the file again.") from None
    except ValueError:  # Python does not parse numbers of more than 4,300 digits
        raise InputError(f"The {what} '{path}' holds a number of thousands of digits: correct it.") from None
    if not isinstance(found, dict):
        raise InputError(f"The {what} '{path}' holds no JSON object: give another file.")
    return found


# ---- the files of llama.cpp, by their first bytes --------------------------------------------------------------------

SEQUENCE_MAGIC, SESSION_MAGIC, GGUF_MAGIC = b"qsgg", b"nsgg", b"GGUF"
Kind = Literal["state", "gguf", ""]
KINDS: dict[bytes, Kind] = {SEQUENCE_MAGIC: "state", SESSION_MAGIC: "state", GGUF_MAGIC: "gguf"}


def kind_of(path: Path) -> Kind:
    """Which of llama.cpp's files this is: a state, of a sequence or of a whole context, or a model; empty if it is
    none or cannot be read."""
    return KINDS.get(first_bytes(path, 4), "")


def model_beside(path: Path) -> Path | None:
    """The model in the folder of a state file; None if there is none."""
    name = model_among(names_beside(path))
    return path.with_name(name) if name else None


def names_beside(path: Path) -> Sequence[str]:
    """The names of what lies in the folder of a file; none if it cannot be read."""
    try:
        return os.listdir(path.parent)
    except OSError:
        return ()


def model_among(names: Sequence[str]) -> str:
    """The only GGUF in a folder of state files, else the config.json there; empty if there is neither."""
    found = [name for name in names if name.endswith(".gguf")]
    return found[0] if len(found) == 1 else "config.json" if "config.json" in names else ""
