"""The check of a device: in order on a CPU, told without a card, and one that finds a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from engine.__main__ import main
from engine.analysis import device_check, device_models, device_modes, device_steps
from engine.analysis.device_models import model_on
from engine.analysis.device_steps import WAITED
from engine.analysis.reference import Reference, parity, reference
from engine.cache.layers.growing import GrowingLayer
from engine.device_time import HostMark
from engine.look.strip import Measured
from engine.model.batch import Result
from engine.model.loader import LoadedModel
from engine.model.runners.launch import Launches, bucket_of
from engine.model.runners.pages import PageReader
from engine.session import sampler
from engine.session.stepper import LaunchedAhead
from engine.spec.model import RunnerName
from engine.spec.presets import OPT_IN_PRESETS, PRESETS
from tests.engine.card import CARD, card, has_card, moved
from tests.engine.card_streams import Card
from tests.engine.tiny import prompt_ids, tiniest_model

ENDLESS = 1e6  # seconds: nothing here depends on how fast a computer is


def test_the_short_form_finds_everything_in_order_on_a_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_check, "SHORT", replace(device_check.SHORT, limit_s=ENDLESS))
    monkeypatch.setattr(device_steps, "RUN_STEPS", 12)
    assert main(["gpu-check", "--device", "cpu", "--short"]) == 0
    told = capsys.readouterr().out
    assert f"torch: {torch.__version__}" in told
    assert "modes · float32        5 ok" in told
    assert "graph · float32        3 ok" in told
    assert "pages · float32        4 ok" in told
    assert "measured · float32     8 ok" in told
    assert "everything that was tried is in order" in told


def test_a_fault_is_told_with_its_name_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = device_check.Plan(("float32",), 0, ("growing", "paged"), (), limit_s=ENDLESS, kinds=False)
    monkeypatch.setattr(device_check, "SHORT", plan)
    monkeypatch.setattr(device_steps, "RUN_STEPS", 12)
    real = parity

    def wrong_in_pages(model: object, name: str, *rest: object, **more: object) -> object:
        if name == "paged":
            raise RuntimeError("an illegal address\nwas read")
        return real(model, name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(device_modes, "parity", wrong_in_pages)
    assert main(["gpu-check", "--device", "cpu", "--short"]) == 1
    told = capsys.readouterr().out
    assert "modes · float32        1 ok, 1 FAILED" in told
    assert "FAILED: paged: RuntimeError: an illegal address" in told
    assert "1 of 10 checks failed" in told


def changed(real: Callable[..., Any], make: Callable[[Any], Any]) -> Callable[..., Any]:
    """The same, with another result."""
    return lambda *args, **named: make(real(*args, **named))


def of_other_tokens(forwards: Any, work: Any, chosen: torch.Tensor, *rest: Any) -> Any:
    return LAUNCH(forwards, work, chosen - 1, *rest)


def of_other_values(self: GrowingLayer, keys: torch.Tensor, values: torch.Tensor) -> Any:
    """Rows behind the first ones, which the forward without a cache writes too."""
    held_keys, held_values = APPEND(self, keys, values)
    return held_keys, held_values if self.length == keys.shape[2] else 1.5 * held_values


def of_other_logits(found: Result | None) -> Result | None:
    return found and found._replace(logits=1.1 * found.logits)


def of_other_bytes(measured: Measured) -> Measured:
    return replace(measured, packed=torch.zeros_like(measured.packed))


LAUNCH, APPEND = LaunchedAhead.of, GrowingLayer.append
FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "modes": (GrowingLayer, "append", of_other_values),
    "graph": (
        Launches,
        "run",
        changed(Launches.run, of_other_logits),
    ),
    "pages": (PageReader, "read", changed(PageReader.read, lambda read: 1.1 * read)),
    "graph · bfloat16": (GrowingLayer, "append", of_other_values),
    "measured": (LaunchedAhead, "of", of_other_tokens),
    "measured · float32: drawn": (sampler, "numbers", changed(sampler.numbers, lambda numbers: numbers ^ 1)),
    "measured · float32: within": (Measured, "clone", changed(Measured.clone, of_other_bytes)),
    "measured · float32: times": (HostMark, "ms_since", changed(HostMark.ms_since, lambda ms: 1.1 * ms)),
}


@pytest.mark.parametrize("group", FAULTS)
def test_every_group_of_checks_can_fail(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried are those of the group, and two beside it that take no time, of which at least one finds nothing."""
    monkeypatch.setattr(device_steps, "RUN_STEPS", 12)
    monkeypatch.setattr(*FAULTS[group])
    dtype = "bfloat16" if "bfloat16" in group else "float32"
    sizes = (16,) if group == "pages" else ()
    plan = device_check.Plan((dtype,), 64, ("growing",), sizes, limit_s=ENDLESS, kinds=False)
    tries = (group, "modes", f"measured · {dtype}: drawn")
    planned = device_check.planned(torch.device("cpu"), plan)
    results = [device_check.run_check(*each) for each in planned if f"{each[0]}: {each[1]}".startswith(tries)]
    failed = [f"{each.group}: {each.name}" for each in results if each.verdict == "FAILED"]
    assert any(name.startswith(group) for name in failed), failed
    assert len(failed) < len(results), "and nothing else is blamed"


def outcome(check: Callable[..., str], *about: Any) -> tuple[str, str]:
    result = device_check.run_check("group", "name", partial(check, *about))
    return result.verdict, result.words


# ---- modes that lose something, and what else is planned ------------------------------------------------------------


@cache
def small_model(spread: float = 0.05) -> LoadedModel:
    """With weights of that deviation."""
    return device_models.model_on("cpu", "float32", {**device_models.CONFIG, "initializer_range": spread})


@cache
def truth() -> Reference:
    ids, prompt = device_models.token_ids(device_modes.PROMPT + device_modes.STEPS), device_modes.PROMPT
    return reference(small_model(), ids[:prompt], 0, forced=ids[prompt:])


@pytest.mark.parametrize(("name", "words"), [("h2o", "rows evicted"), ("kivi-4", "coded away")])
def test_a_mode_that_loses_something_is_tried_where_it_does(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = device_modes.check_mode, small_model(), small_model(), name, truth()
    verdict, said = outcome(*check)
    assert (verdict, words in said) == ("ok", True)
    monkeypatch.setattr(device_modes, "SHARE", None)  # 50 tokens in the room of its preset
    assert outcome(*check) == ("FAILED", f"no row was {'evicted' if name == 'h2o' else 'coded'}")


@pytest.mark.parametrize(
    ("name", "words"), [("tova", "other rows are left than on the CPU"), ("int8", "layer 0: keys are")]
)
def test_a_mode_that_does_something_else_than_on_the_cpu_is_a_fault(name: str, words: str) -> None:
    verdict, said = outcome(device_modes.check_mode, small_model(), small_model(0.06), name, truth())
    assert verdict == "FAILED"
    assert words in said


def test_the_plan_has_every_mode_and_every_bucket_up_to_the_longest() -> None:
    assert {*OPT_IN_PRESETS, *PRESETS} < set(device_check.Plan().caches)
    edges = device_check.bucket_edges(device_check.Plan().longest)
    assert (edges[0], edges[-1]) == (64, 8192)
    assert [bucket_of(edge, None) for edge in edges] == list(edges)
    assert [bucket_of(edge + 1, None) for edge in edges[:-1]] == list(edges[1:])
    plan = device_check.Plan(("float32", "float16"), 2048, (), (), kinds=False)
    names = [(group, name) for group, name, _ in device_check.planned(torch.device("cpu"), plan)]
    of_dtype = {dtype: [name for group, name in names if group == f"graph · {dtype}"] for dtype in plan.dtypes}
    assert [len(each) for each in of_dtype.values()] == [3 * 11, 3 * 9], "the longest in one dtype"
    assert names[-1] == ("graph · float32", "paged around 2048")


def test_what_there_was_no_time_for_is_said_and_ends_with_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = device_check.Plan(("float32",), 0, ("growing",), (), limit_s=0.0, kinds=False)
    monkeypatch.setattr(device_check, "SHORT", plan)
    assert main(["gpu-check", "--device", "cpu", "--short"]) == 3
    told = capsys.readouterr().out
    assert "INCOMPLETE: 9 of 9 checks were not done for want of time" in told


def test_other_kinds_of_models_are_tried() -> None:
    cpu = torch.device("cpu")
    assert outcome(device_models.check_encoder, cpu, "float32") == ("ok", "growing, static, dynamic")
    assert outcome(device_models.check_split, small_model()) == ("not here", "there are no two GPUs")
    verdict, words = outcome(device_models.check_weights, cpu, "bfloat16", "int8")
    assert verdict == ("ok" if find_spec("torchao") else "not here"), words


def test_an_encoder_decoder_that_reads_other_rows_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrowingLayer, "append", of_other_values)
    assert outcome(device_models.check_encoder, torch.device("cpu"), "float32")[0] == "FAILED"


@pytest.mark.skipif(not has_card(), reason="this torch keeps its devices elsewhere")
def test_a_token_that_waits_for_the_next_forward_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_steps, "BUSY_SIZE", 4)
    with card(monkeypatch, Card()):
        assert outcome(device_steps.check_token, CARD) == ("ok", "read while the next forward is computed")
        monkeypatch.setattr(device_steps, "HostNumber", lambda token: token)
        assert outcome(device_steps.check_token, CARD) == (
            "FAILED",
            "1 of 1 was read, and the next forward was waited for",
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
@pytest.mark.parametrize(("device", "words"), [("cuda", "There is no GPU here"), ("fridge", "'fridge' is no device")])
def test_without_a_card_it_says_so(device: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu-check", "--device", device]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said


def test_a_model_is_in_the_numbers_that_are_checked() -> None:
    assert model_on(torch.device("cpu"), "bfloat16").info.dtype == "bfloat16"


@pytest.mark.skipif(not has_card(), reason="this torch keeps its devices elsewhere")
@pytest.mark.parametrize(("cache", "runner"), WAITED[2:])
def test_a_step_that_waits_is_a_fault(cache: str, runner: RunnerName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_steps, "token_ids", prompt_ids)  # of a smaller vocabulary
    for name, value in (("LENGTHS", (6, 9)), ("WARM_UPS", 2), ("STEPS", 2)):
        monkeypatch.setattr(device_steps, name, value)
    with card(monkeypatch, Card()):
        check = device_steps.check_waits, moved(tiniest_model(), "auto"), cache, runner
        assert outcome(*check) == ("ok", "2 steps without one")
        monkeypatch.setattr(sampler, "drawn", lambda probs, *_: probs.argmax() + int(probs[0] * 0))
        assert outcome(*check) == ("FAILED", "RuntimeError: called a synchronizing operation: a number")
