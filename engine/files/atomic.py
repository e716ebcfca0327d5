"""Writes files atomically: to a temporary part file beside the target, flushed to disk and renamed. No torch.

The old file stays until the rename, whatever happens: a full disk, a kill, a cancel. If the target is a link, the file
it points to is replaced. Targets that are no regular files (devices, pipes, folders) are refused.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from engine.errors import InputError

try:
    import fcntl
except ImportError:  # without file locks, part files of killed programs are never deleted
    fcntl = None  # type: ignore[assignment]

_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

PART_SUFFIX = ".kvloupe-part"
_RANDOM = r"[a-z0-9_]{8}"
_NEW_FILE_MODE = 0o666  # reduced by the user's umask
_LONGEST_NAME = 200  # bytes; file systems allow 255, and a part file has a longer name than its target
_ATTEMPTS = 16


def writable_target(path: Path) -> Path:
    """The file that writing to `path` would replace, links followed; raises `InputError` if it cannot be written."""
    try:
        target = Path(os.path.realpath(path))
        kind, folder = _mode(target), _mode(target.parent)
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be written ({_reason(error)}): choose another place.") from None
    if folder is None or not stat.S_ISDIR(folder):
        raise InputError(
            f"'{path}' cannot be written: the folder '{target.parent}' does not exist; create it or choose another."
        )
    if kind is not None and stat.S_ISDIR(kind):
        raise InputError(f"'{path}' is a folder: give the name of a file in it.")
    if kind is not None and not stat.S_ISREG(kind):
        raise InputError(f"'{path}' is a device or a pipe and no regular file: give the name of a file.")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"'{path}' cannot be written: the folder '{target.parent}' is read only; choose another.")
    return target


def _mode(path: Path) -> int | None:
    """The mode of the file, from which its kind and permissions follow; None if there is none."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _remedy(error: OSError, target: Path) -> str:
    """What a person can do about a file that could not be written completely."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space or choose another place"
    if not os.path.isdir(target.parent):
        return f"the folder '{target.parent}' is gone; bring its drive back or choose another place"
    return "choose another place"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content replaces `path` when the block ends without an error; otherwise nothing is changed.

    Raises `InputError` if the path cannot be written or the disk is full.
    """
    target = writable_target(path)
    mode = _mode(target)
    try:
        part, stream = _new_part(target, _NEW_FILE_MODE if mode is None else stat.S_IRUSR | stat.S_IWUSR)
    except OSError as error:
        raise InputError(f"'{path}' cannot be written ({_reason(error)}): choose another place.") from None
    try:
        with stream:
            remove_stale_parts(target)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if mode is not None:
            part.chmod(stat.S_IMODE(mode))
        os.replace(part, target)
        sync_folder(target.parent)
    except OSError as error:
        raise InputError(f"'{path}' could not be written ({_reason(error)}): {_remedy(error, target)}.") from None
    finally:
        with suppress(OSError):
            part.unlink()


def start_flush(stream: BinaryIO, begin: int) -> None:
    """Ask the system to start writing the bytes from `begin` on to disk, if it can, so that the final flush is shorter.
    Write errors are reported by that flush."""
    if _sync_file_range is not None:
        stream.flush()
        _sync_file_range(stream.fileno(), begin, 0, _SYNC_FILE_RANGE_WRITE)


def _new_part(target: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Create a part file beside `target` and lock it. If another writer's `remove_stale_parts` deleted it before it was
    locked, create another."""
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    for _ in range(_ATTEMPTS):
        part = target.with_name(f"{_part_prefix(target)}{secrets.token_hex(4)}{PART_SUFFIX}")
        stream = os.fdopen(os.open(part, flags, mode), "wb")
        with suppress(OSError):  # the file system may not support locks
            lock(stream)
        if part.exists():
            return part, stream
        stream.close()
    raise FileExistsError(errno.EAGAIN, "other programs write it all the time")


def _part_prefix(target: Path) -> str:
    """The beginning of the names of a file's part files; a long name is replaced by its digest."""
    raw = target.name.encode("utf-8", "surrogateescape")
    is_short = len(raw) <= _LONGEST_NAME
    return f".{target.name if is_short else hashlib.blake2b(raw, digest_size=16).hexdigest()}."


def remove_stale_parts(path: Path) -> None:
    """Delete part files of `path` whose writers were killed; a running writer holds a lock on its part file."""
    of_ours = re.compile(re.escape(_part_prefix(path)) + _RANDOM + re.escape(PART_SUFFIX))
    for name in _names(path.parent):
        if fcntl is None or not of_ours.fullmatch(name):
            continue
        with suppress(OSError), open(path.parent / name, "rb") as left:
            lock(left)
            (path.parent / name).unlink()


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def lock(stream: IO[bytes]) -> None:
    """Hold a lock until the stream is closed, even by a kill; raises `OSError` if another program holds it."""
    if fcntl is not None:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Whether a program holds a lock on a file. The test uses a shared lock, so that several tests at once do not see
    each other."""
    with suppress(FileNotFoundError), open(path, "rb") as stream:
        try:
            if fcntl is not None:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the content of `path` atomically."""
    with replacing(path) as stream:
        stream.write(content)


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` atomically by `text` in UTF-8; lone surrogates are escaped."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder durable, on systems that allow it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
