"""Sessions that read their pages in place, compared step by step with sessions that gather them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

from engine.model.runners.pages import Kernel, PagedAttention
from engine.model.runners.runners import Runners
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import RunnerName
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids


def listed_alone(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **given: Any) -> torch.Tensor:
    """FlexAttention as a compiled kernel has it: of pages that are not listed it reads nothing. Uncompiled it reads the
    whole pool, and asks of every slot whether it is read."""
    mask, found = given["block_mask"], torch.zeros(keys.shape[2] // given["block_mask"].BLOCK_SIZE[1], dtype=torch.bool)
    for count, pages in ((mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)):
        found[pages[torch.arange(pages.shape[-1]) < count[..., None]].long()] = True
    kept = found.repeat_interleave(mask.BLOCK_SIZE[1])[:, None]
    nothing = torch.zeros((), dtype=keys.dtype)
    read: torch.Tensor = torch_flex.flex_attention(
        query, keys.where(kept, nothing), values.where(kept, nothing), **given
    )
    return read


def session_of(
    architecture: str,
    lengths: Sequence[int],
    spec: CacheSpec,
    chosen: str,
    kernel: Kernel | None = None,
    runner: RunnerName = "auto",
) -> Session:
    """A session that has read prompts of these lengths, and is told what comes next."""
    model = model_of(architecture)
    pages = PagedAttention(model.runners.pages.why_not, chosen=chosen)  # type: ignore[arg-type]
    pages.kernel = kernel
    session = Session(replace(model, runners=Runners(model.runners.decoder, runner, pages)), spec)
    for seed, length in enumerate(lengths):
        session.force(session.submit(Prompt(token_ids=prompt_ids(length, seed))), prompt_ids(40, seed + 50))
    while session.is_prefilling:
        session.step()
    return session


def compare(session: Session, gathered: Session) -> str:
    """One step of both: the same tokens, and logits, what is attended to and the rows themselves but for rounding.
    Returns what computed the first."""
    one, other = session.step(), gathered.step()
    assert [part.sampled for part in one.sequences] == [part.sampled for part in other.sequences]
    assert "pages" not in other.runner
    for mine, theirs in zip(one.sequences, other.sequences, strict=True):
        assert mine.attention is not None
        assert theirs.attention is not None
        assert mine.attention.recent_mass == pytest.approx(theirs.attention.recent_mass, abs=2e-5)
        assert mine.attention.first_mass == pytest.approx(theirs.attention.first_mass, abs=2e-5)
    for seq_id in gathered.live.ids:
        logits, others = session.logits(seq_id), gathered.logits(seq_id)
        assert logits is not None
        assert others is not None
        assert torch.allclose(logits, others, atol=2e-5)
        for layer in range(2):
            rows, held = session.cache_of(seq_id).rows(layer), gathered.cache_of(seq_id).rows(layer)
            assert rows is not None
            assert held is not None
            assert torch.allclose(rows.values, held.values, atol=1e-5)
    return one.runner
