from __future__ import annotations

import csv
import io
import json
import sys
import time
import tracemalloc
from types import FrameType
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from pytestqt.qtbot import QtBot

from app.models import Models, Selected
from app.models.sequence_status import rates
from engine.history.table import COLUMNS, step_csv, step_table
from engine.spec.bookmark import Bookmark, OnHead, OnPage, OnStep, OnToken
from engine.wire.pictures import CellUpdate, HeadRequest, TablePicture, TableRequest, Unchanged, WallRequest
from engine.wire.records import NonFinite
from tests.app import samples


def test_tokens_follow_the_steps(models: Models) -> None:
    models.timeline.append(samples.story(10))
    tokens = models.timeline.tokens(0)
    assert [t.position for t in tokens] == list(range(14))
    assert [t.is_prompt for t in tokens] == [True] * 4 + [False] * 10
    assert models.timeline.tokens(0, 3) == tokens[:7]
    assert models.timeline.num_tokens(0, 3) == 7
    assert models.timeline.tokens(5) == ()


def test_looking_back_is_an_index(models: Models) -> None:
    models.timeline.append(samples.story(10))
    assert models.timeline.record(4).step == 4
    assert models.timeline.record(11) is None
    assert models.timeline.at(None) is models.timeline.latest


@pytest.mark.parametrize(
    ("step", "direction", "expected"),
    [(None, -1, 9), (None, +1, 10), (9, +1, 10), (0, -1, 0), (4, +1, 5), (4, -100, 0), (4, +100, 10)],
)
def test_neighbours(models: Models, step: int | None, direction: int, expected: int | None) -> None:
    models.timeline.append(samples.story(10))
    assert models.timeline.neighbour(step, direction) == expected


def test_an_empty_timeline_has_no_neighbour(models: Models) -> None:
    assert models.timeline.neighbour(None, -1) is None


def test_rewind_forgets_what_came_after_and_goes_on(qtbot: QtBot, models: Models) -> None:
    models.timeline.append(samples.story(10))
    with qtbot.waitSignal(models.timeline.reset):
        models.timeline.go_to(6)
    assert models.timeline.latest.step == 6
    assert models.timeline.num_tokens(0) == 10
    models.timeline.append([samples.step_record(7)])
    assert [t.position for t in models.timeline.tokens(0)] == list(range(11))


def test_rewind_to_nothing(models: Models) -> None:
    models.timeline.append(samples.story(3))
    models.timeline.go_to(None)
    assert len(models.timeline) == 0
    assert models.timeline.tokens(0) == ()


def test_the_shown_tuple_is_not_built_again(models: Models) -> None:
    models.timeline.append(samples.story(50))
    assert models.timeline.tokens(0) is models.timeline.tokens(0)
    first = models.timeline.tokens(0)
    models.timeline.go_to(20)
    models.timeline.append([samples.step_record(21)])
    assert models.timeline.tokens(0) is not first


def test_appending_costs_what_is_new(models: Models) -> None:
    """A hundred steps on top of three thousand run no more than a few times the lines of a hundred on top of nothing,
    and take no more than a few times the memory."""
    records = samples.story(0)
    records = [replace(records[0], step=step) for step in range(3_120)]

    def cost(already: int) -> tuple[int, int]:
        timeline, lines, most = Models().timeline, 0, 0
        timeline.append(records[:already])

        def count(frame: FrameType, event: str, _: object) -> Any:
            nonlocal lines
            lines += event == "line"
            return count

        traced = sys.gettrace()
        for record in records[already : already + 120]:
            tracemalloc.start()
            sys.settrace(count)
            timeline.append([record])
            sys.settrace(traced)
            most = max(most, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        return lines, most

    for long, short in zip(cost(3_000), cost(0), strict=True):
        assert long < 5 * short


def test_selection_says_what_changed_and_nothing_twice(models: Models) -> None:
    heard: list[tuple[Selected, Selected]] = []
    models.selection.changed.connect(lambda old, new: heard.append((old, new)))
    models.selection.update(layer=2, kv_head=1)
    models.selection.update(layer=2)
    assert heard == [(Selected(), Selected(layer=2, kv_head=1))]


def test_a_chosen_page_is_given_up_for_another_token_or_sequence(models: Models) -> None:
    for change in ({"seq_id": 1}, {"position": 4}):
        models.selection.update(page=3, pool=1)
        assert models.selection.now.page == 3
        models.selection.update(**change)
        assert models.selection.now.page is None
    models.selection.update(page=3)
    models.selection.update(layer=2)
    assert models.selection.now.page == 3


def test_viewport_speaks_only_of_changes(models: Models) -> None:
    heard: list[int] = []
    models.viewport.changed.connect(lambda: heard.append(1))
    models.viewport.update(wall_size=(40, 16))
    models.viewport.update(wall_size=(40, 16))
    assert len(heard) == 1
    assert models.viewport.now.head_columns is None


def test_slices_keep_the_newest_of_each_kind(qtbot: QtBot, models: Models) -> None:
    piece = samples.head_picture(HeadRequest(0, 14, "keys", 0, 0, 0, 14, 100))
    with qtbot.waitSignal(models.pictures.changed) as caught:
        models.pictures.put(piece)
    assert caught.args == ["head"]
    assert models.pictures.head is piece
    models.pictures.clear()
    assert models.pictures.head is None


def test_rates(models: Models) -> None:
    nothing = rates(models.timeline, models.pictures, 0)
    assert (nothing.tokens_per_s, nothing.first_token_ms, nothing.looking_ratio) == (None, None, None)
    models.timeline.append(samples.story(40))
    now = rates(models.timeline, models.pictures, 0)
    prefill = models.timeline.record(0)
    assert now.first_token_ms == pytest.approx(prefill.timings.total_ms)
    recent = models.timeline.records[-32:]
    assert now.tokens_per_s == pytest.approx(32_000 / sum(r.timings.total_ms for r in recent))
    assert 0.01 < now.looking_ratio < 0.05


def test_the_step_table_is_one_row_per_step(models: Models) -> None:
    records = samples.story(5)
    rows = step_table(records)
    assert len(rows) == 6
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert rows[2][0] == 2


def test_texts_in_the_table_are_neither_formulas_nor_line_breaks() -> None:
    records = samples.story(60)
    text = step_csv(records)
    assert len(text.splitlines()) == 62
    assert text.splitlines()[0].split(",") == list(COLUMNS)
    column = COLUMNS.index("text")
    assert all(str(row[column]).startswith('"') for row in step_table(records))


def test_notes_stand_at_their_step_and_sequence() -> None:
    record = samples.step_record(3)
    other = replace(record.sequences[0], seq_id=1)
    records = [samples.step_record(2), replace(record, sequences=(*record.sequences, other))]
    bookmarks = (
        Bookmark(OnStep(3), '=1+1, "why"?'),
        Bookmark(OnToken(3, 0, 6), "a\nb"),
        Bookmark(OnHead(3, 1, 2, 0)),
        Bookmark(OnPage(3, 0, 7), "full"),
        Bookmark(OnStep(9), "of another branch"),
    )
    rows = list(csv.DictReader(io.StringIO(step_csv(records, bookmarks))))
    assert [(row["step"], row["seq_id"]) for row in rows] == [("2", "0"), ("3", "0"), ("3", "1")]
    assert rows[0]["notes"] == ""
    assert json.loads(rows[1]["notes"]) == ['step: =1+1, "why"?', "position 6: a\nb", "pool 0, page 7: full"]
    assert json.loads(rows[2]["notes"]) == ['step: =1+1, "why"?', "layer 2, kv head 0: ", "pool 0, page 7: full"]
    assert len(step_csv(records, bookmarks).splitlines()) == 4, "no line break stands bare"


def test_each_number_of_a_step_stands_in_its_own_column() -> None:
    record = samples.step_record(3)
    (part,) = record.sequences
    found = NonFinite("keys", 0, 0, 6, 2), NonFinite("logits", None, None, 6, 3)
    (row,) = step_table([replace(record, non_finite=found)])
    told = dict(zip(COLUMNS, row, strict=True))
    assert (part.first_position, part.num_tokens) == (6, 7)
    first = ("step", "phase", "cache", "dtype", "seq_id", "first_position", "num_tokens")
    assert {name: told[name] for name in first} == {
        "step": 3, "phase": "decode", "cache": "growing", "dtype": "float32", "seq_id": 0, "first_position": 6,
        "num_tokens": 7,
    }  # fmt: skip
    assert (told["token_ids"], told["text"], told["sampled"]) == ("106", '" was"', part.sampled)
    times = record.timings
    for name in ("prepare_ms", "forward_ms", "sample_ms", "observe_ms", "total_ms"):
        assert told[name] == round(getattr(times, name), 4)
    held = record.num_bytes
    assert (told["stored_bytes"], told["cache_stored_bytes"], told["cache_reserved_bytes"]) == (
        part.stored_bytes, held.stored, held.reserved,
    )  # fmt: skip
    assert (told["non_finite"], told["forced"], told["stop"]) == (5, 0, None)


def test_only_pictures_between_two_times_are_counted(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("app.models.pictures.time.time", lambda: now[0])
    request = HeadRequest(0, 7, "keys", 1, 2, 0, 7, 7)
    for when, took in ((100.0, 1.0), (101.0, 2.0), (102.0, 4.0), (103.0, 8.0)):
        now[0] = when
        models.pictures.put(replace(samples.head_picture(request), took_ms=took))
    assert models.pictures.cost_ms(101.0, 102.0) == 6
    assert models.pictures.cost_ms(100.5, 110.0) == 14
    assert models.pictures.cost_ms(0.0, 100.0) == 1


def test_a_table_and_a_wall_that_have_not_changed_are_of_the_newest_step(models: Models) -> None:
    table = TablePicture(TableRequest(0, 20), 4, (np.arange(5),), 20, "")
    wall = samples.wall_picture(WallRequest(0, 20, 20, "keys", False, 30, 8))
    models.pictures.put(table, wall)
    models.pictures.put(Unchanged(TableRequest(0, 21)), Unchanged(replace(wall.request, num_tokens=21)))
    for before, now in ((table, models.pictures.table), (wall, models.pictures.wall)):
        assert now is not None
        assert (now.num_tokens, now.request.num_tokens) == (21, 21)
        assert before.num_tokens == 20
    assert models.pictures.table.tables is table.tables
    models.pictures.put(Unchanged(HeadRequest(0, 21, "keys", 0, 0, 0, 21, 30)))  # of a picture that is not there
    assert models.pictures.head is None


def test_what_slices_cost_is_counted_between_two_times_and_given_up_with_them(models: Models) -> None:
    wall = samples.wall_picture(WallRequest(0, 20, 20, "keys", False, 30, 8))
    before = time.time()
    models.pictures.put(replace(wall, took_ms=3.0))
    models.pictures.put(replace(wall, took_ms=4.0))
    assert models.pictures.cost_ms(before, time.time()) == 7.0
    assert models.pictures.cost_ms(before - 9, before - 1) == 0.0
    models.pictures.clear()
    assert models.pictures.wall is None
    assert models.pictures.cost_ms(before, time.time()) == 0.0


def test_an_update_of_a_picture_that_was_given_up_is_shown_by_nobody(models: Models) -> None:
    wall = samples.wall_picture(WallRequest(0, 14, 14, "keys", False, 20, 8))
    places = np.zeros((3, 1), np.int64)
    update = CellUpdate(replace(wall, low=wall.low[0, 0, :1], high=wall.high[0, 0, :1]), places, wall.low.shape[2])
    models.pictures.put(wall)
    models.pictures.put(update)
    assert models.pictures.wall is not None
    models.pictures.clear()
    models.pictures.put(update)
    assert models.pictures.wall is None
