"""A run in pages in which everything differs: prompts that share a beginning, a fork, a sequence that left, pages that
are full, half full, cached, kept and free, a copy on the host, and a second pool behind a window."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from app.models import Models
from engine.spec.bookmark import Bookmark, OnPage
from engine.wire.pages import KEPT, NO_OWNER, PageCell, PageMap
from engine.wire.pictures import TableRequest
from engine.wire.records import StepRecord
from tests.app import samples
from tests.app.page_story import SPEC, WORDS, PageStory
from tests.app.rich import give_pictures


class PagedRun:
    """Models as the controller fills them; `give_pictures` answers what the views ask for."""

    def __init__(self) -> None:
        self.models, self.story = Models(), PageStory()
        story = self.story
        self._take(story.admit(0, list(range(14))))
        self._take(story.admit(1, [*range(8), *range(60, 67)]))
        self._take(story.decode(0, 1))
        story.fork(2, 0)
        self._take(story.decode(0, 2))
        gone = story.admit(3, [*range(4), 80, 81, 82, 83, 84])
        self._take(gone)
        story.remove(3)
        self._take(story.decode(0, 1, 2))
        self._take(story.decode(1))
        last = story.decode(0, 2)
        self._take(replace(last, page_maps=(_with_others(last.page_maps[0]), _behind_a_window(last.page_maps[0]))))
        self.models.bookmarks.put(Bookmark(OnPage(7, 0, 2), "a page"))
        infos = self.story.infos()
        infos = (replace(infos[0], num_preemptions=2), replace(infos[1], phase="finished", stop="length"), *infos[2:])
        self.models.status.set(replace(samples.status(7, cache=SPEC), sequences=infos))
        self.models.selection.update(layer=1, kv_head=2, position=6)
        self.give_pictures()

    def _take(self, record: StepRecord) -> None:
        self.models.pages.take(record)
        for part in record.sequences:
            ids = self.story.ids[part.seq_id]
            self.models.timeline.begin(part.seq_id, ids, [WORDS[n] for n in ids])
        self.models.timeline.append([record])

    def give_pictures(self) -> None:
        now = self.models.selection.now
        give_pictures(self.models)
        if now.seq_id in self.story.tables:
            count = self.models.timeline.num_tokens(now.seq_id)
            table = self.story.table_picture(TableRequest(now.seq_id, count))
            self.models.pictures.put(replace(table, tables=(table.tables[0], table.tables[0][::-1])))


def _with_others(pool: PageMap) -> PageMap:
    """A page of another branch alone, one that is copied to the host, and one that is only found again."""
    cells = np.concatenate(pool.blocks)
    free = np.flatnonzero(cells["state"] == PageCell.FREE)
    cells[free[0]] = (PageCell.KEPT, 0, 2, 3, KEPT, 4, 2)
    cells[free[3]] = (PageCell.CACHED, 1, 0, 4, NO_OWNER, 2, 0)
    cells["on_host"][2] = 1
    return replace(pool, blocks=(cells,), num_kept_pages=1, num_free=pool.num_free - 2, host_used=2, host_pages=9)


def _behind_a_window(pool: PageMap) -> PageMap:
    cells = np.concatenate(pool.blocks)[:10].copy()
    cells["fill"][1:] = np.arange(9) % 5
    counts = (int((cells["state"] == state).sum()) for state in (PageCell.FREE, PageCell.USED, PageCell.SHARED))
    free, used, shared = counts
    return replace(
        pool, pool=1, num_pages=10, window=8, num_free=free, num_used=used, num_shared=shared, num_cached=1,
        num_slack_tokens=3, blocks=(cells,),
    )  # fmt: skip
