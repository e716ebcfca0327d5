"""A command that fails at any line changes nothing: each line that calls something is made to fail once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from msgspec import Struct

from engine.session.commands import continue_with
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt, SamplingParams
from tests.effort import effort
from tests.engine.faults import Injected, counting, failing_at
from tests.engine.session.histories import difference, stands
from tests.engine.tiny import prompt_ids, tiniest_model

LONGER = Prompt(token_ids=(*prompt_ids(6, 0), *prompt_ids(20, 3)[:2], 9, 9))  # parts from the first one's tokens
COMMANDS: dict[str, Callable[[Session], object]] = {
    "submit": lambda session: session.submit(Prompt(token_ids=(4, 5, 6))),
    "fork": lambda session: session.fork(0),
    "fork of a step": lambda session: session.fork(0, 1),
    "remove": lambda session: session.remove(0),
    "force": lambda session: session.force(0, (4, 5)),
    "sampling": lambda session: session.set_sampling(SamplingParams(1.0, seed=3), 0),
    "stop": lambda session: session.stop(1),
    "mode": lambda session: session.set_cache(CacheSpec("dynamic")),
    "go back": lambda session: session.go_to(1),
    "go to a kept checkpoint": lambda session: session.go_to(5),
    "go on beside another": lambda session: continue_with(session, 0, LONGER),
    "go on alone": lambda session: continue_with(session, 0, LONGER),
}
MODES = {
    "growing": CacheSpec(),
    "paged": CacheSpec("paged", page_size=4, num_pages=40),
    "paged h2o": CacheSpec("paged", page_size=1, num_pages=60, retention=RetentionSpec("h2o", budget=9, window=2)),
}


def begun(mode: str, command: str) -> Session:
    """Two sequences on a branch; the branch that was left is kept, and something was done since the newest step. Of a
    command that wants one alone, one, as the newest step left it."""
    session = Session(tiniest_model(), MODES[mode], prefill_chunk=5)
    is_alone = command.endswith("alone")
    for seed in range(1 if is_alone else 2):
        session.force(session.submit(Prompt(token_ids=prompt_ids(6, seed))), prompt_ids(20, seed + 3))
    for _ in range(6):
        session.step()
    session.go_to(4)
    session.step()
    if not is_alone:
        session.stop(0)
    return session


def all_of(session: Session) -> tuple[object, ...]:
    """All of a session's state but its rows."""
    history, store = session.history, session.live.mode.store
    journal = history.path
    pools = [] if store is None else [(group.pool.counts(), owners(group.tables)) for group in store.groups]
    surprisal, kept = [(key, sorted(seq_ids)) for key, _, seq_ids in history.surprisal.owners()], session.kept
    return (
        repr((history.last_step, history.changes, history.added, history.next_step, len(history.tree))),
        (surprisal, held(journal)),
        repr(pools),
        ([state.step for state in kept], [state.step for state in kept.removed], kept.num_bytes),
        (session.cache, session.live.next_id),
    )


def held(value: object) -> object:
    """All that a value holds, whatever its parts are called, in a form that no later change reaches."""
    match value:
        case dict():
            return {key: held(each) for key, each in value.items() if each not in ({}, [])}
        case str() | Struct():
            return value
        case Sequence() | set() | frozenset():
            return [*map(held, value)]
    names = vars(value) if hasattr(value, "__dict__") else getattr(type(value), "__slots__", ())
    parts = {name: part for name in names if not callable(part := getattr(value, name))}
    return {name: held(part) for name, part in parts.items()} if names else repr(value)


def owners(tables: list) -> list[tuple[int, list[int]]]:  # type: ignore[type-arg]
    return sorted((table.seq_id, table.held_pages) for table in tables)


@pytest.mark.parametrize(
    ("mode", "command"), [(mode, each) for mode in MODES for each in COMMANDS if mode == "paged" or each != "go back"]
)
def test_a_command_that_fails_at_any_site_changes_nothing(mode: str, command: str) -> None:
    do, twin = COMMANDS[command], begun(mode, command)
    with counting() as clean:
        do(twin)
    session = begun(mode, command)
    before, stood, num_failed = all_of(session), stands(session), 0
    sites = list(clean.sites)[:: effort(2, 1)]
    for site in sites:
        outcome = failing_at(1, partial(do, session), site)
        if isinstance(outcome, Injected):
            for mine, its in zip(all_of(session), before, strict=True):
                assert mine == its, f"{outcome} {site}"
            assert difference(stands(session), stood) == "", f"{outcome} {site}"
            num_failed += 1
        else:  # going back recomputes what it cannot copy; failures after it is done are allowed
            assert difference(stands(session), stands(twin)) == "", f"{site}"
            session = begun(mode, command)
    assert num_failed > (0.4 if command == "go back" else 0.7) * len(sites), "most sites are reached"
    store = session.live.mode.store
    for group in store.groups if store is not None else ():
        group.pool.check(group.tables)
    do(session)
    assert difference(stands(session), stands(twin)) == ""
