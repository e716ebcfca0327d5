"""The Run menu: prompts, steps, and looking back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.control.actions import Action
from app.control.conditions import (
    needs_history,
    needs_past,
    needs_prompt,
    needs_run,
    needs_step,
    needs_unfinished,
    needs_work,
)
from app.control.pace import PACES, Pace

if TYPE_CHECKING:
    from app.shell import Shell


def _ask_run_to(shell: Shell) -> None:
    from app.dialogs.run_to import RunToDialog

    dialog = RunToDialog(shell.window)
    dialog.chosen.connect(shell.intents.on_run_to)
    dialog.open()


def _pace(pace: Pace, key: str) -> Action:
    def choose(shell: Shell) -> None:
        shell.set_pace(pace.name)

    return Action(f"pace.{pace.name}", f"Pace: {pace.text}", choose, key=key, tip=pace.tip, is_check=True)


def _engine(choice: str, text: str, tip: str) -> Action:
    def choose(shell: Shell) -> None:
        shell.run_engine_in(choice)

    return Action(f"engine.{choice}", text, choose, tip=tip, is_check=True)


RUN = (
    (
        Action(
            "prompt.send",
            "Send prompt",
            lambda shell: shell.window.prompt.submit(),
            key="Ctrl+Return",
            tip="Start a new sequence and fill the cache with the prompt",
            needs=needs_prompt,
        ),
        Action(
            "prompt.add",
            "Add as another sequence",
            lambda shell: shell.window.prompt.submit_beside(),
            key="Ctrl+Shift+Return",
            tip="Start the prompt beside the sequences that are there; a paged cache shares what they have in common",
            needs=needs_prompt,
        ),
    ),
    (
        Action(
            "run.step",
            "Step",
            lambda shell: shell.intents.on_step(),
            key="F10",
            tip="One token on",
            needs=needs_step,
        ),
        Action(
            "run.back",
            "Step back",
            lambda shell: shell.intents.on_step_back(),
            key="Shift+F10",
            tip="Look at the step before",
            needs=needs_history,
        ),
        Action(
            "run.run",
            "Run or pause",
            lambda shell: shell.intents.on_run_or_pause(),
            key="F5",
            tip="Generate until paused, finished or full",
            needs=needs_run,
        ),
        Action(
            "run.to",
            "Run steps…",
            _ask_run_to,
            key="Ctrl+F10",
            tip="Generate a number of tokens, then rest",
            needs=needs_unfinished,
        ),
        Action(
            "run.cancel",
            "Stop",
            lambda shell: shell.intents.on_cancel(),
            key="Esc",
            tip="Stop what is going on: a run, a prefill, a load, an export",
            needs=needs_work,
        ),
    ),
    tuple(_pace(pace, f"Alt+{number}") for number, pace in enumerate(PACES.values(), 1)),
    (
        Action(
            "run.first",
            "Look at the first step",
            lambda shell: shell.navigator.on_first_step(),
            tip="Show every panel as it was at the start",
            needs=needs_history,
        ),
        Action(
            "run.live",
            "Back to live",
            lambda shell: shell.navigator.on_live(),
            key="Ctrl+L",
            tip="Follow the newest step again",
            needs=needs_past,
        ),
        Action(
            "run.rewind",
            "Rewind here",
            lambda shell: shell.intents.on_rewind_here(),
            key="Ctrl+Shift+F10",
            tip="Make the step you look at the live one, exactly",
            needs=needs_past,
        ),
        Action(
            "timeline.play",
            "Replay recorded steps",
            lambda shell: shell.navigator.on_play_or_stop(),
            key="Space",
            tip="On the timeline: play from here, and stop",
            where="timeline",
            needs=needs_history,
        ),
        Action(
            "timeline.first",
            "Timeline: first step",
            lambda shell: shell.navigator.on_first_step(),
            key="Home",
            tip="On the timeline",
            where="timeline",
            needs=needs_history,
        ),
        Action(
            "timeline.live",
            "Timeline: live step",
            lambda shell: shell.navigator.on_live(),
            key="End",
            tip="On the timeline",
            where="timeline",
            needs=needs_past,
        ),
    ),
    (
        Action(
            "engine.restart",
            "Restart engine",
            lambda shell: shell.restart_engine(),
            tip="Begin again with the same model; the sequences are read anew",
        ),
        _engine("auto", "Engine where it suits", "A thread of the window on a GPU, a process of its own on a CPU"),
        _engine("thread", "Engine in a thread", "In the window's own process: both share one interpreter"),
        _engine("process", "Engine in a process", "Beside the window: its end leaves the window alive"),
    ),
)
