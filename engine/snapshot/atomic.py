"""Files that are whole or not there: written beside their target, flushed to the disk, renamed. No torch.

What was there before stays until that moment, whatever happens: a full disk, a kill, a cancel.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from engine.errors import InputError

try:
    import fcntl
except ImportError:  # a system without: what a killed program left stays until somebody deletes it
    fcntl = None  # type: ignore[assignment]

PART_SUFFIX = ".part"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of `path` when the block ends well; nothing remains when it does not.

    Raises `InputError` where the place cannot be written or the disk is full.
    """
    if os.path.isdir(path):  # unlike Path.is_dir it has an answer for names that are too long
        raise InputError(f"'{path}' is a folder: give the name of a file in it.")
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART_SUFFIX)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"'{path}' cannot be written ({reason}): choose another place.") from None
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            with suppress(OSError):  # a file system without locks
                _lock(stream)
            sweep(path)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.chmod(0o644)
        os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"'{path}' could not be written ({reason}): free some space or choose another place."
        ) from None
    finally:
        with suppress(OSError):
            part.unlink()


def sweep(path: Path) -> None:
    """Delete what writers of `path` left that were killed: a living one holds a lock on its part."""
    for name in _names(path.parent):
        if fcntl is None or not (name.startswith(f".{path.name}.") and name.endswith(PART_SUFFIX)):
            continue
        with suppress(OSError), open(path.parent / name, "rb") as left:
            _lock(left)
            (path.parent / name).unlink()


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _lock(stream: BinaryIO | BufferedReader) -> None:
    """Hold a lock until the stream is closed, by whatever end; `OSError` where somebody else holds it."""
    if fcntl is not None:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_text(path: Path, text: str) -> None:
    """Put `text` in place of `path`, as UTF-8."""
    with replacing(path) as stream:
        stream.write(text.encode())


def sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system allows a folder to be opened."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
