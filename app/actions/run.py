"""The actions of the Run menu: prompts, steps, and going to earlier steps."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from app.actions import dialogs
from app.control.actions import Action, Submenu
from app.control.conditions import (
    has_sequences,
    is_model_expected,
    needs_breakpoints,
    needs_here,
    needs_history,
    needs_left,
    needs_live,
    needs_live_past,
    needs_live_steps,
    needs_matches,
    needs_paged_attention,
    needs_past,
    needs_phase,
    needs_prompt,
    needs_prompt_or_load,
    needs_run,
    needs_runner,
    needs_step,
    needs_token,
    needs_token_here,
    needs_unfinished,
    needs_work,
)
from app.control.pace import PACES, Pace
from engine.spec.model import CAPTURES, PAGED_ATTENTION, RUNNERS, CaptureRow, PagedAttentionRow, RunnerRow
from engine.wire.commands import Cancel, ChoosePagedAttention, ChooseRunner

if TYPE_CHECKING:
    from app.shell import Shell


def _pace(pace: Pace, key: str) -> Action:
    return Action(
        f"pace.{pace.name}",
        key,
        pace.text,
        pace.tip,
        lambda shell: shell.set_pace(pace.name),
        is_check=True,
        also="speed, slow, slow motion, fast, frame rate",
    )


def _engine(choice: str, text: str, tip: str) -> Action:
    also = "thread, process, backend"
    return Action(
        f"engine.{choice}", "", text, tip, lambda shell: shell.engine_wanted.emit(choice), is_check=True, also=also
    )


RUNNER_WORDS = "runner, forward, fused, CUDA graph, torch.compile"


def _runner(row: RunnerRow) -> Action:
    tip = f"{row.summary}; it needs {row.needs}" if row.needs else row.summary
    needs = partial(needs_runner, row.name)
    return Action(
        f"runner.{row.name}", "", row.label, tip, ChooseRunner(row.name), needs, is_check=True, also=RUNNER_WORDS
    )


def _paged_attention(row: PagedAttentionRow) -> Action:
    command, needs = ChoosePagedAttention(row.name), partial(needs_paged_attention, row.name)
    return Action(f"pages.{row.name}", "", row.label, row.summary, command, needs, is_check=True)


def _capture(row: CaptureRow) -> Action:
    def choose(shell: Shell) -> None:
        shell.intents.on_capture_chosen(row.name)

    also = "capture level, what is measured, overhead, instrumentation"
    return Action(f"capture.{row.name}", "", row.label, row.summary, choose, needs_live, is_check=True, also=also)


def _step(shell: Shell) -> None:
    """Take a step; without a sequence that is the prefill of the typed prompt, once its model is there. A second one
    before the engine has answered follows the first."""
    if (has_sequences(shell.models) or shell.is_prompt_sent) and not is_model_expected(shell.models):
        shell.intents.on_step()
    else:
        shell.send_prompt(is_step=True)


def _stop(shell: Shell) -> None:
    """Stop what is going on; an answer that is being written is taken as far as it is."""
    shell.window.prompt.chat.stop_answer()
    shell.intents.send(Cancel())


def _next_phase(shell: Shell) -> None:
    """Take the next phase of a step; if there is no sequence yet, start one from the typed prompt."""
    if has_sequences(shell.models):
        shell.intents.on_next_phase()
    else:
        shell.window.prompt.submit_in_phases()


_on_timeline = partial(Action, where="timeline")

# fmt: off
RUN = (
    (
        Action("prompt.send", "Ctrl+Return", "Send prompt",
               "Start a new sequence and fill the cache with the prompt; a conversation is answered as well, to the "
               "end of the turn: F5 pauses, Esc stops",
               lambda shell: shell.send_prompt(), needs_prompt_or_load,
               also="prefill, generate, submit, start, begin, enter"),
        Action("prompt.add", "Ctrl+Shift+Return", "Add as another sequence",
               "Start the prompt beside the sequences that are there; a paged cache shares what they have in common",
               lambda shell: shell.window.prompt.submit_beside(), needs_prompt,
               also="batch, second prompt, concurrent request"),
    ),
    (
        Action("run.step", "F10", "Step", "Decode one token; the first one sends the prompt",
               _step, needs_step, also="decode, one token, step over, forward"),
        Action("run.phase", "Ctrl+F11", "Next phase",
               "One step in phases: scheduled, layer by layer, chosen, written; Step finishes it, Stop gives it up. "
               "Without a sequence the prompt is sent, and stops where it is scheduled",
               _next_phase, needs_phase, also="step into, layer by layer, slow motion"),
        Action("run.back", "Shift+F10", "Step back", "Show the step before",
               lambda shell: shell.intents.on_step_back(), needs_history, also="previous step, rewind, backwards"),
        Action("run.run", "F5", "Run or pause", "Generate until paused, finished or full",
               lambda shell: shell.intents.on_run_or_pause(), needs_run, also="generate, continue, play, decode"),
        Action("run.here", "Ctrl+F10", "Run to here",
               "Run on to the step that is chosen on the timeline, or make the step shown the live one",
               lambda shell: shell.intents.on_run_here(), needs_here),
        Action("run.here_token", "", "Run to this token",
               "Run on until the sequence has this token, or go back to the step that computed it",
               lambda shell: shell.intents.on_run_to_token(), needs_token_here),
        Action("run.to", "Shift+F5", "Run to…",
               "Generate a number of steps, up to a number of tokens, or to where a condition holds",
               dialogs.ask_run_to, needs_unfinished, also="run until, number of tokens, max new tokens"),
        Action("run.cancel", "Esc", "Stop",
               "Stop what is going on: a run, a prefill, a load, an export, a step between two phases",
               _stop, needs_work, also="cancel, abort, interrupt, pause"),
        Action("run.type_next", "Ctrl+Shift+T", "Type what comes next",
               "Go on with another text, or a token by its id, from the step that is shown",
               lambda shell: shell.window.begin_continuation(), needs_live_steps,
               also="force a token, forced text, branch, teacher forcing"),
    ),
    (
        Submenu("Breakpoints", ((
            Action("breakpoints.add", "F9", "Add breakpoint…",
                   "Halt runs after a step where a condition holds: the one typed in Breakpoints, else type one",
                   lambda shell: shell.window.show_breakpoints().halt_there(),
                   also="breakpoint, halt where, condition, conditional, stop when, watch"),
            Action("breakpoints.switch", "Ctrl+F9", "All breakpoints on or off",
                   "Let runs halt at every breakpoint in the list, or at none",
                   lambda shell: shell.intents.on_all_breakpoints_switched(), needs_breakpoints,
                   also="disable, enable, mute"),
            Action("breakpoints.find", "Ctrl+Shift+F", "Find steps where…",
                   "Mark the steps of the timeline at which a condition held",
                   lambda shell: shell.window.show_breakpoints().begin_finding(),
                   also="search the past, query, filter"),
            Action("breakpoints.next", "F3", "Next step found", "Show the next step where the condition held",
                   lambda shell: shell.intents.on_match_wanted(+1), needs_matches),
            Action("breakpoints.previous", "Shift+F3", "Previous step found",
                   "Show the previous step where the condition held",
                   lambda shell: shell.intents.on_match_wanted(-1), needs_matches),
        ),)),
        Submenu("Earlier steps", ((
            Action("run.first", "", "View the first step", "Show every panel as it was at the start",
                   lambda shell: shell.navigator.on_first_step(), needs_history, also="beginning, rewind, start"),
            Action("run.at_token", "", "View the token's step",
                   "Show every panel as it was when the selected token was computed",
                   lambda shell: shell.intents.on_step_of_token(), needs_token),
            Action("run.live", "Ctrl+L", "Back to live", "Follow the newest step again",
                   lambda shell: shell.navigator.on_live(), needs_past, also="newest step, follow, now"),
        ), (
            Action("run.go_on", "Ctrl+Shift+F10", "Go on from here",
                   "Make the step shown the live one, exactly; what came after it stays as a branch",
                   lambda shell: shell.intents.on_go_on_from_here(), needs_live_past,
                   also="rewind, restore, time travel, undo steps"),
            Action("run.return", "", "Return to the branch you left", "Make its newest step the live one again",
                   lambda shell: shell.intents.on_returned(), needs_left),
            Action("view.branches", "Ctrl+B", "Show branches", "The history as a tree: every branch, where they part",
                   lambda shell: shell.window.show_panel("branches"), also="tree, history"),
        ), (
            Action("run.kept", "", "Checkpoints kept in memory…",
                   "How much memory the caches of steps you left may take, and what they take",
                   dialogs.ask_kept_limit, also="memory limit, snapshots in memory, undo memory"),
        ))),
        Submenu("Pace", (tuple(_pace(pace, f"Alt+{number}") for number, pace in enumerate(PACES.values(), 1)),)),
        _on_timeline("timeline.play", "Space", "Replay recorded steps", "On the timeline: play from here, and stop",
                     lambda shell: shell.navigator.on_play_or_stop(), needs_history, also="animate, movie"),
        _on_timeline("timeline.first", "Home", "Timeline: first step", "On the timeline",
                     lambda shell: shell.navigator.on_first_step(), needs_history),
        _on_timeline("timeline.live", "End", "Timeline: live step", "On the timeline",
                     lambda shell: shell.navigator.on_live(), needs_past),
    ),
    (
        Submenu("Runner", (tuple(map(_runner, RUNNERS.values())),)),
        Submenu("Paged attention", (tuple(map(_paged_attention, PAGED_ATTENTION.values())),)),
        Submenu("Measuring", (
            tuple(map(_capture, CAPTURES.values())),
            (
                Action("capture.by_layer", "", "Time every layer",
                       "How long attention, the cache, dequantising and copies take in every layer of a forward; it "
                       "costs a little itself", lambda shell: shell.intents.on_time_by_layer_switched(), needs_live,
                       is_check=True, also="profile, profiler, latency by layer"),
            ),
        )),
        Submenu("Engine", (
            (
                _engine("auto", "Where it suits", "A thread of the window on a GPU, a process of its own on a CPU"),
                _engine("thread", "In a thread", "In the window's own process: both share one interpreter"),
                _engine("process", "In a process", "Beside the window: its end leaves the window alive"),
                Action("engine.elsewhere", "", "On another machine…", "Over ssh, with its keys and jump hosts; models "
                       "and files are those of that machine", dialogs.ask_engine_address, is_check=True,
                       also="ssh, remote, rack, host"),
            ),
            (
                Action("engine.restart", "", "Restart engine",
                       "Begin again with the same model; all steps are computed once more",
                       lambda shell: shell.engine_wanted.emit(""), also="reset, kill, hung, crash"),
            ),
        )),
    ),
)
