"""Why something is not possible, where the states of two sequences, of the engine and of files meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.control import conditions
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
    "needs_unfinished": {
        "no sequence": "send a prompt first", "both have": ENDED, "another one alone": STOPPED, "no model": UNLOADED,
        "a file": FILE, "a session": FILE,
    },
    "needs_live": {"no model": UNLOADED, "a file": FILE, "a session": FILE},
    "needs_model": {"no model": UNLOADED},
    "needs_unloaded": dict.fromkeys(STATES, "the model is loaded") | {"no model": ""},
    "needs_file": dict.fromkeys(STATES, "no file is open") | {"a file": "", "a session": ""},
    "needs_resumable": dict.fromkeys(STATES, "no file is open") | {"a file": "", "a session": "no room"},
    "needs_kept_rows": {"a session": "a session file has no K and V: go on with its model first"},
    "needs_saveable": dict.fromkeys(("a file", "a session"), "this is an opened file, which is saved already"),
    "needs_parameters": dict.fromkeys(STATES, "") | {"a file": FILE, "a session": FILE},
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
        assert getattr(conditions, name)(stood) == EXPECTED[name].get(state, ""), state


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
    of_more = {"needs_runner", "needs_paged_attention", "needs_whole_rows", "needs_evictable_rows"}
    names = {name for name in vars(conditions) if name.startswith("needs_")} - of_more
    ways_to_look = {
        "needs_step", "needs_history", "needs_past", "needs_here", "needs_steps", "needs_kept_rows", "needs_saveable",
        "needs_comparison", "needs_matches", "needs_breakpoints", "needs_token", "needs_live_past", "needs_no_file",
        "needs_left", "needs_parameters", "needs_cell", "needs_token_here", "needs_file", "needs_resumable",
        "needs_unloaded",
    }  # fmt: skip
    for name in sorted(names - ways_to_look):
        assert getattr(conditions, name)(stood) == GONE, name


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
    assert conditions.needs_work(stood) == why


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
    assert conditions.needs_parameters(stood) == why


def test_a_runner_is_refused_by_its_own_reason(stood: Models) -> None:
    runner = RunnerState("eager", (("compiled", "no compiler"),), refused_pages=(("gather", "no pages"),))
    stood.status.set(replace(samples.status(0), runner=runner))
    assert [conditions.needs_runner(name, stood) for name in ("eager", "compiled")] == ["", "no compiler"]
    ways = [conditions.needs_paged_attention(name, stood) for name in ("auto", "gather")]
    assert ways == ["", "no pages"]
    stood.status.set(replace(samples.status(0), runner=runner, opened=OPENED))
    assert conditions.needs_runner("compiled", stood) == FILE


def test_the_token_that_the_live_step_ends_with_is_no_place_to_run_to(stood: Models) -> None:
    stood.timeline.append([samples.step_record(1)])
    for position, why in ((None, "select a token first"), (2, ""), (4, "the live step ends with this token")):
        stood.selection.update(position=position)
        assert conditions.needs_token_here(stood) == why
