"""The page pool of a session, looked at and asked as a server is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.errors import InputError
from engine.session.edits import make_edit
from engine.session.prefixes import answer_of
from engine.session.replay import Replay
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_named
from engine.spec.edit import Overwrite, Rows
from engine.spec.sampling import Prompt
from engine.wire.serving import ExplainPrefix, PrefixExplained, PrefixTree, TakePrefixTree
from tests.engine.tiny import prompt_ids, tiniest_model


def test_the_pool_is_a_tree_that_answers() -> None:
    session = Session(tiniest_model(), cache_named("paged"))
    size = session.live.mode.spec.page_size
    ids = prompt_ids(3 * size + 1)
    session.submit(Prompt(token_ids=ids))
    session.step()
    tree = answer_of(session, TakePrefixTree())
    assert isinstance(tree, PrefixTree)
    (row,) = tree.rows
    assert (row.num_tokens, row.num_blocks, row.below, tree.num_tokens) == (3 * size, 3, 3 * size, 3 * size)
    assert tree.bytes_per_token > 0
    other = (*ids[: size + 3], *(each ^ 1 for each in ids[size + 3 :]))
    for asked, reused, reason in (
        (ids, 3 * size, "all reused"),
        (ids[: 2 * size], size, "last token"),
        (other, size, "differs"),
    ):
        found = answer_of(session, ExplainPrefix("", asked))
        assert isinstance(found, PrefixExplained)
        assert (found.reused, found.reason) == (reused, reason)
    assert found.differs_at == size + 3


def test_an_evicted_page_is_known_as_evicted_until_it_comes_back() -> None:
    session = Session(tiniest_model(), CacheSpec("paged", page_size=4, num_pages=8))
    first = prompt_ids(13)

    def prefilled(ids: tuple[int, ...]) -> None:
        session.submit(Prompt(token_ids=ids))
        session.step()
        session.remove(session.sequences[-1].seq_id)

    def answered() -> PrefixExplained:
        found = answer_of(session, ExplainPrefix("", first))
        assert isinstance(found, PrefixExplained)
        return found

    prefilled(first)
    assert (answered().reused, answered().reason) == (12, "all reused")
    prefilled(prompt_ids(25, 1))  # for which pages of the first are needed
    gone = answered()
    assert (gone.reason, gone.reused < 12) == ("evicted", True)
    assert "evicted" in gone.why
    assert " ago" in gone.why
    prefilled(first)
    assert (answered().reused, answered().reason) == (12, "all reused")


def go_and_return(session: Session, step: int) -> None:
    back = session.last_step
    session.go_to(step)
    session.go_to(back)


def go_in_vain(session: Session, step: int) -> None:
    def refuse() -> None:
        raise InputError("not here")

    with pytest.raises(InputError, match="not here"):
        session.go_to(step, then=refuse)


LOOKS: dict[str, Callable[[Session, int], object]] = {
    "rows of it are taken": lambda session, step: make_edit(session, Overwrite(0, Rows(5, 6), from_step=step)),
    "one goes there and returns": go_and_return,
    "one goes there in vain": go_in_vain,
}


def gone_back(is_kept: bool) -> tuple[Session, int, tuple[int, ...]]:
    """A session at its first step, of which a prompt finds one page, with the last step of a branch and its tokens."""
    session = Session(tiniest_model(), CacheSpec("paged", page_size=4, num_pages=40))
    session.force(session.submit(Prompt(token_ids=prompt_ids(6))), prompt_ids(12, 1))
    for _ in range(10):
        session.step()
    last, ids = session.last_step, tuple(session.sequence(0).token_ids)
    assert last is not None
    session.go_to(0)
    if not is_kept:
        session.kept.clear()
    return session, last, ids


def num_found(session: Session, ids: tuple[int, ...]) -> int | None:
    found = answer_of(session, ExplainPrefix("", ids))
    assert isinstance(found, PrefixExplained)
    return found.reused


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("look", LOOKS)
def test_a_later_step_leaves_no_pages_behind_that_a_prompt_would_find(look: str, is_kept: bool) -> None:
    """Whether it was kept or computed again: no sequence could have found its pages at the step where they look."""
    session, last, ids = gone_back(is_kept)
    LOOKS[look](session, last)
    assert num_found(session, ids) == 4
    session.submit(Prompt(token_ids=ids))
    assert [part.first_position for part in session.step().sequences] == [4]


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_pages_of_a_fork_are_found_where_it_lives_and_nowhere_else(is_kept: bool) -> None:
    """At once, and not only when one has gone away and come back: a replay does not go, and is exact."""
    session, last, ids = gone_back(is_kept)
    session.fork(0, last)
    assert num_found(session, ids) == 12
    session.go_to(0)
    assert num_found(session, ids) == 4
    session.go_to(max(entry.node.step for entry in session.history.tree))
    session.submit(Prompt(token_ids=ids))
    assert session.step().of(2).first_position == 12
    tree = session.history.tree
    replay = Replay(Session(session.model, session.cache), [entry.node for entry in tree])
    assert len([*replay.steps()]) == len(tree)
    assert replay.why_not_exact == ""


def test_without_pages_there_is_none() -> None:
    with pytest.raises(InputError, match="choose Paged"):
        answer_of(Session(tiniest_model(), cache_named("growing")), TakePrefixTree())
