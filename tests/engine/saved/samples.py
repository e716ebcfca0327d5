"""A small session with one of everything, written out."""

from __future__ import annotations

from engine.saved.session import SavedSession
from engine.spec.bookmark import Bookmark, OnStep, OnToken
from engine.spec.cache import CacheSpec
from engine.spec.edit import BiasLogits
from engine.spec.sampling import SamplingParams
from engine.wire.records import EditMade, ModeChanged, SequenceAdded, TokensForced
from engine.wire.tree import Node, PlannedPart, PlannedStep
from tests.engine.saved.trees import MODEL

PAGED, GROWING = CacheSpec("paged"), CacheSpec("growing")
SAMPLING = SamplingParams(0.7, top_k=40, seed=7)


def step(number: int, first: int, last: int, sampled: int, computed: int | None = None) -> PlannedStep:
    return PlannedStep(number, PAGED, (PlannedPart(0, first, last, sampled, False, None, computed),), ())


SAMPLE = SavedSession(
    model=MODEL,
    cache=GROWING,
    sampling=SAMPLING,
    draft="Once upon a “time”",
    names=((2, "the other road"),),
    bookmarks=(Bookmark(OnStep(1), "here"), Bookmark(OnToken(1, 0, 3), "")),
    stops=("entropy > 3",),
    live=1,
    pending=(ModeChanged(GROWING),),
    texts={1: "Once", 2: " upon", 9: " time"},
    nodes=(
        Node(0, None, (SequenceAdded(0, (1, 2, 3), SAMPLING),), PAGED, step(0, 0, 3, 9), (11, 12)),
        Node(1, 0, (), PAGED, step(1, 3, 4, 8, 9), (13, 14)),
        Node(2, 0, (TokensForced(0, (4,)),), PAGED, step(2, 3, 4, 7, 4), (15, 16)),
        Node(4, 2, (EditMade(BiasLogits(0, ((3, float("-inf")), (4, 1.5)))),), PAGED),
    ),
)
