"""Which page held what at which step."""

from __future__ import annotations

from random import Random

from app.models.logs import PageLog
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


def test_pages_of_any_step_are_those_of_the_tables_of_then() -> None:
    """In chance order: prompts that share a beginning, further tokens, forks, sequences that go."""
    for seed in range(12):
        rng, story, log = Random(seed), PageStory(num_pages=40), PageLog()
        seen: list[dict[int, list[int]]] = []
        for number in range(40):
            live = [seq_id for seq_id in story.tables if story.ids[seq_id]]
            many = story.pool.counts().num_used > 20
            act = rng.choice(("admit", "decode", "decode", "fork", "remove"))
            if (act == "remove" and len(live) > 1) or many:
                story.remove(rng.choice(live))
                live = list(story.tables)
            elif act == "fork" and live:
                story.fork(100 + number, rng.choice(live))
                live = list(story.tables)
            if act == "admit" or not live:
                record = story.admit(number, [*range(rng.randint(3, 14)), 900 + rng.randint(0, 2)])
            else:
                record = story.decode(*rng.sample(live, rng.randint(1, len(live))))
            log.take(record)
            owners: dict[int, list[int]] = {page_id: [] for page_id in range(40)}
            for seq_id, table in story.tables.items():
                for page_id in table.page_ids:
                    owners[page_id].append(seq_id)
                    full = table.page_ids.index(page_id) < len(story.ids[seq_id]) // PAGE_SIZE
                    committed = log.facts(page_id, record.step).committed
                    first = table.page_ids.index(page_id) * PAGE_SIZE
                    if committed is not None and full:
                        assert committed.token_ids == tuple(story.ids[seq_id][first : first + PAGE_SIZE])
            seen.append(owners)
        for step, expected in enumerate(seen):
            for page_id, owner_ids in expected.items():
                if page_id:
                    assert sorted(log.facts(page_id, step).owners) == sorted(owner_ids), (seed, step, page_id)
        log.restart()
        assert all(sorted(log.facts(page_id, 0).owners) == sorted(seen[-1][page_id]) for page_id in range(1, 40))
