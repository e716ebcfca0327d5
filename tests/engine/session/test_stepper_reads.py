"""A step waits for the device twice: for the chosen token, and for all measurements, in one copy."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from engine.model.runners.runners import Runners
from engine.session.sampler import drawn
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import RunnerName
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from tests.engine.tiny import model_of, prompt_ids

COPIES = {torch.Tensor.cpu, torch.Tensor.tolist}
WAITS = {torch.ops.aten._local_scalar_dense.default: "number", torch.ops.aten.nonzero.default: "nonzero"}
SPECS = [CacheSpec("growing"), CacheSpec("static", max_length=64), CacheSpec("paged", page_size=4)]
DRAWN = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01)
BIAS = LogitBias(((5, 1.0), (7, -2.0)), (5, 6), tuple(range(3, 60)))
SAMPLINGS = {"greedy": SamplingParams(), "drawn": DRAWN, "biased": replace(DRAWN, bias=BIAS)}


class Copies(TorchFunctionMode):
    """Counts tensors that are copied to the host; on a CPU that is no operation, so that only the call shows it."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in COPIES:
            self._found["copy"] += 1
        return func(*args, **(kwargs or {}))


class Waits(TorchDispatchMode):
    """Counts numbers read out of tensors, by `item`, `int`, `bool` or an operation that needs one, and masks whose
    result has as many rows as they have."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITS:
            self._found[WAITS[func]] += 1
        is_masked = func is torch.ops.aten.index.Tensor and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if is_masked:
            self._found["mask"] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("runner", ["fused", "graph"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.layout)
def test_a_step_reads_the_token_of_each_sequence_and_one_copy_of_what_was_measured(
    spec: CacheSpec, runner: RunnerName, sampling: str
) -> None:
    model, count = model_of("llama"), 3 if spec.layout == "paged" else 1
    made = dataclasses.replace(model, runners=Runners(model.runners.decoder, runner))
    session = Session(made, spec, late_steps=1)  # as on a GPU: on a CPU nothing has to be packed for one copy
    for number in range(count):
        seq_id = session.submit(Prompt(token_ids=prompt_ids(6 + number, number), sampling=SAMPLINGS[sampling]))
        session.force(seq_id, prompt_ids(9, number))
    while session.is_prefilling:
        session.step()
    for _ in range(2):  # a recorded step is compared twice with the same step computed eagerly
        session.step()
    found: Counter[str] = Counter()
    with Copies(found), Waits(found):
        record = session.step()
    assert record.runner == runner
    assert record.sequences[-1].candidates
    assert record.sequences[-1].attention is not None
    assert dict(found) == {"number": count, "copy": 1}


def test_a_token_is_drawn_as_multinomial_draws_it_on_a_cpu() -> None:
    for seed in range(60):
        logits = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
        probs = (logits.masked_fill(logits < 0.3, -torch.inf) * 3).softmax(-1)
        expected = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(seed + 9))
        sampling = SamplingParams(1.0, seed=0)
        assert int(drawn(probs, sampling, seed + 9)) == int(expected)
