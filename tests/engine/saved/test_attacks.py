"""Hostile session files are refused in one sentence, within bounded memory; what was saved once stays readable."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.opened.session import OpenedSession, walk
from engine.saved.document import pieces, read_session
from engine.saved.journal import JournalFile
from engine.saved.session import entries_of
from tests.effort import effort
from tests.engine.saved.attacks import RAW, REFUSED, changed
from tests.engine.saved.samples import SAMPLE

SOUND = b"".join(pieces(SAMPLE, "2026-01-02T03:04:05+00:00"))


def refused(content: bytes, path: Path, says: str) -> None:
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(InputError, match=says) as caught:
        OpenedSession(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    words = str(caught.value)
    assert str(path) in words
    assert "\n" not in words
    assert len(words) < 500 + len(str(path))
    assert peak < 64 << 20


def test_there_are_enough_of_them(tmp_path: Path) -> None:
    assert len(REFUSED) + len(RAW) >= 60
    (tmp_path / "s.json").write_bytes(SOUND)
    assert read_session(tmp_path / "s.json").session == SAMPLE


@pytest.mark.parametrize("name", REFUSED)
def test_a_session_that_says_nonsense_is_refused(name: str, tmp_path: Path) -> None:
    attack, says = REFUSED[name]
    refused(changed(SOUND, attack), tmp_path / "s.json", says)


@pytest.mark.parametrize("name", RAW)
def test_a_file_that_is_no_session_is_refused(name: str, tmp_path: Path) -> None:
    attack, says = RAW[name]
    refused(attack(SOUND), tmp_path / "s.json", says)


@settings(
    max_examples=effort(120, 3000), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(at=st.integers(0, len(SOUND) - 1), byte=st.integers(0, 255), is_journal=st.booleans())
def test_no_change_of_a_byte_ends_in_anything_but_a_sentence(
    at: int, byte: int, is_journal: bool, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    path.unlink(missing_ok=True)
    if is_journal:
        file = JournalFile(path, "", "")
        file.append(*entries_of(SAMPLE))
        file.close()
    content = bytearray(path.read_bytes() if is_journal else SOUND)
    content[at % len(content)] = byte
    path.write_bytes(content)
    with suppress(InputError):  # anything else fails
        assert list(OpenedSession(path).events())


def test_what_is_computed_without_a_name_is_bounded(tmp_path: Path) -> None:
    text = SOUND.replace(b'"first_position":3,"num_tokens":4', b'"first_position":3,"num_tokens":9000000')
    (tmp_path / "s.json").write_bytes(text)
    with pytest.raises(InputError, match="tokens that it does not name"):
        list(walk(read_session(tmp_path / "s.json").session.nodes))


def test_version_1_stays_readable(tmp_path: Path) -> None:
    """The file lies beside this test as it was written; whatever the format becomes, it opens."""
    path = Path(__file__).with_name("version-1.session.json")
    found = read_session(path)
    assert found.session == SAMPLE
    assert found.created == "2026-01-02T03:04:05+00:00"
