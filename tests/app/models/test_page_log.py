"""Which page held what at which step, and which cached page a prompt was most like."""

from __future__ import annotations

from app.models.page_log import OtherSide, PageLog
from tests.app.page_story import PAGE_SIZE, PageStory


def test_a_page_that_was_copied_before_it_was_written_is_the_other_one_until_that_step() -> None:
    story, log = PageStory(), PageLog()
    log.take(story.admit(0, list(range(PAGE_SIZE + 2))))
    shared = story.tables[0].page_ids[1]
    story.fork(1, 0)
    log.take(story.decode(0))
    own, copied_at = story.tables[0].page_ids[1], story.step - 1
    assert own != shared
    log.take(story.decode(0, 1))
    log.take(story.copy(0, 1))
    copy, copied_again_at = story.tables[0].page_ids[1], story.step - 1
    first = story.tables[0].page_ids[0]
    seen = [log.pages_then(0, [first, copy], step) for step in range(story.step)]
    then = [shared] * copied_at + [own] * (copied_again_at - copied_at) + [copy]
    assert seen == [[first, page_id] for page_id in then]
    assert log.pages_then(1, [first, shared], copied_at) == [first, shared]
    assert log.pages_then(1, [own], copied_at) == [0], "it has never had that one"


def test_a_prompt_is_most_like_the_page_that_goes_on_otherwise() -> None:
    story, log = PageStory(), PageLog()
    ids = list(range(2 * PAGE_SIZE))
    log.take(story.admit(0, [*ids, 90]))
    other = [*ids[: PAGE_SIZE + 1], 77, 78, 79]
    second = story.tables[0].page_ids[1]
    assert log.other_side(other, PAGE_SIZE, PAGE_SIZE + 1) == OtherSide(second, PAGE_SIZE + 1)
    assert log.other_side(ids, PAGE_SIZE, PAGE_SIZE + 1) is None, "that token is the same"
    assert log.other_side(other[: PAGE_SIZE + 1], PAGE_SIZE, PAGE_SIZE + 1) is None, "a prompt that ends has no other"
    assert log.other_side([5, *ids], PAGE_SIZE, PAGE_SIZE + 1) is None, "no page begins like it"
