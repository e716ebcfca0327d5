"""What the short way through a forward may compute is what agreed with the model's own forward, each by itself."""

from __future__ import annotations

import pytest

from engine.model import trial_forwards
from engine.model.trial_forwards import PROBE_ROWS, decoder_of
from tests.engine.tiny import uneven_model


def chosen() -> tuple[bool, bool, bool] | None:
    model = uneven_model()
    decoder = decoder_of(model.model, model.info.geometry)
    return None if decoder is None else (decoder.takes_chunks, decoder.defers_last_layer, decoder.takes_batches)


def test_of_a_model_like_ours_all_of_it() -> None:
    assert chosen() == (True, True, True)


@pytest.mark.parametrize(
    ("name", "left"), [("agrees_when_deferred", (True, False, True)), ("agrees_by_sequence", (True, True, False))]
)
def test_what_departs_is_not_taken(name: str, left: tuple[bool, bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_forwards, name, lambda *_: False)
    assert chosen() == left


@pytest.mark.parametrize(("count", "left"), [(1, None), (PROBE_ROWS, (False, False, True))])
def test_tokens_that_depart_together_are_not_taken_together_and_one_that_does_not_at_all(
    count: int, left: tuple[bool, bool, bool] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    agrees = trial_forwards.agrees
    monkeypatch.setattr(trial_forwards, "agrees", lambda *given: given[3] != count and agrees(*given))
    assert chosen() == left
