"""How many small bugs would the tests notice? Some are planted, each alone, at lines drawn by chance, and the tests
that execute such a line are run until one fails.

    python -m tests.benchmarks.planted_bugs --map FILE                       # which test executes what: once, all tests
    python -m tests.benchmarks.planted_bugs --use FILE --count 100 --seed 7 [--under app/panels,engine/cache] [--jobs 2]
        [--tier default]                                                     # with the tests of that tier only
    python -m tests.benchmarks.planted_bugs --use FILE --again REPORT [--tests tests/app/panels/test_x.py]

What is printed as unnoticed passed every test that was run: those of the module's own test file, then the quickest of
the others that execute the line, up to `--seconds` of their usual time. Some change nothing that a person could notice
(a longer way to the same result): read each. Needs coverage and pytest-cov.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.planting import Bug, sample, with_bug
from tests.effort import TIERS, is_left_out, kept_cases

ROOT = Path(__file__).resolve().parents[2]
NOTICED, UNNOTICED, NOT_RUN = "noticed", "unnoticed", "not run"
# Imported once: the process that tries a bug is a fork of this one.
PRELOADED = (
    "torch", "numpy", "msgspec", "safetensors.torch", "regex", "jinja2", "psutil", "hypothesis", "pytest",
    "pytestqt.plugin", "transformers", "transformers.models.llama.modeling_llama",
    "PySide6.QtWidgets", "PySide6.QtTest", "pyqtgraph",
)  # fmt: skip
# Every Python process that a test starts gets the bug, so that the engine's own process has it too.
HOOK = """
import os, sys
if "PLANTED_SOURCE" in os.environ:
    from importlib.machinery import SourceFileLoader
    place, source = os.environ["PLANTED_PLACE"], os.environ["PLANTED_SOURCE"]
    kept = SourceFileLoader.get_code
    def get_code(self, name):
        if self.path != place:
            return kept(self, name)
        with open(source, "rb") as file:
            return compile(file.read(), place, "exec")
    SourceFileLoader.get_code = get_code
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--map", type=Path, help="run all tests and write which of them executes what")
    parser.add_argument("--use", type=Path, help="what --map wrote")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--under", default="app,engine", help="folders or files, divided by commas")
    parser.add_argument("--again", type=Path, help="a report: only what it found unnoticed")
    parser.add_argument("--tests", default="", help="run these files first, wholly")
    parser.add_argument("--seconds", type=float, default=30.0, help="of tests for one bug")
    parser.add_argument("--tier", choices=TIERS, default="full")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    if args.map:
        if find_spec("pytest_cov") is None:
            sys.exit("pytest-cov is not installed, and a map is made with it: pip install pytest-cov")
        write_map(args.map.resolve())
        return
    if args.use is None:
        sys.exit("--use FILE is missing: the map that --map FILE wrote")
    if args.again:
        planted = [Bug(**row["bug"]) for row in json.loads(args.again.read_text("utf-8")) if row["result"] != NOTICED]
    else:
        planted = sample(ROOT, args.under.split(","), args.count, args.seed)
    with Tests(args.use, args.tier) as tests:
        rows = run(planted, lambda bug: tests.of(bug, args.tests.split(","), args.seconds), args.jobs, args.tier)
    if args.report:
        args.report.write_text(json.dumps(rows, indent=1), "utf-8")
    unnoticed = sum(row["result"] != NOTICED for row in rows)
    print(f"{len(rows)} planted, {unnoticed} unnoticed ({unnoticed / max(len(rows), 1):.0%})")


def write_map(path: Path) -> None:
    """Runs all tests once with coverage, and writes lines and tests to `path`, how long each takes beside it."""
    with tempfile.NamedTemporaryFile("w", suffix=".rc") as options:
        options.write(f"[run]\nsource =\n    app\n    engine\ndata_file = {path}\n")
        options.flush()
        command = (
            sys.executable, "-m", "pytest", "--tier", "full", "--cov", f"--cov-config={options.name}",
            "--cov-context=test", "--cov-report=", "--durations=0", "--durations-min=0.005", "-vv",
            "--ignore=tests/e2e",
            "-k", "not full_disk",  # coverage's own file fills the disk, too
        )  # fmt: skip
        told = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout
    _times_file(path).write_text(json.dumps(times_of(told)), "utf-8")


def times_of(told: str) -> dict[str, float]:
    """Seconds of each test, from pytest's list of the slowest."""
    times: dict[str, float] = {}
    for seconds, test in re.findall(r"^([\d.]+)s (?:call|setup)\s+(tests/.*)$", told, re.MULTILINE):
        times[test.strip()] = times.get(test.strip(), 0.0) + float(seconds)
    return times


class Tests:
    """Which tests execute a line, and in which order they are worth running."""

    def __init__(self, path: Path, tier: str = "full") -> None:
        self._kept = kept_cases() if tier == "default" else {}
        self._lines = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        self._times: dict[str, float] = json.loads(_times_file(path).read_text("utf-8"))
        self._files = {
            # recorded where the map was made, which may be another folder
            re.sub(r"^.*?/(?=(?:app|engine)/)", "", str(place).removeprefix(str(ROOT))).lstrip("/"): number
            for number, place in self._lines.execute("select id, path from file")
        }

    def __enter__(self) -> Tests:
        return self

    def __exit__(self, *_error: object) -> None:
        self._lines.close()

    def of(self, bug: Bug, first: list[str], seconds: float) -> list[str]:
        """Files to run wholly, then tests by their names."""
        own = [str(place) for place in _own_tests(bug.path)]
        chosen = list(dict.fromkeys(name for name in [*first, *own] if name))
        in_tier = (test for test in self._executing(bug) if not is_left_out(test, self._kept))
        rest = sorted(in_tier, key=lambda test: ("approved" not in test, self._times.get(test, 0.0)))
        spent = 0.0
        for test in rest:
            if test.split("::")[0] in chosen:
                continue
            took = self._times.get(test, 0.003)
            if spent + took <= seconds:
                spent += took
                chosen.append(test)
        return chosen

    def _executing(self, bug: Bug) -> set[str]:
        """Tests that execute the line. A line that runs when the module is imported declares something: then the tests
        that execute any line of the module."""
        number = self._files.get(bug.path)
        if number is None:
            return set()
        by_line: set[str] = set()
        anywhere: set[str] = set()
        for test, bits in self._lines.execute(
            "select context.context, numbits from line_bits join context on context.id = context_id where file_id = ?",
            (number,),
        ):
            if test:
                name = test.split("|")[0]
                anywhere.add(name)
                if bug.line // 8 < len(bits) and bits[bug.line // 8] & (1 << bug.line % 8):
                    by_line.add(name)
        return by_line or anywhere


@dataclass(frozen=True)
class Trial:
    """Tests run on a source: with the bug, or without it as far as the test that failed with it."""

    bug: Bug
    tests: tuple[str, ...]
    tier: str
    failed: str = ""


def run(planted: list[Bug], tests_of: Callable[[Bug], list[str]], jobs: int, tier: str) -> list[dict[str, Any]]:
    """Plants each bug in a process of its own and tells what became of it, as it ends. A bug is noticed where the same
    tests pass without it: one that fails then as well, leaning on others, is left out, and the bug is tried again.
    """
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            __import__(name)
    waiting = [Trial(bug, tuple(tests_of(bug)), tier) for bug in planted]
    running: dict[int, tuple[Trial, float, Path]] = {}
    unreliable: set[str] = set()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(HOOK, "utf-8")
        while True:
            while waiting and len(running) < jobs:
                trial, place = waiting.pop(0), Path(tempfile.mkdtemp(dir=folder))
                running[_start(trial, unreliable, Path(folder), place)] = (trial, time.monotonic(), place)
            if not running:
                break
            pid, status = os.wait()
            trial, began, place = running.pop(pid)
            code, took_s = os.waitstatus_to_exitcode(status), time.monotonic() - began
            failed = (place / "failed").read_text("utf-8") if (place / "failed").exists() else ""
            if trial.failed and code:
                unreliable.add(failed or trial.failed)
                waiting.insert(0, replace(trial, failed=""))
            elif not trial.failed and failed:
                waiting.insert(0, replace(trial, failed=failed))
            else:
                result = NOTICED if trial.failed else {0: UNNOTICED, 5: NOT_RUN}.get(code, NOTICED)
                told = trial.bug.told((ROOT / trial.bug.path).read_text("utf-8"))
                rows.append({"result": result, "by": trial.failed, "told": told, "bug": asdict(trial.bug)})
                print(f"{result:9} {took_s:5.1f} s of {len(trial.tests):4} tests  {told}  {trial.failed}", flush=True)
    for name in sorted(unreliable):
        print(f"left out, it fails without a bug beside the tests that were chosen: {name}")
    return rows


def _start(trial: Trial, unreliable: set[str], folder: Path, place: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    os.environ.update(
        OMP_NUM_THREADS="1", PYTHONHASHSEED="0", PYTHONPATH=os.pathsep.join((str(folder), str(ROOT)))
    )  # fmt: skip
    if not trial.failed:
        text = (ROOT / trial.bug.path).read_text("utf-8")
        (place / "source.py").write_text(with_bug(text, trial.bug), "utf-8")
        os.environ.update(PLANTED_PLACE=str(ROOT / trial.bug.path), PLANTED_SOURCE=str(place / "source.py"))
        exec(HOOK, {})
    code = 3
    try:
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(300)
        out = os.open(os.environ.get("PLANTED_LOG", os.devnull), os.O_WRONLY | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(ROOT)
        code = _pytest(trial, unreliable, place / "failed")
    finally:
        os._exit(code)


def _pytest(trial: Trial, unreliable: set[str], failed: Path) -> int:
    import pytest

    order = {name: place for place, name in enumerate(trial.tests)}

    def place_of(item: Any) -> int | None:
        return order.get(item.nodeid, order.get(item.nodeid.split("::")[0]))

    class Chosen:
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            wanted = [item for item in items if place_of(item) is not None and item.nodeid not in unreliable]
            wanted.sort(key=place_of)
            names = [item.nodeid for item in wanted]
            items[:] = wanted[: names.index(trial.failed) + 1] if trial.failed in names else wanted

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                failed.write_text(report.nodeid, "utf-8")

    files = list(dict.fromkeys(name.split("::")[0] for name in trial.tests))
    files = [name for name in files if (ROOT / name).exists()]
    if not files:
        return 5
    return int(
        pytest.main(
            ["-x", "-n", "0", "--tier", trial.tier, "-p", "no:warnings", "--tb=line", *files], plugins=[Chosen()]
        )
    )


def _too_long(_signal: int, _frame: object) -> None:
    """A test that never ends is noticed too."""
    os.killpg(0, signal.SIGKILL)


def _own_tests(path: str) -> list[Path]:
    """The test files that bear the module's name, where the module stands."""
    place = Path("tests") / Path(path).parent
    stem = Path(path).stem
    own = (ROOT / place / f"test_{stem}.py", *(ROOT / place).glob(f"test_{stem}_*.py"))
    return [found.relative_to(ROOT) for found in own if found.exists()]


def _times_file(path: Path) -> Path:
    return path.with_name(path.name + ".times.json")


if __name__ == "__main__":
    main()
