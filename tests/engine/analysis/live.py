"""A session on a small model, and what must not change while something is measured on it."""

from __future__ import annotations

from engine.analysis.parity import live_parity
from engine.analysis.what_if import measured_damage, regret, what_if
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.retention import RetentionSpec
from engine.spec.sampling import Prompt
from engine.wire.measurements import (
    CheckParity,
    DamageMap,
    MapDamage,
    MeasureRegret,
    ParityReport,
    Regret,
    WhatIf,
    WhatIfAnswer,
)
from tests.engine.tiny import model_of, prompt_ids

WINDOW = RetentionSpec("sinks+window", sinks=2, window=10)


def started(spec: CacheSpec | None = None, steps: int = 8, architecture: str = "llama") -> tuple[Session, int]:
    session = Session(model_of(architecture), spec or CacheSpec(), prefill_chunk=16)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(40)))
    session.force(seq_id, prompt_ids(30, seed=1))
    for _ in range(steps):
        session.step()
    return session, seq_id


def run_of(session: Session, request: WhatIf) -> WhatIfAnswer:
    """What the other cache gave when it was really run."""
    *_, last = what_if(session, request)
    assert isinstance(last, WhatIfAnswer)
    assert not last.is_estimate
    return last


def answer(session: Session, request: MeasureRegret) -> Regret:
    *_, last = regret(session, request)
    assert isinstance(last, Regret)
    return last


def checked(session: Session, request: CheckParity) -> ParityReport:
    *_, last = live_parity(session, request)
    assert isinstance(last, ParityReport)
    return last


def damage_map(session: Session, request: MapDamage) -> DamageMap:
    *_, last = measured_damage(session, request)
    assert isinstance(last, DamageMap)
    return last
