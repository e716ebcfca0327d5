"""In every cache mode a watched picture of K, V, ΔK or ΔV that was put together from updates is, after every step, the
slice that could be taken in its place, and what is sent of it does not grow with the context."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.look.watch import Watcher
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.codec import Part, uniform
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.commands import SetPace, Watched
from engine.wire.encoding import encode
from engine.wire.pictures import (
    CellUpdate,
    HeadRequest,
    RowPicture,
    RowRequest,
    Unchanged,
    WallPicture,
    WallRequest,
)
from tests.effort import effort
from tests.engine.look.watching import Screen, assert_same
from tests.engine.tiny import model_of, prompt_ids

TENSORS: tuple[Part, ...] = ("keys", "values")
NO_UPDATES = ("none", "allocated", "transformers-quantized")  # every row is computed or written anew by every step


def small(name: str) -> CacheSpec:
    """The preset with budgets, windows, groups and pages so small that a few steps reach everything it does."""
    spec = PRESETS[name].spec
    if not spec.retention.keeps_all:
        sizes = {"window": 9} if spec.retention.is_by_position else {"budget": 12, "window": 4}
        spec = replace(spec, retention=replace(spec.retention, **sizes))
    if name.startswith("kivi"):
        spec = replace(spec, codec=uniform(name, 16, 16))
    return replace(spec, page_size=4, num_pages=None) if spec.is_paged else spec


SPECS = {name: small(name) for name in PRESETS} | {
    "rotated sinks": CacheSpec(retention=RetentionSpec("sinks+window", sinks=2, window=8, rerotate=True)),
    "h2o int8": CacheSpec(retention=RetentionSpec("h2o", budget=12, window=4), codec=uniform("int8")),
    "paged h2o": CacheSpec("paged", page_size=4, retention=RetentionSpec("h2o", budget=12, window=4)),
}


def walls(columns: int, rows: int) -> list[WallRequest]:
    return [WallRequest(0, 0, 0, tensor, change, columns, rows) for tensor in TENSORS for change in (False, True)]


def numbered(*pictures: Watched) -> list[Watched]:
    return [replace(picture, id=number) for number, picture in enumerate(pictures, 1)]


HEADS = [Watched(HeadRequest(0, 0, tensor, 1, 1, 0, 0, 400)) for tensor in TENSORS]
HOLDERS = Watched(WallRequest(0, 0, 0, "keys", False, 1, 1))
NEWEST = Watched(HeadRequest(0, 0, "keys", 0, 1, 0, 7, 24), "newest")
FIXED = Watched(HeadRequest(0, 0, "values", 0, 0, 3, 18, 8), "fixed")
ROW = Watched(RowRequest(0, 0, 6))
POOLED_HEAD = Watched(HeadRequest(0, 0, "values", 1, 0, 0, 0, 9))
SMALL, LARGE = [Watched(wall) for wall in walls(7, 3)], [Watched(wall) for wall in walls(400, 8)]
ALL = numbered(*SMALL, *LARGE, *HEADS, HOLDERS, NEWEST, FIXED, ROW, POOLED_HEAD)


class Watching:
    """A session whose pictures are put together from what its steps send."""

    def __init__(self, spec: CacheSpec, architecture: str, watched: list[Watched], length: int) -> None:
        self.session = Session(model_of(architecture), spec, prefill_chunk=16)
        self.watcher = Watcher()
        self.watcher.set_pace(SetPace(None, None))
        self.screens = {one.id: Screen(one) for one in watched}
        self.session.submit(Prompt(token_ids=prompt_ids(length)))
        while self.session.is_prefilling:
            self.session.step()
        self.show(self.watcher.watch(self.session, tuple(watched)))

    def show(self, pieces: Any) -> dict[int, int]:
        """Takes what was sent in, and says how many bytes it was, by picture."""
        sizes = {}
        for piece in pieces:
            self.screens[piece.reply_to].take([piece])
            sizes[piece.reply_to] = sum(len(frame) for frame in encode(piece))
        return sizes

    def step(self) -> dict[int, int]:
        self.session.force(0, (5 + 7 * self.session.sequence(0).num_tokens % 90,))
        return self.show(self.watcher.after_step(self.session, self.session.step(), is_last=False))

    def check(self) -> None:
        self.session.live.memos.forget(0)
        for screen in self.screens.values():
            assert_same(screen.shown, self.session.take_picture(screen.shown.request))
            num_tokens = getattr(screen.shown.request, "num_tokens", None)
            assert num_tokens == self.session.sequence(0).num_tokens


@pytest.mark.parametrize("name", effort([*SPECS][1::4], [*SPECS]))
def test_after_every_step_a_picture_is_the_slice_in_its_place(name: str) -> None:
    watching = Watching(SPECS[name], "llama", ALL, 11)
    for number in range(16):
        watching.step()
        if number % effort(5, 1) == 0:  # what an update left wrong is wrong in the next picture as well
            watching.check()
    watching.check()


WINDOWED = [
    (a, name) for a in ("mistral", "gemma3_text") for name in ("dynamic", "static", "growing", "paged", "kivi-4")
]


@pytest.mark.parametrize(
    ("architecture", "name"),
    [*effort(WINDOWED[::3], WINDOWED), ("gemma3_text", "h2o"), ("lfm2", "h2o"), ("lfm2", "paged")],
)
def test_of_layers_with_windows_as_well(architecture: str, name: str) -> None:
    watching = Watching(SPECS[name], architecture, ALL, 7)
    for number in range(14):
        watching.step()
        if number % effort(5, 1) == 0:
            watching.check()
    watching.check()


@settings(max_examples=10)
@given(
    name=st.sampled_from(sorted(SPECS)),
    length=st.integers(7, 30),
    shown=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_steps_that_were_not_shown_are_made_up_for(name: str, length: int, shown: list[int]) -> None:
    """Pictures come after so many steps each."""
    watching = Watching(SPECS[name], "llama", ALL, length)
    for num_steps in shown:
        for _ in range(num_steps):
            watching.session.force(0, (5 + 7 * watching.session.sequence(0).num_tokens % 90,))
            record = watching.session.step()
        watching.show(watching.watcher.after_step(watching.session, record, is_last=False))
        watching.check()


UPDATED = [name for name in SPECS if name not in NO_UPDATES]


@pytest.mark.parametrize("name", effort(UPDATED[::4], UPDATED))
def test_what_is_sent_of_a_step_does_not_grow_with_the_context(name: str) -> None:
    """16 steps, of which each mode does what it does now and then at the same ones."""
    pictures = numbered(*LARGE, *HEADS, HOLDERS, NEWEST, FIXED, ROW)
    sizes = []
    for length in (32, 96):
        watching = Watching(SPECS[name], "llama", pictures, length)
        # the first step drops rows for the first time, and makes the change of the prompt that of a token
        first = watching.step()
        steps = [watching.step() for _ in range(16)]
        assert set(first) == {picture.id for picture in pictures}
        for screen in watching.screens.values():
            assert set(screen.seen[2:]) <= {CellUpdate, RowPicture, Unchanged}
        sizes.append([sum(step.values()) for step in steps])
    short, long = sizes
    assert max(long) <= 1.03 * max(short)
    assert sum(long) <= 1.03 * sum(short)


@pytest.mark.parametrize("name", NO_UPDATES)
def test_where_every_row_is_computed_anew_the_change_alone_is_updated(name: str) -> None:
    watching = Watching(SPECS[name], "llama", numbered(*LARGE), 32)
    for _ in range(4):  # the first of them makes the change of the prompt that of one token
        watching.step()
    seen = [set(screen.seen[2:]) for screen in watching.screens.values()]
    assert seen == [{WallPicture}, {CellUpdate}, {WallPicture}, {CellUpdate}]


@pytest.mark.parametrize(
    ("name", "quiet", "busy"),
    [("growing", 4, 4), ("kivi-4", 4, 4 + 15 * 4), ("h2o", 8, 8), ("streamingllm", 8, 8), ("paged h2o", 4, 4 + 4 * 4)],
)
def test_how_many_cells_of_k_a_step_sends(name: str, quiet: int, busy: int) -> None:
    """Of two layers with two heads: those of the new row; KIVI's group of keys of which one is the new row already; a
    row that each head drops; or a page of them."""
    watching = Watching(SPECS[name], "llama", numbered(LARGE[0]), 32)
    sent = []
    for _ in range(16):
        watching.session.force(0, (7,))
        for piece in watching.watcher.after_step(watching.session, watching.session.step(), is_last=False):
            assert isinstance(piece, CellUpdate)
            sent.append(piece.places.shape[1])
    assert (min(sent), max(sent)) == (quiet, busy)


@pytest.mark.parametrize("name", ["h2o", "kivi-4", "streamingllm"])
def test_a_picture_that_somebody_keeps_stays_what_it_was(name: str) -> None:
    watching = Watching(SPECS[name], "llama", numbered(LARGE[0]), 32)
    watching.step()
    watching.step()
    shown = watching.screens[1].shown
    low = shown.low.copy()
    for _ in range(16):
        watching.step()
    np.testing.assert_array_equal(shown.low, low)
