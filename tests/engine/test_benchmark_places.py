"""The scripts that measure speed on a GPU as well run on any device by the same code."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import protocol

SMALL = {"num_hidden_layers": 2, "hidden_size": 72, "intermediate_size": 64}
ARGUMENTS = {
    "decode_speed": "--short --contexts 16 --caches paged",
    "batch_speed": "--short --contexts 32",
    "run_speed": "--short --tokens 8",
    "prefill_speed": "--short --contexts 24",
}


def places(*arguments: str) -> list[protocol.Place]:
    parser = argparse.ArgumentParser()
    protocol.add_places(parser, 2)
    return protocol.places_of(parser.parse_args(arguments))


def test_a_gpu_is_measured_behind_the_cpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = protocol.Place("cpu", "float32", 2)
    for has_cuda, has_mps, gpu in ((False, False, ""), (True, False, "cuda"), (False, True, "mps")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has=has_cuda: has)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda has=has_mps: has)
        assert places() == ([cpu, protocol.Place(gpu, "bfloat16", 2)] if gpu else [cpu])
        assert places("--device", "cpu") == [cpu]
    assert cpu.named("context 16") == "context 16"
    assert places("--device", "cuda", "--dtype", "float16")[0].named("context 16") == "context 16 · cuda float16"


def test_every_script_that_takes_a_device_is_tried_here_or_takes_too_long() -> None:
    taking = {
        script.name
        for script in benchmarks.SCRIPTS
        if "add_places" in (benchmarks.HERE / f"{script.name}.py").read_text("utf-8")
    }
    assert taking == {*ARGUMENTS, "observe_cost"}


def test_the_scripts_measure_on_the_device_that_they_are_given(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    running = []
    for name, arguments in ARGUMENTS.items():
        argv = [str(benchmarks.HERE / f"{name}.py"), *arguments.split(), "--threads", "1"]
        argv += ["--device", "cpu", "--dtype", "bfloat16"]
        running.append(argv)
    program = "\n".join(
        [
            "import runpy, sys",
            "from tests.benchmarks import protocol",
            f"protocol.SMOLLM2_135M.update({SMALL})",
            *(f"sys.argv = {argv}; runpy.run_path(sys.argv[0], run_name='__main__')" for argv in running),
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=benchmarks.ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, benchmarks.ROWS_VARIABLE: str(rows), "OMP_NUM_THREADS": "1"}, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    names = [json.loads(line)["name"] for line in rows.read_text("utf-8").splitlines()]
    assert names == [
        f"{name} · cpu bfloat16"
        for name in (
            "context 16 · paged", "context 32", "over dynamic", "over static, not compiled",
            "24 tokens: longest until a cancel is seen", "24 tokens",
        )
    ]  # fmt: skip
