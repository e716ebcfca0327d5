"""What a recorded step measures of itself is what is measured behind it: at every edge of a bucket, at every level, and
whatever is changed between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs

from engine.look.measures import RECENT, attention_measures, masses
from engine.model.batch import Batch, Result
from engine.model.runners.launch import Launches, ReplayFunction, RerunRecorder, StepFunction
from engine.model.runners.runners import OwnForward, Runners
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import CAPTURES, CaptureLevel
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from engine.wire.pictures import HeadRequest
from engine.wire.records import StepRecord
from tests.engine.model.runners.test_launch import LAYOUTS, Announced, num_recorded
from tests.engine.tiny import model_of, prompt_ids

DRAWN, NO_END = SamplingParams(0.8, seed=3), LogitBias(banned=(2,))


class Behind(RerunRecorder):
    """A recorder of forwards alone."""

    takes_measures = False


def session_of(
    spec: CacheSpec,
    lengths: Sequence[int],
    level: CaptureLevel = "everything",
    recorder: type[RerunRecorder] = RerunRecorder,
) -> Session:
    """A session of recorded steps that has read prompts of these lengths; the first is drawn, the others are greedy."""
    model = model_of("llama")
    runners = Runners(model.runners.decoder, "graph")
    runners.announce = Announced()
    runners._launches["graph"] = Launches(runners.decoder, recorder(), runners.announce)
    session = Session(replace(model, runners=runners), spec, capture=level)
    for seed, length in enumerate(lengths):
        sampling = structs.replace(SamplingParams() if seed else DRAWN, bias=NO_END)
        session.submit(Prompt(token_ids=prompt_ids(length, seed), sampling=sampling))
    while session.is_prefilling:
        session.step()
    return session


def compare(one: StepRecord, other: StepRecord) -> None:
    """All that was measured of both is the same; sums but for the order of their parts."""
    assert (one.checksums, repr(one.non_finite)) == (other.checksums, repr(other.non_finite))
    for mine, theirs in zip(one.sequences, other.sequences, strict=True):
        for name in ("sampled", "candidates", "entropy", "surprisal"):
            assert repr(getattr(mine, name)) == repr(getattr(theirs, name)), name
        for name in ("rows", "attention"):
            found, expected = getattr(mine, name), getattr(theirs, name)
            assert (found is None) == (expected is None)
            for a, b in zip(*(structs.astuple(each) for each in (found, expected) if each is not None), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("level", CAPTURES)
@pytest.mark.parametrize(("layout", "lengths"), [("growing", [62]), ("static", [62, 7]), ("paged", [61, 7, 62])])
def test_what_is_measured_within_a_step_is_what_is_measured_behind_it(
    layout: str, lengths: list[int], level: CaptureLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over an edge of a bucket and of a page; of one sequence, of several apart, and of several together."""
    within, behind = (session_of(LAYOUTS[layout], lengths, level, recorder) for recorder in (RerunRecorder, Behind))
    measured = measured_in(within, monkeypatch)
    for _ in range(5):
        one = within.step()
        assert one.runner == "graph"
        assert measured == [level != "off"] * len(measured)
        compare(one, behind.step())
    assert len(measured) == 5 * (2 if layout == "static" else 1)


def measured_in(session: Session, patch: pytest.MonkeyPatch) -> list[bool]:
    """Grows with whether each forward of the session measured itself."""
    found: list[bool] = []
    runners, run = session.model.runners, Runners.run

    def noted(self: Runners, batch: Batch, own: OwnForward) -> Result:
        result = run(self, batch, own)
        if self is runners:
            found.append(result.measured is not None)
        return result

    patch.setattr(Runners, "run", noted)
    return found


def test_a_step_is_recorded_anew_for_what_it_measures_and_for_nothing_that_is_chosen_behind_it() -> None:
    """The level, how tokens are drawn, which pictures are watched, and sequences that come and go."""
    changes: list[tuple[Callable[[Session], object], int]] = [
        (lambda session: None, 1),
        (lambda session: session.captured.set("statistics", by_layer=False), 2),
        (lambda session: session.captured.set("rows", by_layer=False), 3),
        (lambda session: session.set_sampling(structs.replace(DRAWN, temperature=0.3, bias=NO_END), 0), 3),
        (lambda session: session.set_sampling(structs.replace(DRAWN, top_k=3, seed=9, bias=NO_END), 0), 3),
        (lambda session: session.captured.set("everything", by_layer=False), 3),
        (lambda session: session.captured.set("everything", by_layer=True), 3),  # which is computed at once
        (lambda session: session.captured.set("off", by_layer=False), 4),
        (lambda session: session.set_sampling(SamplingParams(bias=NO_END), 0), 4),
        (lambda session: session.captured.set("rows", by_layer=False), 4),
        (lambda session: session.take_picture(HeadRequest(0, 1, "keys", 0, 0, 0, 0, 8)), 4),
        (lambda session: session.go_to(session.last_step - 3), 4),  # type: ignore[operator]
        (lambda session: session.submit(Prompt(token_ids=prompt_ids(9, 4))) and session.step(), 5),
    ]
    within, behind = (session_of(LAYOUTS["paged"], [20], recorder=recorder) for recorder in (RerunRecorder, Behind))
    for number, (change, count) in enumerate(changes):
        for session in (within, behind):
            change(session)
        for _ in range(3):  # the first two replays are compared with the same step computed at once
            compare(within.step(), behind.step())
        assert num_recorded(within) == count, number


@pytest.mark.parametrize("level", ["rows", "everything"])
def test_rows_and_logits_that_are_no_numbers_are_told_of_a_recorded_step(level: CaptureLevel) -> None:
    within, behind = (session_of(LAYOUTS["growing"], [20], level, recorder) for recorder in (RerunRecorder, Behind))
    with torch.inference_mode():
        for session in (within, behind):
            session.cache_of(0).model_cache.layers[0].values[:, :, 7, 2] = torch.nan
    for _ in range(3):
        within.force(0, (9,)), behind.force(0, (9,))  # else logits that are no numbers end a sequence
        compare(one := within.step(), behind.step())
        assert one.runner == "graph"
        assert {place.tensor for place in one.non_finite} == {"keys", "values", "logits"}


@pytest.mark.parametrize("length", [1, 5, 16, 17, 40])
def test_masses_up_to_a_position_are_those_of_the_row_that_ends_there(length: int) -> None:
    weights = torch.rand(3, 2, 4, 40)  # [L, B, H, S]
    found = masses(weights, torch.tensor([[length - 1], [39]]))
    for number, end in enumerate((length, 40)):
        rows = {layer: weights[layer, number, :, :end] for layer in range(3)}
        torch.testing.assert_close(found[number], attention_measures(rows, end)["attention"])
    assert RECENT == 16


class Stale(RerunRecorder):
    """What is measured stays as it was in the first replay."""

    def record(self, step: StepFunction) -> tuple[Sequence[torch.Tensor], ReplayFunction]:
        outputs, replay = super().record(step)
        first = outputs[-2].clone()

        def stale() -> None:
            replay()
            outputs[-2].copy_(first)

        return outputs, stale


@pytest.mark.parametrize("level", ["statistics", "rows", "everything"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_recording_that_measures_what_was_is_found_out_by_its_second_replay(layout: str, level: CaptureLevel) -> None:
    session, behind = (session_of(LAYOUTS[layout], [20], level, recorder) for recorder in (Stale, Behind))
    for runner in ("graph", "fused", "fused"):
        behind.model.runners.choose(runner)
        one = session.step()
        assert one.runner == runner
        compare(one, behind.step())
    assert "other numbers than the same step computed at once" in session.model.runners.state.note
