"""The rows that an edit would be made on: the area that was dragged over, else the place that is selected."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from app.models import Models
from engine.spec.edit import Edit, EditedPart, Rows
from engine.spec.lenses import LENSES

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
