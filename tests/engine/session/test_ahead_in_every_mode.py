"""Forwards launched ahead: several sequences, every cache mode that permits it, steps that fail, pages that begin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from msgspec import structs

from engine.model.runners.runners import Runners
from engine.session import stepper
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.model import RunnerName
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.pages import PageMoved
from engine.wire.records import StepRecord
from tests.engine.cache.paged.tables import reuse_order
from tests.engine.session.records import assert_same_records
from tests.engine.session.sessions import GROWING, SEEDED, is_launched, tensors
from tests.engine.tiny import model_of, prompt_ids

SPECS = {
    "growing": GROWING,
    "static": CacheSpec("static", max_length=64),
    "paged": CacheSpec("paged", page_size=4),
    "paged-int8": structs.replace(cache_preset("paged-int8").spec, page_size=4),
}
LATER = 12  # steps


def several(late_steps: int, spec: CacheSpec, runner: RunnerName, count: int, ends: frozenset[int]) -> Session:
    # some layers of Gemma have a window
    model = model_of("gemma3_text" if runner == "transformers" and spec.is_paged else "llama")
    model = replace(model, runners=Runners(model.runners.decoder, runner))
    vars(model)["end_ids"] = ends
    session = Session(model, spec, capture="everything", late_steps=late_steps)
    for number in range(count):
        sampling = SamplingParams(0.9, seed=7 + number)
        length = (5, 6, 9)[number]  # two of them begin a page in the same step
        session.submit(Prompt(token_ids=prompt_ids(length, seed=number), sampling=sampling))
    while session.is_prefilling:
        session.step()
    return session


def rows_behind(session: Session, seq_id: int) -> list[torch.Tensor]:
    """The slot behind the last row, of every layer whose storage reaches that far."""
    store, live = session.live.mode.store, session.live.get(seq_id)
    if store is None:
        length, layers = live.sequence.num_tokens, [getattr(layer, "layer", layer) for layer in live.cache.layers]
        return [part[:, :, length] for layer in layers for part in (layer.keys, layer.values)]
    slots = [(t.page_ids[-1] + 1) * t.page_size - t.num_slack_tokens for t in live.cache.tables]
    return [
        part.float()
        for group, slot, table in zip(store.groups, slots, live.cache.tables, strict=True)
        for layer in group.layers if table.num_slack_tokens
        for rows in store.rows_of[layer.index]
        for part in rows.codes(slice(slot, slot + 1))
    ]  # fmt: skip


def free_pages(session: Session) -> list[list[int]]:
    """The free pages of each pool, in the order in which the pool will hand them out."""
    store = session.live.mode.store
    return [] if store is None else [reuse_order(group.pool) for group in store.groups]


@pytest.mark.parametrize("runner", ["fused", "graph", "transformers"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", SPECS)
def test_records_and_rows_are_those_of_steps_read_at_once(name: str, count: int, runner: RunnerName) -> None:
    """One sequence ends its text while the forward for the next token of all sequences has been launched."""
    spec, nobody = SPECS[name], frozenset[int]()
    at_once = several(0, spec, runner, count, nobody)
    chosen = [[part.sampled for part in at_once.step().sequences] for _ in range(LATER)]
    last = chosen[LATER // 2][-1]
    assert last is not None
    at_once, late = (several(late_steps, spec, runner, count, frozenset({last})) for late_steps in (0, 2))
    expected, found, launched = list[StepRecord](), list[StepRecord](), 0
    for _ in range(LATER):
        if at_once.has_work:
            expected.append(at_once.step())
            found += late.step_late()
            launched += is_launched(late)
    found += late.observer.complete()
    assert late.sequences[-1].stop == "end of text"
    is_windowed = spec.is_paged and runner == "transformers"
    assert launched >= 2 if is_windowed else launched == len(expected) - 1, "not with the end of a text"
    assert_same_records(expected, found)
    assert {record.runner.split("+")[0] for record in found} <= {runner, "fused"}
    late.stepper.discard_ahead()
    mine, others = tensors(at_once), tensors(late)
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[key], others[key]) for key in mine)
    assert not any(row.any() for row in rows_behind(late, count - 1)), "the row computed in vain is taken back"
    assert free_pages(at_once) == free_pages(late)
    for session in (at_once, late):
        session.force(count - 1, prompt_ids(2, seed=3))
    assert_same_records([at_once.step()], [late.step()])


PAGED = SPECS["paged"]
# pools in which a new page is taken only once the token is read: a forward that needs one is not launched ahead
LATER_PAGES = {
    # a removed sequence is kept while there is room: first no page is free, later a freed page could be a prefix hit
    "none is free, or the prefix cache still knows it": structs.replace(PAGED, num_pages=8),
    "a duplicate replaces the page before": structs.replace(PAGED, replace_duplicates=True),
    "the page before is copied to the host": structs.replace(
        cache_preset("offloaded").spec, page_size=4, host_gib=1e-3
    ),
}


def without_copy_times(record: StepRecord) -> StepRecord:
    """A record without the times that copies of pages to the host took."""
    events = (
        structs.replace(event, duration_ms=0.0) if isinstance(event, PageMoved) else event
        for event in record.page_events
    )
    return structs.replace(record, page_events=tuple(events))


@pytest.mark.parametrize("why", LATER_PAGES)
def test_a_step_that_begins_a_page_is_not_launched_ahead_where(why: str) -> None:
    at_once, late = (several(late_steps, LATER_PAGES[why], "fused", 0, frozenset()) for late_steps in (0, 2))
    for session in (at_once, late):
        gone = session.submit(Prompt(token_ids=prompt_ids(17, seed=3)))
        session.step()
        session.remove(gone)
        session.submit(Prompt(token_ids=prompt_ids(5), sampling=SEEDED))
        session.step()
    expected, found, launched = list[StepRecord](), list[StepRecord](), list[bool]()
    for _ in range(9):
        expected.append(at_once.step())
        found += late.step_late()
        launched.append(is_launched(late))
    found += late.observer.complete()
    assert_same_records(map(without_copy_times, expected), map(without_copy_times, found))
    # tokens 5 to 13 in pages of 4: the tokens after the 8th and the 12th begin a page
    assert launched == [number not in (2, 6) for number in range(9)]
    assert free_pages(at_once) == free_pages(late)


@pytest.mark.parametrize("name", SPECS)
def test_a_step_that_fails_after_launching_the_next_forward_takes_it_back(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, late = (several(late_steps, SPECS[name], "fused", 2, frozenset()) for late_steps in (0, 2))
    for session in (at_once, late):
        session.step()
    with monkeypatch.context() as patch:
        patch.setattr(stepper, "sequence_step", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            late.step_late()
    assert not is_launched(late)
    assert_same_records([at_once.step() for _ in range(3)], [late.step() for _ in range(3)])
