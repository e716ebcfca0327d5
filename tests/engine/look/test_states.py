"""The state of recurrent layers, as it is drawn: on the wall reduced, in the head panel whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt
from engine.wire.pictures import HeadPicture, HeadRequest, WallPicture, WallRequest
from tests.engine.tiny import model_of, prompt_ids


def stepped(architecture: str, count: int = 3) -> Session:
    session = Session(model_of(architecture), CacheSpec("growing"))
    session.submit(Prompt(token_ids=prompt_ids(9)))
    for _ in range(count):
        session.step()
    return session


def wall(session: Session, num_tokens: int | None = None) -> WallPicture:
    count = session.sequence(0).num_tokens if num_tokens is None else num_tokens
    piece = session.take_picture(WallRequest(0, count, count, "keys", False, 24, 8))
    assert isinstance(piece, WallPicture)
    return piece


def head(session: Session, layer: int, part: int) -> HeadPicture:
    count = session.sequence(0).num_tokens
    piece = session.take_picture(HeadRequest(0, count, "keys", layer, part, 0, count, 500))
    assert isinstance(piece, HeadPicture)
    return piece


def tensors(session: Session, layer: int) -> list[torch.Tensor]:
    """What transformers keeps: of the convolution, then of the recurrence."""
    kept = session.cache_of(0).model_cache.layers[layer]
    return [*kept.conv_states.values(), *(t for t in kept.recurrent_states.values() if t is not None)]


@pytest.mark.parametrize(
    ("architecture", "names"), [("mamba", ["convolution", "recurrence"]), ("lfm2", ["convolution"])]
)
def test_a_state_is_drawn_with_its_own_numbers(architecture: str, names: list[str]) -> None:
    session = stepped(architecture)
    found = [state for state in wall(session).states if state.layer == 0]
    assert [state.name for state in found] == names
    for part, (state, tensor) in enumerate(zip(found, tensors(session, 0), strict=True)):
        assert state.shape == tuple(tensor.shape)
        assert state.largest == pytest.approx(float(tensor.abs().max()))
        assert float(np.maximum(np.abs(state.low), np.abs(state.high)).max()) == pytest.approx(state.largest)
        whole = head(session, 0, part)
        assert (whole.tensor_label, whole.state_shape) == (state.name, state.shape)
        matrix = tensor[0].float().numpy()
        matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
        assert np.array_equal(whole.low, matrix)
        assert whole.positions.tolist() == list(range(matrix.shape[0]))


def test_a_state_moves_on_with_every_step_and_an_earlier_one_is_not_told() -> None:
    session = stepped("mamba")
    before = wall(session).states
    session.step()
    after = wall(session)
    assert [state.shape for state in after.states] == [state.shape for state in before]
    assert all(not np.array_equal(a.low, b.low) for a, b in zip(after.states, before, strict=True))
    assert wall(session, num_tokens=10).states == ()
    earlier = session.take_picture(HeadRequest(0, 10, "keys", 0, 0, 0, 10, 500))
    assert isinstance(earlier, HeadPicture)
    assert (earlier.low.size, earlier.state_shape) == (0, ())
    assert earlier.note.endswith("go to this step to see it.")
    session.go_to(2)
    assert all(np.array_equal(a.low, b.low) for a, b in zip(wall(session).states, before, strict=True))
    assert head(session, 0, 7).note == "This layer keeps a recurrent state of constant size, and no K and V."


def test_a_model_of_attention_alone_has_no_states() -> None:
    assert wall(stepped("llama")).states == ()
