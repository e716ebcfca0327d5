"""`gpu-check`: a report on a device from `verify` and `bench`."""

from __future__ import annotations

import json

import pytest
import torch

from engine.analysis import reference as compare
from engine.cli import measure
from engine.session.session import Session
from tests.engine.cli.conftest import Twin

SHORT = ("gpu-check", "--device", "cpu", "--short")


def test_the_report_has_what_is_installed_and_every_mode(twin: Twin) -> None:
    about, verify, *modes = twin.lines(*SHORT)
    assert (about["torch"], about["device"]) == (torch.__version__, "cpu")
    assert (verify["event"], verify["dtype"]) == ("verify", "float32")
    assert [(mode["cache"], mode["passes"]) for mode in modes] == [
        (name, True) for name in measure.SHORT_CACHES.split(",")
    ]


def test_a_mode_that_fails_is_told_the_others_go_on_and_it_ends_with_1(
    twin: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = compare.session_logits

    def failing_pages(session: Session, *rest: tuple[int, ...]) -> torch.Tensor:
        if session.cache.layout == "paged":
            raise RuntimeError("an illegal address\nwas read")
        return real(session, *rest)

    monkeypatch.setattr(compare, "session_logits", failing_pages)
    monkeypatch.setattr(measure, "SHORT_CACHES", "paged,growing,h2o")
    status, out, err = twin.run(*SHORT)
    assert (status, err) == (1, "")
    paged, growing, _ = out.splitlines()[-3:]
    assert paged.split() == ["paged", "failed", "an", "illegal", "address"]
    assert "ok, within" in growing


def test_every_dtype_is_verified_and_then_speed_is_measured(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dtype that the device refuses is told, and the others go on."""
    asked = []

    def refused(args: object) -> int:
        asked.append(vars(args))
        raise measure.InputError("not in these numbers")

    for name in ("verify", "bench"):
        monkeypatch.setattr(f"engine.cli.measure.{name}_command", refused)
    lines = twin.lines("gpu-check", "--device", "cpu", "--compile")
    assert [(each["event"], each.get("dtype")) for each in lines[1::2]] == [
        *[("verify", dtype) for dtype in measure.DTYPES for _ in range(2)],
        ("bench", "auto"),
    ]
    assert {json.dumps(each) for each in lines[2:-1:2]} == {'{"event": "verify", "refused": "not in these numbers"}'}
    assert [each["runner"] for each in asked] == [*["auto", "compile"] * 3, "auto"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
@pytest.mark.parametrize(("device", "words"), [("cuda", "There is no GPU here"), ("fridge", "'fridge' is no device")])
def test_without_a_card_it_says_so(device: str, words: str, twin: Twin) -> None:
    assert words in twin.refused("gpu-check", "--device", device)
