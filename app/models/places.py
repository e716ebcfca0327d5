"""The loaded model and the places in it: its layers and heads, pages and the positions they hold, the selected rows."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from app.models import Models
from engine.geometry.dimensions import CacheGeometry
from engine.predict import capacity
from engine.spec.edit import Edit, EditedPart, Rows
from engine.spec.lenses import LENSES
from engine.wire.records import StepRecord


def geometry_of(models: Models) -> CacheGeometry | None:
    """The cache geometry of the loaded model; None without a model."""
    model = models.status.now.model
    return model.geometry if model is not None else None


def num_source(models: Models) -> int:
    """How many tokens at the beginning of the selected sequence were read by an encoder; 0 for a model without one."""
    geometry, now = geometry_of(models), models.selection.now
    part = models.timeline.part(now.seq_id, now.step) if geometry is not None and geometry.has_encoder else None
    return 0 if geometry is None or part is None else capacity.num_source(geometry, part.num_prompt_tokens)


def layer_label(models: Models, index: int) -> str:
    """`L3`, or `X1` for a cross layer."""
    geometry = geometry_of(models)
    return f"L{index}" if geometry is None else geometry.layer_label(index)


def layer_words(models: Models, index: int) -> str:
    """`layer 3`, or `cross layer 1`; `layer 3 on cuda:1` where layers stand on several devices."""
    model = models.status.now.model
    block = None if model is None else model.geometry.cross_block(index)
    words = f"layer {index}" if block is None else f"cross layer {block}"
    devices = model.layer_devices if model is not None else ()
    return f"{words} on {devices[index]}" if index < len(devices) else words


def head_of(models: Models, lens: str, layer: int, kv_head: int) -> int:
    """The head of a lens's picture that shows a kv head: of those that share it the one that was clicked, else the
    first."""
    shared, clicked = heads_shared(models, lens, layer), models.viewport.now.query_head
    return clicked if shared > 1 and clicked // shared == kv_head else kv_head * shared


def heads_shared(models: Models, lens: str, layer: int) -> int:
    """How many heads of a picture share a kv head: those of queries where a lens shows these, else 1."""
    geometry = geometry_of(models)
    if geometry is None or LENSES[lens].heads == "kv" or layer >= len(geometry.layers):
        return 1
    return max(1, geometry.layers[layer].num_heads // max(1, geometry.layers[layer].num_kv_heads))


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


EditOfRows = Callable[[int, Rows], Edit]  # makes an edit of rows of a sequence, given its id

NOTHING = "drag over tokens, heads or channels, or click one, first"


def chosen_rows(models: Models) -> Rows | None:
    """The selected area; or of a selected cell its one number; or the tokens of a selected page, or the selected token,
    in every layer and head. None if nothing is selected, or not there at the step shown."""
    now = models.selection.now
    num_tokens = models.timeline.num_tokens(now.seq_id, now.step)
    if now.area is not None:
        stop = min(now.area.stop, num_tokens)
        return replace(now.area, stop=stop) if now.area.start < stop else None
    if now.position is None or now.position >= num_tokens:
        return None
    if now.page is not None:
        return Rows(now.position, min(now.position + _page_size(models), num_tokens))
    rows = Rows(now.position, now.position + 1)
    if now.channel is None:
        return rows
    part: EditedPart = LENSES[now.lens].part or "both"
    return replace(rows, layers=(now.layer,), kv_heads=(now.kv_head,), channels=(now.channel,), part=part)


def edit_of_chosen(models: Models, edit: EditOfRows, *, is_whole: bool = False) -> Edit | None:
    """Return an edit of the chosen rows; None if none are chosen. With `is_whole` it is of K and V together, unless
    channels are chosen: then the rows stay as they are, and the edit's own check refuses them."""
    rows = chosen_rows(models)
    if rows is None:
        return None
    if is_whole and rows.channels is None:
        rows = replace(rows, part="both")
    return edit(models.selection.now.seq_id, rows)


def _page_size(models: Models) -> int:
    record = models.timeline.at(models.selection.now.step)
    return record.page_maps[0].page_size if record is not None and record.page_maps else 1


def choose_part(models: Models, part: EditedPart) -> None:
    """Restrict the selected rows to K, to V, or extend them to both."""
    rows = chosen_rows(models)
    if rows is not None:
        models.selection.update(area=replace(rows, part=part))


def is_within(rows: Rows, area: Rows) -> bool:
    """Whether `rows` are all inside `area`."""
    if not area.start <= rows.start <= rows.stop <= area.stop:
        return False
    return all(
        whole is None or (some is not None and set(some) <= set(whole))
        for some, whole in (
            (rows.layers, area.layers), (rows.kv_heads, area.kv_heads), (rows.channels, area.channels),
        )
    )  # fmt: skip
