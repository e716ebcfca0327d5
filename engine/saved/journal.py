"""The journal of a session: a file that grows by one line with every step and every change, and survives its writer.

A line is a checksum (CRC-32 of the rest, eight hex digits), a space, one JSON object, and a line feed. The first says
what the file is, every other is a `JournalEntry`. Each is handed to the system whole, in one write, before the window
shows what it tells: a program that is killed loses nothing that was shown. Nothing is forced onto the disk (no fsync):
what a power cut takes, besides the last seconds, is found by the checksums. No torch.
"""

from __future__ import annotations

import os
import time
import zlib
from io import FileIO
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from engine.errors import InputError
from engine.files.atomic import lock
from engine.saved.named import decoded, encoded
from engine.saved.session import VERSION, JournalEntry, SavedSession, SessionBuilder

FORMAT = "kvloupe-journal"
DIGITS = 8
LOCK_ATTEMPTS = 20


class _JournalHead(Struct, frozen=True):
    """The first line."""

    format: str
    version: int
    created: str = ""
    written_by: str = ""


class Lines(Struct, frozen=True):
    """What a journal says, as far as it is whole; `problem` says what was left out of a damaged one."""

    version: int
    created: str
    session: SavedSession
    problem: str


def line_of(body: bytes) -> bytes:
    """A line of a journal."""
    return b"%08x %s\n" % (zlib.crc32(body), body)


class JournalFile:
    """A new journal, locked as long as it is open. Raises `OSError` where it cannot be made; then there is none."""

    def __init__(self, path: Path, created: str, written_by: str) -> None:
        self.path = path
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        self._stream = FileIO(os.open(path, flags, 0o600), "wb")
        try:
            lock_patiently(self._stream)
            self._num_bytes = 0
            self._put(line_of(msgspec.json.encode(_JournalHead(FORMAT, VERSION, created, written_by))))
        except BaseException:
            self.close()
            path.unlink(missing_ok=True)
            raise

    @property
    def num_bytes(self) -> int:
        """How long the file is."""
        return self._num_bytes

    def append(self, *entries: JournalEntry) -> None:
        """Write lines in one piece. Raises `OSError` where that fails; the file then ends with the line before."""
        self._put(b"".join(line_of(encoded(entry)) for entry in entries))

    def _put(self, content: bytes) -> None:
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[self._stream.write(rest) :]
        except OSError:
            self._cut()
            raise
        self._num_bytes += len(content)

    def _cut(self) -> None:
        try:
            os.ftruncate(self._stream.fileno(), self._num_bytes)
        except OSError:
            return  # a torn last line is left out by whoever reads

    def close(self) -> None:
        """Let the file and its lock go."""
        self._stream.close()


def lock_patiently(stream: IO[bytes]) -> None:
    """Another window that looks for journals holds each for a moment."""
    for rest in reversed(range(LOCK_ATTEMPTS)):
        try:
            lock(stream)
            return
        except OSError:
            if not rest:
                raise
            time.sleep(0.001)


def read_lines(content: bytes) -> Lines | None:
    """The session that a journal tells; None for what is no journal, or whose first line is not whole."""
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
        builder.take(entry)
    return Lines(head.version, head.created[:100], builder.session(), problem)


def _body(line: bytes) -> bytes | None:
    """The JSON of a line that is whole."""
    body = line[DIGITS + 1 :]
    return body if line == line_of(body)[:-1] else None


def _head(line: bytes) -> _JournalHead | None:
    body = _body(line)
    if body is None:
        return None
    try:
        head = msgspec.json.decode(body, type=_JournalHead)
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
