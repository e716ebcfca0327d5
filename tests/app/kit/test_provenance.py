"""What a picture says it shows: of which sequence and step, whether that is what is selected, and what comes next."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication

from app.kit.provenance import lateness, picture_source, selected_run, source_of, span_of_run, step_of
from app.models import Models
from engine.spec.cache import CacheSpec
from engine.wire.pictures import HeadPicture, HeadRequest
from engine.wire.status import EngineStatus
from tests.app import samples
from tests.app.page_story import PAGE_SIZE, PageStory

STEPS = 6
NOW = samples.PROMPT + STEPS
RUNNING = replace(samples.status(STEPS, num_tokens=NOW), running=True)


def head_of(seq_id: int, num_tokens: int) -> HeadPicture:
    return samples.head_picture(HeadRequest(seq_id, num_tokens, "keys", 0, 0, 0, num_tokens, 100))


@pytest.fixture
def models(qapp: QApplication) -> Models:
    """Two sequences of the same length, both computed by every step."""
    found = Models()
    found.status.set(samples.status(STEPS, num_tokens=NOW))
    for record in samples.story(STEPS):
        (part,) = record.sequences
        found.timeline.append([replace(record, sequences=(part, replace(part, seq_id=1)))])
    return found


@pytest.mark.parametrize(
    ("seq_id", "num_tokens", "step", "shown", "wanted", "words"),
    [
        (0, NOW, None, "", "", ""),
        (0, NOW, None, "K", "K", ""),
        (1, NOW, None, "", "", "showing sequence 1, step 6"),  # as long as the one that is selected
        (0, NOW - 2, None, "", "", "showing step 4"),
        (0, NOW, 4, "", "", "showing step 6 · step 4 is on its way"),
        (0, NOW - 2, 4, "", "", ""),
        (0, NOW, None, "K", "V", "showing K of step 6 · V is on its way"),
        (1, NOW - 2, 4, "K", "V", "showing K of sequence 1, step 4 · V is on its way"),
        (0, NOW + 3, None, "", "", "showing an undone step"),
    ],
)
def test_what_a_picture_is_of_where_that_is_not_what_is_selected(
    models: Models, seq_id: int, num_tokens: int, step: int | None, shown: str, wanted: str, words: str
) -> None:
    models.selection.update(step=step)
    assert lateness(models, seq_id, num_tokens, shown, wanted) == words


def test_what_was_not_compared_is_not_waited_for(models: Models) -> None:
    models.selection.update(step=4)
    assert lateness(models, 0, NOW, is_last=True) == "showing step 6 · step 4 was not compared"


def test_while_the_engine_runs_every_picture_says_its_step(models: Models) -> None:
    models.status.set(RUNNING)
    assert lateness(models, 0, NOW) == "showing step 6"
    models.selection.update(step=4)
    assert lateness(models, 0, NOW - 2) == ""
    models.status.lose_engine("gone")
    assert lateness(models, 0, NOW) == "showing step 6 · engine gone"


@pytest.mark.parametrize(
    ("status", "step", "of", "words", "kind"),
    [
        (None, None, 6, "live cache", "live cache"),
        (None, None, 5, "live cache · step 5", "past"),
        (None, 5, 5, "step 5", "past"),
        (None, 5, 6, "step 6", "past"),
        (None, None, None, "live cache · undone step", "past"),
        (RUNNING, None, 6, "live cache · step 6", "past"),
    ],
)
def test_two_words_and_amber_for_whatever_is_not_of_now(
    models: Models, status: EngineStatus | None, step: int | None, of: int | None, words: str, kind: str
) -> None:
    if status is not None:
        models.status.set(status)
    models.selection.update(step=step)
    found = source_of(models, "live cache", "float32", of)
    assert (found.words, found.kind) == (words, kind)


def test_the_step_of_a_picture_is_that_which_computed_its_sequence_last(models: Models) -> None:
    record = samples.step_record(STEPS + 1)
    models.timeline.append([record])  # computes the first sequence alone
    models.selection.update(seq_id=1)
    found = picture_source(models, head_of(1, NOW))
    assert (found.words, found.kind) == ("live cache", "live cache")
    assert "step 6, the newest that computed this sequence" in found.sentence
    assert (step_of(models, 0, NOW + 1), step_of(models, 1, NOW), step_of(models, 1, NOW + 1)) == (7, 6, None)


def test_a_step_that_read_pages_in_place_says_that_it_rounds_otherwise(models: Models) -> None:
    models.timeline.append([replace(samples.step_record(STEPS + 1), runner="fused+pages")])
    assert "pages read in place" in picture_source(models, head_of(0, NOW + 1)).sentence
    assert "in place" not in picture_source(models, head_of(0, NOW)).sentence


def test_a_step_in_pages_that_were_not_read_in_place_says_that_they_were_gathered(models: Models) -> None:
    paged = samples.step_record(STEPS + 1, cache=CacheSpec("paged"))
    models.timeline.append([replace(paged, runner="transformers")])
    found = picture_source(models, head_of(0, NOW + 1))
    assert "pages gathered where they lie scattered" in found.sentence
    assert "gathered" not in picture_source(models, head_of(0, NOW)).sentence


def test_the_columns_of_a_run_are_those_from_its_first_to_its_last_position(models: Models) -> None:
    def columns(position: int) -> tuple[int, int] | None:
        """Four positions a column, the first ten of them in the picture."""
        return (position // 4 * 4, position // 4 * 4 + 4) if position < 40 else None

    assert span_of_run(columns, (5, 6)) == (4, 8)
    assert span_of_run(columns, (5, 8)) == (4, 8)  # its last is position 7
    assert span_of_run(columns, (5, 9)) == (4, 12)
    assert span_of_run(columns, (36, 44)) == (36, 40)
    assert span_of_run(columns, (44, 48)) is None
    assert span_of_run(columns, None) is None
    models.selection.update(position=3)
    assert selected_run(models) == (3, 4)


def test_a_chosen_page_is_selected_as_far_as_there_are_tokens(qapp: QApplication) -> None:
    story, found = PageStory(), Models()
    found.timeline.append([story.admit(0, list(range(2 * PAGE_SIZE + 1)))])
    for position, run in ((0, (0, PAGE_SIZE)), (2 * PAGE_SIZE, (2 * PAGE_SIZE, 2 * PAGE_SIZE + 1))):
        found.selection.update(position=position, page=story.tables[0].page_ids[position // PAGE_SIZE])
        assert selected_run(found) == run
    found.selection.update(position=2)
    assert selected_run(found) == (2, 3), "another token gives the page up"


def test_rows_of_a_model_that_is_on_its_way_are_of_no_live_cache(models: Models) -> None:
    """As while an engine begins again: what was recorded stays what it was."""
    live = source_of(models, "live cache", "float32", STEPS)
    assert (live.words, live.kind) == ("live cache", "live cache")
    models.status.set(replace(samples.status(STEPS, num_tokens=NOW), model=None))
    late = source_of(models, "live cache", "float32", STEPS)
    assert (late.words, late.kind) == ("live cache · model not loaded", "past")
    recorded = source_of(models, "recorded", "float32", STEPS)
    assert (recorded.words, recorded.kind) == ("recorded", "recorded")
