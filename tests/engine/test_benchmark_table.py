"""The table of ratios that the benchmarks make: medians, spreads, targets, and its place in the manual."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import page_pool

ABOUT = {
    "date": "2026-01-02", "commit": "abc1234", "processor": "A Processor", "cores": 2, "memory_gib": 24, "gpu": None,
    "torch": "2.13.0", "transformers": "5.23.0", "load_before": 0.1,
}  # fmt: skip


def test_every_script_of_the_table_is_there_and_takes_its_arguments() -> None:
    for script in benchmarks.SCRIPTS:
        text = (benchmarks.HERE / f"{script.name}.py").read_text("utf-8")
        for argument in (script.full + " " + script.short).split():
            if argument.startswith("--"):
                assert f'"{argument}"' in text, f"{script.name} {argument}"
        assert "note_ratios" in text or ".row(" in text, script.name


def test_scripts_that_are_run_by_their_path_find_the_repository_before_they_import_from_it() -> None:
    for script in benchmarks.HERE.glob("*.py"):
        text = script.read_text("utf-8")
        if f"python tests/benchmarks/{script.name}" in text:
            before, found, _ = text.partition("sys.path.insert(")
            assert found, script.name
            assert not re.search(r"^(from|import) (app|engine|tests)\b", before, re.MULTILINE), script.name


def test_ratios_are_medians_of_pairs_with_their_spread() -> None:
    row = benchmarks.as_row(
        benchmarks.SCRIPTS[0], {"name": "context 16", "unit": "tok/s", "a": [10.0, 20.0, 40.0], "b": [11.0, 30.0, 40.0]}
    )
    assert (row["a_median"], row["b_median"], row["ratio"]) == (20.0, 30.0, pytest.approx(1.1))
    assert (row["low"], row["high"], row["pairs"]) == (1.0, 1.5, 3)
    table = benchmarks.table(
        {"about": ABOUT, "short": True, "rows": [row], "left_out": {"start": "there is no PySide6"}}
    )
    assert "2026-01-02 at abc1234 (a short run, A Processor, 2 cores, 24 GiB, no GPU; torch 2.13.0" in table
    assert (
        "| decode_speed: context 16 | generate | ours | 20.00 tok/s | 30.00 tok/s | 1.10 | 1.00 … 1.50 | 3 |" in table
    )
    assert "start was left out: there is no PySide6." in table


def test_a_row_says_what_its_own_sides_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows"
    monkeypatch.setenv(benchmarks.ROWS_VARIABLE, str(rows))
    monkeypatch.setattr("sys.argv", ["page_pool.py", "--small", "128", "--large", "256", "--samples", "7"])
    page_pool.main()
    script = next(script for script in benchmarks.SCRIPTS if script.name == "page_pool")
    row = benchmarks.as_row(script, json.loads(rows.read_text("utf-8").splitlines()[0]))
    assert (row["a"], row["b"]) == ("128 pages", "256 pages"), "a short run has a smaller pool than a whole one"


def test_the_table_takes_its_place_in_the_manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert benchmarks.BEGIN in benchmarks.PAGE.read_text("utf-8").partition(benchmarks.END)[0]
    page = tmp_path / "speed.md"
    page.write_text(f"before\n{benchmarks.BEGIN}\nold\n{benchmarks.END}\nbehind\n", "utf-8")
    monkeypatch.setattr(benchmarks, "PAGE", page)
    benchmarks.put_into_page("| new |")
    assert page.read_text("utf-8") == f"before\n{benchmarks.BEGIN}\n| new |\n{benchmarks.END}\nbehind\n"
    page.write_text("nothing", "utf-8")
    with pytest.raises(SystemExit, match="no place for a table"):
        benchmarks.put_into_page("| new |")
