"""Times of steps on a GPU, here a simulated one with a clock: the parts of the steps add up to the time that passed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine.session import forward as clock
from engine.spec.model import RunnerName
from tests.engine.card import card, has_card, moved
from tests.engine.card_streams import Card
from tests.engine.session.sessions import is_launched
from tests.engine.session.test_on_card import LAUNCHED, begun
from tests.engine.tiny import tiniest_model

pytestmark = pytest.mark.skipif(not has_card(), reason="this torch keeps its devices elsewhere")

STEPS, SETTLED = 14, 8  # each slot of the ring has packed the same before


class TimedCard(Card):
    """The host takes `asking_s` to launch an operation, the card `doing_s` to execute it, one after the other."""

    def __init__(self, asking_s: float, doing_s: float) -> None:
        self._asking_s, self._doing_s = asking_s, doing_s
        self.host_s, self._done_s = 0.0, [0.0]  # by the number of operations
        super().__init__()

    @property
    def asked(self) -> int:
        return len(self._done_s) - 1

    @asked.setter
    def asked(self, number: int) -> None:
        while self.asked < number:
            self.host_s += self._asking_s
            self._done_s.append(max(self._done_s[-1], self.host_s) + self._doing_s)

    def wait(self, why: str, until: int | None = None) -> None:
        super().wait(why, until)
        self.host_s = max(self.host_s, self._done_s[self.asked if until is None else until])

    def moment(self, until: int) -> float:
        return max(self._done_s[until], self.host_s)


@pytest.mark.parametrize(
    ("name", "runner", "count", "asking_us", "doing_us"),
    [
        ("growing", "fused", 1, 10, 25), ("growing", "graph", 2, 25, 10), ("paged", "transformers", 2, 10, 25),
        ("h2o", "fused", 2, 10, 25),
    ],
)  # fmt: skip
def test_the_parts_of_the_steps_make_up_the_time_that_passes(
    name: str, runner: RunnerName, count: int, asking_us: int, doing_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launched ahead of their tokens and not, of one sequence and of several."""
    made = TimedCard(asking_us * 1e-6, doing_us * 1e-6)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: made.host_s))
    with card(monkeypatch, made):
        session = begun(moved(tiniest_model(), runner), name, count, "rows")
        records = [record for _ in range(STEPS) for record in session.step_late()]
        assert is_launched(session) == (name in LAUNCHED)
        times = [record.timings for record in records + session.observer.complete()][SETTLED:]
    wall_ms = sum(one.wall_ms for one in times)
    assert sum(one.total_ms + one.gap_ms for one in times) == pytest.approx(wall_ms, rel=0.03)
    assert wall_ms > 1e3 * (STEPS - SETTLED) * max(asking_us, doing_us) * 1e-6 * 100, "a step is a hundred operations"
    assert all(one.forward_ms > one.sample_ms > 0 for one in times)
