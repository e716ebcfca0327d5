"""The journal of evictions against a list that forgets nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.journal import EvictionJournal


@dataclass(frozen=True)
class Gone:
    at: int
    num_bytes: int


Journal = EvictionJournal[Gone, str]


def filled(max_bytes: int = 10, sizes: tuple[int, ...] = (4, 4, 4)) -> Journal:
    journal: Journal = EvictionJournal(max_bytes=max_bytes, max_memory_bytes=10)
    for at, size in enumerate(sizes, 1):
        journal.add(Gone(at, size))
        journal.note_memory(at, f"memory {at}", 3)
    return journal


def test_the_oldest_goes_when_the_room_is_full_and_states_before_it_are_refused() -> None:
    journal = filled()
    assert [gone.at for gone in journal.since(0)] == [2, 3]
    assert [journal.knows_rows(n) for n in range(4)] == [False, True, True, True]
    assert journal.num_bytes == 8 + 9
    assert not journal.never_evicted


def test_one_entry_larger_than_the_room_is_kept_all_the_same() -> None:
    journal = filled(sizes=(4, 100))
    assert [gone.at for gone in journal.since(0)] == [2]
    assert not journal.knows_rows(0)
    assert journal.knows_rows(1)


def test_memories_go_from_the_oldest_on() -> None:
    journal = filled(max_bytes=100, sizes=(1, 1, 1, 1))
    assert [journal.memory(n) for n in (1, 2, 4)] == [None, "memory 2", "memory 4"]
    assert [journal.knows_memory(n) for n in (0, 1, 2)] == [True, False, True]


def test_noting_a_state_twice_keeps_the_later_memory_once() -> None:
    journal = filled(sizes=(1,))
    journal.note_memory(1, "anew", 5)
    assert journal.memory(1) == "anew"
    assert journal.num_bytes == 1 + 5


def test_a_rule_that_remembers_nothing_any_more_is_known_from_there_on() -> None:
    journal = filled(sizes=(1, 1))
    journal.note_memory(5, None, 0)
    journal.note_memory(6, None, 0)
    assert [journal.knows_memory(n) for n in (4, 5, 9)] == [False, True, True]
    journal.back_to(4)
    assert not journal.knows_memory(5)


def test_what_is_forgotten_is_refused_and_the_present_stays() -> None:
    journal = filled(max_bytes=100)
    journal.forget(3)
    assert (journal.since(0), journal.memory(3), journal.memory(2)) == ([], "memory 3", None)
    assert [journal.knows_rows(n) for n in (2, 3)] == [False, True]
    assert not journal.never_evicted


def test_a_copy_goes_its_own_way() -> None:
    journal = filled(max_bytes=100)
    copy = journal.copy()
    copy.back_to(1)
    assert [gone.at for gone in journal.since(0)] == [1, 2, 3]
    assert [journal.memory(n) for n in (1, 2, 3)] == ["memory 1", "memory 2", "memory 3"]
    assert [copy.memory(n) for n in (1, 2, 3)] == ["memory 1", None, None]
    assert [gone.at for gone in copy.since(0)] == [1]
    assert (journal.num_bytes, copy.num_bytes) == (12 + 9, 4 + 3)
    journal.forget(3)
    assert copy.since(0)
    assert copy.knows_rows(0)


def test_a_copy_knows_as_little_of_what_was_forgotten() -> None:
    copy = filled().copy()
    assert [copy.knows_rows(n) for n in range(3)] == [False, True, True]
    copy.back_to(1)
    assert not copy.never_evicted


@pytest.mark.parametrize(
    ("max_bytes", "num_bytes", "at", "first_known"),
    [(21, 21, [1, 2, 3], 0), (20, 8 + 9, [2, 3], 1), (8, 0 + 6, [], 3), (0, 0 + 3, [], 3)],
)
def test_shrinking_bounds_rows_and_memories_together(
    max_bytes: int, num_bytes: int, at: list[int], first_known: int
) -> None:
    journal = filled(max_bytes=100)
    journal.shrink(max_bytes)
    assert journal.num_bytes == num_bytes, "the memory of the newest state stays in any case"
    assert [gone.at for gone in journal.since(0)] == at
    assert [journal.knows_rows(n) for n in range(4)] == [n >= first_known for n in range(4)]


@given(st.lists(st.tuples(st.sampled_from(["add", "back", "forget"]), st.integers(0, 9)), max_size=40))
def test_it_tells_what_a_list_would(program: list[tuple[str, int]]) -> None:
    journal: Journal = EvictionJournal(max_bytes=20, max_memory_bytes=20)
    entries: list[Gone] = []
    now, first_known = 0, 0
    for what, number in program:
        if what == "add":
            now += 1
            entries.append(Gone(now, number))
            journal.add(entries[-1])
            while sum(entry.num_bytes for entry in entries) > 20 and len(entries) > 1:
                first_known = entries.pop(0).at
        elif what == "back" and journal.knows_rows(max(0, now - number)):
            now = max(0, now - number)
            entries = [entry for entry in entries if entry.at <= now]
            journal.back_to(now)
        elif what == "forget":
            entries, first_known = [], now
            journal.forget(now)
        assert journal.since(0) == entries
        assert journal.num_bytes == sum(entry.num_bytes for entry in entries)
        for tokens in range(now + 1):
            assert journal.knows_rows(tokens) == (tokens >= first_known)
            assert journal.since(tokens) == [entry for entry in entries if entry.at > tokens]
        assert journal.never_evicted == (not entries and not first_known)


@pytest.mark.parametrize("tokens", [0, 2])
def test_going_back_gives_the_room_back(tokens: int) -> None:
    journal = filled(max_bytes=100)
    journal.back_to(tokens)
    assert journal.num_bytes == tokens * (4 + 3)
