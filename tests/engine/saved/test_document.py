"""What is written of a session is read again, from both forms, whatever the session; and what was torn, up to there."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from engine.errors import InputError
from engine.saved.document import ReadSession, is_session, pieces, read_session, write_session
from engine.saved.journal import JournalFile, add_to, line_of, read_lines
from engine.saved.named import decoded, encoded
from engine.saved.session import JournalEntry, SavedSession, SessionBuilder, entries_of
from engine.spec.edit import BiasLogits
from engine.wire.records import EditMade
from engine.wire.tree import Node
from tests.effort import effort
from tests.engine.saved.trees import MODEL, sessions

FILES = settings(
    max_examples=effort(50, 1000), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


LATER = JournalEntry(draft="later")


def journal_of(session: SavedSession, path: Path) -> bytes:
    """A journal in which the session became, entry by entry."""
    path.unlink(missing_ok=True)
    file = JournalFile(path, "2026-01-02T03:04:05+00:00", "a test")
    for entry in entries_of(session):
        file.append(entry)
    file.close()
    return path.read_bytes()


@FILES
@given(session=sessions())
def test_a_document_says_it_all(session: SavedSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "s.json"
    write_session(session, path)
    found = read_session(path)
    assert found.session == session
    assert found.problem == ""
    assert is_session(path)
    json.loads(path.read_text("utf-8"))  # any JSON reader's


@FILES
@given(session=sessions())
def test_a_journal_says_the_same(session: SavedSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "s.jsonl"
    journal_of(session, path)
    assert read_session(path) == ReadSession(session, path, "2026-01-02T03:04:05+00:00")
    assert is_session(path)


def small() -> SavedSession:
    """Some moments, a note, a draft with half a character."""
    from tests.engine.saved.samples import SAMPLE

    return SAMPLE


def test_a_journal_torn_at_any_byte_has_every_line_that_was_whole(tmp_path: Path) -> None:
    content = journal_of(small(), tmp_path / "s.jsonl")
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    entries = list(entries_of(small()))
    assert len(ends) == len(entries) + 1
    for length in range(len(content) + 1):
        lines = read_lines(content[:length])
        whole = sum(end <= length for end in ends)
        if length < ends[0] - 1:  # the first line but for its line feed is whole by its checksum
            assert lines is None
            continue
        assert lines is not None
        builder = SessionBuilder()
        for entry in entries[: max(0, whole - 1)]:
            builder.add(entry)
        assert lines[1] == builder.session(), length
        assert lines[2] == ""


def test_an_entry_that_is_added_takes_the_place_of_a_torn_last_line(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    content = journal_of(small(), path)
    for length in range(content.index(b"\n") + 1, len(content) + 1):
        path.write_bytes(content[:length])
        add_to(path, LATER)
        assert path.read_bytes() == content[: content.rindex(b"\n", 0, length) + 1] + line_of(encoded(LATER))
        lines = read_lines(path.read_bytes())
        assert lines is not None
        assert (lines[1].draft, lines[2]) == ("later", "")
    path.write_bytes(b"")
    with pytest.raises(OSError, match="is empty"):
        add_to(path, LATER)
    assert path.read_bytes() == b""


def test_a_byte_that_is_another_is_found_wherever_it_stands(tmp_path: Path) -> None:
    content = journal_of(small(), tmp_path / "s.jsonl")
    ends = [index for index, byte in enumerate(content) if byte == ord("\n")]
    for index in range(len(content) - 1):
        changed = bytearray(content)
        changed[index] ^= 4
        lines = read_lines(bytes(changed))
        number = sum(end < index for end in ends)  # the line that it stands in
        if number == 0 and index != ends[0]:
            assert lines is None
            continue
        assert lines is not None or index == ends[0]
        if lines is not None:
            assert f"line {number + 1:,} of" in lines[2] or index in ends, index
            assert len(lines[1].nodes) <= number


def test_a_damaged_journal_opens_up_to_there_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    content = journal_of(small(), path).split(b"\n")
    content[3] = content[3].replace(b'"parent":0', b'"parent":9')
    path.write_bytes(b"\n".join(content))
    found = read_session(path)
    assert [node.step for node in found.session.nodes] == [0, 1]
    assert found.problem == f"line 4 of {len(content) - 1} is damaged: it and what followed it are left out"


def test_a_journal_cut_by_a_full_disk_ends_with_a_whole_line(tmp_path: Path) -> None:
    path, entries = tmp_path / "s.jsonl", list(entries_of(small()))
    file = JournalFile(path, "", "")
    file.append(entries[0])
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.num_bytes + 10, hard))  # it takes ten bytes more
    try:
        with pytest.raises(OSError, match="too large"):
            file.append(entries[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    file.close()
    assert path.read_bytes() == before


def test_struct_by_struct_nothing_is_named_twice() -> None:
    node = small().nodes[-1]
    text = encoded(node)
    assert decoded(text, Node) == node
    assert b'"type":"BiasLogits"' in text
    assert b'"-inf"' in text
    (change,) = decoded(text, Node).changes
    assert isinstance(change, EditMade)
    assert isinstance(change.edit, BiasLogits)
    assert change.edit.biases[0] == (3, float("-inf"))


def test_half_a_character_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    write_session(SavedSession(draft="a\ud83d", texts={7: "\udce2"}), path)
    found = read_session(path).session
    assert (found.draft, found.texts) == ("a\\ud83d", {7: "\\udce2"})


def test_a_moment_stands_on_a_line_of_its_own() -> None:
    lines = b"".join(pieces(small(), "now")).splitlines()
    assert lines[1] == b'  "format": "kvloupe-session",'
    assert lines[2] == b'  "version": 1,'
    assert sum(line.startswith(b'    {"step":') for line in lines) == len(small().nodes)


def test_an_entry_that_says_nothing_is_short() -> None:
    assert encoded(JournalEntry()) == b"{}"
    assert encoded(JournalEntry(draft="")) == b'{"draft":""}'
    assert decoded(b'{"live":null}', JournalEntry).live is None


def test_a_folder_and_a_pipe_are_no_sessions(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not is_session(tmp_path / "pipe")
    assert not is_session(tmp_path)
    for name in ("pipe", "missing"):
        with pytest.raises(InputError, match=name):
            read_session(tmp_path / name)
    assert MODEL.fingerprint
