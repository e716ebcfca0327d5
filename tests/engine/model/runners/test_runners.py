"""Which runner computes a step: chosen, recorded, and the same again when the step is repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.errors import InputError
from engine.model.runners.runners import Runners
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from engine.wire.planned import PlannedStep
from tests.engine.tiny import model_of, prompt_ids


def session_of(name: str = "llama") -> Session:
    model = model_of(name)
    session = Session(replace(model, runners=Runners(model.runners.decoder)), CacheSpec())
    session.submit(Prompt(token_ids=prompt_ids(5)))
    return session


def test_a_record_names_what_computed_it_and_a_choice_counts_from_the_next_step() -> None:
    session = session_of()
    assert session.step().runner == "fused"
    session.model.runners.choose("transformers")
    assert session.step().runner == "transformers"
    session.model.runners.choose("auto")
    assert session.step().runner == "fused"
    handle = session.model.model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert session.step().runner == "transformers"
    handle.remove()
    assert session_of("gpt2").step().runner == "transformers"


def test_a_step_is_repeated_by_the_runner_that_computed_it() -> None:
    session = session_of()
    session.step()
    session.model.runners.choose("transformers")
    record = session.step()
    session.model.runners.choose("auto")
    session.go_to(0)
    repeated = session.redo_step(PlannedStep.of(record))
    assert (repeated.runner, session.model.runners.chosen) == ("transformers", "auto")
    assert repeated.checksums == record.checksums
    assert session.step().runner == "fused"


def test_a_runner_that_the_model_cannot_have_is_refused_with_the_reason() -> None:
    session = session_of("gpt2")
    with pytest.raises(InputError, match="The runner 'fused' cannot compute this model: it needs a decoder of Llama's"):
        session.model.runners.choose("fused")
    assert session.model.runners.state.chosen == "auto"
    assert dict(session.model.runners.state.refused).keys() == {"fused"}
    assert not session_of().model.runners.state.refused
    with pytest.raises(InputError, match="Unknown runner 'fast': choose one of auto, transformers, fused"):
        session.model.runners.choose("fast")
    with pytest.raises(InputError, match="Unknown runner"):
        ModelSpec(runner="fast")  # type: ignore[arg-type]


def test_what_was_chosen_before_loading_and_cannot_be_is_said_once() -> None:
    wanted = Runners(None, "fused")
    assert wanted.note.startswith("no fused decoder for this model, which runs through transformers: it needs")
    assert not Runners(None, "transformers").note
    assert wanted.decoder_for(torch.ones(1, 1, dtype=torch.long), object()) is None
