"""Panels in runs of other shapes than that of `test_approved.py`, as they were approved (`approved/RUN/PANEL.txt`)."""

from __future__ import annotations

from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from tests.app.panels.shown_panels import PANELS
from tests.app.panels.witness import APPROVED, witness_of
from tests.app.rich_other import OTHER_RUNS
from tests.approve import approve

pytestmark = pytest.mark.usefixtures("dark_theme")

# In runs of other shapes: what is selected anew, and the panels that such a run shows otherwise.
ELSEWHERE: dict[str, tuple[dict[str, dict[str, Any]], tuple[str, ...]]] = {
    "an encoder-decoder": (
        {"a token of the source": {"position": 2}}, ("attention", "bytes", "inspector", "timings", "tokens", "wall"),
    ),
    "layers with a state": ({"of a state alone": {"layer": 1}}, ("bytes", "head", "inspector", "wall")),
    "many steps": ({"now": {"step": None, "position": None}}, ("bytes", "head", "timeline", "timings", "tokens")),
    "left behind": ({"a moment that was left": {"step": 9}}, ("branches", "next_token", "timeline", "tokens")),
    "gone by now": (
        {"in a head that holds it": {"kv_head": 1}, "in another layer": {"layer": 3}, "now": {"step": None}},
        ("head", "inspector", "tokens", "wall"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("run", "name"), [(run, name) for run, (_, names) in ELSEWHERE.items() for name in names])
def test_runs_of_other_shapes_are_shown_as_approved(qtbot: QtBot, run: str, name: str) -> None:
    begin, answer = OTHER_RUNS[run]
    models = begin()
    witness = witness_of(qtbot, PANELS[name], models, lambda: answer(models))
    witness.look("at first")
    witness.select(ELSEWHERE[run][0])
    approve(APPROVED / run.replace(" ", "_") / f"{name}.txt", witness.lines[1:])
