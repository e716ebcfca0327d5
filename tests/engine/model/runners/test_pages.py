"""Attention that reads pages in place gives the same as gathered pages, but for rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec import structs

from engine.cache.paged.rows import PageBlocks
from engine.model.runners.pages import Flex, Kernel, mask_of
from engine.spec.cache import PRESETS, CacheSpec, cache_named
from engine.spec.edit import Mask, Rows
from engine.spec.model import RunnerName
from engine.spec.sampling import Prompt
from tests.engine.model.runners.paged_reading import compare, listed_alone, session_of
from tests.engine.session.edited import edit_live
from tests.engine.tiny import prompt_ids

pytestmark = pytest.mark.usefixtures("eager_flex")

PAGED = [*(name for name, preset in PRESETS.items() if preset.spec.is_paged), "paged+h2o", "paged+tova", "paged+knorm"]


@pytest.mark.parametrize(
    "architecture", ["llama", "mistral", "gemma3_text", "gemma2", "gemma3n_text", "gpt_oss", "gpt2"]
)
def test_pages_read_one_by_one_are_those_that_were_gathered(architecture: str) -> None:
    """Full attention and windows, soft caps and sinks, layers that read the pages of another one, through the fused
    decoder and through transformers; of one sequence and of three, from before the edge of a page to behind it."""
    spec = CacheSpec("paged", page_size=4)
    sessions = [session_of(architecture, [7, 15, 20], spec, chosen) for chosen in ("pages", "gather")]
    ways = [compare(*sessions) for _ in range(5)]
    assert set(ways) == {"fused+pages" if architecture == "llama" else "transformers+pages"}


@pytest.mark.parametrize(
    ("architecture", "runner"),
    [("llama", "fused"), ("llama", "transformers"), ("llama", "graph"), ("gemma3n_text", "transformers")],
)
def test_one_kernel_for_all_sequences_reads_what_was_gathered(architecture: str, runner: RunnerName) -> None:
    """From before the edge of a page to behind it."""
    spec, kernel = CacheSpec("paged", page_size=16), Flex(listed_alone)
    session, gathered = (
        session_of(architecture, [15, 40], spec, chosen, kernel, runner) for chosen in ("pages", "gather")
    )
    assert [compare(session, gathered) for _ in range(3)] == [f"{runner}+pages"] * 3


@pytest.mark.parametrize("window", [None, 5, 16])
@pytest.mark.parametrize("count", [1, 4, 130])
def test_a_kernel_is_told_of_every_slot_that_is_read_and_of_no_other(count: int, window: int | None) -> None:
    """Lengths one before, at and one behind the edge of a page; a page that two share, one that was dropped."""
    size, num_pages, lengths = 4, 160, [159, 160, 161]
    order = (torch.randperm(num_pages - 1, generator=torch.Generator().manual_seed(0)) + 1).tolist()
    tables = torch.zeros(3, 41, dtype=torch.long)
    for row, length in zip(tables, lengths, strict=True):
        for number in range(-(-length // size)):
            row[number] = order.pop()
    tables[1, 0], tables[2, 3] = tables[0, 0], 0
    places = torch.tensor(lengths)[:, None] + torch.arange(-count, 0)
    mask = mask_of(PageBlocks.of(tables, places, num_pages, size, window), num_pages * size)
    for row, table in enumerate(tables):
        for query, place in enumerate(places[row].tolist()):
            first = 0 if window is None else max(0, place - window + 1)
            held = [p for p in range(first, place + 1) if table[p // size]]
            expected = {int(table[p // size]) * size + p % size for p in held}
            assert read_of(mask, row, query, num_pages * size) == expected


def read_of(mask: Any, row: int, query: int, num_slots: int) -> set[int]:
    """The slots that a query reads: all of pages that are listed whole, of others those that the mask lets through."""
    size, block, found = mask.BLOCK_SIZE[1], query // mask.BLOCK_SIZE[0], set[int]()
    slots = torch.arange(num_slots)
    allowed = mask.mask_mod(torch.tensor(row), torch.tensor(0), torch.tensor(query), slots)
    for is_whole, count, pages in (
        (False, mask.kv_num_blocks, mask.kv_indices),
        (True, mask.full_kv_num_blocks, mask.full_kv_indices),
    ):
        for page in pages[row, 0, block, : count[row, 0, block]].tolist():
            mine = set(range(page * size, (page + 1) * size))
            assert not mine & found, "a page is read once"
            found |= mine if is_whole else {slot for slot in mine if allowed[slot]}
    return found


@pytest.mark.parametrize("cache", PAGED)
def test_every_paged_mode_whose_rows_are_plain_reads_them_in_place(cache: str) -> None:
    """Those that drop pages as well; coded rows have to be decoded first, and are."""
    spec = structs.replace(cache_named(cache), page_size=4)
    if not spec.retention.keeps_all:
        spec = structs.replace(spec, retention=structs.replace(spec.retention, budget=12, ratio=None))
    session, gathered = (session_of("llama", [21], spec, chosen) for chosen in ("pages", "gather"))
    ways = {compare(session, gathered) for _ in range(9)}
    if spec.codec.is_exact:
        assert ways == {"fused+pages"}
        assert not session.model.runners.note
    else:
        assert ways == {"fused"}
        assert "coded rows have to be decoded first" in session.model.runners.note


@pytest.mark.parametrize("kernel", [None, Flex(listed_alone)])
def test_shared_prefixes_and_forks_are_read_where_others_wrote_them(kernel: Kernel | None) -> None:
    spec = CacheSpec("paged", page_size=16)
    session, gathered = (session_of("llama", [37], spec, chosen, kernel) for chosen in ("pages", "gather"))
    for each in (session, gathered):
        each.submit(Prompt(token_ids=(*prompt_ids(32, 0), 5, 6)))
        each.step()
        each.fork(0)
    assert [compare(session, gathered) for _ in range(2)] == ["fused+pages"] * 2
    assert session.cache_of(1).page_counts().hit_tokens == 32


def test_rows_that_are_hidden_by_hand_are_not_read() -> None:
    spec = CacheSpec("paged", page_size=16)
    sessions = [session_of("llama", [37], spec, chosen, Flex(listed_alone)) for chosen in ("pages", "gather")]
    for each in sessions:
        edit_live(each, Mask(0, Rows(3, 20, (1,), (0,))))
    untouched = session_of("llama", [37], spec, "pages", Flex(listed_alone))
    assert compare(*sessions) == "fused+pages"
    untouched.step()
    mine, others = sessions[0].logits(0), untouched.logits(0)
    assert mine is not None
    assert others is not None
    assert (mine - others).abs().max() > 1e-3


@pytest.mark.parametrize(("chosen", "runner"), [("pages", "fused"), ("gather", "fused"), ("gather", "graph")])
def test_what_another_left_in_a_page_is_not_met_by_who_takes_it(chosen: str, runner: RunnerName) -> None:
    """A kernel multiplies what lies behind the last row of a page with a weight of zero: no number stays none, also
    where the page was begun by a step that gathered."""
    spec = CacheSpec("paged", page_size=16, num_pages=8)
    session = session_of("llama", [33], spec, chosen, Flex(listed_alone), runner)
    store = session.live.mode.store
    assert store is not None
    with torch.inference_mode():
        for rows in (rows for pair in store.rows_of.values() for rows in pair):
            assert rows.exact is not None
            rows.exact[:, 4 * 16 :] = torch.nan
    for _ in range(16):
        session.step()
    session.model.runners.pages.choose("pages")
    record = session.step()
    assert record.sequences[0].num_tokens == 50
    assert (record.runner, record.non_finite) == (f"{runner}+pages", ())
