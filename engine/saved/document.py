"""A session as one readable JSON file: written completely or not at all, and checked when it is read. No torch.

The format is described in `resources/session-format.md`. Journals, which hold the same line by line, are read here too.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from engine.errors import InputError
from engine.files.atomic import replacing
from engine.files.text import read_bytes
from engine.saved.check import MAX_FILE_BYTES, Unusable, check
from engine.saved.journal import FORMAT as JOURNAL
from engine.saved.journal import read_lines
from engine.saved.named import decoded, encoded
from engine.saved.session import VERSION, SavedSession

FORMAT = "kvloupe-session"
WRITTEN_BY = "KV Loupe"
PEEK_BYTES = 256  # at the beginning of a file, which must name its format


class ReadSession(Struct, frozen=True):
    """A session read from a file, when it was begun or saved, and the `problem` with the file, empty if there is
    none."""

    session: SavedSession
    path: Path
    created: str
    problem: str = ""


def is_session(path: Path) -> bool:
    """Whether the first bytes of a file name the format of a session or of a journal."""
    try:
        if not path.is_file():  # reading a pipe would block
            return False
        with path.open("rb") as stream:
            begin = stream.read(PEEK_BYTES).replace(b" ", b"")
    except (OSError, ValueError):
        return False
    return any(f'"format":"{name}"'.encode() in begin for name in (FORMAT, JOURNAL))


def write_session(session: SavedSession, path: Path) -> None:
    """Write a session to `path`, replacing a file that is there; raises `InputError` where it cannot be written."""
    with replacing(path) as stream:
        for piece in pieces(session, now()):
            stream.write(piece)


def now() -> str:
    """The present time as ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def pieces(session: SavedSession, created: str) -> list[bytes]:
    """The bytes of a session file in pieces: one line for each field, and one for each node."""
    head: dict[str, str | int] = {"format": FORMAT, "version": VERSION, "created": created, "written_by": WRITTEN_BY}
    lines = [f"  {_text(name)}: {_text(value)}".encode() for name, value in head.items()]
    found = msgspec.json.decode(encoded(session), type=dict[str, Raw])
    nodes = msgspec.json.decode(found.pop("nodes", b"[]"), type=list[Raw])
    lines += [b"  " + _text(name).encode() + b": " + bytes(raw) for name, raw in found.items()]
    moments = b",\n".join(b"    " + bytes(raw) for raw in nodes)
    return [b"{\n", b",\n".join(lines), b',\n  "nodes": [\n', moments, b"\n  ]\n}\n"]


def _text(value: str | int) -> str:
    return msgspec.json.encode(value).decode()


class _FileHead(Struct, frozen=True):
    """The fields of a file that say what it is."""

    format: str
    version: int
    created: str = ""


def read_session(path: Path) -> ReadSession:
    """Read a session from a JSON file or a journal; raises `InputError` with the reason and what to do."""
    content = read_bytes(path, MAX_FILE_BYTES, "session file")
    try:
        return _read(content, path)
    except Unusable as error:
        raise InputError(f"'{path}' is no session that can be opened: {error}. Take another copy of it.") from None
    except NewerVersion as error:
        raise InputError(f"'{path}' cannot be opened: {error}.") from None


class NewerVersion(InputError):
    """The file was written by a later version of the program."""


def check_version(version: int) -> None:
    """Raise `NewerVersion` or `Unusable` for a version that this program does not know."""
    if version > VERSION:
        raise NewerVersion(
            f"it has version {str(version)[:20]} of the format and this program reads versions up to {VERSION}: "
            "update it"
        )
    if version < 1:
        raise Unusable(f"its version is {version}, which never was one")


def _read(content: bytes, path: Path) -> ReadSession:
    lines = read_lines(content)
    if lines is not None:
        check_version(lines.version)
        check(lines.session)
        return ReadSession(lines.session, path, lines.created, lines.problem)
    try:
        head = msgspec.json.decode(content, type=_FileHead)
        if head.format != FORMAT:
            raise Unusable("it is a JSON file and no session")
        check_version(head.version)
        session = decoded(content, SavedSession)
    except (Unusable, NewerVersion):
        raise
    except (msgspec.MsgspecError, InputError, ValueError, RecursionError, OverflowError) as error:
        raise Unusable(str(error)[:200].rstrip(".")) from None
    check(session)
    return ReadSession(session, path, head.created[:100])
