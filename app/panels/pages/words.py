"""Describes the page pool in words: its size, the legend, and everything known of a page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.draw.format import thousands, token_label
from app.kit.bars import ColorName
from app.kit.theme import NUM_OWNER_COLORS
from app.kit.words import short_hash, state_name
from app.models import Models
from app.models.places import place_of
from app.panels.pages.draw import GridColors, Mode
from engine.counted import counted
from engine.wire.pages import KEPT, NO_OWNER, PageCell, PageMap
from engine.wire.records import StepRecord

_SHOWN_TOKENS = 24


def pools_words(pools: Sequence[PageMap]) -> tuple[str, str]:
    """The size of the pools and how many slots of their pages are unused, in full and in short."""
    first = pools[0]
    count = f"{len(pools)} pools" if len(pools) > 1 else "pool"
    parts = [f"{count} of {thousands(first.num_pages)}"]
    parts.append(f"slack {counted(sum(pool.num_slack_tokens for pool in pools), 'token')}")
    if first.host_pages:
        parts.append(f"host {thousands(first.host_used)} of {counted(first.host_pages, 'page')}")
    parts.append(f"{counted(first.page_size, 'token')} a page")
    return " · ".join(parts), counted(sum(pool.num_pages for pool in pools), "page")


def pool_names(pools: Sequence[PageMap]) -> tuple[str, ...]:
    """Which layers each pool serves."""
    return tuple(
        "full attention layers" if pool.window is None else f"sliding layers, window of {thousands(pool.window)}"
        for pool in pools
    )


def legend_keys(
    pools: Sequence[PageMap], mode: Mode, seq_ids: Sequence[int], colors: GridColors
) -> tuple[ColorName, ...]:
    """The keys of the legend in a mode, with numbers of pages."""
    cached, free = sum(pool.num_cached for pool in pools), sum(pool.num_free for pool in pools)
    kept, used, shared = sum(pool.num_kept_pages for pool in pools), *_of_sequences(pools)
    parked = (ColorName(colors.kept, f"{thousands(kept)} of other branches"),) if kept else ()
    rest = (
        *parked,
        ColorName(colors.cached, f"{thousands(cached)} cached"),
        ColorName(colors.free, f"{thousands(free)} free"),
        ColorName(colors.null, f"{thousands(len(pools))} null (hatched)"),
    )
    match mode:
        case "state":
            held = (
                ColorName(colors.used, f"{thousands(used)} used"),
                ColorName(colors.shared, f"{thousands(shared)} shared"),
            )
            on_host = (ColorName(colors.host, "copy on host"),) if pools[0].host_pages else ()
            return (*held, *rest, *on_host)
        case "owner":
            return (
                tuple(ColorName(colors.owners[i % NUM_OWNER_COLORS], f"seq {i}") for i in seq_ids[:NUM_OWNER_COLORS])
                + rest
            )
        case "age":
            return (ColorName(colors.free, "long ago … this step", colors.young),)
        case "refs":
            return (ColorName(colors.used, "1 … 4 and more sequences", colors.young), *rest)


def _of_sequences(pools: Sequence[PageMap]) -> tuple[int, int]:
    """How many pages are used by one live sequence, and how many by several; without those that only kept steps
    hold."""
    if not any(pool.num_kept_pages for pool in pools):
        return sum(pool.num_used for pool in pools), sum(pool.num_shared for pool in pools)
    states = [block["state"] for pool in pools for block in pool.blocks]
    used, shared = (
        sum(int(np.count_nonzero(state == int(cell))) for state in states) for cell in (PageCell.USED, PageCell.SHARED)
    )
    return used, shared


def page_owners(models: Models, record: StepRecord, pool: int, page_id: int) -> tuple[int, ...]:
    """The sequences that held a page after a step. With several pools only the record's owner is known, because the
    page events do not name their pool."""
    cell = record.page_maps[pool].cell(page_id)
    if PageCell(int(cell["state"])) not in (PageCell.USED, PageCell.SHARED, PageCell.KEPT):
        return ()
    known = models.pages.facts(page_id, record.step).owners if len(record.page_maps) == 1 else ()
    return tuple(dict.fromkeys(known)) or ((int(cell["owner"]),) if int(cell["owner"]) != NO_OWNER else ())


def page_words(models: Models, record: StepRecord, pool: int, page_id: int) -> tuple[str, ...]:
    """Everything known of a page after a step; the most important first, because the end may not fit."""
    page_map = record.page_maps[pool]
    cell, size = page_map.cell(page_id), page_map.page_size
    state, fill = PageCell(int(cell["state"])), int(cell["fill"])
    owners, first = page_owners(models, record, pool, page_id), place_of(models, record, pool, page_id)
    words = [f"page {thousands(page_id)} {state_name(state)}"]
    if of_sequences := [seq_id for seq_id in owners if seq_id != KEPT]:
        words.append("seq {}".format(", ".join(map(str, of_sequences))))
    if KEPT in owners and state != PageCell.KEPT:
        words.append("kept for another branch")
    if is_filled := state not in (PageCell.FREE, PageCell.NULL):
        words.append(f"{fill}/{counted(size, 'token')}")
    if first is not None and fill:
        last = f"–{thousands(first + fill - 1)}" if fill > 1 else ""
        words.append(f"at {thousands(first)}{last}")
    committed = models.pages.facts(page_id, record.step).committed if len(record.page_maps) == 1 else None
    if committed is not None:
        texts = [models.pages.text(token_id) for token_id in committed.token_ids[:_SHOWN_TOKENS]]
    else:
        texts = _texts_at(models, record, first, fill)
    if texts and is_filled:
        words.append(" ".join(token_label(text) for text in texts))
    words.append(f"slots {thousands(page_id * size)}–{thousands((page_id + 1) * size - 1)}")
    if state in (PageCell.USED, PageCell.SHARED, PageCell.KEPT):
        words.append(f"ref count {int(cell['ref_count'])}")
    if is_filled:
        age = record.step - int(cell["step"])
        words.append("touched this step" if age == 0 else f"age {counted(age, 'step')}")
    if cell["on_host"]:
        words.append("copy on host")
    if committed is not None:
        words.append(f"found as {short_hash(committed.page_hash)}")
    return tuple(words)


def _texts_at(models: Models, record: StepRecord, first: int | None, fill: int) -> list[str]:
    if first is None:
        return []
    tokens = models.timeline.tokens(models.selection.now.seq_id, record.step)
    return [token.text for token in tokens[first : first + min(fill, _SHOWN_TOKENS)]]
