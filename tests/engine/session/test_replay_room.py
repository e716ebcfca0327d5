"""What once fitted into a pool fits again: a step that finds no room at first gives all pages back."""

from __future__ import annotations

import pytest

from engine.session.edits import make_edit
from engine.session.replay import Replay
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.edit import Rows, Scale
from engine.spec.sampling import Prompt
from tests.engine.session.histories import difference, stands
from tests.engine.tiny import model_of, prompt_ids


@pytest.mark.parametrize("architecture", ["llama", "lfm2"])
def test_a_step_that_first_finds_no_room_leaves_shared_pages_shared(architecture: str) -> None:
    """A kept checkpoint holds pages that the step needs; two of three sequences get theirs before the lack is
    noticed."""
    spec = CacheSpec("paged", page_size=4, num_pages=14)
    session = Session(model_of(architecture), spec, prefill_chunk=20)
    for seed in (1, 2):
        seq_id = session.submit(Prompt(token_ids=prompt_ids(15, seed)))
        session.force(seq_id, prompt_ids(30, seed + 5))
    for _ in range(6):
        session.step()
    child = session.fork(0, session.last_step).child
    make_edit(session, Scale(1, Rows(6, 8), 0.5))
    shared = session.cache_of(child).page_counts().shared
    assert shared == 5
    assert len(session.step().sequences) == 3
    assert session.cache_of(child).page_counts().shared == shared - 1, "all but the page that the step writes to"
    tree = session.history.tree
    fresh = Session(session.model, spec)
    replay = Replay(fresh, tuple(entry.node for entry in tree))
    assert [node.step for node, *_ in replay.steps()] == [entry.node.step for entry in tree]
    assert difference(stands(fresh), stands(session)) == ""


def test_an_edit_takes_pages_that_only_a_kept_state_holds() -> None:
    session = Session(model_of("llama"), CacheSpec("paged", page_size=4, num_pages=12))
    session.submit(Prompt(token_ids=prompt_ids(15)))
    session.step()
    for seed in (1, 2):  # two branches of eleven tokens behind the prompt, which have three pages in common
        session.go_to(0)
        session.force(0, prompt_ids(12, seed))
        while session.sequence(0).num_tokens < 26:
            session.step()
    store, branch = session.live.mode.store, session.last_step
    assert store is not None
    assert store.groups[0].pool.num_available_pages == 0
    make_edit(session, Scale(0, Rows(6, 8), 0.5))
    assert [state.step for state in session.kept] == [branch]
