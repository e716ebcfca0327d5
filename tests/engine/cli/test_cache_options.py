"""A cache on the command line: every name that is printed can be typed, and every parameter has its option."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from engine.__main__ import main
from engine.cli.arguments import add_cache_arguments, all_parameters, spec_of
from engine.spec.cache import PRESETS, cache_name, cache_named, value_of
from tests.engine.tiny import prompt_ids, write_config

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


@pytest.mark.parametrize("name", PRESETS)
def test_run_accepts_every_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sized = {"kivi-4": ("--group", "16"), "kivi-2": ("--group", "16", "--residual", "32"), "h2o": ("--budget", "12")}
    lines = answers(capsys, tmp_path, "run", "--cache", name, "--steps", "3", *sized.get(name, ()))
    assert lines[-1]["cache"] == name


@pytest.mark.parametrize(
    "name",
    [
        "int8/kivi-4",
        "fp8-max",
        "h2o+int8",
        "paged+fp8-max",
        "paged+h2o",
        "paged+tova+int8",
        "tova+int8/fp8-head",
        "exact@0=int8",
        "h2o+fp8-head@1=int8/exact",
        "kivi-4:16@0=exact",
    ],
)
def test_run_accepts_the_names_that_it_prints(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [] if "+" not in name else ["--budget", "24"] if "paged" not in name else []
    sizes += ["--group", "16"] if "kivi" in name or "max" in name else []
    lines = answers(capsys, tmp_path, "run", "--cache", name, "--steps", "3", *sizes)
    assert lines[-1]["cache"] == name
    assert cache_name(cache_named(name)) == name


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


MIXED = ("int8/kivi-2", "paged+int8/fp8-token-head", "h2o+exact/int8")


@pytest.mark.parametrize("command", ["verify", "sweep", "bench"])
def test_every_command_takes_the_names_that_run_prints(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """K and V of their own, pages and rules: each under its true name, with those options that it has."""
    sizes = ("--budget", "20", "--group", "16", "--residual", "16", "--page-size", "8")
    lines = answers(capsys, tmp_path, command, "--steps", "4", "--caches", f"growing,{','.join(MIXED)}", *sizes)
    assert {line["cache"] for line in lines} == {"growing", *MIXED}
    if command != "bench":
        assert [line["lossless"] for line in lines] == [True, False, False, False]


def test_two_codecs_cost_between_one_and_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """K in one codec and V in another: half of the bytes of each alone."""
    stored = {}
    for name in ("int8", "fp8-token-head", "int8/fp8-token-head"):
        stored[name] = answers(capsys, tmp_path, "run", "--cache", name, "--steps", "3")[-1]["kv_bytes"]
    assert stored["int8/fp8-token-head"] * 2 == stored["int8"] + stored["fp8-token-head"]
    assert stored["int8"] < stored["fp8-token-head"]


def test_a_codec_beside_several_caches_is_named_instead(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "verify", "--token-ids", "1,2", "--caches", "growing,h2o", "--codec", "int8")
    assert "--caches h2o+int8" in said


VALUES = {
    "bits": (4, "kivi-2"), "group": (16, "kivi-2"), "residual": (64, "kivi-2"), "window": (9, "sliding"),
    "sinks": (2, "h2o"), "rerotate": (True, "streamingllm"), "layout": ("paged", "h2o"), "budget": (40, "h2o"),
    "ratio": (0.5, "h2o"), "max_length": (77, "static"), "page_size": (32, "paged"), "num_pages": (50, "paged"),
    "replace_duplicates": (True, "paged"), "host_gib": (0.5, "offloaded"),
    "backend": ("quanto", "transformers-quantized"),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_every_parameter_has_an_option(name: str) -> None:
    """What is typed is what the cache has, in its own parameter and in no other."""
    value, cache = VALUES[name]
    parser = argparse.ArgumentParser()
    add_cache_arguments(parser)
    option = "--pool-pages" if name == "num_pages" else "--" + name.replace("_", "-")
    args = parser.parse_args([option] if value is True else [option, str(value)])
    assert value_of(spec_of(cache, args), name) == value
    assert spec_of(cache, parser.parse_args([])) == PRESETS[cache].spec


def test_no_parameter_is_without_an_option() -> None:
    assert set(VALUES) == set(all_parameters())
