"""Sessions that sample at a temperature, so that branches differ."""

from __future__ import annotations

from engine.session.session import Session
from engine.spec.sampling import Prompt, SamplingParams
from tests.engine.session.histories import MODES
from tests.engine.tiny import model_of, prompt_ids

WARM = SamplingParams(temperature=1.0, seed=5)
FORCED = prompt_ids(30, seed=3)


def begun(mode: str = "growing", length: int = 9, **options: int) -> Session:
    session = Session(model_of("llama"), MODES[mode], prefill_chunk=6, **options)
    session.submit(Prompt(token_ids=prompt_ids(length), sampling=WARM))
    session.force(0, FORCED)
    return session


def stepped(session: Session, count: int) -> list[int]:
    return [session.step().step for _ in range(count)]
