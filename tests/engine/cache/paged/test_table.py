from __future__ import annotations

import pytest

from engine.cache.paged.table import PageTable
from engine.errors import InputError


def table_of(page_ids: list[int], num_tokens: int, page_size: int = 4, num_slid_pages: int = 0) -> PageTable:
    table = PageTable(seq_id=3, page_size=page_size)
    table.page_ids = page_ids
    table.num_tokens = num_tokens
    table.num_slid_pages = num_slid_pages
    return table


def test_a_slot_is_page_id_times_page_size_plus_offset() -> None:
    table = table_of([7, 2], num_tokens=6)
    assert [table.slot(position) for position in range(6)] == [28, 29, 30, 31, 8, 9]


@pytest.mark.parametrize("position", [-1, 6, 8, 100])
def test_a_position_outside_of_the_sequence_has_no_slot(position: int) -> None:
    with pytest.raises(InputError, match=f"Position {position} is not in the cache of sequence 3"):
        table_of([7, 2], num_tokens=6).slot(position)


def test_a_position_that_left_the_window_has_no_slot() -> None:
    table = table_of([0, 2], num_tokens=6, num_slid_pages=1)
    assert (table.first_held_position, table.num_held_tokens) == (4, 2)
    assert table.slot(4) == 8
    with pytest.raises(InputError, match="holds 4 to 5"):
        table.slot(3)


def test_slack_is_the_room_in_the_last_page() -> None:
    assert table_of([7, 2], num_tokens=6).num_slack_tokens == 2
    assert table_of([7, 2], num_tokens=8).num_slack_tokens == 0
    assert table_of([], num_tokens=0).num_slack_tokens == 0


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (table_of([4, 5], num_tokens=4), "2 pages of 4 for 4 tokens"),
        (table_of([4, 4], num_tokens=8), "a page twice"),
        (table_of([4, 0], num_tokens=8), "null page in its window"),
        (table_of([4, 5], num_tokens=8, num_slid_pages=1), "pages before its window"),
    ],
)
def test_faults_are_named(broken: PageTable, words: str) -> None:
    assert words in "; ".join(broken.faults())


def test_too_many_hashes_are_a_fault() -> None:
    table = table_of([4, 5], num_tokens=7)
    table.page_hashes = [b"a", b"b"]
    assert "more than full pages" in "; ".join(table.faults())
    table.page_hashes.pop()
    assert table.faults() == []
