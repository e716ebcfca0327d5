"""The forward of the next step is launched before the token it feeds is read, and nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from msgspec import structs

from engine.cache.layers.growing import GrowingLayer
from engine.cache.sequence_cache import SequenceCache
from engine.errors import Cancelled, InputError
from engine.look.candidates import Sample
from engine.look.packing import Packing
from engine.model.runners.runners import Runners
from engine.session import forward, stepper
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_preset
from engine.spec.runners import RunnerName
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from engine.wire.page_events import PageMoved
from engine.wire.phases import Chosen, PhaseReached
from engine.wire.records import StepRecord
from tests.engine.cache.paged.tables import reuse_order
from tests.engine.session.sessions import GROWING, tensors
from tests.engine.session.test_captured import same, told
from tests.engine.tiny import model_of, prompt_ids

SEEDED = SamplingParams(0.9, seed=7)


def begun(
    late_steps: int,
    runner: RunnerName = "fused",
    ends: frozenset[int] = frozenset(),
    sampling: SamplingParams = SEEDED,
    spec: CacheSpec = GROWING,
) -> Session:
    model = model_of("llama")
    model = replace(model, runners=Runners(model.runners.decoder, runner))
    vars(model)["end_ids"] = ends
    session = Session(model, spec, capture="everything", late_steps=late_steps)
    session.submit(Prompt(token_ids=prompt_ids(8), sampling=sampling))
    return session


def is_launched(session: Session) -> bool:
    return session._stepper._ahead is not None


def assert_alike(one: Session, other: Session, *, row_behind: bool) -> None:
    """`row_behind`: the row behind those that are held was written, and is zero again."""
    for mine, others in zip(one.cache_of(0).layers, other.cache_of(0).layers, strict=True):
        assert isinstance(mine, GrowingLayer)
        assert isinstance(others, GrowingLayer)
        assert mine.length == others.length
        assert torch.equal(mine.held_keys, others.held_keys)
        assert torch.equal(mine.held_values, others.held_values)
        if row_behind:
            assert not others.keys[:, :, others.length].any()
            assert not others.values[:, :, others.length].any()
    assert one.sequence(0) == other.sequence(0)
    assert one.bytes().layers == other.bytes().layers
    assert one.history.num_bytes == other.history.num_bytes


def run(session: Session, count: int) -> list[StepRecord]:
    """As the loop runs: one step at once, then late ones while there is work."""
    records = [session.step()]
    while session.has_work and count > 1:
        records += session.step_late()
        count -= 1
    return records + session.finish_records()


@pytest.mark.parametrize("runner", ["fused", "graph", "transformers"])
@pytest.mark.parametrize("late_steps", [1, 2])
def test_its_records_and_its_cache_are_those_of_steps_one_by_one(late_steps: int, runner: RunnerName) -> None:
    at_once, late = begun(0, runner), begun(late_steps, runner)
    expected, found = [at_once.step() for _ in range(9)], run(late, 9)
    assert is_launched(late)
    assert [same(told(one), told(other)) for one, other in zip(expected, found, strict=True)] == [True] * 9
    assert found[-1].runner == runner
    late.discard_ahead()
    assert_alike(at_once, late, row_behind=True)
    assert same(told(at_once.step()), told(late.step())), "the room is as it was"


def test_it_is_launched_before_the_token_is_read_or_anything_told(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noted(owner: object, name: str, label: str) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **named: (done.append(label), original(*args, **named))[1])

    noted(forward.Runner, "launch", "launch")
    noted(stepper, "sequence_step", "tell")
    monkeypatch.setattr(Sample, "token_id", property(lambda self: (done.append("read"), int(self.chosen))[1]))
    session = begun(1)
    session.step()
    done.clear()
    session.step_late()
    assert done[:2] == ["launch", "read"]
    assert done.count("launch") == 1
    assert "tell" in done


def test_a_forward_that_finds_no_room_ahead_of_its_step_costs_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step before it is done and told; the step that needs the forward does it itself."""
    tried: list[int] = []

    def fail(cache: object, num_tokens: int) -> None:
        tried.append(1)
        raise MemoryError("no room")

    monkeypatch.setattr(SequenceCache, "uncount_row", fail)
    at_once, late = begun(0), begun(2)
    expected, found = [at_once.step() for _ in range(5)], run(late, 5)
    assert len(tried) == 4
    assert not is_launched(late)
    assert [same(told(one), told(other)) for one, other in zip(expected, found, strict=True)] == [True] * 5
    assert_alike(at_once, late, row_behind=True)


@pytest.mark.parametrize("why", ["end of text", "length"])
def test_what_was_computed_behind_the_end_of_a_text_is_nowhere(why: str) -> None:
    probe = begun(0)
    fifth = [probe.step().sequences[0].sampled for _ in range(6)][5]
    assert fifth is not None
    ends = frozenset({fifth}) if why == "end of text" else frozenset()
    sampling = SamplingParams(0.9, seed=7, max_new_tokens=6 if why == "length" else None)
    at_once, late = (begun(late_steps, ends=ends, sampling=sampling) for late_steps in (0, 2))
    expected = []
    while at_once.has_work:
        expected.append(at_once.step())
    found = run(late, 30)
    assert late.sequence(0).stop == why
    assert [same(told(one), told(other)) for one, other in zip(expected, found, strict=True)] == [True] * len(expected)
    assert not is_launched(late)
    assert_alike(at_once, late, row_behind=why == "end of text")
    for session in (at_once, late):
        session.force(0, prompt_ids(2, seed=3))
    assert same(told(at_once.step()), told(late.step()))


SPECS = {
    "growing": GROWING,
    "static": CacheSpec("static", max_length=64),
    "paged": CacheSpec("paged", page_size=4),
    "paged-int8": structs.replace(cache_preset("paged-int8").spec, page_size=4),
}
LATER = 12  # steps


def several(late_steps: int, spec: CacheSpec, runner: RunnerName, count: int, ends: frozenset[int]) -> Session:
    # of Gemma some layers have a window
    model = model_of("gemma3_text" if runner == "transformers" and spec.is_paged else "llama")
    model = replace(model, runners=Runners(model.runners.decoder, runner))
    vars(model)["end_ids"] = ends
    session = Session(model, spec, capture="everything", late_steps=late_steps)
    for number in range(count):
        sampling = SamplingParams(0.9, seed=7 + number)
        length = (5, 6, 9)[number]  # two of them begin a page with the same step
        session.submit(Prompt(token_ids=prompt_ids(length, seed=number), sampling=sampling))
    while session.is_prefilling:
        session.step()
    return session


def rows_behind(session: Session, seq_id: int) -> list[torch.Tensor]:
    """The row behind those that are held, of every layer, where there is room for it."""
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
    """Of each pool the pages that nobody has, in the order in which they will be taken."""
    store = session.live.mode.store
    return [] if store is None else [reuse_order(group.pool) for group in store.groups]


@pytest.mark.parametrize("runner", ["fused", "graph", "transformers"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", SPECS)
def test_of_any_number_of_sequences_in_every_mode_that_permits_it_nobody_can_tell(
    name: str, count: int, runner: RunnerName
) -> None:
    """One of them ends while the next token of all is on its way."""
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
    found += late.finish_records()
    assert late.sequences[-1].stop == "end of text"
    is_windowed = spec.is_paged and runner == "transformers"
    assert launched >= 2 if is_windowed else launched == len(expected) - 1, "not with the end of a text"
    assert [same(told(one), told(other)) for one, other in zip(expected, found, strict=True)] == [True] * len(expected)
    assert {record.runner.split("+")[0] for record in found} <= {runner, "fused"}
    late.discard_ahead()
    mine, others = tensors(at_once), tensors(late)
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[key], others[key]) for key in mine)
    assert not any(row.any() for row in rows_behind(late, count - 1)), "what was computed too much is nowhere"
    assert free_pages(at_once) == free_pages(late)
    for session in (at_once, late):
        session.force(count - 1, prompt_ids(2, seed=3))
    assert same(told(at_once.step()), told(late.step()))


PAGED = SPECS["paged"]
# where a page that begins is not taken before the token is read
LATER_PAGES = {
    # a sequence that was removed is kept as long as there is room: its pages are not free, and then could be found
    "none is free, or it could be found": structs.replace(PAGED, num_pages=8),
    "a twin takes the place of the one before": structs.replace(PAGED, replace_duplicates=True),
    "the one before is copied to the host": structs.replace(cache_preset("offloaded").spec, page_size=4, host_gib=1e-3),
}


def timeless(record: StepRecord) -> StepRecord:
    """Without what copies of pages to the host took."""
    events = (
        structs.replace(event, duration_ms=0.0) if isinstance(event, PageMoved) else event
        for event in record.page_events
    )
    return told(structs.replace(record, page_events=tuple(events)))


@pytest.mark.parametrize("why", LATER_PAGES)
def test_a_page_begins_with_its_step_where(why: str) -> None:
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
    found += late.finish_records()
    assert [same(timeless(one), timeless(other)) for one, other in zip(expected, found, strict=True)] == [True] * 9
    # tokens 5 to 13, of pages of 4: the next of them begins a page behind 8 and 12
    assert launched == [number not in (2, 6) for number in range(9)]
    assert free_pages(at_once) == free_pages(late)


@pytest.mark.parametrize("name", SPECS)
def test_a_step_that_fails_behind_a_launch_takes_it_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, late = (several(late_steps, SPECS[name], "fused", 2, frozenset()) for late_steps in (0, 2))
    for session in (at_once, late):
        session.step()
    with monkeypatch.context() as patch:
        patch.setattr(stepper, "sequence_step", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            late.step_late()
    assert not is_launched(late)
    assert [same(told(at_once.step()), told(late.step())) for _ in range(3)] == [True] * 3


@pytest.mark.parametrize(("owner", "name"), [(stepper, "sequence_step"), (Packing, "pack")])
@pytest.mark.parametrize("late_steps", [1, 2])
def test_what_a_failed_step_measured_is_in_nobodys_way(
    late_steps: int, owner: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurements of the steps before it are not read yet."""
    at_once, late = begun(0), begun(late_steps)
    expected, found = [at_once.step() for _ in range(7)], list[StepRecord]()
    for number in range(7):
        for _ in range(2 if number == 4 else 0):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, lambda *args: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    late.step_late()
        found += late.step_late()
    found += late.finish_records()
    assert [same(told(one), told(other)) for one, other in zip(expected, found, strict=True)] == [True] * 7


def test_where_every_token_is_banned_the_step_that_would_choose_one_is_given_up() -> None:
    """That is read with the token, when the next forward is on its way."""
    at_once, late = begun(0), begun(2)
    for session in (at_once, late):
        run(session, 3)
        session.sequence(0).sampling = structs.replace(SEEDED, bias=LogitBias(banned=tuple(range(128))))
    for step in (at_once.step, late.step_late):
        with pytest.raises(InputError, match="Every token is banned"):
            step()
    assert not is_launched(late)
    for session in (at_once, late):
        session.sequence(0).sampling = SEEDED
    assert [same(told(at_once.step()), told(late.step())) for _ in range(3)] == [True] * 3


def give_up(session: Session) -> None:
    """A step in phases that is cancelled once its rows are written."""

    def reached(event: PhaseReached) -> None:
        if isinstance(event.phase, Chosen):
            raise Cancelled

    with pytest.raises(Cancelled):
        session.step(reached=reached)


COMMANDS: dict[str, Callable[[Session], object]] = {
    "force": lambda session: session.force(0, prompt_ids(2, seed=5)),
    "sampling": lambda session: session.set_sampling(SamplingParams(0.5, seed=1), 0),
    "back": lambda session: session.go_to(1),
    "away and back": lambda session: (session.go_to(1), session.go_to(3)),
    "mode": lambda session: session.set_cache(CacheSpec("dynamic")),
    "another": lambda session: session.submit(Prompt(token_ids=prompt_ids(5, seed=9))),
    "level": lambda session: session.captured.set("statistics", by_layer=False),
    "layers": lambda session: session.captured.set("rows", by_layer=True),
    "given up": give_up,
    "halt": lambda session: (session.halt(0), session.force(0, prompt_ids(1))),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_between_two_steps_finds_the_session_as_it_is(name: str) -> None:
    at_once, late = begun(0), begun(2)
    for _ in range(4):
        at_once.step()
    run(late, 4)
    assert is_launched(late)
    for session in (at_once, late):
        COMMANDS[name](session)
    expected = [at_once.step() for _ in range(3)]
    found = run(late, 3)
    pairs = [(told(one), told(other)) for one, other in zip(expected, found, strict=True)]
    assert all(same(one, other) for one, other in pairs)


@pytest.mark.parametrize("preset", ["h2o", "int8", "dynamic", "none"])
def test_where_a_row_cannot_be_hidden_the_token_is_read_first(preset: str) -> None:
    session = begun(2, spec=cache_preset(preset).spec)
    run(session, 4)
    assert not is_launched(session)


def test_on_a_cpu_nothing_is_launched_ahead() -> None:
    session = Session(model_of("llama"), GROWING)
    session.submit(Prompt(token_ids=prompt_ids(8)))
    for _ in range(3):
        session.step_late()
    assert not is_launched(session)
