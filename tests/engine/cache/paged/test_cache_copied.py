"""Pages that are copied into another pool: the same rows, and what is known of them and of the edits before."""

from __future__ import annotations

import pytest
import torch

from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import cache_named, tuned
from engine.spec.edit import Mask, Rows, Scale
from engine.spec.sampling import Prompt
from tests.engine.session.sessions import set_state
from tests.engine.tiny import model_of, prompt_ids


@pytest.mark.parametrize(
    ("name", "architecture"), [("paged", "llama"), ("paged+int8", "llama"), ("paged", "lfm2"), ("paged", "t5")]
)
def test_a_copy_has_the_rows_of_the_original_and_knows_what_it_knows(name: str, architecture: str) -> None:
    spec = tuned(cache_named(name), page_size=4)
    session, other = (Session(model_of(architecture), spec, prefill_chunk=8) for _ in range(2))
    session.submit(Prompt(token_ids=prompt_ids(11)))
    for edit in (Scale(0, Rows(4, 7, part="values"), 0.5), Mask(0, Rows(9, 10))):
        while session.sequence(0).num_tokens < edit.rows.stop + 4:
            set_state(session, 0, stop=None)
            session.step()
        if architecture == "llama":  # rows beside a state that came of them are not changed
            make_edit(session, edit)
    session.step()
    original = session.cache_of(0)
    copy = other.live.mode.new_cache(0, session.sequence(0).num_prompt_tokens)
    count = original.num_tokens
    assert not copy.fork_from(original, count), "it lies in another pool"
    copy.copy_from(original)
    assert copy.by_hand == original.by_hand
    assert bool(copy.by_hand) == (architecture == "llama")
    assert [copy.knows(n) for n in range(count + 1)] == [original.knows(n) for n in range(count + 1)]
    assert [len(ids) for ids in copy.page_ids_at(count)] == [len(ids) for ids in original.page_ids_at(count)]
    for layer in range(len(original.layers)):
        mine, theirs = copy.rows(layer), original.rows(layer)
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert torch.equal(mine.keys, theirs.keys)
            assert torch.equal(mine.values, theirs.values)
        states = zip(copy.states(layer), original.states(layer), strict=True)
        assert all(torch.equal(mine.values, theirs.values) for mine, theirs in states), "and what has no rows"
    assert any(original.states(layer) for layer in range(len(original.layers))) == (architecture == "lfm2")
    assert copy.states(len(copy.layers)) == (), "nobody has a layer behind the last"
    copy.close()
