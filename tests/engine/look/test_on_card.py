"""Pictures are reduced where the tensors lie: what leaves a card for them does not grow with the context."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.look.magnitudes import HeadStatistics
from engine.look.watch import Watcher
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, Coding
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.commands import Watched
from engine.wire.pictures import HeadRequest, WallRequest
from tests.engine.card import OnCard, card, has_card, moved
from tests.engine.card_streams import Card
from tests.engine.look.watching import assert_same_statistics
from tests.engine.tiny import prompt_ids, tiniest_model

pytestmark = pytest.mark.skipif(not has_card(), reason="this torch keeps its devices elsewhere")

PICTURES = (
    Watched(WallRequest(0, 0, 0, "keys", False, 8, 3), id=1),
    Watched(HeadRequest(0, 0, "values", 0, 0, 0, 0, 8), id=2),
)
MODES = {
    "growing": CacheSpec("growing"),
    "paged": CacheSpec("paged", page_size=4),
    "h2o": CacheSpec("growing", retention=RetentionSpec("h2o", ratio=0.8)),
    "kivi": CacheSpec("growing", codec=CodecSpec(Coding("kivi-4", 8, 16), Coding("kivi-4", 8, 16))),
}


def bytes_of_pictures(spec: CacheSpec, num_tokens: int, patch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that leave the card for the first whole pictures, and for those of the next step."""
    made, model = Card(), tiniest_model()
    with card(patch, made):
        session, watcher = Session(moved(model, "transformers"), spec, capture="off"), Watcher()
        session.submit(Prompt(token_ids=prompt_ids(num_tokens)))
        while session.is_prefilling:
            session.step()
        found = []
        made.bytes_to_host = 0
        assert len(watcher.watch(session, PICTURES)) == 2
        found.append(made.bytes_to_host)
        for _ in range(2):
            record = session.step()
            made.bytes_to_host = 0
            assert len(watcher.after_step(session, record, is_last=True)) == 2
            found.append(made.bytes_to_host)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_what_leaves_the_card_for_pictures_does_not_grow_with_the_context(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for two numbers a token where rows are dropped: how many heads and layers hold it."""
    counts = 40, 112
    few, many = (bytes_of_pictures(MODES[mode], count, monkeypatch) for count in counts)
    holders = 0 if MODES[mode].retention.keeps_all else 16 * (counts[1] - counts[0])
    assert all(few)
    assert all(b <= a + holders + 256 for a, b in zip(few, many, strict=True)), (few, many)


@settings(max_examples=60)
@given(values=st.lists(st.floats(width=32), max_size=400))
def test_statistics_of_a_card_are_those_of_a_cpu(values: list[float]) -> None:
    tile = torch.tensor(values, dtype=torch.float32)
    with pytest.MonkeyPatch.context() as patch, card(patch, Card()):
        assert_same_statistics(HeadStatistics(OnCard(tile)), HeadStatistics(tile))


def test_of_a_large_tile_of_a_card_little_is_copied_to_the_host() -> None:
    values = torch.from_numpy(np.random.default_rng(3).normal(size=40_000).astype(np.float32))
    values[30_000:] = values[30_000:].clamp(-2, 2)
    with pytest.MonkeyPatch.context() as patch, card(patch, made := Card()):
        found = HeadStatistics(OnCard(values))
        assert made.bytes_to_host < 1_000
        assert_same_statistics(found, HeadStatistics(values))
