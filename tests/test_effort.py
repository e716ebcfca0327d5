"""The tiers: what the default one leaves out exists, and the rest runs it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import effort

ROOT = Path(__file__).resolve().parents[1]


def test_every_test_that_is_left_out_exists() -> None:
    functions: dict[str, set[str]] = {}
    for name in effort.kept_cases():
        file, _, function = name.partition("::")
        if file not in functions:
            tree = ast.parse((ROOT / file).read_text("utf-8"))
            functions[file] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        parts = function.split("::")  # a state machine of Hypothesis is a class with a `runTest` of its own
        assert parts[-1] in functions[file] | {"runTest"}, f"{name}: python -m tests.benchmarks.default_tier"


@pytest.mark.parametrize("nodeid", ["tests/a.py::test_left_out", "tests/a.py::test_some[int8]", "tests/a.py::test_new"])
def test_the_default_tier_and_the_rest_are_everything_once(nodeid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"tests/a.py::test_left_out": frozenset[str](), "tests/a.py::test_some": frozenset({"paged", "kivi-2"})}
    runs = {}
    for tier in effort.TIERS:
        monkeypatch.setattr(effort, "_tier", tier)
        runs[tier] = effort.is_in_tier(nodeid, kept)
    assert runs["full"]
    assert runs["long"]
    assert runs["default"] != runs["rest"]
    assert runs["default"] == (nodeid == "tests/a.py::test_new")
    monkeypatch.setattr(effort, "_tier", "default")
    assert effort.is_in_tier("tests/a.py::test_some[paged]", kept)


def test_the_long_tier_tries_more_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = {}
    for tier in effort.TIERS:
        monkeypatch.setattr(effort, "_tier", tier)
        tried[tier] = effort.effort(20, 300)
    assert tried == {"default": 20, "rest": 20, "full": 20, "long": 300}
