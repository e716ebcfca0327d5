"""Converts between pages and positions of the selected sequence. Its page table begins after the tokens an encoder
read."""

from __future__ import annotations

from app.models import Models
from app.models.loaded import num_source
from engine.wire.records import StepRecord


def table_pages(models: Models, record: StepRecord, pool: int) -> list[int]:
    """The pages of the selected sequence after a step, in logical order; 0 for a page that left the window, or if it is
    not known which page it was at that step."""
    table, now = models.pictures.table, models.selection.now
    if table is None or table.request.seq_id != now.seq_id or pool >= len(table.tables):
        return []
    num_tokens = models.timeline.num_tokens(now.seq_id, record.step) - num_source(models)
    num_pages = max(0, -(-num_tokens // table.page_size))
    pages: list[int] = table.tables[pool][:num_pages].tolist()
    if now.step is None or len(record.page_maps) > 1:  # events do not name their pool, so with several none is traced
        return pages
    return models.pages.pages_then(now.seq_id, pages, record.step)


def place_of(models: Models, record: StepRecord, pool: int, page_id: int) -> int | None:
    """The first position that a page holds in the selected sequence; None if it holds none."""
    pages = table_pages(models, record, pool)
    if page_id not in pages or not page_id:
        return None
    return num_source(models) + pages.index(page_id) * record.page_maps[pool].page_size


def page_of(models: Models, record: StepRecord, pool: int, position: int) -> int | None:
    """The page that holds a position of the selected sequence; None if there is none or it is not known."""
    pages = table_pages(models, record, pool)
    number = (position - num_source(models)) // record.page_maps[pool].page_size
    return (pages[number] or None) if 0 <= number < len(pages) else None


def chosen_page(models: Models, record: StepRecord) -> tuple[int, int] | None:
    """The selected page, or the page of the selected token, as `(pool, page_id)`; None if there is none."""
    now = models.selection.now
    if now.page is not None:
        is_there = now.pool < len(record.page_maps) and now.page < record.page_maps[now.pool].num_pages
        return (now.pool, now.page) if is_there else None
    if now.position is None or not record.page_maps:
        return None
    page_id = page_of(models, record, 0, now.position)
    return None if page_id is None else (0, page_id)
