"""Watched pictures kept up to date as a window keeps them, and compared with slices taken anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from app.models.pictures import Pictures, kind_of
from engine.look.magnitudes import HeadStatistics
from engine.look.watch import Watcher
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.codec import CodecSpec, Coding
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.commands import SetPace, Watched
from engine.wire.encoding import decode_event, encode
from engine.wire.pictures import (
    AttentionRequest,
    HeadRequest,
    Magnitudes,
    RowRequest,
    StatePicture,
    TableRequest,
    WallRequest,
)
from engine.wire.records import RowStats
from tests.engine.tiny import model_of, prompt_ids

WALL = Watched(WallRequest(0, 0, 0, "keys", False, 24, 8), id=1)
POOLED_WALL = Watched(WallRequest(0, 0, 0, "values", False, 8, 3, only_farthest=True), id=2)
CHANGED = Watched(WallRequest(0, 0, 0, "keys", True, 24, 8), id=3)
HEAD = Watched(HeadRequest(0, 0, "values", 1, 1, 0, 0, 24), id=4)
NEWEST = Watched(HeadRequest(0, 0, "keys", 0, 0, 0, 7, 24), "newest", id=5)
FIXED = Watched(HeadRequest(0, 0, "keys", 0, 1, 3, 27, 8), "fixed", id=6)
ROW = Watched(AttentionRequest(0, 0, 1, 16), id=7)
TOKEN = Watched(RowRequest(0, 0, 5), id=8)
TABLE = Watched(TableRequest(0, 0), id=9)
PICTURES = (WALL, POOLED_WALL, CHANGED, HEAD, NEWEST, FIXED, ROW, TOKEN, TABLE)

MODES = {
    "dynamic": CacheSpec("dynamic"),
    "growing": CacheSpec("growing"),
    "static": CacheSpec("static", max_length=100),
    "none": CacheSpec("none"),
    "paged": CacheSpec("paged", page_size=4),
    "paged-int8": cache_preset("paged-int8").spec,
    "fp8": cache_preset("fp8").spec,  # the prompt, which comes in chunks, is written anew when it ends
    "h2o": CacheSpec("growing", retention=RetentionSpec("h2o", budget=16)),
    "streaming": CacheSpec("growing", retention=RetentionSpec("sinks+window", sinks=2, window=9)),
    "kivi": CacheSpec("growing", codec=CodecSpec(Coding("kivi-4", 8, 16), Coding("kivi-4", 8, 16))),
}


class Screen:
    """What a window has on its screen, one of each kind: whole slices, and updates put into them."""

    def __init__(self, watched: Watched) -> None:
        self.id, self.request = watched.id, watched.request
        self.pictures = Pictures()
        self.seen: list[type] = []

    @property
    def shown(self) -> Any:
        return getattr(self.pictures, kind_of(self))  # type: ignore[arg-type]

    def take(self, pieces: Iterable[Any]) -> None:
        for piece in pieces:
            if piece.reply_to == self.id:
                self.seen.append(type(piece))
                self.pictures.put(piece)


class Watching:
    """A session, who watches it, and what is seen."""

    def __init__(
        self, spec: CacheSpec, architecture: str = "llama", length: int = 9, watcher: Watcher | None = None
    ) -> None:
        self.session = Session(model_of(architecture), spec, prefill_chunk=6)
        self.watcher = watcher or Watcher()
        if watcher is None:
            self.watcher.set_pace(SetPace(None, None))
        self.screens = [Screen(watched) for watched in PICTURES]
        self.session.submit(Prompt(token_ids=prompt_ids(length)))
        self.session.step()
        self.show(self.watcher.watch(self.session, PICTURES))

    def show(self, pieces: Sequence[Any]) -> None:
        """What is sent comes as it comes from another process."""
        pieces = [decode_event(encode(piece)) for piece in pieces]
        for screen in self.screens:
            screen.take(pieces)

    def follow(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if not self.session.is_prefilling:  # no end of text ends the story
                self.session.force(0, (5 + 7 * self.session.sequence(0).num_tokens % 90,))
            self.show(self.watcher.after_step(self.session, self.session.step(), is_last=False))

    def seen(self, watched: Watched) -> set[type]:
        return set(self.screens[PICTURES.index(watched)].seen[1:])

    def check(self) -> None:
        """Everything on the screen is what somebody gets who looks for the first time."""
        for screen in self.screens:
            shown = screen.shown
            self.session.live.memos.forget(0)
            assert_same(shown, self.session.take_picture(shown.request))
            num_tokens = getattr(shown.request, "num_tokens", None)
            assert num_tokens in (None, self.session.sequence(0).num_tokens)


def assert_same(shown: Any, whole: Any) -> None:
    assert type(shown) is type(whole)
    for name in whole.__struct_fields__:
        if name not in ("took_ms", "reply_to"):
            assert_equal(getattr(shown, name), getattr(whole, name), name)


def assert_equal(a: Any, b: Any, name: str) -> None:
    if isinstance(b, np.ndarray):
        assert a.shape == b.shape, name
        assert np.array_equal(a, b, equal_nan=b.dtype.kind == "f"), name
    elif isinstance(b, tuple) and b and isinstance(b[0], np.ndarray | StatePicture):
        assert len(a) == len(b), name
        for one, other in zip(a, b, strict=True):
            assert_equal(one, other, name)
    elif isinstance(b, StatePicture | RowStats):
        for field in b.__struct_fields__:
            assert_equal(getattr(a, field), getattr(b, field), f"{name}.{field}")
    elif isinstance(b, Magnitudes):
        for part in ("limit", "largest", "clipped"):
            assert_equal(getattr(a, part), getattr(b, part), f"{name}.{part}")
    else:
        assert a == b, name


def assert_same_statistics(kept: HeadStatistics, anew: HeadStatistics) -> None:
    assert_equal(kept.counts, anew.counts, "counts")
    assert_equal(kept.edges, anew.edges, "edges")
    for name in ("limit", "lowest", "highest", "num_nan", "num_inf"):
        assert getattr(kept, name) == getattr(anew, name), name
