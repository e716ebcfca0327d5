"""The wall of an earlier step is made from the last one: it is the wall that would be drawn anew, for less work."""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec.structs import replace

from engine.cache.compressed.stores import RowStore
from engine.look import canvas
from engine.look.lenses import held_of_all
from engine.look.magnitudes import Blocks
from engine.look.pictures import PictureMemo, picture_of
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.edit import parse_edit
from engine.spec.lenses import TABLE
from engine.spec.sampling import Prompt
from engine.wire.pictures import HeadPicture, HeadRequest, WallPicture, WallRequest
from tests.engine.look.walls import assert_same
from tests.engine.session.pasts import SPECS
from tests.engine.tiny import model_of, prompt_ids

CASES = {
    "growing": ("llama", CacheSpec("growing")),
    "paged": ("llama", CacheSpec("paged", page_size=4)),
    "paged, scattered": ("llama", CacheSpec("paged", page_size=4)),
    "paged int8": ("llama", PRESETS["paged-int8"].spec),
    "static": ("llama", CacheSpec("static", max_length=64)),
    "int8": ("llama", PRESETS["int8"].spec),
    "fp8, which waits for its scale": ("llama", PRESETS["fp8"].spec),
    "kivi, which codes rows late": ("llama", SPECS["kivi-4"]),
    "h2o, which drops rows": ("llama", SPECS["h2o"]),
    "no cache": ("llama", CacheSpec("none")),
    "windows alone": ("mistral", CacheSpec("dynamic")),
    "windows and full layers": ("gemma3_text", CacheSpec("growing")),
    "states beside rows": ("lfm2", CacheSpec("growing")),
    "an encoder": ("t5", CacheSpec("growing")),
}


def prefilling(name: str) -> Session:
    """A session whose prompt has not ended."""
    architecture, spec = CASES[name]
    session = Session(model_of(architecture), spec, prefill_chunk=8)
    session.submit(Prompt(token_ids=prompt_ids(22)))
    session.force(0, prompt_ids(40, seed=3))
    if "scattered" in name:  # the pages of two sequences alternate
        session.submit(Prompt(token_ids=prompt_ids(20, seed=5)))
        session.force(1, prompt_ids(40, seed=4))
    session.step()
    return session


def started(name: str) -> Session:
    session = prefilling(name)
    while session.is_prefilling:
        session.step()
    for _ in range(6):
        session.step()
    return session


def taken(session: Session, request: WallRequest) -> WallPicture:
    piece = session.take_picture(request)
    assert isinstance(piece, WallPicture)
    return piece


def assert_same_peaks(session: Session, num_tokens: int) -> None:
    """The numbers farthest from zero, channel by channel, are those that a first count finds."""
    source, layers = session.rows_at(0, num_tokens), [x.index for x in session.model.info.geometry.attention_layers]
    known = session.live.memos.of(0, session.cache_of(0)).blocks
    for lens in TABLE:
        held = held_of_all(source, lens, layers)
        found, expected = (blocks.of(lens, source, held) for blocks in (known, Blocks()))
        assert found.keys() == expected.keys()
        for layer, count in found.items():
            np.testing.assert_array_equal(np.abs(count.peak), np.abs(expected[layer].peak))


def drawn_anew(session: Session, request: WallRequest) -> WallPicture:
    """The same picture by somebody who has drawn none before."""
    source = session.rows_at(0, request.num_tokens)
    piece = picture_of(request, source, session.model.info.geometry, PictureMemo(None))
    assert isinstance(piece, WallPicture)
    return piece


@pytest.mark.parametrize("name", CASES)
def test_whatever_was_drawn_before_a_wall_is_as_if_drawn_anew(name: str) -> None:
    """Earlier and later moments in any order, other sizes, K and V, what a step changed, steps and edits between."""
    chance, session = random.Random(name), started(name)
    can_edit = CASES[name][0] == "llama" and name != "no cache"
    for number in range(60):
        count = session.sequence(0).num_tokens
        tokens = chance.choice([count, count - 1, chance.randint(1, count)])
        columns, rows = chance.choice([(8, 4), (8, 4), (8, 4), (200, 16), (5, 3)])
        tensor, is_change = chance.choice(["keys", "keys", "values"]), chance.random() < 0.1
        request = WallRequest(0, tokens, max(0, tokens - 1), tensor, is_change, columns, rows)
        assert_same(taken(session, request), drawn_anew(session, request))
        if chance.random() < 0.2:
            assert_same_peaks(session, tokens)
        if number % 7 == 6:
            session.step()
        if number % 20 == 19 and can_edit:
            make_edit(session, parse_edit(f"zero pos={count - 1} layer=0", 0, count))
        if number == 40:
            session.go_to(session.last_step - 3)


@pytest.mark.parametrize("name", ["growing", "h2o, which drops rows"])
def test_one_number_of_a_cell_is_the_extreme_that_is_farthest_from_zero(name: str) -> None:
    session = started(name)
    count = session.sequence(0).num_tokens
    request = WallRequest(0, count, count, "keys", False, 5, 3)
    both, one = taken(session, request), taken(session, replace(request, only_farthest=True))
    assert one.low is one.high
    is_low = np.abs(both.low) > np.abs(both.high)
    assert is_low.any()
    np.testing.assert_array_equal(one.low, np.where(is_low, both.low, both.high))
    head = session.take_picture(HeadRequest(0, count, "keys", 1, 0, 0, count, count))
    assert isinstance(head, HeadPicture)
    assert head.low is head.high, "a column is one token"


def columns_filled(session: Session, request: WallRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of each layer a wall looks at."""
    sizes: list[int] = []
    whole = canvas.fill_cells

    def spied(low, high, layers, rows, *args):  # type: ignore[no-untyped-def]
        sizes.extend([rows.shape[2]] * len(layers))
        whole(low, high, layers, rows, *args)

    monkeypatch.setattr(canvas, "fill_cells", spied)
    taken(session, request)
    monkeypatch.undo()
    return sizes


def test_only_the_last_column_of_an_earlier_wall_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    session = started("growing")
    now = WallRequest(0, 28, 28, "keys", False, 7, 4)
    assert columns_filled(session, now, monkeypatch) == [28, 28]
    assert columns_filled(session, replace(now, num_tokens=27, previous_tokens=27), monkeypatch) == [3, 3]
    assert columns_filled(session, replace(now, num_tokens=25, previous_tokens=25), monkeypatch) == [1, 1]
    assert columns_filled(session, replace(now, num_tokens=28, previous_tokens=28), monkeypatch) == [4, 4]
    assert columns_filled(session, replace(now, lens="values"), monkeypatch) == [28, 28]
    assert columns_filled(session, replace(now, lens="values", max_columns=28), monkeypatch) == [28, 28]


@pytest.mark.parametrize("name", ["int8", "kivi, which codes rows late"])
def test_a_wall_of_an_earlier_step_dequantises_its_last_rows_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.look.magnitudes.BLOCK", 4)
    session, sizes = started(name), []
    for _ in range(3):
        session.step()
    now = WallRequest(0, 31, 31, "keys", False, 8, 4)
    taken(session, now)
    read = RowStore.read

    def spied(self, first=0):  # type: ignore[no-untyped-def]
        sizes.append(self.length - first)
        return read(self, first)

    monkeypatch.setattr(RowStore, "read", spied)
    taken(session, replace(now, num_tokens=30, previous_tokens=30))
    # a column; or what KIVI has not coded then, and a column
    last = 4 if name == "int8" else 16 + 4
    assert max(sizes) <= last


def test_a_wall_tells_which_positions_a_layer_holds_where_that_is_not_all() -> None:
    assert taken(started("growing"), WallRequest(0, 28, 28, "keys", False, 7, 4)).held is None
    session = started("an encoder")
    count = session.sequence(0).num_tokens
    piece = taken(session, WallRequest(0, count, count, "keys", False, 7, 4))
    num_source = 22
    assert piece.held is not None
    expected = [[0, num_source] if layer.kind == "cross" else [num_source, count]
                for layer in session.model.info.geometry.attention_layers]  # fmt: skip
    assert piece.held.tolist() == expected
    windows = started("windows alone")
    piece = taken(windows, WallRequest(0, 28, 28, "keys", False, 7, 4))
    assert piece.held is not None
    rows = [windows.cache_of(0).rows(layer) for layer in piece.layers]
    assert piece.held.tolist() == [[each.first, each.stop] for each in rows if each is not None]
    assert piece.held[:, 0].min() > 0


@pytest.mark.parametrize("name", ["fp8, which waits for its scale", "kivi, which codes rows late"])
def test_rows_that_waited_for_the_end_of_the_prompt_are_drawn_again(name: str) -> None:
    session = prefilling(name)
    assert taken(session, WallRequest(0, 8, 8, "keys", False, 99, 4)).provenance == "live cache"
    while session.is_prefilling or session.sequence(0).num_tokens < 40:
        session.step()
    request = WallRequest(0, 40, 40, "keys", False, 99, 4)
    piece = taken(session, request)
    assert piece.provenance == "dequantised"
    assert_same(piece, drawn_anew(session, request))
