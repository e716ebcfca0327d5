"""The log of lost rows against a list that forgets nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.cache import lost_rows
from engine.cache.lost_rows import Lost, LostRows, LostStep


def lost(at: int, num_bytes: int, memory_at: int | None = None) -> LostStep:
    """A step to `at` tokens that took so many bytes from layer 0, with a memory of three bytes in layer 1."""
    rows, memory = torch.zeros(num_bytes, dtype=torch.uint8), torch.full((3,), at - 1, dtype=torch.uint8)
    return LostStep(at, {0: Lost([rows]), 1: Lost(memory=memory)}, memory_at)


def filled(sizes: tuple[int, ...] = (4, 4, 4)) -> LostRows:
    log = LostRows()
    for at, size in enumerate(sizes, 1):
        log.add(lost(at, size, at - 1))
    return log


def memory_of(log: LostRows, num_tokens: int) -> list[int] | None:
    found = log.memories_at(num_tokens)
    return None if found is None or found[1] is None else found[1].tolist()


def test_the_oldest_step_goes_when_the_room_is_full_with_its_rows_and_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lost_rows, "MAX_BYTES", 15)
    log = filled()
    assert [step.at for step in log.since(0)] == [2, 3]
    assert (log.floor, log.num_bytes, log.bytes_of(0), log.bytes_of(1)) == (1, 14, 8, 6)
    assert [memory_of(log, n) for n in range(4)] == [None, [1] * 3, [2] * 3, None]


def test_a_step_larger_than_the_room_stays_until_the_next_because_it_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_rows, "MAX_BYTES", 15)
    log = filled((4, 100))
    assert [step.at for step in log.since(0)] == [2]
    log.add(lost(3, 1, 2))
    assert [step.at for step in log.since(0)] == [3]
    assert log.floor == 2


def test_a_memory_is_known_at_the_end_of_each_step_only() -> None:
    log = LostRows()
    for at, before in ((8, 0), (16, 8), (17, 16)):
        log.add(lost(at, 1, before))
    assert [n for n in range(17) if log.knows_memory(n)] == [0, 8, 16]
    log.memory_floor = 16
    assert [n for n in range(17) if log.knows_memory(n)] == [0, 16]
    log.back_to(8)
    assert log.knows_memory(8)


def test_what_an_edit_took_away_between_two_steps_brings_no_memory() -> None:
    log = filled()
    log.add(lost(3, 4))
    log.add(lost(4, 4, 3))
    assert [step.memory_at for step in log.since(2)] == [2, None, 3]
    assert memory_of(log, 3) == [3] * 3
    assert memory_of(log, 2) == [2] * 3


def test_what_is_forgotten_is_refused_and_the_present_stays() -> None:
    log = filled()
    log.forget(3)
    assert (log.since(0), log.num_bytes, log.bytes_of(0), log.floor) == ([], 0, 0, 3)
    assert not log.knows_memory(2)


def test_a_copy_goes_its_own_way() -> None:
    log = filled()
    copy = log.copy()
    copy.back_to(1)
    assert [step.at for step in log.since(0)] == [1, 2, 3]
    assert [step.at for step in copy.since(0)] == [1]
    assert (log.num_bytes, copy.num_bytes) == (3 * 7, 7)
    assert dict(copy.step_bytes()).items() <= dict(log.step_bytes()).items()
    log.forget(3)
    assert copy.since(0)
    assert copy.floor == 0


@pytest.mark.parametrize(("max_bytes", "at"), [(21, [1, 2, 3]), (20, [2, 3]), (8, [3]), (0, [])])
def test_shrinking_bounds_rows_and_memories_together(max_bytes: int, at: list[int]) -> None:
    log = filled()
    log.shrink(max_bytes)
    assert [step.at for step in log.since(0)] == at
    assert log.num_bytes == 7 * len(at)
    assert log.floor == 3 - len(at)


@given(st.lists(st.tuples(st.sampled_from(["add", "back", "forget", "shrink"]), st.integers(0, 9)), max_size=40))
def test_it_tells_what_a_list_would(program: list[tuple[str, int]]) -> None:
    log, steps = LostRows(), list[LostStep]()
    now, floor = 0, 0
    for what, number in program:
        if what == "add":
            now += 1
            steps.append(lost(now, number, now - 1))
            log.add(steps[-1])
        elif what == "shrink":
            log.shrink(5 * number)
            while sum(step.num_bytes for step in steps) > 5 * number:
                floor = steps.pop(0).at
        elif what == "back" and max(0, now - number) >= floor:
            now = max(0, now - number)
            steps = [step for step in steps if step.at <= now]
            log.back_to(now)
        elif what == "forget":
            steps, floor = [], now
            log.forget(now)
        assert (log.since(0), log.floor) == (steps, floor)
        assert log.num_bytes == sum(step.num_bytes for step in steps) == log.bytes_of(0) + log.bytes_of(1)
        for tokens in range(now + 1):
            assert log.since(tokens) == [step for step in steps if step.at > tokens]
            assert (memory_of(log, tokens) is not None) == (floor <= tokens < now)
