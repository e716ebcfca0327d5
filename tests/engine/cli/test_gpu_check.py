"""The check of a device: in order on a CPU, told without a card, and one that finds a fault."""

from __future__ import annotations

import pytest
import torch

from engine.__main__ import main
from engine.analysis import device_check


def test_the_short_form_finds_everything_in_order_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu-check", "--device", "cpu", "--short"]) == 0
    told = capsys.readouterr().out
    assert f"torch: {torch.__version__}" in told
    assert "modes · float32        4 ok" in told
    assert "graph · float32        3 ok" in told
    assert "pages · float32        3 ok" in told
    assert "measured · float32     2 ok" in told
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
    assert "1 of 4 checks failed" in told


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
@pytest.mark.parametrize(("device", "words"), [("cuda", "There is no GPU here"), ("fridge", "'fridge' is no device")])
def test_without_a_card_it_says_so(device: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu-check", "--device", device]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said
