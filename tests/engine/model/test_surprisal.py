"""The surprisal of a prompt's tokens, of any architecture and any length, in bounded memory."""

from __future__ import annotations

import pytest
import torch

from engine.errors import Cancelled
from engine.model import surprisal
from engine.model.surprisal import Surprisal
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt
from tests.engine.largest import largest_tensor
from tests.engine.tiny import CONFIGS, model_of, prompt_ids


@pytest.mark.parametrize("architecture", CONFIGS)
def test_it_is_that_of_the_models_own_logits_whatever_the_head_does_to_them(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tokens at a time, with an architecture's caps and scales of logits, and a model that is as it was after."""
    monkeypatch.setattr(surprisal, "SLICE_LOGITS", 3 * 128 + 5)
    model, ids = model_of(architecture), prompt_ids(12)
    logprobs = model.reference_logits(torch.tensor([ids])).float().log_softmax(-1)
    session = Session(model, CacheSpec(), prefill_chunk=7)
    session.submit(Prompt(token_ids=ids))
    found = []
    while session.is_prefilling:
        found += session.step().sequences[0].surprisal
    expected = [-float(logprobs[i, t]) for i, t in enumerate(ids[1:])]
    assert found[0] is None
    assert found[1:] == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 0.1, "tokens differ"
    assert "forward" not in vars(model.model.get_decoder())


@pytest.mark.parametrize("layout", ["growing", "none"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_the_logits_of_a_long_prompt_are_never_held_at_once(
    architecture: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one chunk or in whole; an eighth of its logits at a time."""
    monkeypatch.setattr(surprisal, "SLICE_LOGITS", 12 * 128)
    session = Session(model_of(architecture), CacheSpec(layout))  # type: ignore[arg-type]
    session.submit(Prompt(token_ids=prompt_ids(96)))
    with largest_tensor() as largest:
        record = session.step()
    assert len(record.sequences[0].surprisal) == 96
    assert largest.made(12, 128)
    assert not any(largest.made(n, 128) for n in range(13, 97))


def test_it_is_given_up_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surprisal, "SLICE_LOGITS", 2 * 128)
    calls = []

    def head(rows: torch.Tensor) -> torch.Tensor:
        calls.append(rows.shape[1])
        return torch.zeros(1, rows.shape[1], 128)

    def check() -> None:
        if len(calls) == 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        Surprisal(prompt_ids(9), 128).read(torch.zeros(1, 9, 64), head, check)
    assert calls == [2, 2]


def test_a_padded_vocabulary_is_no_surprise() -> None:
    """Ids that no token has stand at minus infinity."""
    logits = torch.tensor([[[0.0, 0.0, -torch.inf], [1.0, 1.0, -torch.inf]]])
    of = Surprisal((1, 0), 3)
    of.read(torch.zeros(1, 2, 4), lambda rows: logits[:, : rows.shape[1]])
    assert of.values == pytest.approx([0.6931472])
