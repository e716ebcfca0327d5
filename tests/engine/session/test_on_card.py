"""A running session never waits for work that it has just launched on a GPU; the GPU is simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from msgspec.structs import replace

from engine.model.loader import LoadedModel
from engine.model.runners import runners
from engine.model.runners.launch import ReplayFunction, RerunRecorder, StepFunction
from engine.model.runners.runners import Runners
from engine.session.session import Session
from engine.session.stepper import LaunchedAhead
from engine.spec.cache import PRESETS, fitted
from engine.spec.model import CaptureLevel, RunnerName
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from tests.effort import effort
from tests.engine.card import card, has_card, moved
from tests.engine.card_streams import Card
from tests.engine.session.failing import small
from tests.engine.tiny import prompt_ids, tiniest_model

pytestmark = pytest.mark.skipif(not has_card(), reason="this torch keeps its devices elsewhere")

DRAWN = SamplingParams(0.8, seed=1, top_k=20, top_p=0.9, min_p=0.01, draws="counter")
SAMPLINGS = (
    DRAWN,
    replace(DRAWN, draws="torch", bias=LogitBias(((5, 1.0), (7, -2.0)), (5, 6), tuple(range(3, 60)))),
    SamplingParams(),
)
CASES: list[tuple[str, RunnerName, int, CaptureLevel]] = [
    ("growing", "graph", 1, "off"), ("growing", "transformers", 1, "rows"), ("static", "graph", 2, "rows"),
    ("static", "transformers", 1, "rows"), ("paged", "transformers", 1, "statistics"), ("paged", "graph", 3, "rows"),
    ("paged", "transformers", 3, "rows"), ("h2o", "transformers", 2, "rows"),
    # left out: kivi-2 runs the code of kivi-4, and the other one is code of transformers
    *((name, "fused", 2, "everything") for name in PRESETS if name not in ("kivi-2", "transformers-quantized")),
]  # fmt: skip
# modes in which the next forward is launched before the token is read
LAUNCHED = {"growing", "static", "paged", "paged-fp8", "paged-int8", "offloaded"}
STEPS = 4  # a recorded step is compared twice with the same step computed eagerly, and small caches are full by then


def begun(model: LoadedModel, name: str, count: int, capture: CaptureLevel) -> Session:
    session = Session(model, small(fitted(PRESETS[name].spec, 64)), capture=capture)
    for number in range(count):
        session.submit(Prompt(token_ids=prompt_ids(5 + number, number), sampling=SAMPLINGS[number]))
    while session.is_prefilling:
        session.step()
    return session


@pytest.mark.parametrize(("name", "runner", "count", "capture"), effort(CASES[::2], CASES))
def test_the_host_waits_for_no_operation_launched_after_the_chosen_token(
    name: str, runner: RunnerName, count: int, capture: CaptureLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step computes on the card alone, and chooses the tokens that a CPU chooses."""
    model = tiniest_model()
    on_cpu = begun(dataclasses.replace(model, runners=Runners(model.runners.decoder, runner)), name, count, capture)
    for _ in range(STEPS):
        on_cpu.step()
    launched: list[int] = []

    def noted(*args: object) -> object:
        launched.append(made.asked)
        return launch(*args)  # type: ignore[arg-type]

    made, launch = Card(), LaunchedAhead.of
    with card(monkeypatch, made):
        session = begun(moved(model, runner), name, count, capture)
        monkeypatch.setattr(LaunchedAhead, "of", noted)
        for _ in range(STEPS - 1):
            session.step_late()
        made.waits.clear()
        launched.clear()
        session.step_late()
    assert len(launched) == (name in LAUNCHED)
    assert {wait.why for wait in made.waits} == {"an event"}
    assert max(wait.until for wait in made.waits) <= min([*launched, made.asked - 1])
    for seq_id in range(count):
        assert session.sequence(seq_id).token_ids == on_cpu.sequence(seq_id).token_ids


@pytest.mark.parametrize(("name", "count"), [("growing", 1), ("paged", 3)])
def test_looking_asks_a_card_for_few_operations_beside_a_recorded_step(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is captured: the numbers of the chosen token, and copies of the strip and of the record."""
    launches, levels = dict[CaptureLevel, int](), list[CaptureLevel](["off", "rows", "everything"][:: 1 + (count > 1)])
    for level in levels:
        made = Card()
        with card(monkeypatch, made):
            monkeypatch.setattr(runners, "recorder_of", lambda *_, made=made: OneLaunch(made))
            session = begun(moved(tiniest_model(), "graph"), name, count, level)
            for _ in range(STEPS):
                session.step_late()
            made.launches = 0
            session.step_late()
            launches[level] = made.launches
    assert launches.get("rows", launches["everything"]) == launches["everything"]
    assert all(number - launches["off"] <= 5 + 6 * count for number in launches.values()), launches


class OneLaunch(RerunRecorder):
    """A recorder whose replay is one operation of the card, as that of a CUDA graph is."""

    def __init__(self, made: Card) -> None:
        super().__init__()
        self._made = made

    def record(self, step: StepFunction) -> tuple[Sequence[torch.Tensor], ReplayFunction]:
        outputs, replay = super().record(step)

        def launched() -> None:
            before = self._made.launches
            replay()
            self._made.launches = before + 1

        return outputs, launched


def test_the_card_refuses_what_a_card_refuses_and_counts_what_stops_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Card()
    with card(monkeypatch, made):
        rows = torch.arange(4.0, device="cuda")
        with pytest.raises(RuntimeError, match="of the host among those of the card"):
            rows + torch.ones(4)
        float(rows[1])
        rows[rows > 2]
        rows[torch.tensor([0, 1])]
        rows.copy_(torch.ones(4))
        rows.to("cpu")
        torch.tensor([1, 2], device="cuda")
        assert [wait.why for wait in made.waits] == [
            "a number", "a mask", "an index of the host", "a copy to the card", "a copy to the host",
            "a copy to the card",
        ]  # fmt: skip
        made.waits.clear()
        pinned = torch.ones(4).pin_memory()
        rows.copy_(pinned, non_blocking=True)
        target = torch.zeros(4, pin_memory=True)
        target.copy_(rows, non_blocking=True)
        assert not made.waits
        assert target[0] != 1, "the copy has not arrived yet"
        torch.cuda.synchronize()
        assert target.tolist() == [1.0] * 4
