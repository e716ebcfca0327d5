"""The sweep and the bench say of every mode what it costs, saves and changes; the command line sizes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.__main__ import main
from engine.analysis.bench import bench, sweep, yardstick
from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS, cache_name, cache_named
from engine.spec.tuning import tuned
from engine.wire.records import SweepRow, Unavailable
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
    goal = yardstick(model, prompt_ids(20), 4)
    rows = sweep(model, {"growing": CacheSpec(), "kivi-4": PRESETS["kivi-4"].spec, "int8": PRESETS["int8"].spec}, goal)
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

    goal = yardstick(model, prompt_ids(20), 4)
    with pytest.raises(Enough):
        list(sweep(model, {"none": CacheSpec("none"), "growing": CacheSpec()}, goal, check))
    calls = 0
    with pytest.raises(Enough):
        yardstick(model, prompt_ids(20), 9, check)


def test_what_exceeds_the_context_is_refused() -> None:
    with pytest.raises(InputError, match="exceed"):
        yardstick(model_of("llama"), prompt_ids(120), 20)


def test_the_bench_compares_modes_that_take_turns() -> None:
    """The base of the ratios is named: it is not the first that was asked for, where that one is refused."""
    specs = {name: PRESETS[name].spec for name in ("kivi-4", "dynamic", "int8")}
    rows = list(bench(model_of("llama"), specs, prompt_ids(30), 16))
    assert isinstance(rows[0], Unavailable)
    first, second = rows[1:]
    assert not isinstance(first, Unavailable)
    assert not isinstance(second, Unavailable)
    assert (first.cache, first.ratio, first.spread) == ("dynamic", 1.0, 0.0)
    assert first.base == second.base == "dynamic"
    assert second.kv_bytes < first.kv_bytes
    assert second.ms_per_step > 0


def test_bench_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config("llama", tmp_path)
    arguments = [
        "bench",
        "--model",
        f"shape:{config}",
        "--context",
        "20",
        "--steps",
        "4",
        "--caches",
        "growing,h2o",
        "--json",
    ]
    assert main([*arguments, "--budget", "10"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["cache"], line["base"]) for line in lines] == [("growing", "growing"), ("h2o", "growing")]


@pytest.mark.parametrize("name", PRESETS)
def test_run_accepts_every_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sized = {"kivi-4": ("--group", "16"), "kivi-2": ("--group", "16", "--residual", "32"), "h2o": ("--budget", "12")}
    lines = answers(capsys, tmp_path, "run", "--cache", name, "--steps", "3", *sized.get(name, ()))
    assert lines[-1]["cache"] == name


@pytest.mark.parametrize(
    "name",
    ["int8/kivi-4", "fp8-max", "h2o+int8", "paged+fp8-max", "paged+h2o", "paged+tova+int8", "tova+int8/fp8-head"],
)
def test_run_accepts_the_names_that_it_prints(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [] if "+" not in name else ["--budget", "24"] if "paged" not in name else []
    sizes += ["--group", "16"] if "kivi" in name or "max" in name else []
    lines = answers(capsys, tmp_path, "run", "--cache", name, "--steps", "3", *sizes)
    assert lines[-1]["cache"] == name
    assert cache_name(cache_named(name)) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h2o+int9", "Unknown rule or codec 'int9'"),
        ("h3o+int8", "Unknown cache 'h3o'"),
        ("int8/kivi-5", "Unknown codec 'kivi-5'"),
        ("a/b/c", "NAME/NAME"),
        ("+int8", "Unknown cache ''"),
        ("paged+kivi-4", "in pages"),
        ("dynamic+int8", "as it is"),
        ("h2o+tova", "two values for one choice"),
        ("int8 ", "Unknown cache 'int8 '"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        cache_named(name)


def test_run_takes_a_codec_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = answers(capsys, tmp_path, "run", "--cache", "tova", "--steps", "3", "--budget", "24")
    coded = answers(
        capsys, tmp_path, "run", "--cache", "tova", "--steps", "3", "--budget", "24", "--codec", "int8/fp8-head"
    )
    assert coded[-1]["kv_bytes"] < plain[-1]["kv_bytes"] / 3


def test_verify_measures_lossy_modes_and_judges_lossless_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = answers(capsys, tmp_path, "verify", "--steps", "4", "--caches", "growing,int8,tova", "--budget", "20")
    assert [line["lossless"] for line in lines] == [True, False, False]
    assert lines[2]["max_abs_logit_diff"] > 1e-3
    lines = answers(capsys, tmp_path, "verify", "--steps", "4", "--caches", "all", architecture="mistral")
    assert "sliding layers" in next(line for line in lines if line["cache"] == "h2o")["unavailable"]


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--cache", "growing", "--budget", "4"], "keeps all rows"),
        (["--cache", "h2o", "--bits", "4"], "fixed"),
        (["--cache", "h2o", "--budget", "3", "--sinks", "4"], "5 or more"),
        (["--cache", "kivi-4", "--bits", "5"], "2, 4 or 8"),
        (["--cache", "dynamic", "--codec", "int8"], "as it is"),
        (["--cache", "int9"], "int8"),
    ],
)
def test_run_refuses_what_means_nothing(extra: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, "run", "--token-ids", "1,2", *extra)


def test_verify_refuses_an_option_that_no_cache_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert "means nothing" in refused(capsys, "verify", "--token-ids", "1,2", "--caches", "growing", "--budget", "4")


def test_the_table_of_caches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["caches", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in lines] == list(PRESETS)
    assert all({"lossless", "needs", "parameters"} <= line.keys() for line in lines)
    assert tuned(PRESETS["h2o"].spec, ratio=0.5).budget is None
