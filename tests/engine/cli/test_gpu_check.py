"""The check of a device: in order on a CPU, told without a card, and one that finds a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.__main__ import main
from engine.analysis import device_check, device_waits
from engine.analysis.device_models import model_on
from engine.analysis.device_waits import WAITED, WaitsCheck
from engine.cache.layers.growing import GrowingLayer
from engine.device_time import HostMark
from engine.model.runners.launch import Launches
from engine.model.runners.pages import PageReader
from engine.session import sampler
from engine.session.forward import Runner
from engine.spec.runners import RunnerName
from tests.engine.card import CARD, Card, card, has_card, moved
from tests.engine.tiny import prompt_ids, tiniest_model


def test_the_short_form_finds_everything_in_order_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu-check", "--device", "cpu", "--short"]) == 0
    told = capsys.readouterr().out
    assert f"torch: {torch.__version__}" in told
    assert "modes · float32        4 ok" in told
    assert "graph · float32        3 ok" in told
    assert "pages · float32        4 ok" in told
    assert "measured · float32     4 ok" in told
    assert "everything that could be tried is in order" in told


def test_a_fault_is_told_with_its_name_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = device_check.Plan(("float32",), (), ("growing", "paged"), ())
    monkeypatch.setattr(device_check, "SHORT", plan)
    real = device_check.parity

    def wrong_in_pages(model: object, name: str, *rest: object, **more: object) -> object:
        if name == "paged":
            raise RuntimeError("an illegal address\nwas read")
        return real(model, name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(device_check, "parity", wrong_in_pages)
    assert main(["gpu-check", "--device", "cpu", "--short"]) == 1
    told = capsys.readouterr().out
    assert "modes · float32        1 ok, 1 FAILED" in told
    assert "FAILED: paged: RuntimeError: an illegal address" in told
    assert "1 of 6 checks failed" in told


def changed(real: Callable[..., Any], make: Callable[[Any], Any]) -> Callable[..., Any]:
    """The same, with another result."""
    return lambda *args, **named: make(real(*args, **named))


def of_other_tokens(self: Runner, work: Any, chosen: list[torch.Tensor], *rest: Any) -> Any:
    return LAUNCH(self, work, [token - 1 for token in chosen], *rest)


def of_other_values(self: GrowingLayer, keys: torch.Tensor, values: torch.Tensor) -> Any:
    """Rows behind the first ones, which the forward without a cache writes too."""
    held_keys, held_values = APPEND(self, keys, values)
    return held_keys, held_values if self.length == keys.shape[2] else 1.5 * held_values


LAUNCH, APPEND = Runner.launch, GrowingLayer.append
FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "modes": (GrowingLayer, "append", of_other_values),
    "graph": (Launches, "step", changed(Launches.step, lambda logits: logits if logits is None else 1.1 * logits)),
    "pages": (PageReader, "read", changed(PageReader.read, lambda read: 1.1 * read)),
    "graph · bfloat16": (GrowingLayer, "append", of_other_values),
    "measured": (Runner, "launch", of_other_tokens),
    "measured · float32: times": (HostMark, "ms_since", changed(HostMark.ms_since, lambda ms: 1.1 * ms)),
}


@pytest.mark.parametrize("group", FAULTS)
def test_every_group_of_checks_can_fail(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "RUN_STEPS", 12)
    monkeypatch.setattr(*FAULTS[group])
    dtype = "bfloat16" if "bfloat16" in group else "float32"
    plan = device_check.Plan((dtype,), (64,), ("growing",), (16,) if group == "pages" else ())
    results = list(device_check.check_device(torch.device("cpu"), plan))
    failed = [f"{each.group}: {each.name}" for each in results if each.verdict == "FAILED"]
    assert any(name.startswith(group) for name in failed), failed
    assert len(failed) < len(results), "and nothing else is blamed"


@pytest.mark.skipif(not has_card(), reason="this torch keeps its devices elsewhere")
def test_a_token_that_waits_for_the_next_forward_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "BUSY_SIZE", 4)
    with card(monkeypatch, Card()):
        check = device_check.TokenCheck(CARD)
        assert check() == ("ok", "read while the next forward is computed")
        monkeypatch.setattr(device_check, "Returning", lambda token: token)
        assert check() == ("FAILED", "1 of 1 was read, and the next forward was waited for")


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
    monkeypatch.setattr(device_waits, "token_ids", prompt_ids)  # of a smaller vocabulary
    for name, value in (("LENGTHS", (6, 9)), ("WARM_UPS", 2), ("STEPS", 2)):
        monkeypatch.setattr(device_waits, name, value)
    with card(monkeypatch, Card()):
        check = WaitsCheck(moved(tiniest_model(), "auto"), cache, runner)
        assert check() == ("ok", "2 steps without one")
        monkeypatch.setattr(sampler, "drawn", lambda probs, seed: probs.argmax() + int(probs[0] * 0))
        found = device_check.tried("measured", "waits", check)
        assert (found.verdict, found.words) == ("FAILED", "RuntimeError: called a synchronizing operation: a number")
