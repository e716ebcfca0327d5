"""Sessions of a tiny model, and their whole state for comparisons."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import torch
from msgspec.structs import replace

from engine.history.history import BoundedLog
from engine.history.pages import PageMaps
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.pages import PageCell
from tests.engine.cache.paged.tables import state_of
from tests.engine.tiny import model_of, prompt_ids, tiniest_model

LOSSLESS = [name for name, preset in PRESETS.items() if preset.lossless]
GROWING = CacheSpec("growing")
SEEDED = SamplingParams(0.9, seed=7)


def started(
    architecture: str = "llama", cache: CacheSpec = GROWING, length: int = 8, chunk: int = 128, **sampling: Any
) -> tuple[Session, int]:
    model = tiniest_model() if architecture == "tiniest" else model_of(architecture)
    session = Session(model, cache, prefill_chunk=chunk)
    return session, session.submit(Prompt(token_ids=prompt_ids(length), sampling=SamplingParams(**sampling)))


def set_state(session: Session, seq_id: int, **values: Any) -> None:
    """Give a live sequence other values of its state, as no command does."""
    live = session.live.get(seq_id)
    live.sequence = replace(live.sequence, **values)


def facts(session: Session) -> dict[str, object]:
    """All of a session's state but the tensors."""
    return {
        "step": session.last_step,
        "sequences": {live.seq_id: (live.sequence, tuple(live.sequence.token_ids)) for live in session.live},
        "state": [(i.phase, i.stop) for i in session.sequences],
        "path": len(session.history.path),
        "nodes": [entry.node.step for entry in session.history.tree],
        "changes": tuple(session.history.changes),
        "tables": [len(group.tables) for group in (session.live.mode.store.groups if session.live.mode.store else ())],
        "kept": [state.step for state in session.kept],
        "has_work": session.has_work,
        "attention": logged(session, session.history.attention),
        "logits": logged(session, session.history.logits),
        "bytes": (session.history.attention.num_bytes, session.history.logits.num_bytes),
    }


def logged(session: Session, log: BoundedLog) -> list[tuple[int, int]]:
    """The steps and sequences of which a log keeps something."""
    steps = (entry.node.step for entry in session.history.tree)
    return [key for key in product(steps, range(session.live.next_id)) if log.get(key) is not None]


def tensors(session: Session) -> dict[tuple[object, ...], torch.Tensor]:
    found: dict[tuple[object, ...], torch.Tensor] = {}
    for seq_id in session.live.ids:
        newest = session.logits(seq_id)
        if newest is not None:
            found[seq_id, "logits"] = newest.clone()
        if session.live.get(seq_id).is_stale:
            continue  # computed again, to the bit, before the next step
        cache = session.cache_of(seq_id)
        found[seq_id, "length"] = torch.tensor(cache.num_tokens)
        for layer in range(len(cache.layers)):
            rows = cache.rows(layer)
            if rows is not None and rows.keys.shape[2]:
                found[seq_id, layer, "keys", rows.first] = rows.keys.clone()
                found[seq_id, layer, "values", rows.first] = rows.values.clone()
                if rows.positions is not None:
                    found[seq_id, layer, "positions"] = rows.positions.clone()
    return found


def stale(session: Session) -> set[int]:
    """Sequences whose caches must be filled again before they are read."""
    return {live.seq_id for live in session.live if live.is_stale}


def same(one: dict[tuple[object, ...], torch.Tensor], other: dict[tuple[object, ...], torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def prepared(architecture: str, cache: str | CacheSpec, phase: str, maps: PageMaps | None = None) -> Session:
    """A session about to do its first chunk, its second, a decode step, or a decode step of two sequences. `maps` are
    told of every step."""
    session, first = started(architecture, PRESETS[cache].spec if isinstance(cache, str) else cache, chunk=5)
    session.force(first, prompt_ids(20, seed=3))

    def step() -> None:
        record = session.step()
        if maps is not None:
            maps.fold(record.step, record.page_events, record.pools)

    for _ in range({"first chunk": 0, "second chunk": 1}.get(phase, 3)):
        step()
    if phase == "two sequences":
        second = session.submit(Prompt(token_ids=prompt_ids(6, seed=4)))
        session.force(second, prompt_ids(20, seed=5))
        for _ in range(3):
            step()
    return session


def page_faults(session: Session, maps: PageMaps) -> list[str]:
    """Pages whose state differs from what the records of all steps say, in words; raises if a pool is corrupt."""
    store = session.live.mode.store
    if store is None:
        return []
    events, pools = [event for group in store.groups for event in group.pool.events], []
    for number, group in enumerate(store.groups):
        pools.append(replace(store._pool_step(number, group), num_events=len(group.pool.events)))
    faults = []
    for group, told in zip(store.groups, copy.deepcopy(maps).fold(0, events, pools), strict=True):
        group.pool.check(group.tables)
        for page_id in range(1, group.pool.num_pages):
            cell, state = told.cell(page_id), state_of(group.pool, page_id)
            known = (
                int(cell["ref_count"]),
                PageCell(int(cell["state"])).name.lower().replace("kept", "used").replace("shared", "used"),
            )
            if known != (is_ := (group.pool.ref_count(page_id), state.replace("shared", "used"))):
                faults.append(f"page {page_id} is {is_}, and by the records of all steps it is {known}")
    return faults


def is_launched(session: Session) -> bool:
    """Whether the forward of the next step has been launched already."""
    return session.stepper._ahead is not None
