"""The sub-command budget as a user types it."""

from __future__ import annotations

import pytest

from engine.spec.cache import PRESETS
from tests.engine.cli.test_params import found, llama, refused
from tests.engine.predict.formulas import sum_of

__all__ = ["llama"]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_a_budget(preset: str, llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = found(capsys, "budget", "--config", llama, "--context", "100", "--cache", preset)
    assert answer["cache"] == preset
    written = [term["formula"].split(" = ")[1] for term in answer["formula"]]
    assert sum_of(written) == answer["stored_bytes_per_sequence"] == sum(term["bytes"] for term in answer["formula"])


def test_budget_by_mode(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = found(capsys, "budget", "--config", llama, "--context", "100", "--batch", "2")
    assert (answer["cache"], answer["bytes_per_token"]) == ("dynamic", 131_072)
    assert answer["bytes_per_sequence"] == 100 * 131_072
    assert answer["total_bytes"] == 200 * 131_072
    assert answer["kinds"] == [
        {"kind": "full", "num_layers": 32, "bytes_per_token": 131_072, "stored_bytes": 13_107_200,
         "reserved_bytes": 13_107_200, "state_bytes": 0}
    ]  # fmt: skip
    paged = found(capsys, "budget", "--config", llama, "--context", "100", "--cache", "paged", "--page-size", "64")
    assert paged["bytes_per_sequence"] == 128 * 131_072
    host = found(capsys, "budget", "--config", llama, "--context", "100", "--cache", "offloaded")
    assert host["host_bytes"] == 96 * 131_072
    coded = found(capsys, "budget", "--config", llama, "--context", "100", "--codec", "fp8", "--dtype", "float16")
    assert (coded["cache"], coded["codec"]) == ("fp8", "fp8")
    assert coded["stored_bytes_per_sequence"] == 50 * 131_072 + 32 * 8, "and a scale for K and for V of each layer"
    mixed = found(capsys, "budget", "--config", llama, "--context", "100", "--codec", "int8/kivi-4")
    assert (mixed["cache"], mixed["codec"]) == ("int8/kivi-4", "int8/kivi-4")
    assert mixed["bytes_per_token"] == 32 * 8 * (128 + 2 + 64 + 16)
    kivi = found(capsys, "budget", "--config", llama, "--context", "1024", "--cache", "kivi-4")
    assert (kivi["cache"], kivi["codec"], kivi["bytes_per_token"]) == ("kivi-4", "kivi-4", 131_072 * 5 / 16)


def test_budget_takes_the_models_own_length(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert found(capsys, "budget", "--config", llama)["context"] == 131072


def test_budget_says_what_fits(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = found(capsys, "budget", "--config", llama, "--available-bytes", str(2**30))
    assert answer["tokens_that_fit"] == 8192


def test_budget_table(capsys: pytest.CaptureFixture[str]) -> None:
    table = found(capsys, "budget", "--table")["table"]
    assert len(table) == 9
    assert table[0] == {"model": "GPT-2 Small", "context": 512, "bytes": 18_874_368, "megabytes": 18.9}
    assert table[-1]["megabytes"] == 4295.0


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--context", "0"], "--context"),
        (["--context", "-1"], "'-1'"),
        (["--context", "9999999999999"], "--context"),
        (["--batch", "0"], "--batch"),
        (["--cache", "warp"], "warp"),
        (["--cache", "sliding", "--window", "0"], "window"),
        (["--cache", "static", "--max-length", "5", "--context", "6"], "max_length"),
        (["--codec", "zip"], "zip"),
        (["--dtype", "bf16"], "bf16"),
    ],
)
def test_budget_refuses_in_one_line(
    llama: str, extra: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, "budget", "--config", llama, *extra)


@pytest.mark.parametrize(
    "option", ["--context=1", "--context=512", "--model=bundled", "--dtype=float32", "--page-size=4"]
)
def test_the_tutorials_table_takes_no_options(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = option.split("=")[0]
    assert f"takes no {name}: leave out --table or {name}." in refused(capsys, "budget", "--table", option)
