"""Other kinds of models on a device: an encoder-decoder, quantised weights, one split over several GPUs."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from engine.analysis.reference import parity, reference
from engine.cache.layers.layer import GrowingLayer
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import cache_preset
from engine.spec.model import SPLIT, WeightFormat
from engine.spec.sampling import Prompt
from tests.gpu import faults
from tests.gpu.models import DEVICE, ENCODER_CONFIG, cases, model_of, new_model, token_ids
from tests.gpu.test_modes import check_parity

CACHES = ("growing", "static", "dynamic")
PROMPT, STEPS = 21, 8


def check_cache(model: LoadedModel, name: str) -> None:
    truth = reference(model, token_ids(PROMPT), STEPS)
    check_parity(parity(model, name, cache_preset(name).spec, truth, PROMPT))


@pytest.mark.parametrize(
    ("dtype", "name"),
    cases([("float32", "growing")], [*product(("bfloat16", "float16"), CACHES), *product(("float32",), CACHES[1:])]),
)
def test_an_encoder_decoder_is_exact(dtype: str, name: str) -> None:
    check_cache(new_model(dtype, ENCODER_CONFIG), name)


def test_an_encoder_decoder_that_reads_other_rows_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrowingLayer, "append", faults.of_other_values)
    with pytest.raises(AssertionError):
        check_cache(new_model("float32", ENCODER_CONFIG), "growing")


def test_an_encoder_decoder_has_the_tokens_of_generate() -> None:
    model = new_model("float32", ENCODER_CONFIG)
    ids = torch.tensor([token_ids(PROMPT)], device=model.device)
    made = model.model.generate(ids, do_sample=False, max_new_tokens=STEPS, min_new_tokens=STEPS)
    session = Session(model, cache_preset("growing").spec)
    seq_id = session.submit(Prompt(token_ids=token_ids(PROMPT)))
    while len(stepped := session.sequence(seq_id).token_ids) < PROMPT + 1 + STEPS:
        session.step()
    assert [*stepped[-STEPS:]] == made[0, 1:].tolist()  # after the decoder's start token


@pytest.mark.parametrize(("weights", "most"), cases([("int8", 0.1)], [("int4", 0.8)]))
def test_quantised_weights_change_the_logits_a_little(weights: WeightFormat, most: float) -> None:
    """In the dtype of the kernels for int4 weights; `most`: the largest relative difference of the logits."""
    coded = new_model("bfloat16", weights=weights)
    if coded.info.weights != weights:
        pytest.skip(coded.info.note)
    truth = reference(coded, token_ids(PROMPT), STEPS)
    check_parity(parity(coded, "growing", cache_preset("growing").spec, truth, PROMPT))
    stored = reference(model_of("bfloat16"), truth.prompt_ids, STEPS, forced=truth.token_ids).logits
    assert 0 < float((truth.logits - stored).norm() / stored.norm()) < most


@pytest.mark.parametrize("dtype", cases((), [("float32",), ("bfloat16",), ("float16",)]))
def test_a_split_model_computes_the_same(dtype: str) -> None:
    if DEVICE.type != "cuda" or torch.cuda.device_count() < 2:
        pytest.skip("there are no two GPUs")
    split, truth = new_model(dtype, device=SPLIT), reference(model_of(dtype), token_ids(PROMPT), STEPS)
    if len(split.devices) < 2:
        pytest.skip(f"all layers fit on {split.device}")
    check_parity(parity(split, "growing", cache_preset("growing").spec, truth, PROMPT))
