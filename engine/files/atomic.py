"""Files that are whole or not there: written beside their target, flushed to the disk, renamed. No torch.

What was there before stays until that moment, whatever happens: a full disk, a kill, a cancel. A link stays a link: the
file that it points at is replaced. What is no regular file (a device, a pipe, a folder) is refused.
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
except ImportError:  # a system without: what a killed program left stays until somebody deletes it
    fcntl = None  # type: ignore[assignment]

_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

PART_SUFFIX = ".kvloupe-part"
_RANDOM = r"[a-z0-9_]{8}"
_NEW_FILE_MODE = 0o666  # of which the system takes what the person's umask says
_LONGEST_NAME = 200  # bytes; a file system takes 255, and a part is named longer than its target
_ATTEMPTS = 16


def writable_target(path: Path) -> Path:
    """The file that writing to `path` would replace, links followed; raises `InputError` where there can be none."""
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
    """What kind of file stands there and who may do what with it; None where there is none."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _remedy(error: OSError, target: Path) -> str:
    """What can be done about a file that could not be written to its end."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space or choose another place"
    if not os.path.isdir(target.parent):
        return f"the folder '{target.parent}' is gone; bring its drive back or choose another place"
    return "choose another place"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of `path` when the block ends well; nothing remains when it does not.

    Raises `InputError` where the place cannot be written or the disk is full.
    """
    target = writable_target(path)
    mode = _mode(target)
    try:
        part, stream = _new_part(target, _NEW_FILE_MODE if mode is None else stat.S_IRUSR | stat.S_IWUSR)
    except OSError as error:
        raise InputError(f"'{path}' cannot be written ({_reason(error)}): choose another place.") from None
    try:
        with stream:
            sweep(target)
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
    """Let the system begin to carry what was written from byte `begin` on to the disk, where it can, so that there is
    less to wait for at the end; whether it succeeds is told there."""
    if _sync_file_range is not None:
        stream.flush()
        _sync_file_range(stream.fileno(), begin, 0, _SYNC_FILE_RANGE_WRITE)


def _new_part(target: Path, mode: int) -> tuple[Path, BinaryIO]:
    """A file beside `target` that nobody else has, and its lock; made anew where another writer's `sweep` took it for
    one that was left, before it was locked."""
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    for _ in range(_ATTEMPTS):
        part = target.with_name(f"{_part_prefix(target)}{secrets.token_hex(4)}{PART_SUFFIX}")
        stream = os.fdopen(os.open(part, flags, mode), "wb")
        with suppress(OSError):  # a file system without locks
            lock(stream)
        if part.exists():
            return part, stream
        stream.close()
    raise FileExistsError(errno.EAGAIN, "other programs write it all the time")


def _part_prefix(target: Path) -> str:
    """How the parts of a file begin; a long name is shortened to a digest of it."""
    raw = target.name.encode("utf-8", "surrogateescape")
    is_short = len(raw) <= _LONGEST_NAME
    return f".{target.name if is_short else hashlib.blake2b(raw, digest_size=16).hexdigest()}."


def sweep(path: Path) -> None:
    """Delete what writers of `path` left that were killed: a living one holds a lock on its part."""
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
    """Hold a lock until the stream is closed, by whatever end; `OSError` where somebody else holds it."""
    if fcntl is not None:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Whether somebody holds a lock on a file. Asked with a shared lock: who else asks at this moment holds none."""
    with suppress(FileNotFoundError), open(path, "rb") as stream:
        try:
            if fcntl is not None:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def write_bytes(path: Path, content: bytes) -> None:
    """Put `content` in place of `path`."""
    with replacing(path) as stream:
        stream.write(content)


def write_text(path: Path, text: str) -> None:
    """Put `text` in place of `path`, as UTF-8; half characters, which have none, are escaped."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system allows a folder to be opened."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
