"""Random sessions: trees of moments with every kind of change, and what people write of them."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.saved.session import SavedSession
from engine.spec import bookmark, edit
from engine.spec.cache import PRESETS
from engine.spec.sampling import SamplingParams
from engine.wire import records
from engine.wire.records import StopReason
from engine.wire.status import ModelInfo
from engine.wire.tree import Node, PlannedPart, PlannedStep

IDS = st.integers(0, 50_000)
SEQ_IDS = st.integers(0, 5)
TOKENS = st.lists(IDS, min_size=1, max_size=6).map(tuple)
CACHES = st.sampled_from([preset.spec for preset in PRESETS.values()])
WORDS = st.text(max_size=12)
SAMPLING = st.builds(
    SamplingParams,
    st.floats(0, 4),
    st.none() | st.integers(1, 99),
    st.none() | st.floats(0.1, 1),
    st.none(),
    st.integers(0, 2**63 - 1),
)
FEW = st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple)
ROWS = st.builds(edit.Rows, st.integers(0, 9), st.integers(9, 19), FEW, FEW, FEW, st.sampled_from(["keys", "both"]))
EDITS = st.one_of(
    st.builds(edit.Zero, SEQ_IDS, ROWS),
    st.builds(edit.Scale, SEQ_IDS, ROWS, st.floats(-9, 9)),
    st.builds(edit.AddNoise, SEQ_IDS, ROWS, st.floats(0, 9), st.integers(0, 99)),
    st.builds(edit.Overwrite, SEQ_IDS, ROWS, st.none() | IDS, st.none(), st.none() | st.just("/a b/ü.safetensors")),
    st.builds(edit.Mask, SEQ_IDS, ROWS, st.booleans()),
    st.builds(edit.Pin, SEQ_IDS, ROWS, st.booleans()),
    st.builds(edit.Drop, SEQ_IDS, ROWS),
    st.builds(edit.ReplaceTokens, SEQ_IDS, st.integers(0, 9), TOKENS, st.sampled_from(["overwrite", "re-prefill"])),
    st.builds(
        edit.BiasLogits,
        SEQ_IDS,
        st.lists(st.tuples(IDS, st.floats(allow_nan=False)), max_size=3).map(tuple),
    ),
)
CHANGES = st.one_of(
    st.builds(records.SequenceAdded, SEQ_IDS, TOKENS, SAMPLING),
    st.builds(records.SequenceForked, SEQ_IDS, SEQ_IDS, st.none() | IDS),
    st.builds(records.SequenceRemoved, SEQ_IDS),
    st.builds(records.SequenceStopped, SEQ_IDS),
    st.builds(records.TokensForced, SEQ_IDS, TOKENS),
    st.builds(records.SamplingChanged, SEQ_IDS, SAMPLING),
    st.builds(records.ModeChanged, CACHES),
    st.builds(records.EditMade, EDITS),
)
REASONS = st.none() | st.sampled_from(get_args(StopReason))
SUMS = st.lists(st.integers(-(2**63), 2**64 - 1), max_size=4).map(tuple)
MODEL = ModelInfo(
    name="Tiny ‖ 5M",
    source="bundled",
    architecture="LlamaForCausalLM",
    geometry=CacheGeometry("LlamaForCausalLM", "llama", (LayerGeometry(0, "full", 2, 16, 16, 4),), 64, 100, 128),
    dtype="float32",
    device="cpu",
    num_threads=1,
    num_parameters=5_000_000,
    weight_bytes=20_000_000,
    random_weights=False,
    has_tokenizer=True,
    captures_attention=True,
    fingerprint="ab" * 16,
    note="",
)


@st.composite
def parts(draw: st.DrawFn) -> tuple[PlannedPart, ...]:
    found = []
    for seq_id in draw(st.lists(SEQ_IDS, min_size=1, max_size=3, unique=True)):
        first = draw(st.integers(0, 99))
        count = first + draw(st.integers(1, 9))
        chosen, computed = draw(st.none() | IDS), draw(st.none() | IDS)
        found.append(PlannedPart(seq_id, first, count, chosen, draw(st.booleans()), draw(REASONS), computed))
    return tuple(found)


@st.composite
def nodes(draw: st.DrawFn, most: int = 8) -> tuple[Node, ...]:
    found: list[Node] = []
    step = -1
    for _ in range(draw(st.integers(0, most))):
        step += draw(st.integers(1, 3))
        parent = draw(st.sampled_from([None, *(node.step for node in found)]))
        cache, done = draw(CACHES), tuple(draw(st.lists(CHANGES, max_size=3)))
        work = PlannedStep(step, cache, draw(parts()), ()) if not done or draw(st.booleans()) else None
        found.append(Node(step, parent, done, cache, work, draw(SUMS)))
    return tuple(found)


@st.composite
def bookmarks(draw: st.DrawFn) -> tuple[bookmark.Bookmark, ...]:
    small = st.integers(0, 99)
    targets = st.one_of(
        st.builds(bookmark.OnStep, small),
        st.builds(bookmark.OnToken, small, small, small),
        st.builds(bookmark.OnPage, small, small, small),
        st.builds(bookmark.OnHead, small, small, small, small),
    )
    return tuple(bookmark.Bookmark(each, draw(WORDS)) for each in draw(st.lists(targets, max_size=3, unique=True)))


@st.composite
def sessions(draw: st.DrawFn) -> SavedSession:
    tree = draw(nodes())
    return SavedSession(
        model=draw(st.sampled_from([None, MODEL])),
        cache=draw(CACHES),
        sampling=draw(SAMPLING),
        draft=draw(WORDS),
        names=tuple((node.step, draw(WORDS)) for node in tree[:2]),
        bookmarks=draw(bookmarks()),
        stops=tuple(draw(st.lists(WORDS, max_size=2))),
        live=draw(st.sampled_from([None, *(node.step for node in tree)])),
        pending=tuple(draw(st.lists(CHANGES, max_size=2))),
        texts=draw(st.dictionaries(IDS, WORDS, max_size=4)),
        nodes=tree,
    )
