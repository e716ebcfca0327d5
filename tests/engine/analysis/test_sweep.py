"""The sweep says of every mode what it costs, saves and changes; the command line sizes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.__main__ import main
from engine.analysis.reference import reference
from engine.analysis.sweep import sweep
from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS
from engine.wire.measurements import SweepRow, Unavailable
from tests.engine.tiny import model_of, prompt_ids, write_config

IDS = ",".join(map(str, prompt_ids(60)))


def answers(
    capsys: pytest.CaptureFixture[str], folder: Path, *args: str, architecture: str = "llama"
) -> list[dict[str, Any]]:
    config = write_config(architecture, folder)
    assert main([*args, "--model", f"shape:{config}", "--token-ids", IDS, "--json", "--threads", "1"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(list(args)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_a_sweep_tells_every_preset_or_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = answers(
        capsys,
        tmp_path,
        "sweep",
        "--steps",
        "6",
        "--budget",
        "20",
        "--window",
        "10",
        "--group",
        "16",
        "--residual",
        "16",
    )
    assert [line["cache"] for line in lines] == list(PRESETS)
    for line in lines:
        assert {"kv_bytes", "tok_per_s", "mean_kl", "top1_agreement", "perplexity"} <= line.keys()
        if PRESETS[line["cache"]].lossless:
            assert line["mean_kl"] < 1e-6
            assert line["top1_agreement"] == 1
    by_name = {line["cache"]: line for line in lines}
    assert by_name["kivi-2"]["kv_bytes"] < by_name["kivi-4"]["kv_bytes"] < by_name["growing"]["kv_bytes"]
    assert by_name["int8"]["mean_kl"] < by_name["kivi-2"]["mean_kl"]
    assert by_name["sliding"]["kv_bytes"] * 6 < by_name["growing"]["kv_bytes"]
    assert by_name["sliding"]["perplexity"] > 0


def test_a_sweep_can_be_stopped_at_any_row() -> None:
    model = model_of("llama")
    truth = reference(model, prompt_ids(20), 4)
    rows = sweep(model, {"growing": CacheSpec(), "kivi-4": PRESETS["kivi-4"].spec, "int8": PRESETS["int8"].spec}, truth)
    assert isinstance(next(rows), SweepRow)
    unavailable = next(rows)
    assert isinstance(unavailable, Unavailable)
    assert "do not divide" in unavailable.unavailable
    rows.close()  # type: ignore[attr-defined]


def test_a_sweep_ends_between_two_steps() -> None:
    model, calls = model_of("llama"), 0

    class Enough(Exception):
        pass

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise Enough

    truth = reference(model, prompt_ids(20), 4)
    with pytest.raises(Enough):
        list(sweep(model, {"none": CacheSpec("none"), "growing": CacheSpec()}, truth, check))
    calls = 0
    with pytest.raises(Enough):
        reference(model, prompt_ids(20), 9, check)


def test_what_exceeds_the_context_is_refused() -> None:
    with pytest.raises(InputError, match="exceed"):
        reference(model_of("llama"), prompt_ids(120), 20)
