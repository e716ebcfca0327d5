from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPointF, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.kit.theme import LIGHT, apply_theme
from app.kit.words import event_line, record_lines
from app.models import Models
from app.panels.inspector import InspectorView
from app.panels.pages import draw
from app.panels.pages.view import PagesView, page_owners
from engine.spec.cache import CacheSpec
from engine.wire.pages import KEPT, MoveDirection, PageCopied, PageFreed, PageMoved, PageShared, PrefixHit
from engine.wire.pictures import TableRequest
from engine.wire.records import StepRecord
from engine.wire.status import SequenceInfo
from tests.app import samples
from tests.app.page_story import PAGE_SIZE, SPEC, WORDS, PageStory


class Desk:
    """Models filled by a story, as the controller fills them."""

    def __init__(self, models: Models) -> None:
        self.models, self.story = models, PageStory()

    def take(self, *records: StepRecord) -> None:
        for record in records:
            self.models.pages.take(record)
            for part in record.sequences:
                ids = self.story.ids[part.seq_id]
                self.models.timeline.begin(part.seq_id, ids, [WORDS[i] for i in ids])
        self.models.timeline.append(records)
        step = records[-1].step
        self.models.status.set(replace(samples.status(step, cache=SPEC), sequences=self.story.infos()))
        self.bring_table()

    def bring_table(self) -> None:
        seq_id = self.models.selection.now.seq_id
        num_tokens = self.models.timeline.num_tokens(seq_id)
        self.models.pictures.put(self.story.table_picture(TableRequest(seq_id, num_tokens)))


@pytest.fixture
def desk(models: Models) -> Desk:
    return Desk(models)


@pytest.fixture
def view(qtbot: QtBot, desk: Desk) -> Iterator[PagesView]:
    view = PagesView(desk.models)
    view.resize(520, 200)
    view.show()
    QApplication.processEvents()
    yield view
    view.close()
    view.deleteLater()


def readout(view: PagesView) -> str:
    return view.readout.text()


def click(view: PagesView, page_id: int) -> None:
    canvas = view.canvas
    place = canvas.page_rect(0, page_id).center().toPoint()
    QTest.mouseClick(canvas, Qt.MouseButton.LeftButton, pos=place)


def point(view: PagesView, page_id: int) -> None:
    canvas = view.canvas
    canvas.pointed.emit(*(canvas.page_at(canvas.page_rect(0, page_id).center()) or (None, None)))


def test_a_mode_without_pages_says_how_to_get_them(desk: Desk, view: PagesView) -> None:
    desk.models.status.set(samples.status(cache=CacheSpec()))
    assert view.empty.text() == "This cache mode has no pages: choose Paged to see them."
    desk.models.status.set(samples.status(cache=SPEC))
    assert view.empty.text() == "The page pool appears here with the next step: press F10."


def test_where_no_step_can_come_no_pages_are_promised_with_the_next(desk: Desk, view: PagesView) -> None:
    full = SequenceInfo(0, "finished", 12, 8, 11, "context full")
    going = SequenceInfo(1, "decode", 12, 8, 11, None)
    for sequences, is_promised in (((full,), False), ((full, going), True)):
        desk.models.status.set(replace(samples.status(cache=SPEC), sequences=sequences))
        assert view.empty.text().endswith("appears here with the next step: press F10.") == is_promised
        assert ("none can come: the model's context is full: go back" in view.empty.text()) != is_promised


def test_the_title_counts_and_the_keys_name_what_is_there(desk: Desk, view: PagesView) -> None:
    desk.take(desk.story.admit(0, list(range(10))), desk.story.admit(1, [*range(8), 90]))
    assert view.detail.text() == "pool of 24 · slack 5 tokens · 4 tokens a page"
    assert [key.name for key in view.state.keys] == [
        "2 used",
        "2 shared",
        "0 cached",
        "19 free",
        "1 null (hatched)",
    ]  # all 24


def test_clicking_a_page_selects_its_first_token(desk: Desk, view: PagesView) -> None:
    desk.take(desk.story.admit(0, list(range(10))))
    click(view, desk.story.tables[0].page_ids[1])
    now = desk.models.selection.now
    assert (now.position, now.page, now.seq_id) == (4, desk.story.tables[0].page_ids[1], 0)
    assert readout(view).startswith("page 2 used   seq 0   4/4 tokens   at 4–7   ·w4 ·w5 ·w6 ·w7   slots 8–11")


def test_a_page_that_is_not_full_says_how_far_it_goes(desk: Desk, view: PagesView) -> None:
    desk.take(desk.story.admit(0, list(range(10))))
    point(view, desk.story.tables[0].page_ids[2])
    assert readout(view).startswith("page 3 used   seq 0   2/4 tokens   at 8–9   ·w8 ·w9   slots 12–15")


def test_clicking_a_page_of_another_sequence_selects_that_and_finds_its_place(desk: Desk, view: PagesView) -> None:
    desk.take(desk.story.admit(0, list(range(10))), desk.story.admit(1, [*range(4), *range(60, 66)]))
    page_id = desk.story.tables[1].page_ids[2]
    click(view, page_id)
    assert (desk.models.selection.now.seq_id, desk.models.selection.now.position) == (1, None)
    desk.bring_table()
    assert (desk.models.selection.now.position, desk.models.selection.now.page) == (8, page_id)


def test_selecting_a_token_outlines_its_page(desk: Desk, view: PagesView) -> None:
    desk.take(desk.story.admit(0, list(range(10))))
    desk.models.selection.update(position=9)
    assert view.state.selected == (0, desk.story.tables[0].page_ids[2])
    click(view, desk.story.tables[0].page_ids[0])
    desk.models.selection.update(position=5)
    assert desk.models.selection.now.page is None
    assert view.state.selected == (0, desk.story.tables[0].page_ids[1])


def test_a_cached_page_tells_its_tokens_though_nobody_owns_it(desk: Desk, view: PagesView) -> None:
    first = desk.story.admit(0, list(range(10)))
    page_id = desk.story.tables[0].page_ids[0]
    desk.take(first, desk.story.admit(1, [70, 71]))
    desk.story.remove(0)
    desk.models.selection.update(seq_id=1)
    desk.take(desk.story.decode(1))
    point(view, page_id)
    assert readout(view).startswith("page 1 cached   4/4 tokens   ·w0 ·w1 ·w2 ·w3")
    assert "found as" in view.readout.toolTip()
    click(view, page_id)
    assert desk.models.selection.now.position is None
    assert desk.models.selection.now.page == page_id


def test_looking_back_shows_the_pool_of_that_step(desk: Desk, view: PagesView) -> None:
    story = desk.story
    desk.take(story.admit(0, list(range(6))))
    story.fork(1, 0)
    before = list(story.tables[0].page_ids)
    desk.take(story.decode(0), story.decode(0))
    after = story.tables[0].page_ids
    assert after[1] != before[1], "the partial page was copied on write"
    desk.models.selection.update(position=5)
    assert view.state.selected == (0, after[1])
    desk.models.selection.update(step=0)
    assert view.state.selected == (0, before[1])
    assert view.state.keys[0].name == "2 used"
    assert view.state.mine == (tuple(before),), "the pages of then are outlined"
    click(view, before[1])
    assert desk.models.selection.now.position == 4
    click(view, after[1])
    assert desk.models.selection.now.position is None, "the sequence did not have that page yet"
    point(view, after[1])
    assert readout(view).startswith(f"page {after[1]} free")


def test_nothing_is_drawn_again_while_nothing_changes(
    qapp: QApplication, desk: Desk, view: PagesView, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, paint = [], draw.paint
    monkeypatch.setattr(draw, "paint", lambda *asked: drawn.append(asked) or paint(*asked))
    desk.take(desk.story.admit(0, list(range(10))))
    drawn.clear()
    desk.models.selection.update(layer=2)
    desk.models.selection.update(position=3)
    desk.models.status.set(desk.models.status.now)
    assert not drawn
    view.choose("owner")
    assert len(drawn) == 1
    apply_theme(qapp, LIGHT)
    assert len(drawn) == 2


def test_the_arrows_walk_from_page_to_page(desk: Desk, view: PagesView) -> None:
    desk.take(desk.story.admit(0, list(range(10))))
    click(view, 1)
    QTest.keyClick(view.canvas, Qt.Key.Key_Right)
    assert desk.models.selection.now.page == 2
    QTest.keyClick(view.canvas, Qt.Key.Key_Left)
    QTest.keyClick(view.canvas, Qt.Key.Key_Left)
    QTest.keyClick(view.canvas, Qt.Key.Key_Left)
    assert desk.models.selection.now.page == 0


def test_events_are_one_line_each(desk: Desk, view: PagesView) -> None:
    desk.take(desk.story.admit(0, list(range(19))), desk.story.admit(1, [*range(16), 90, 91, 92]))
    view.choose("events")
    lines = view.events.toPlainText().splitlines()
    assert lines[0] == "prefix hit: seq 1 starts with 16 of 19 tokens served"
    assert f"seq 1 took page {desk.story.tables[1].page_ids[4]}" in lines
    assert len(lines) == 1 + 4 + 1


def test_the_words_of_single_events() -> None:
    moved = PageMoved(MoveDirection.TO_HOST, 3, 1, b"\x01" * 16, 12 * 1024, 0.1)
    assert event_line(moved) == "copied page 3 to the host, 12.0 KiB in 0.10 ms"
    assert event_line(PrefixHit(2, 19, 16, (1,))) == "prefix hit: seq 2 starts with 16 of 19 tokens served"
    copied = PageCopied(0, 4, 7, 3)
    assert event_line(copied) == "copy on write: seq 0 writes to page 7, 3 tokens copied from page 4"
    record = replace(samples.step_record(1), preempted=(2,), waiting=(2,))
    assert record_lines(record)[0].startswith("preempted seq 2")


def test_served_tokens_stand_before_those_that_were_computed(desk: Desk) -> None:
    desk.take(desk.story.admit(0, list(range(10))), desk.story.admit(1, [*range(8), 90]))
    tokens = desk.models.timeline.tokens(1)
    assert [token.token_id for token in tokens] == [*range(8), 90]
    assert [token.position for token in tokens] == list(range(9))
    assert [token.is_served for token in tokens] == [True] * 8 + [False]
    assert tokens[3].text == " w3"


def test_a_page_is_told_as_it_was_at_each_step_and_who_keeps_it_for_another_branch(desk: Desk) -> None:
    """Going back deletes nothing: the page of a later step is still there at that step, kept for its branch."""
    story, pages = desk.story, desk.models.pages
    desk.take(story.admit(0, list(range(4))), story.decode(0))
    page_id = story.tables[0].page_ids[1]
    relabelled = (PageShared(KEPT, page_id, 2), PageFreed(0, page_id, 1, is_findable=False))
    pages.take(replace(samples.step_record(9), page_events=relabelled))
    assert [pages.facts(page_id, step).owners for step in (0, 1, 9)] == [(), (0,), (KEPT,)]


def test_a_page_is_found_under_the_mouse_where_it_is_painted(desk: Desk, view: PagesView) -> None:
    desk.take(desk.story.admit(0, list(range(10))))
    canvas = view.canvas
    for page_id in (0, 7, 23):
        assert canvas.page_at(canvas.page_rect(0, page_id).center()) == (0, page_id)
    assert canvas.page_at(QPointF(canvas.width() - 1, canvas.height() - 1)) is None


def test_sliding_layers_have_a_pool_of_their_own(desk: Desk, view: PagesView) -> None:
    record = desk.story.admit(0, list(range(10)))
    full = record.page_maps[0]
    desk.take(replace(record, page_maps=(full, replace(full, window=8))))
    canvas = view.canvas
    assert canvas.names == ("full attention layers", "sliding layers, window of 8")
    assert len(canvas.images) == 2
    assert canvas.page_at(canvas.page_rect(1, 3).center()) == (1, 3)
    assert view.detail.text().startswith("2 pools of 24 · slack 4 tokens")


@pytest.mark.parametrize(("position", "page", "offset"), [(0, 0, 0), (6, 1, 2), (12, 3, 0)])
def test_the_inspector_tells_the_page_and_slot_of_a_token(
    qtbot: QtBot, models: Models, position: int, page: int, offset: int
) -> None:
    desk = Desk(models)
    desk.take(desk.story.admit(0, list(range(13))))
    view = InspectorView(models)
    view.show()
    models.selection.update(position=position)
    desk.bring_table()
    page_id = desk.story.tables[0].page_ids[page]
    told = {fact.label: fact.text for fact in view.state.facts}
    assert told["page · slot"] == f"{page_id} · {page_id * PAGE_SIZE + offset}"
    view.close()
    view.deleteLater()


def test_a_page_that_was_taken_long_ago_has_another_colour_than_a_new_one(view: PagesView, desk: Desk) -> None:
    desk.take(desk.story.admit(0, list(range(4))))
    desk.story.step += 60
    desk.take(desk.story.admit(1, list(range(20, 24))))
    view.choose("age")
    picture = view.canvas.grab().toImage()
    old, new = (
        picture.pixelColor(view.canvas.page_rect(0, desk.story.tables[seq_id].page_ids[0]).center().toPoint()).name()
        for seq_id in (0, 1)
    )
    assert old != new


def test_a_page_of_several_is_told_with_all_of_them_and_leads_to_the_first(desk: Desk, view: PagesView) -> None:
    same = list(range(8))
    desk.take(*(desk.story.admit(n, [*same, 90 + n]) for n in (0, 1)), desk.story.admit(2, list(range(40, 46))))
    record = desk.models.timeline.latest
    assert record is not None
    shared = desk.story.tables[0].page_ids[0]
    assert page_owners(desk.models, record, 0, shared) == (0, 1)
    desk.models.selection.update(seq_id=2)
    click(view, shared)
    assert desk.models.selection.now.seq_id == 0
