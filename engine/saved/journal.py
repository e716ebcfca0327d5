"""The journal of a session: a file that grows by one line with every step and every change, so that a session survives
its window.

A line is a checksum (CRC-32 of the rest, eight hex digits), a space, one JSON object, and a line feed. The first line
says what the file is, every other one is a `JournalEntry`. A line is written in one system call before the window shows
what it holds, so that a killed program loses nothing that was shown. There is no fsync: a power cut may take the last
seconds, and other damage is found by the checksums. No torch.
"""

from __future__ import annotations

import mmap
import os
import secrets
import time
import zlib
from contextlib import suppress
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import IO

import msgspec

from engine.errors import InputError
from engine.files.atomic import is_locked, lock
from engine.saved.named import decoded, encoded
from engine.saved.session import VERSION, WRITTEN_BY, Head, JournalEntry, SavedSession, SessionBuilder, now

FORMAT = "kvloupe-journal"
DIGITS = 8
LOCK_ATTEMPTS = 20


def line_of(body: bytes) -> bytes:
    """A line of a journal with `body`, a JSON object."""
    return b"%08x %s\n" % (zlib.crc32(body), body)


class JournalFile:
    """A new journal file, locked while it is open. Raises `OSError` where it cannot be made, and leaves no file."""

    def __init__(self, path: Path, created: str, written_by: str) -> None:
        self.path = path
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        self._stream = FileIO(os.open(path, flags, 0o600), "wb")
        try:
            lock_patiently(self._stream)
            self.num_bytes = 0
            self._put(line_of(msgspec.json.encode(Head(FORMAT, VERSION, created, written_by))))
        except BaseException:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, *entries: JournalEntry) -> None:
        """Append a line for each entry, in one write. Raises `OSError` where that fails; the file then ends as
        before."""
        self._put(b"".join(line_of(encoded(entry)) for entry in entries))

    def _put(self, content: bytes) -> None:
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[self._stream.write(rest) :]
        except OSError:
            self._cut()
            raise
        self.num_bytes += len(content)

    def _cut(self) -> None:
        try:
            os.ftruncate(self._stream.fileno(), self.num_bytes)
        except OSError:
            return  # the reader leaves a torn last line out

    def close(self) -> None:
        """Close the file, which releases its lock."""
        self._stream.close()


def add_to(path: Path, *entries: JournalEntry) -> None:
    """Add entries to the journal of a window that is gone, in place of a torn last line. Raises `OSError`."""
    with open(path, "r+b") as stream:
        if not os.fstat(stream.fileno()).st_size:
            raise OSError(f"'{path}' is empty, and no journal any more.")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end = content.rfind(b"\n") + 1
        stream.seek(end)
        stream.write(b"".join(line_of(encoded(entry)) for entry in entries))
        stream.truncate()


def lock_patiently(stream: IO[bytes]) -> None:
    """Lock a file, trying again for a while: another window that lists journals holds each lock for a short time."""
    for rest in reversed(range(LOCK_ATTEMPTS)):
        try:
            lock(stream)
            return
        except OSError:
            if not rest:
                raise
            time.sleep(0.001)


def read_lines(content: bytes) -> tuple[Head, SavedSession, str] | None:
    """Read a journal up to its first damaged line: what it says first, the session, and what was left out, in words if
    anything was. None for content that is not one, or whose first line is damaged."""
    lines = content.split(b"\n")
    head = _head(lines[0])
    if head is None:
        return None
    builder, problem = SessionBuilder(), ""
    last = len(lines) - 1  # what follows the last line feed: nothing, or a line that was being written
    for number, line in enumerate(lines[1:last], 1):
        entry = _entry(line) if head.version <= VERSION else None
        if entry is None:
            problem = f"line {number + 1:,} of {last:,} is damaged: it and what followed it are left out"
            break
        builder.add(entry)
    return head, builder.session(), problem


def _body(line: bytes) -> bytes | None:
    """The JSON of a line whose checksum is right; else None."""
    body = line[DIGITS + 1 :]
    return body if line == line_of(body)[:-1] else None


def _head(line: bytes) -> Head | None:
    body = _body(line)
    if body is None:
        return None
    try:
        head = msgspec.json.decode(body, type=Head)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return head if head.format == FORMAT else None


def _entry(line: bytes) -> JournalEntry | None:
    body = _body(line)
    if body is None:
        return None
    try:
        return decoded(body, JournalEntry)
    except (msgspec.MsgspecError, InputError, ValueError, RecursionError, OverflowError):
        return None


# ---- the folder: journals of windows that run, that were killed, and of the last sessions that ended -----------------

RUNNING, ENDED = ".running.jsonl", ".jsonl"
MOST_ENDED = 30
MOST_BYTES = 512 << 20  # of all journals of ended sessions together


def check_nobody_writes(path: Path) -> None:
    """Raise `InputError` for the journal of a running window: two windows would continue the same session."""
    if path.name.endswith(RUNNING):
        with suppress(OSError):
            if is_locked(path):
                raise InputError(
                    f"'{path}' is the session of a window that is open: go on there, or save it there as a file."
                )


class JournalFolder:
    """Makes journals with `new`, and keeps them with `finish` when their session ends. Raises `OSError` where the disk
    fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def new(self) -> JournalFile:
        """Create a new, locked journal."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"session {datetime.now():%Y-%m-%d %H.%M.%S} {secrets.token_hex(2)}{RUNNING}"
        return JournalFile(self.folder / name, now(), WRITTEN_BY)

    def left(self) -> list[Path]:
        """Journals of windows that are gone without having ended them, newest first."""
        return [path for path in self._files(RUNNING) if not is_locked(path)]

    def ended(self) -> list[Path]:
        """Journals of ended sessions, newest first."""
        return [path for path in self._files(ENDED) if not path.name.endswith(RUNNING)]

    def claim(self, path: Path) -> IO[bytes]:
        """Lock a left journal against other windows, until the returned stream is closed. Raises `OSError` where
        another window has it, or it is gone."""
        stream = open(path, "rb")  # noqa: SIM115
        try:
            lock_patiently(stream)
        except OSError:
            stream.close()
            raise
        return stream

    def delete(self, path: Path) -> None:
        """Delete a journal without content worth keeping."""
        with suppress(OSError):
            path.unlink()

    def finish(self, path: Path) -> Path:
        """Rename a journal as one of an ended session, and delete the oldest beyond the limits; returns its path."""
        kept = path.with_name(path.name.removesuffix(RUNNING).removesuffix(ENDED) + ENDED)
        with suppress(OSError):
            os.replace(path, kept)
            self._rotate()
            return kept
        return path

    def _rotate(self) -> None:
        num_bytes = 0
        for number, path in enumerate(self.ended()):
            with suppress(OSError):
                num_bytes += path.stat().st_size
                if number and (number >= MOST_ENDED or num_bytes > MOST_BYTES):
                    path.unlink()

    def _files(self, ending: str) -> list[Path]:
        with suppress(OSError):
            found = [path for path in self.folder.iterdir() if path.name.endswith(ending) and path.is_file()]
            return sorted(found, key=_age, reverse=True)
        return []


def _age(path: Path) -> tuple[float, str]:
    with suppress(OSError):
        return path.stat().st_mtime, path.name
    return 0.0, path.name
