"""Sessions to be kept, and what of them must be the same after they were opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.cache.contract import InPieces
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.snapshot.gather import snapshot_of
from engine.snapshot.write import Snapshot, pieces, write_snapshot
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.retention import LayerBudgets
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.exporting import Export
from engine.wire.records import StepRecord
from tests.engine.cache.compressed.test_cache_going_back import assert_alike, kept_of
from tests.engine.session.sessions import set_state
from tests.engine.tiny import model_of, prompt_ids

PROMPT = 21


def small(name: str) -> CacheSpec:
    """A preset with sizes that a short sequence feels."""
    sizes: dict[str, dict[str, Any]] = {
        "sliding": {"window": 12},
        "streamingllm": {"sinks": 2, "window": 10},
        "pyramidkv": {"budget": LayerBudgets(mean=12)},
        "kivi-4": {"group": 8, "residual": 8},
        "kivi-2": {"group": 16, "residual": 16},
        "offloaded": {"page_size": 4},
        "paged": {"page_size": 4},
    }
    preset = PRESETS[name]
    default = {"budget": 12} if "budget" in preset.parameters else {}
    return tuned(preset.spec, **sizes.get(name, default))


def begun(
    spec: CacheSpec, steps: int = 9, architecture: str = "llama", prompt: int = PROMPT, model: LoadedModel | None = None
) -> Session:
    """A session with one sampled sequence, some steps behind its prompt."""
    session = Session(model or model_of(architecture), spec, prefill_chunk=8)
    session.submit(Prompt(token_ids=prompt_ids(prompt), sampling=SamplingParams(1.0, top_k=40, seed=5)))
    while session.sequence(0).num_tokens < prompt + steps:
        step(session)
    return session


def step(session: Session) -> StepRecord:
    """One step, whatever was chosen: an end of text does not end it."""
    set_state(session, 0, stop=None)
    return session.step()


def written(tensor: torch.Tensor | InPieces) -> torch.Tensor:
    """A tensor of a snapshot as a file has it."""
    if isinstance(tensor, torch.Tensor):
        return tensor
    return torch.cat([part.reshape(-1) for part in pieces(tensor)]).reshape(tensor.shape)


def snapshot(
    session: Session, seq_id: int, num_tokens: int | None = None, notes: str = "", form: Any = "rows"
) -> Snapshot:
    """What an export would write, its rows as numbers."""
    return snapshot_of(session, Export(Path("x.safetensors"), seq_id, num_tokens, notes, form))


def kept(session: Session, path: Path, num_tokens: int | None = None, **how: Any) -> Path:
    """A snapshot of the sequence."""
    for _ in write_snapshot(snapshot_of(session, Export(path, 0, num_tokens, **how)), path):
        pass
    return path


def goes_on_alike(one: Session, other: Session, steps: int = 6) -> None:
    """Both choose the same tokens from the same logits, to the last bit, and keep the same then, codes and memories."""
    for _ in range(steps):
        mine, theirs = step(one), step(other)
        assert mine.sequences[0].token_ids == theirs.sequences[0].token_ids
        assert mine.sequences[0].sampled == theirs.sequences[0].sampled
        expected, found = one.logits(0), other.logits(0)
        assert expected is not None
        assert found is not None
        assert torch.equal(expected, found)
    if not one.cache.recomputes:
        mine_kept, their_kept = (kept_of(each.cache_of(0), each.cache_of(0).num_tokens) for each in (one, other))
        assert mine_kept is not None
        assert their_kept is not None
        assert_alike(mine_kept, their_kept)
