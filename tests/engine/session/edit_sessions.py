"""Sessions on which edits are made, and their state for comparisons."""

from __future__ import annotations

from typing import Any

import torch
from msgspec.structs import replace

from engine.session.session import Session
from engine.spec.sampling import Prompt, SamplingParams
from tests.engine.session.sessions import tensors
from tests.engine.snapshot.sessions import small
from tests.engine.tiny import model_of, prompt_ids


def begun(mode: str, num_steps: int = 4, length: int = 30) -> Session:
    session = Session(model_of("llama"), small(mode))
    session.submit(Prompt(token_ids=prompt_ids(length), sampling=SamplingParams(1.0, seed=4)))
    for _ in range(num_steps):
        step(session)
    return session


def step(session: Session) -> None:
    for live in session.live:
        live.sequence = replace(live.sequence, stop=None)
    session.step()


def state(session: Session) -> dict[tuple[object, ...], torch.Tensor]:
    return tensors(session)


def same(one: dict[Any, torch.Tensor], other: dict[Any, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def marks(session: Session) -> object:
    return {live.seq_id: (live.sequence, tuple(live.sequence.token_ids)) for live in session.live}
