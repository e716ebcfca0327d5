"""The forward of the next step is launched before the token it computes is read; records and rows stay the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from msgspec import structs

from engine.cache.layers.layer import GrowingLayer
from engine.cache.sequence_cache import SequenceCache
from engine.errors import Cancelled, InputError
from engine.look.candidates import Sample
from engine.look.transfer import PackedBuffer
from engine.model.runners.runners import Runners
from engine.session import stepper
from engine.session.session import Session
from engine.session.stepper import LaunchedAhead
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.model import RunnerName
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from engine.wire.records import StepRecord
from engine.wire.status import Chosen, PhaseReached
from tests.engine.session.records import assert_same_records
from tests.engine.session.sessions import GROWING, SEEDED, is_launched, set_state
from tests.engine.tiny import model_of, prompt_ids


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


def assert_alike(one: Session, other: Session, *, row_behind: bool) -> None:
    """Two sessions hold the same rows and states. `row_behind`: the row that a launched forward wrote behind them was
    taken back, and is zero again."""
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
    """Records of as many steps, run as the loop runs them: the first read at once, the others late."""
    records = [session.step()]
    while session.has_work and count > 1:
        records += session.step_late()
        count -= 1
    return records + session.observer.complete()


@pytest.mark.parametrize("runner", ["fused", "graph", "transformers"])
@pytest.mark.parametrize("late_steps", [1, 2])
def test_its_records_and_its_cache_are_those_of_steps_one_by_one(late_steps: int, runner: RunnerName) -> None:
    at_once, late = begun(0, runner), begun(late_steps, runner)
    expected, found = [at_once.step() for _ in range(9)], run(late, 9)
    assert is_launched(late)
    assert_same_records(expected, found)
    assert found[-1].runner == runner
    late.stepper.discard_ahead()
    assert_alike(at_once, late, row_behind=True)
    assert_same_records([at_once.step()], [late.step()])


def test_it_is_launched_before_the_token_is_read_and_before_the_record_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def noted(owner: object, name: str, label: str) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **named: (done.append(label), original(*args, **named))[1])

    noted(LaunchedAhead, "of", "launch")
    noted(stepper, "sequence_step", "record")
    monkeypatch.setattr(Sample, "token_id", property(lambda self: (done.append("read"), int(self.chosen))[1]))
    session = begun(1)
    session.step()
    done.clear()
    session.step_late()
    assert done[:2] == ["launch", "read"]
    assert done.count("launch") == 1
    assert "record" in done


def test_a_forward_that_finds_no_room_ahead_of_its_step_costs_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step before it ends with its record; the step that needs the forward computes it itself."""
    tried: list[int] = []

    def fail(cache: object, num_tokens: int) -> None:
        tried.append(1)
        raise MemoryError("no room")

    monkeypatch.setattr(SequenceCache, "uncount_row", fail)
    at_once, late = begun(0), begun(2)
    expected, found = [at_once.step() for _ in range(5)], run(late, 5)
    assert len(tried) == 4
    assert not is_launched(late)
    assert_same_records(expected, found)
    assert_alike(at_once, late, row_behind=True)


@pytest.mark.parametrize("why", ["end of text", "length"])
def test_a_forward_launched_behind_the_end_of_a_text_leaves_nothing(why: str) -> None:
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
    assert_same_records(expected, found)
    assert not is_launched(late)
    assert_alike(at_once, late, row_behind=why == "end of text")
    for session in (at_once, late):
        session.force(0, prompt_ids(2, seed=3))
    assert_same_records([at_once.step()], [late.step()])


@pytest.mark.parametrize(("owner", "name"), [(stepper, "sequence_step"), (PackedBuffer, "pack")])
@pytest.mark.parametrize("late_steps", [1, 2])
def test_measurements_of_a_failed_step_do_not_disturb_those_of_the_steps_before_it(
    late_steps: int, owner: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those are still unread when the step fails."""
    at_once, late = begun(0), begun(late_steps)
    expected, found = [at_once.step() for _ in range(7)], list[StepRecord]()
    for number in range(7):
        for _ in range(2 if number == 4 else 0):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, lambda *args: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    late.step_late()
        found += late.step_late()
    found += late.observer.complete()
    assert_same_records(expected, found)


def test_where_every_token_is_banned_the_step_that_would_choose_one_is_given_up() -> None:
    """The session learns it when it reads the token: the next forward has been launched by then."""
    at_once, late = begun(0), begun(2)
    for session in (at_once, late):
        run(session, 3)
        set_state(session, 0, sampling=structs.replace(SEEDED, bias=LogitBias(banned=tuple(range(128)))))
    for step in (at_once.step, late.step_late):
        with pytest.raises(InputError, match="Every token is banned"):
            step()
    assert not is_launched(late)
    for session in (at_once, late):
        set_state(session, 0, sampling=SEEDED)
    assert_same_records([at_once.step() for _ in range(3)], [late.step() for _ in range(3)])


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
    "stop": lambda session: (session.stop(0), session.force(0, prompt_ids(1))),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_between_two_steps_finds_no_trace_of_the_launched_forward(name: str) -> None:
    at_once, late = begun(0), begun(2)
    for _ in range(4):
        at_once.step()
    run(late, 4)
    assert is_launched(late)
    for session in (at_once, late):
        COMMANDS[name](session)
    expected = [at_once.step() for _ in range(3)]
    found = run(late, 3)
    assert_same_records(expected, found)


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
