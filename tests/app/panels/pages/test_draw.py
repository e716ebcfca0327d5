from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from app.panels.pages.draw import (
    CACHED,
    FIRST,
    FREE,
    KEPT,
    NUM_AGES,
    GridColors,
    GridLayout,
    PoolArrays,
    arrange,
    color_codes,
    paint,
)
from app.panels.pages.view import legend_keys
from engine.history.pages import PageTracker
from engine.wire.pages import BLOCK_PAGES, PageCell, PageMap
from tests.app.page_story import NUM_PAGES, PageStory

COLORS = GridColors(
    "#202020", "#0000ff", "#8000ff", "#00ff00", "#4040a0", "#ff8000", "#808080", "#ffffff", "#80ffff",
    tuple(f"#1111{10 * i:02x}" for i in range(8)),
)  # fmt: skip
USED, SHARED = 0xFF0000FF, 0xFF8000FF


def taken(story: PageStory) -> PoolArrays:
    arrays = PoolArrays()
    arrays.follow(story.page_map())
    return arrays


def cell(picture: np.ndarray, layout: GridLayout, page_id: int) -> np.ndarray:
    x, y, width, height = layout.rect(page_id)
    return picture[y : y + height, x : x + width]


@pytest.mark.parametrize("num_pages", [1, 2, 24, 257, 4097, 16_385, 1_000_001])
@pytest.mark.parametrize("size", [(40, 24), (480, 76), (1250, 300), (3, 900)])
def test_every_page_is_on_the_picture_and_is_hit_where_it_is_drawn(num_pages: int, size: tuple[int, int]) -> None:
    layout = arrange(num_pages, *size, 26)
    assert layout.width <= size[0]
    assert layout.height <= size[1]
    assert layout.columns * layout.rows * layout.per_cell >= num_pages
    for page_id in {0, num_pages // 3, num_pages - 1}:
        x, y, width, height = layout.rect(page_id)
        first = page_id - page_id % layout.per_cell
        assert layout.hit(x, y) == layout.hit(x + width - 0.5, y + height - 0.5) == first
    assert layout.hit(layout.width + 1, 0) is None
    assert layout.hit(-1, 0) is None


def test_cells_are_as_large_as_the_panel_allows() -> None:
    layout = arrange(257, 500, 100, 26)
    assert (500 // (layout.pitch + 1)) * (100 // (layout.pitch + 1)) < 257
    assert arrange(4, 500, 100, 26).pitch == 26


def test_points_after_the_last_page_hit_none() -> None:
    layout = arrange(5, 40, 40, 12)
    assert layout.columns * layout.rows > 5
    x, y, *_ = layout.rect(4)
    assert layout.hit(x + layout.pitch, y) is None


def test_colours_follow_the_states_of_the_pool() -> None:
    story = PageStory()
    story.admit(0, list(range(10)))
    story.admit(1, [*range(8), 90, 91])
    story.remove(0)
    codes = color_codes(taken(story), "state", story.step)
    pages = list(story.tables[1].page_ids)
    assert [codes[p] for p in pages] == [FIRST, FIRST, FIRST]
    story.admit(2, [*range(8), 70])
    codes = color_codes(taken(story), "state", story.step)
    assert [codes[p] for p in story.tables[2].page_ids] == [FIRST + 1, FIRST + 1, FIRST]
    story.remove(1)
    story.remove(2)
    codes = color_codes(taken(story), "state", story.step)
    assert codes[pages[0]] == codes[pages[1]] == CACHED
    assert codes[pages[2]] == FREE


def test_pages_of_kept_checkpoints_alone_have_a_colour_and_a_word_of_their_own() -> None:
    story = PageStory()
    story.admit(0, list(range(10)))
    story.admit(1, [*range(8), 90, 91])
    pages = list(story.tables[1].page_ids)
    before = story.page_map()
    blocks = tuple(block.copy() for block in before.blocks)
    cells = np.concatenate(blocks)
    cells["state"][pages[2]] = int(PageCell.KEPT)
    after = replace(before, blocks=(cells,), num_kept_pages=1)
    arrays = PoolArrays()
    arrays.follow(after)
    assert [color_codes(arrays, mode, 0)[pages[2]] for mode in ("state", "owner")] == [KEPT, KEPT]
    assert [color_codes(arrays, "refs", 0)[page] for page in pages] == [FIRST + 1, FIRST + 1, FIRST]
    assert color_codes(arrays, "age", story.step - 1)[pages[2]] == FIRST + NUM_AGES - 1
    assert color_codes(arrays, "state", 0)[pages[0]] == FIRST + 1
    words = [[key.name for key in legend_keys((one,), "state", (0, 1), COLORS)] for one in (before, after)]
    assert words[0][:3] == ["2 used", "2 shared", "0 cached"]
    assert words[1][:4] == ["1 used", "2 shared", "1 of other branches", "0 cached"]


def test_owner_age_and_ref_count_have_colours_of_their_own() -> None:
    story = PageStory()
    story.admit(3, list(range(6)))
    for _ in range(40):
        story.step += 1
    story.admit(4, [*range(4), 99])
    arrays = taken(story)
    shared, own = story.tables[4].page_ids
    old = story.tables[3].page_ids[1]
    assert color_codes(arrays, "owner", 0)[own] == FIRST + 4
    assert color_codes(arrays, "owner", 0)[old] == FIRST + 3
    assert color_codes(arrays, "refs", 0)[shared] == FIRST + 1
    ages = color_codes(arrays, "age", story.step - 1)
    assert ages[own] == FIRST + NUM_AGES - 1
    assert ages[own] > ages[old] > FREE
    assert ages[shared] == ages[own], "sharing touches a page"


def test_a_partial_page_is_a_lower_bar() -> None:
    story = PageStory()
    story.admit(0, list(range(6)))  # 4 + 2 tokens
    layout = arrange(NUM_PAGES, 300, 60, 22)
    picture = paint(layout, taken(story), "state", 0, COLORS)
    full, half = (cell(picture, layout, p) for p in story.tables[0].page_ids)
    side = layout.pitch - layout.gap
    assert (full == USED).all()
    assert (half[side // 2 :] == USED).all()
    assert not (half[: side // 2] == USED).any()


@pytest.mark.parametrize("room", [(120, 30), (200, 40)])
def test_a_page_that_lacks_one_token_differs_from_a_full_one(room: tuple[int, int]) -> None:
    """Cells have fewer pixels than a page has tokens: rounding must not fill one up."""
    story = PageStory(page_size=16)
    story.admit(0, list(range(16 + 15)))
    layout = arrange(NUM_PAGES, *room, 22)
    assert 7 <= layout.pitch - layout.gap < 16
    picture = paint(layout, taken(story), "state", 0, COLORS)
    full, cut = (cell(picture, layout, page) for page in story.tables[0].page_ids)
    assert (full == USED).all()
    assert (cut != USED).any(axis=1).tolist() == [True] + [False] * (len(cut) - 1)


def test_many_references_take_the_last_colour_of_their_scale() -> None:
    story = PageStory()
    codes = []
    for seq_id in range(7):
        story.admit(seq_id, [*range(4), 90 + seq_id])
        codes.append(int(color_codes(taken(story), "refs", 0)[story.tables[0].page_ids[0]]) - FIRST)
    assert codes == [0, 1, 2, 3, 3, 3, 3]


def test_sharing_shows_as_a_shape_and_not_only_as_a_colour() -> None:
    story = PageStory()
    story.admit(0, list(range(9)))
    story.admit(1, [*range(8), 50])
    layout = arrange(NUM_PAGES, 300, 60, 22)
    found = cell(paint(layout, taken(story), "state", 0, COLORS), layout, story.tables[1].page_ids[0])
    assert found[-1, 0] == SHARED
    assert found[0, -1] != SHARED


def test_only_blocks_that_changed_are_read_again() -> None:
    story = PageStory(num_pages=5000)
    story.admit(0, list(range(9)))
    arrays = taken(story)
    arrays["state"][4000] = 3  # a mark that only reading the block again would wipe out
    story.admit(1, [700, 701])
    arrays.follow(story.page_map())
    assert arrays["state"][4000] == 3
    assert arrays["state"][story.tables[1].page_ids[0]] == 1


def test_of_pages_that_share_a_pixel_the_more_telling_one_shows() -> None:
    story = PageStory(num_pages=5000)
    story.admit(0, list(range(9)))
    story.admit(1, [*range(8), 800])
    layout = arrange(5000, 20, 20, 26)
    assert layout.per_cell == 13
    picture = paint(layout, taken(story), "state", 0, COLORS)
    assert picture[0, 0] == SHARED
    assert picture[-1, 0] == 0xFF202020


def test_pages_of_every_block_stand_in_their_own_place() -> None:
    tracker = PageTracker(2 * BLOCK_PAGES + 5, 4)
    for page_id in (3, BLOCK_PAGES + 1, 2 * BLOCK_PAGES + 4):
        tracker.set_fill(page_id, 1 + page_id % 4)
    pool = PageMap(0, 4, tracker.num_pages, None, 0, (), 0, 0, 0, 0, 0, 0, 0, tracker.blocks())
    arrays = PoolArrays()
    arrays.follow(pool)
    assert np.array_equal(arrays["fill"], np.concatenate(pool.blocks)["fill"])
    assert np.flatnonzero(arrays["fill"]).tolist() == [3, BLOCK_PAGES + 1, 2 * BLOCK_PAGES + 4]
