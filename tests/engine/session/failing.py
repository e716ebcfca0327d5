"""Makes each call inside a step or a command fail in turn, and checks that the failure changed nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec.structs import replace

from engine.errors import InputError
from engine.history.pages import PageMaps
from engine.session.commands import branch, continue_with, join, undo_edit
from engine.session.edits import layers_named, make_edit, places_in
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import uniform
from engine.spec.edit import BiasLogits, ReplaceTokens, Rows, Zero
from engine.spec.sampling import Prompt
from engine.wire.commands import BeginBranch
from engine.wire.pages import KEPT
from tests.engine.faults import CallCounter, Injected, attempt, counting
from tests.engine.session.sessions import facts, page_faults, prepared, same, stale, tensors
from tests.engine.tiny import prompt_ids


@dataclass
class Failures:
    """How the failed calls of a step ended: those that left something changed, in words. `num_missed` did not happen
    again, and so did not fail."""

    num_sites: int
    has_dropped: bool
    num_failed: int = 0
    num_missed: int = 0
    not_undone: list[str] = field(default_factory=list)


def noted(session: Session) -> list[tuple[int, int]]:
    """Bytes of what the logs of lost rows and rules have of each layer."""
    return [(held.lost, held.scores) for cache in session.live.caches for held in cache.all_bytes()]


def findable(session: Session) -> set[tuple[int, bytes]]:
    """Pages that the prefix cache can serve, with the hash of their tokens; pages of live sequences are left out."""
    store = session.live.mode.store
    groups = [] if store is None else store.groups
    tables = [table for group in groups for table in group.tables if table.seq_id != KEPT]
    held = {page_hash for table in tables for page_hash in table.page_hashes}
    entries = [group.pool.entry(page_id) for group in groups for page_id in range(group.pool.num_pages)]
    return {(entry.page_id, entry.page_hash) for entry in entries if entry is not None and entry.page_hash not in held}


STEPS = ("first chunk", "second chunk", "decode", "two sequences")
COMMANDS = (
    "edit",
    "edit of tokens",
    "undo",
    "branch",
    "go to",
    "fork",
    "join",
    "continue",
    "remove",
    "mode",
)  # to be done once some tokens are decoded
PHASES = STEPS + COMMANDS


def small(spec: CacheSpec) -> CacheSpec:
    """A preset with sizes so small that it is full after a few tokens."""
    keeps, codec = spec.retention, spec.codec
    sizes = {"budget": 7, "window": 3, "sinks": 2}
    changes = {name: size for name, size in sizes.items() if getattr(keeps, name)}
    if codec.keys.is_kivi:
        codec = uniform(codec.keys.name, 16, 16) if codec.keys.name == "kivi-2" else uniform(codec.keys.name, 8, 8)
    pages: dict[str, Any] = {"page_size": 4, "num_pages": 16} if spec.is_paged else {}
    if spec.layout == "host":
        pages["host_gib"] = 0.001
    return replace(spec, retention=replace(keeps, **changes), codec=codec, **pages)


def held_pair(session: Session, seq_id: int) -> Rows:
    """The first two adjacent rows that no rule has dropped from any layer or head."""
    cache, geometry = session.cache_of(seq_id), session.model.info.geometry
    for start in range(cache.num_tokens - 1):
        rows = Rows(start, start + 2)
        with suppress(InputError):
            for layer in layers_named(cache, geometry, rows):
                places_in(cache, layer, rows)
            return rows
    raise AssertionError("some head holds no two rows beside each other that all the others hold")


def work_of(session: Session, phase: str) -> Callable[[], Any]:
    """The operation that a phase stands for, on a session that is ready for it."""
    if phase in STEPS:
        return session.step
    seq_id = session.live.ids[0]
    if phase == "undo":
        make_edit(session, ReplaceTokens(seq_id, 6, (7,), "re-prefill"))
    if phase == "join":
        session.go_to(1)
        session.kept.clear()
    session.force(seq_id, prompt_ids(20, seed=6))  # a change since the newest moment
    if phase == "go to":  # it is computed once more: nothing is kept of it
        session.kept.clear()
        session.history.logits.clear()
    can_edit = not session.cache_of(seq_id).why_no_edit()
    edit = Zero(seq_id, held_pair(session, seq_id)) if can_edit else BiasLogits(seq_id, ((5, 3.0),))
    return {
        "edit": lambda: make_edit(session, edit),
        "edit of tokens": lambda: make_edit(session, ReplaceTokens(seq_id, 6, (7,), "re-prefill")),
        "branch": lambda: branch(session, BeginBranch(seq_id=seq_id, step=1, token_ids=(7, 9))),
        "go to": lambda: session.go_to(1),
        "undo": lambda: undo_edit(session),
        "join": lambda: join(session, (2,)),
        "continue": lambda: continue_with(
            session, seq_id, Prompt(token_ids=(*session.sequence(seq_id).token_ids[:6], 5, 9))
        ),
        "remove": lambda: session.remove(seq_id),
        "fork": lambda: session.fork(seq_id),
        "mode": lambda: session.set_cache(CacheSpec("dynamic")),
    }[phase]


def failures(
    spec: CacheSpec,
    phase: str,
    numbers: Callable[[int], Iterable[int]],
    architecture: str = "tiniest",
    *,
    of_torch: bool = False,
    within: str = "",
    every: int = 1,
    first: int = 0,
) -> Failures:
    """Make calls fail, one at a time: those of every `every`-th line from the `first` on, in files whose path contains
    `within`. Of a line's calls those fail whose `numbers` are given for their count. After each failure facts, rows and
    their positions, pages, and what journals and rules remember, in bytes, must be as before, and the operation, done
    again, must give the same as in a session without failures."""
    maps = PageMaps()

    def ready() -> tuple[Session, Callable[[], Any]]:
        nonlocal maps
        maps = PageMaps()
        session = prepared(architecture, spec, phase, maps)
        return session, work_of(session, phase)

    (twin, twins), (_, counted) = ready(), ready()
    twins()
    expected = tensors(twin)
    with counting(of_torch=of_torch) as clean:  # objects that are made only once exist by now
        done = counted()
    found = Failures(len(clean.sites), bool(getattr(done, "evictions", ())))
    session, work = ready()
    before, held, before_noted, before_found = facts(session), tensors(session), noted(session), findable(session)
    is_used = False
    sites = [(site, count) for site, count in clean.sites.items() if within in site[0]]
    for site, count in sites[first % every :: every]:
        for number in sorted(numbers(count)):
            outcome = attempt(work, calls := CallCounter(number, site, of_torch=of_torch))
            if not calls.failed_in and is_used:  # what a session computes once, it may have from the attempt before
                session.close()
                session, work = ready()
                outcome = attempt(work, calls := CallCounter(number, site, of_torch=of_torch))
            if isinstance(outcome, Injected):
                found.num_failed += 1
                if wrong := changed(session, maps, before, held, before_noted, before_found):
                    found.not_undone.append(f"{outcome}, call {number} of {count} from line {site[2]}: {wrong}")
                elif is_used := not stale(session):
                    continue
            else:
                found.num_missed += not calls.failed_in  # else the caller has a fallback
                if not same(tensors(session), expected):
                    found.not_undone.append(f"call {number} of {count} of {site}: what was done gave something else")
            session.close()
            session, work = ready()
            is_used = False
    work()
    for each in (session, twin):
        if each.has_work:
            each.step()
    if not same(tensors(session), tensors(twin)):
        found.not_undone.append("what was done in the end gave something else")
    return found


def changed(
    session: Session,
    maps: PageMaps,
    before: dict[str, object],
    held: dict[tuple[object, ...], torch.Tensor],
    before_noted: list[tuple[int, int]],
    before_found: set[tuple[int, bytes]],
) -> str:
    """What differs from before, in words; empty if nothing does."""
    now, are_stale, then = facts(session), stale(session), tensors(session)
    if now != before:
        return "; ".join(f"{name} was {before[name]} and is {now[name]}" for name in now if now[name] != before[name])
    if not same({k: v for k, v in held.items() if k in then or k[0] not in are_stale}, then):
        return "other rows or logits"
    if not are_stale and noted(session) != before_noted:
        return f"{before_noted} bytes were noted and {noted(session)} are"
    if new := findable(session) - before_found:  # those of before may have given way to what came
        return f"pages {sorted(page_id for page_id, _ in new)} can be found by tokens that nothing was computed of"
    return "; ".join(page_faults(session, maps))
