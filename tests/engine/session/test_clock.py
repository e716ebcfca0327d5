"""Times of a step, measured by a clock of the host."""

from __future__ import annotations

import pytest

from engine.session.session import Session
from engine.spec.cache import PRESETS
from engine.spec.sampling import Prompt
from tests.engine.session.sessions import set_state
from tests.engine.tiny import model_of, prompt_ids


@pytest.mark.parametrize("name", ["growing", "h2o", "paged"])
def test_what_a_step_does_lies_within_its_time(name: str) -> None:
    session = Session(model_of("llama"), PRESETS[name].spec, prefill_chunk=8)
    session.submit(Prompt(token_ids=prompt_ids(11)))
    for number in range(6):
        set_state(session, 0, stop=None)
        found = session.step().timings
        assert found.forward_ms + found.sample_ms + found.observe_ms <= found.wall_ms + 1e-6
        assert min(found.forward_ms, found.observe_ms) > 0
        assert found.gap_ms == 0 or number > 0
