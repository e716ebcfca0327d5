"""A session as one readable JSON file: written completely or not at all, and checked when it is read. No torch.

The format is described in `resources/session-format.md`. Journals, which hold the same line by line, are read here too.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from engine.errors import InputError
from engine.files.atomic import replacing
from engine.files.text import first_bytes, read_bytes
from engine.saved.journal import FORMAT as JOURNAL
from engine.saved.journal import read_lines
from engine.saved.named import decoded, encoded
from engine.saved.session import VERSION, WRITTEN_BY, Head, SavedSession, now
from engine.spec.bookmark import check_bookmarks
from engine.wire.records import Change, EditMade, SequenceForked
from engine.wire.tree import Node, PlannedStep

MAX_FILE_BYTES = 256 << 20
MAX_STEP = 1 << 31
MAX_TOKENS = 1 << 24  # of one sequence
MAX_ALL_TOKENS = 1 << 26  # in all changes of a file together
MAX_CHANGES = 1 << 12  # of one node
MAX_SEQUENCES = 1 << 12  # in one step
MAX_LAYERS = 1 << 12
MAX_WORDS = 1 << 12  # characters of a text about the model, such as its name


class Unusable(InputError):
    """What is wrong with a session, as a part of a sentence; the caller adds the name of the file."""


def check(session: SavedSession) -> None:
    """Raise `Unusable` for a session that contradicts itself or is larger than any real one."""
    nodes = session.nodes
    _check_model(session)
    num_tokens, before = 0, -1
    known: set[int] = set()
    first = nodes[0].step if nodes else 0
    for node in nodes:
        if not before < node.step < MAX_STEP:
            raise Unusable(f"its step {str(node.step)[:20]} does not come after step {before}")
        if node.parent is not None and node.parent not in known and not (session.origin and node.parent < first):
            raise Unusable(f"its step {node.step} comes of step {node.parent}, which it does not have")
        num_tokens += _checked_node(node)
        before = node.step
        known.add(before)
    num_tokens += sum(map(_checked_change, session.pending))
    if num_tokens > MAX_ALL_TOKENS:
        raise Unusable(f"it names {num_tokens:,} tokens and at most {MAX_ALL_TOKENS:,} are read")
    if session.live is not None and session.live not in known and not (session.origin and session.live < first):
        raise Unusable(f"its present step is {session.live}, which it does not have")
    _check_changes(session.pending)
    try:
        check_bookmarks(session.bookmarks)
    except InputError as error:
        raise Unusable(f"{str(error)[:1].lower()}{str(error)[1:]}".rstrip(".")) from None


def _check_model(session: SavedSession) -> None:
    model = session.model
    if model is None:
        return
    if len(model.geometry.layers) > MAX_LAYERS:
        raise Unusable(f"its model has more layers than the {MAX_LAYERS:,} that are read")
    words = (model.name, model.source, model.architecture, model.dtype, model.device, model.fingerprint, model.note)
    if max(map(len, words)) > MAX_WORDS:
        raise Unusable(f"its model is told in more than the {MAX_WORDS:,} characters that are read")
    try:
        _ = session.spec
    except InputError as error:
        raise Unusable(f"its model cannot be loaded: {str(error).rstrip('.')}") from None


def _checked_node(node: Node) -> int:
    """Check a node; returns the number of tokens in its changes."""
    _check_changes(node.changes)
    if len(node.checksums) > MAX_LAYERS:  # the values need no check: any number can be a checksum
        raise Unusable(f"its step {node.step} has checksums of more than the {MAX_LAYERS:,} layers that are read")
    if node.work is not None:
        _check_work(node, node.work)
    return sum(map(_checked_change, node.changes))


def _check_changes(changes: tuple[Change, ...]) -> None:
    if len(changes) > MAX_CHANGES:
        raise Unusable(f"it makes {len(changes):,} changes at once and at most {MAX_CHANGES:,} are read")


def _check_work(node: Node, work: PlannedStep) -> None:
    where = f"its step {node.step}"
    if work.step != node.step or work.cache != node.cache:
        raise Unusable(f"{where} says two things of its number or its cache")
    if not 0 < len(work.parts) <= MAX_SEQUENCES or len(work.preempted) > MAX_SEQUENCES:
        raise Unusable(f"{where} computes {len(work.parts):,} sequences, which is none or more than {MAX_SEQUENCES:,}")
    if len({part.seq_id for part in work.parts}) < len(work.parts):
        raise Unusable(f"{where} computes one sequence twice")
    for part in work.parts:
        if not part.first_position < part.num_tokens <= MAX_TOKENS:
            raise Unusable(
                f"{where} computes tokens {part.first_position:,} … {part.num_tokens:,}, which is impossible"
            )


def _checked_change(change: Change) -> int:
    """Check a change; returns the number of tokens in it."""
    edit = change.edit if isinstance(change, EditMade) else None
    ids: tuple[int, ...] = getattr(edit or change, "token_ids", ())
    if len(ids) > MAX_TOKENS:
        raise Unusable(f"it names {len(ids):,} tokens at once and at most {MAX_TOKENS:,} are read")
    if edit is not None and not 0 <= min((edit.seq_id, *ids)) <= max((edit.seq_id, *ids)) < MAX_STEP:
        raise Unusable("it edits with a sequence or a token id that is none")
    if isinstance(change, SequenceForked) and change.num_tokens == 0:
        raise Unusable("it forks no token of a sequence")
    return len(ids)


FORMAT = "kvloupe-session"
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
    begin = first_bytes(path, PEEK_BYTES).replace(b" ", b"")
    return any(f'"format":"{name}"'.encode() in begin for name in (FORMAT, JOURNAL))


def write_session(session: SavedSession, path: Path) -> None:
    """Write a session to `path`, replacing a file that is there; raises `InputError` where it cannot be written."""
    with replacing(path) as stream:
        for piece in pieces(session, now()):
            stream.write(piece)


def pieces(session: SavedSession, created: str) -> list[bytes]:
    """The bytes of a session file in pieces: one line for each field, and one for each node."""
    head = Head(FORMAT, VERSION, created, WRITTEN_BY)
    fields = [msgspec.json.decode(each, type=dict[str, Raw]) for each in (msgspec.json.encode(head), encoded(session))]
    nodes = msgspec.json.decode(fields[1].pop("nodes", b"[]"), type=list[Raw])
    lines = [b'  "%s": %s' % (name.encode(), raw) for each in fields for name, raw in each.items()]
    lines_of_nodes = b",\n".join(b"    " + bytes(raw) for raw in nodes)
    return [b"{\n", b",\n".join(lines), b',\n  "nodes": [\n', lines_of_nodes, b"\n  ]\n}\n"]


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
    if (lines := read_lines(content)) is not None:
        head, session, problem = lines
        check_version(head.version)
        check(session)
        return ReadSession(session, path, head.created[:100], problem)
    try:
        head = msgspec.json.decode(content, type=Head)
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
