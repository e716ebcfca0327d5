"""Reads text and JSON files completely, up to a size limit. No torch.

Only regular files are opened, since a device or a pipe may never end, or never begin.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from engine.errors import InputError

MIB = 1 << 20
JSON_LIMIT = 64 * MIB


def read_bytes(path: Path, limit: int, what: str) -> bytes:
    """All bytes of a file, at most `limit`. `what` is the file's name in messages, such as "prompt file".

    Raises `InputError` with the reason.
    """
    try:
        mode = os.stat(path).st_mode
        content = b""
        if stat.S_ISREG(mode):
            with path.open("rb") as stream:
                content = stream.read(min(limit, os.fstat(stream.fileno()).st_size) + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"The {what} '{path}' cannot be read ({reason}): check the path.") from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe and no regular file"
        raise InputError(f"The {what} '{path}' cannot be read: it is {kind}; give a file.")
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
