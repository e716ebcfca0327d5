"""Why something is not possible, where the states of two sequences, of the engine and of files meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.control.conditions import reasons
from app.models import Models
from app.models.sequence_status import can_go_on
from engine.spec.cache import CacheSpec, cache_preset
from engine.wire.status import OpenedFile, RunnerState, SequenceInfo, SuspendedStep, Work
from tests.app import samples

GONE, NO_MODEL, UNLOADED = (
    "the engine is gone: restart it",
    "no model is loaded yet",
    "the model is unloaded: load it again",
)
FILE = "this is an opened file: go on with its model first, or load another"
ENDED = "the text has ended: choose another next token, go back, or send a new prompt"
STOPPED = "the sequence was stopped: choose its next token, go back, or send a new prompt"
OPENED = OpenedFile(Path("/a.npz"), 1, "Tales", 0, "", "", "", "")


def info(seq_id: int, stop: Any = None) -> SequenceInfo:
    return SequenceInfo(seq_id, "finished" if stop else "decode", 9, 4, 11, stop)


STATES: dict[str, dict[str, Any]] = {
    "no sequence": {},
    "one goes on": {"sequences": (info(0),)},
    "one has ended": {"sequences": (info(0, "length"), info(1))},
    "both have": {"sequences": (info(0, "end of text"), info(1, "stopped"))},
    "as many as asked for": {"sequences": (info(0, "length"), info(1, "stopped"))},
    "another one alone": {"sequences": (info(1, "stopped"),)},
    "no model": {"model": None},
    "a file": {"opened": OPENED, "sequences": (info(0),)},
    "a session": {"opened": replace(OPENED, has_rows=False, why_not="no room"), "sequences": (info(0),)},
}
EXPECTED: dict[str, dict[str, str]] = {
    "unfinished": {
        "no sequence": "send a prompt first", "both have": ENDED, "another one alone": STOPPED, "no model": UNLOADED,
        "a file": FILE, "a session": FILE,
    },
    "live model": {"no model": UNLOADED, "a file": FILE, "a session": FILE},
    "model": {"no model": UNLOADED},
    "unloaded model": dict.fromkeys(STATES, "the model is loaded") | {"no model": ""},
    "file": dict.fromkeys(STATES, "no file is open") | {"a file": "", "a session": ""},
    "resumable file": dict.fromkeys(STATES, "no file is open") | {"a file": "", "a session": "no room"},
    "kept rows": {"a session": "a session file has no K and V: go on with its model first"},
    "saveable steps": dict.fromkeys(("a file", "a session"), "this is an opened file, which is saved already"),
    "parameters": dict.fromkeys(STATES, "") | {"a file": FILE, "a session": FILE},
}  # fmt: skip


@pytest.fixture
def stood(models: Models) -> Models:
    """A model was loaded, and a step taken."""
    models.status.set(samples.status(0))
    models.timeline.append([samples.step_record(0)])
    return models


@pytest.mark.parametrize("name", EXPECTED)
def test_why_it_is_not_possible(stood: Models, name: str) -> None:
    for state, changed in STATES.items():
        stood.status.set(replace(samples.status(0), **changed))
        assert reasons(stood)[name] == EXPECTED[name].get(state, ""), state


def test_what_can_go_on(stood: Models) -> None:
    found = {}
    for state, changed in STATES.items():
        stood.status.set(replace(samples.status(0), **changed))
        found[state] = can_go_on(stood)
    assert [state for state, goes_on in found.items() if goes_on] == [
        "one goes on",
        "one has ended",
        "as many as asked for",
    ]
    stood.status.set(replace(samples.status(0), **STATES["one goes on"]))
    for loss, goes_on in (("silent", True), ("gone", False)):
        stood.status.lose_engine(loss)  # type: ignore[arg-type]
        assert can_go_on(stood) is goes_on


def test_an_engine_that_is_gone_comes_before_everything(stood: Models) -> None:
    stood.status.lose_engine("gone")
    stood.selection.update(step=0, position=2)
    names = set(reasons(stood))
    ways_to_look = {
        "step", "history", "past step", "place ahead", "steps", "kept rows", "saveable steps",
        "comparison", "matches", "breakpoints", "token", "live past", "no file",
        "branch left", "parameters", "cell", "token to run to", "file", "resumable file",
        "unloaded model",
    }  # fmt: skip
    found = reasons(stood)
    assert {name: found[name] for name in names - ways_to_look} == dict.fromkeys(names - ways_to_look, GONE)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, "nothing is going on"),
        ({"running": True}, ""),
        ({"suspended": SuspendedStep(1, 6, (0,), (1,))}, ""),
        ({"work": Work("Exporting", 1, 2)}, ""),
        ({"work": Work("Loading", 1, 2, can_cancel=False)}, "this cannot be stopped half-way"),
        ({"work": Work("Loading", 1, 2, can_cancel=False), "running": True}, "this cannot be stopped half-way"),
    ],
)
def test_what_can_be_stopped(stood: Models, changed: dict[str, Any], why: str) -> None:
    stood.status.set(replace(samples.status(0), **changed))
    assert reasons(stood)["work"] == why


@pytest.mark.parametrize(
    ("cache", "why"),
    [
        (CacheSpec(), ""),
        (cache_preset("h2o").spec, ""),
        (cache_preset("paged").spec, ""),
        (cache_preset("dynamic").spec, "this cache has no parameters"),
    ],
)
def test_what_has_parameters(stood: Models, cache: CacheSpec, why: str) -> None:
    stood.status.set(samples.status(0, cache=cache))
    assert reasons(stood)["parameters"] == why


def test_a_runner_is_refused_by_its_own_reason(stood: Models) -> None:
    runner = RunnerState("auto", (("compile", "no compiler"),), refused_pages=(("gather", "no pages"),))
    stood.status.set(replace(samples.status(0), runner=runner))
    assert [reasons(stood)[f"runner {name}"] for name in ("auto", "compile")] == ["", "no compiler"]
    assert [reasons(stood)[f"pages {way}"] for way in ("auto", "gather")] == ["", "no pages"]
    stood.status.set(replace(samples.status(0), runner=runner, opened=OPENED))
    assert reasons(stood)["runner compile"] == FILE


def test_the_token_that_the_live_step_ends_with_is_no_place_to_run_to(stood: Models) -> None:
    stood.timeline.append([samples.step_record(1)])
    for position, why in ((None, "select a token first"), (2, ""), (4, "the live step ends with this token")):
        stood.selection.update(position=position)
        assert reasons(stood)["token to run to"] == why
