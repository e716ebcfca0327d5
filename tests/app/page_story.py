"""A story told by the engine's own page pool, without torch: real events and maps for tests of the window."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from engine.cache.paged.pool import PagePool
from engine.cache.paged.table import PageTable
from engine.history.pages import PageTracker
from engine.spec.cache import CacheSpec
from engine.wire.pages import KEPT, PageMap, WhyNotReused
from engine.wire.pictures import TablePicture, TableRequest
from engine.wire.records import SequenceStep, StepRecord
from engine.wire.status import SequenceInfo
from tests.app import samples

PAGE_SIZE, NUM_PAGES = 4, 24
SPEC = CacheSpec("paged", page_size=PAGE_SIZE, num_pages=NUM_PAGES)
WORDS = {i: f" w{i}" for i in range(1000)}


class PageStory:
    """Sequences of token ids in one pool; every method that does something returns the record of that step."""

    def __init__(self, num_pages: int = NUM_PAGES, page_size: int = PAGE_SIZE) -> None:
        self.pool = PagePool(num_pages, page_size)
        self.tracker = PageTracker(num_pages, page_size)
        self.tables: dict[int, PageTable] = {}
        self.ids: dict[int, list[int]] = {}
        self.hits: dict[int, int] = {}
        self.why: dict[int, WhyNotReused] = {}
        self.step = 0

    def admit(self, seq_id: int, ids: list[int]) -> StepRecord:
        """Submit a prompt: the cached prefix is served, the rest computed."""
        table = self.tables[seq_id] = self.pool.open_table(seq_id)
        match = self.pool.match_prefix(ids)
        self.why[seq_id] = self.pool.explain(match)
        self.pool.adopt(table, match)
        served = self.hits[seq_id] = table.num_tokens
        self.ids[seq_id] = list(ids)
        self.pool.append(table, len(ids) - served)
        self.pool.commit(table, ids)
        return self._record([self._part(seq_id, served)])

    def decode(self, *seq_ids: int) -> StepRecord:
        """One more token of each."""
        for seq_id in seq_ids:
            self.ids[seq_id].append(500 + len(self.ids[seq_id]))
            self.pool.append(self.tables[seq_id], 1)
            self.pool.commit(self.tables[seq_id], self.ids[seq_id])
        return self._record([self._part(seq_id, len(self.ids[seq_id]) - 1) for seq_id in seq_ids])

    def fork(self, seq_id: int, parent: int) -> None:
        """Fork a sequence; it is recorded with its first step."""
        self.tables[seq_id] = self.pool.fork(self.tables[parent], seq_id)
        self.ids[seq_id], self.hits[seq_id] = list(self.ids[parent]), 0

    def copy(self, seq_id: int, number: int) -> StepRecord:
        """Write by hand to a page that a kept checkpoint shares: the sequence gets a copy of it."""
        self.pool.fork(self.tables[seq_id], KEPT)
        self.pool.make_writable(self.tables[seq_id], [number])
        return self.decode(seq_id)

    def remove(self, seq_id: int) -> None:
        self.pool.release(self.tables.pop(seq_id))
        del self.ids[seq_id]

    def page_map(self) -> PageMap:
        self.tracker.apply(self.pool.events, self.step)
        self.pool.events.clear()
        for table in self.tables.values():
            if table.page_ids:
                self.tracker.set_fill(table.page_ids[-1], self.pool.page_size - table.num_slack_tokens)
        counts = self.pool.counts()
        return PageMap(
            1, self.pool.page_size, self.pool.num_pages, None, 0, (), counts.num_free, counts.num_used,
            counts.num_shared, counts.num_cached, sum(t.num_slack_tokens for t in self.tables.values()), 0, 0,
            self.tracker.blocks(),
        )  # fmt: skip

    def infos(self) -> tuple[SequenceInfo, ...]:
        return tuple(
            SequenceInfo(
                seq_id, "decode", len(ids), len(ids), 7, None, len(self.tables[seq_id].page_ids),
                sum(self.pool.ref_count(p) > 1 for p in self.tables[seq_id].page_ids), self.hits[seq_id], 0,
                self.why.get(seq_id),
            )
            for seq_id, ids in self.ids.items()
        )  # fmt: skip

    def table_picture(self, request: TableRequest) -> TablePicture:
        count = -(-request.num_tokens // self.pool.page_size)
        pages = np.array(self.tables[request.seq_id].page_ids[:count], np.int64)
        return TablePicture(request, self.pool.page_size, (pages,), request.num_tokens, "")

    def _part(self, seq_id: int, first: int) -> SequenceStep:
        ids = self.ids[seq_id]
        base = samples.step_record(self.step).sequences[0]
        computed = tuple(ids[first:])
        return replace(
            base, seq_id=seq_id, phase="decode", token_ids=computed, texts=tuple(WORDS[i] for i in computed),
            first_position=first, num_tokens=len(ids), num_prompt_tokens=len(ids), surprisal=(1.0,) * len(computed),
            rows=None, attention=None, hit_tokens=self.hits[seq_id],
        )  # fmt: skip

    def _record(self, parts: list[SequenceStep]) -> StepRecord:
        events = tuple(self.pool.events)
        maps = (self.page_map(),)
        base = samples.step_record(self.step)
        record = replace(base, step=self.step, cache=SPEC, sequences=tuple(parts), page_events=events, page_maps=maps)
        self.step += 1
        return record
