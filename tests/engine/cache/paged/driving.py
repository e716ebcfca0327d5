"""A paged session, stepped and checked after every step."""

from __future__ import annotations

import numpy as np
import torch

from engine.cache.paged.store import PageStore
from engine.session.session import Session
from engine.wire.pages import PageCell
from engine.wire.records import StepRecord
from tests.engine.cache.paged.conftest import MAPS
from tests.engine.cache.paged.tables import state_of

TOLERANCE = 1e-4


def store_of(session: Session) -> PageStore:
    assert session.live.mode.store is not None
    return session.live.mode.store


def check(session: Session, record: StepRecord | None = None) -> None:
    """The bookkeeping is sound, and the record's map says of every page what the pool says."""
    store_of(session).check()
    for number, group in enumerate(store_of(session).groups):
        if record is None:
            continue
        cells = np.concatenate(MAPS[session][number].blocks)
        names = {PageCell.FREE: "free", PageCell.USED: "used", PageCell.SHARED: "shared"}
        names |= {PageCell.CACHED: "cached", PageCell.NULL: "null"}
        states = [state_of(group.pool, p) for p in range(len(cells))]
        for cell, state in zip(
            map(PageCell, cells["state"]), states, strict=True
        ):  # the pool knows no kept checkpoints
            assert state in ("used", "shared") if cell is PageCell.KEPT else names[cell] == state
        assert cells["ref_count"].tolist() == [group.pool.ref_count(p) for p in range(len(cells))]


def drive(session: Session, num_steps: int) -> float:
    """Step, checking everything after each; the largest logit difference to the uncached forward."""
    worst = 0.0
    for _ in range(num_steps):
        if not session.has_work:
            break
        record = session.step()
        check(session, record)
        for part in record.sequences:
            if part.sampled is None:
                continue
            sequence = session.sequence(part.seq_id)
            ids = torch.tensor([sequence.token_ids[: sequence.num_tokens]])
            logits = session.logits(part.seq_id)
            assert logits is not None
            expected = session.model.reference_logits(ids)[-1]
            assert logits.argmax() == expected.argmax()
            worst = max(worst, float((logits - expected).abs().max()))
    return worst
