"""What `planted_bugs` plants: one change at its place, in a source that compiles, the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.planted_bugs import times_of
from tests.benchmarks.planting import bugs, compiles, sample, with_bug

SOURCE = '''"""Words: 1 + 1."""


def half(é: list[int], scale: float = 1.5) -> float:
    if é and len(é) > 2:
        raise ValueError(f"{3 + 4}")
    return min(pow(é[0] + 1, scale), scale)
'''


def test_a_bug_changes_its_place_and_nothing_else() -> None:
    found = {(bug.kind, with_bug(SOURCE, bug)) for bug in bugs("half.py", SOURCE)}
    for kind, was, text in (
        ("condition", "é and len(é) > 2", "(not (é and len(é) > 2))"),
        ("comparison", "len(é) > 2", "(len(é) >= 2)"),
        ("missing clause", "é and len(é) > 2", "é"),
        ("missing clause", "é and len(é) > 2", "(len(é) > 2)"),
        ("constant", "scale: float = 1.5", "scale: float = 3.0"),
        ("function", "min", "max"),
        ("operator", "é[0] + 1", "(é[0] - 1)"),
        ("swapped arguments", "pow(é[0] + 1, scale)", "pow(scale, é[0] + 1)"),
    ):
        assert (kind, SOURCE.replace(was, text)) in found, (kind, was)


def test_what_would_change_nothing_is_not_planted() -> None:
    source = (
        "def pairs(a: list[int], b: list[int]) -> int:\n    return max(sum(a), len(list(zip(a, b, strict=True))))\n"
    )
    found = {bug.text for bug in bugs("pairs.py", source)}
    assert "zip(b, a, strict=True)" in found
    assert not any(text.startswith("max(len") or "strict=False" in text for text in found)


def test_words_types_and_messages_are_left_alone() -> None:
    assert {bug.line for bug in bugs("half.py", SOURCE)} == {4, 5, 7}


def test_the_same_seed_draws_the_same_bugs_and_each_compiles(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "half.py").write_text(SOURCE, "utf-8")
    (tmp_path / "engine" / "loop.py").write_text(
        "for x in (1, 2):\n    if x:\n        continue\n    y = not x\n", "utf-8"
    )
    drawn = sample(tmp_path, ["engine"], 10, 1)
    assert len({(bug.path, bug.line) for bug in drawn}) == len(drawn) == 7, "one bug of a line"
    assert sample(tmp_path, ["engine"], 10, 1) == drawn != sample(tmp_path, ["engine"], 10, 2)
    assert all(compiles((tmp_path / bug.path).read_text("utf-8"), bug) for bug in drawn)


def test_the_time_of_a_test_is_that_of_its_parts() -> None:
    name = "tests/a.py::test_b[x y]"
    assert times_of(f"1.50s call     {name}\n0.25s setup    {name}\n9.00s teardown {name}\n") == {
        name: pytest.approx(1.75)
    }
