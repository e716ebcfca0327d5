"""An opened snapshot beside the live run, beside another one, and in other modes and dtypes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace

from engine.client.thread import ThreadClient
from engine.snapshot import save_cache
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from engine.wire.commands import (
    EndComparison,
    OpenSnapshot,
    SetCache,
    StartComparison,
    Step,
    SubmitPrompt,
    TakePicture,
)
from engine.wire.comparison import ComparisonEnded, ComparisonScanned, ComparisonStarted, OtherFile, OtherRun, OtherStep
from engine.wire.events import CacheChanged, Failed
from engine.wire.exporting import Export, Exported
from engine.wire.pictures import (
    HeadPicture,
    HeadRequest,
)
from engine.wire.records import StepRecord
from tests.engine.loop.driver import GROWING, PATIENCE_S, Driver, shape_of
from tests.engine.loop.test_opened import exported, opened
from tests.engine.snapshot.sessions import small


def test_a_live_run_and_its_snapshot_are_compared(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    exported(driver, path)
    driver.send(Step(2))
    driver.wait_for(StepRecord, 2)
    driver.send(StartComparison(0, OtherFile(path)))
    started = driver.wait_for(ComparisonStarted)
    assert (started.b.name, started.b.moves) == ("a.safetensors", False)
    (step,) = started.steps
    assert (step.num_tokens, step.kl, step.max_abs_logit_diff, step.top1_agrees) == (22, 0.0, 0.0, True)
    assert (step.keys == 0).all()
    assert (step.attention == 0).all()
    assert driver.wait_for(ComparisonScanned).first is None
    request = HeadRequest(0, 22, "keys", 0, 0, 0, 22, 100)
    driver.send(*(TakePicture(request, side=side) for side in ("a", "b", "difference")))  # type: ignore[arg-type]
    driver.wait_for(HeadPicture, 3)
    a, b, difference = driver.of(HeadPicture)
    np.testing.assert_array_equal(a.low, b.low)
    assert (difference.low == 0).all()
    driver.send(Step(), EndComparison())
    assert driver.wait_for(ComparisonEnded).reason == ""


def test_a_live_run_whose_tokens_part_from_a_snapshot_is_compared_up_to_there(driver: Driver, tmp_path: Path) -> None:
    """No step of the two has numbers in common: their rows have, and are drawn."""
    path = tmp_path / "a.safetensors"
    exported(driver, path)
    ids = driver.session.sequence(0).token_ids[:15]
    other = (ids[13] + 1) % 100 + 3
    driver.send(SubmitPrompt(Prompt(token_ids=(*ids[:13], other, *ids[14:]), has_start=True)), Step(2))
    driver.rest()
    driver.send(StartComparison(driver.status.sequences[-1].seq_id, OtherFile(path)))
    (step,) = driver.wait_for(ComparisonStarted).steps
    assert (step.num_tokens, step.is_beyond_rounding, step.kl) == (13, None, None)
    assert step.divergence is not None
    assert step.divergence.num_tokens == 13
    found = driver.wait_for(ComparisonScanned)
    assert (found.num_tokens, found.first) == (13, None)
    driver.send(TakePicture(HeadRequest(0, 13, "keys", 0, 0, 0, 13, 100), side="difference"))
    assert np.abs(driver.wait_for(HeadPicture).low).max() < 1e-5


def test_two_snapshots_are_compared(driver: Driver, tmp_path: Path) -> None:
    one, other = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    exported(driver, one)
    driver.send(SetCache(small("int8")))
    driver.wait_for(CacheChanged)
    driver.send(Export(other, 0))
    driver.wait_for(Exported)
    driver.forget()
    opened(driver, one)
    driver.send(StartComparison(0, OtherFile(other)))
    started = driver.wait_for(ComparisonStarted)
    assert (started.a.name, started.b.name, started.a.is_lossy, started.b.is_lossy) == (
        "a.safetensors",
        "b.safetensors",
        False,
        True,
    )
    assert [step.num_tokens for step in started.steps] == [22]
    told = driver.of(StepRecord)[-1].sequences[0].candidates[:3]
    assert [each.text for each in started.steps[0].top[0][:3]] == [each.text for each in told]
    found = driver.wait_for(ComparisonScanned).first
    assert found is not None
    driver.send(StartComparison(0, OtherStep(3)))
    assert "has the rows of one step: compare it with another snapshot" in driver.wait_for(Failed).message


def test_a_snapshot_is_compared_with_its_tokens_in_other_modes_and_dtypes(with_weights: Driver, tmp_path: Path) -> None:
    """By the model that was there before, or by one that is loaded for it."""
    driver = with_weights
    path = tmp_path / "a.safetensors"
    exported(driver, path)
    mine = ModelSpec(driver.session.model.info.source, device="cpu", num_threads=1)
    opened(driver, path)
    asked = (
        OtherRun(GROWING),
        OtherRun(small("paged"), replace(mine, dtype="float32")),
        OtherRun(small("int8")),
        OtherRun(GROWING, replace(mine, dtype="bfloat16")),
    )
    for number, against in enumerate(asked, 1):
        driver.send(StartComparison(0, against))
        started = driver.wait_for(ComparisonStarted, number)
        assert (started.a.name, started.a.moves, started.b.name[:16]) == ("a.safetensors", False, "the same tokens ")
        (step,) = started.steps
        assert step.num_tokens == 22
        assert step.is_beyond_rounding is (number == 3)
        first = driver.wait_for(ComparisonScanned, number).first
        assert (first is not None) == (number == 3)
        assert (step.max_abs_logit_diff == 0) == (number < 3)
        assert started.b.dtype == ("bfloat16" if number == 4 else "float32")
    request = HeadRequest(0, 22, "keys", 0, 0, 0, 22, 100)
    driver.send(*(TakePicture(request, side=side) for side in ("a", "b", "difference")))  # type: ignore[arg-type]
    driver.wait_for(HeadPicture, 3)
    a, b, difference = driver.of(HeadPicture)
    np.testing.assert_allclose(a.low - b.low, difference.low, atol=1e-6)
    assert (difference.low != 0).any()


def test_a_snapshot_whose_model_is_not_at_hand_is_compared_with_none_of_its_name(
    driver: Driver, tmp_path: Path
) -> None:
    path = tmp_path / "a.safetensors"
    exported(driver, path)
    namesake = tmp_path / "other" / tmp_path.name
    namesake.mkdir(parents=True)
    other = ModelSpec(shape_of(namesake, rms_norm_eps=1e-4), device="cpu", num_threads=1)
    alone = ThreadClient()
    alone.send(OpenSnapshot(path))
    ask = Driver.__new__(Driver)
    ask.loop, ask.events = alone, []
    opened(ask, path)
    ask.send(StartComparison(0, OtherRun(GROWING)))
    assert "is not at hand: name its folder" in ask.wait_for(Failed).message
    ask.send(StartComparison(0, OtherRun(GROWING, other)))
    assert "was made with other weights or another config" in ask.wait_for(Failed, 2).message
    pairs = [(torch.randn(1, 2, 5, 16), torch.randn(1, 2, 5, 16)) for _ in range(2)]
    bare = save_cache(pairs, tmp_path / "b.safetensors")
    opened(ask, bare)
    ask.send(StartComparison(0, OtherRun(GROWING, other)))
    assert "does not say which tokens it was given" in ask.wait_for(Failed, 3).message
    assert alone.close(PATIENCE_S)


def test_a_snapshot_of_other_tokens_is_not_compared(driver: Driver, tmp_path: Path) -> None:
    exported(driver, tmp_path / "a.safetensors")
    pairs = [(torch.randn(1, 2, 5, 16), torch.randn(1, 2, 5, 16)) for _ in range(2)]
    path = save_cache(pairs, tmp_path / "b.safetensors", tokens=[101, 102, 103, 104, 105])
    driver.send(StartComparison(0, OtherFile(path)))
    assert "begin with other tokens" in driver.wait_for(Failed).message
