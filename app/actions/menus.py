"""All actions of the window, each declared once: name, key, where the key works, when it is possible, what it does.

A menu is a tuple of groups, with a separator between two groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from app.actions import dialogs
from app.control.actions import Action, Menus, Submenu
from app.control.conditions import WHOLE_EDITS
from app.control.intents import LEAP
from app.control.requests import PACES, Pace
from app.draw.format import milliseconds
from app.models import Models
from app.models.places import NOTHING, EditOfRows, choose_part, edit_of_chosen
from engine.spec.cache import FAMILIES, PRESETS, Family, Preset
from engine.spec.edit import EditedPart, Zero
from engine.spec.model import CAPTURES, PAGED_ATTENTION, RUNNERS, CaptureRow, ModelSpec, PagedAttentionRow, RunnerRow
from engine.wire.commands import Cancel, ChoosePagedAttention, ChooseRunner, RedoEdit, UndoEdit
from engine.wire.devices import UnloadModel

if TYPE_CHECKING:
    from app.dialogs.edits import EditForm
    from app.shell import Shell


# fmt: off
FILES = (
    (
        Action("model.open", "Ctrl+Shift+O", "Open model folder…",
               "A folder in Hugging Face layout; dropping it on the window does the same", dialogs.open_folder,
               also="load model, checkpoint folder, weights, Llama, Hugging Face"),
        Action("model.hub", "", "Model by hub name…", "A model that is on this computer, or a download you allow",
               dialogs.ask_hub_name, also="download, Hugging Face, load model"),
        Action("model.shape", "", "Shape from config.json…",
               "Build an architecture with random weights, to see its cache", dialogs.open_shape,
               also="random weights, architecture"),
        Action("model.bundled", "", "Bundled model", "Load the small model that comes with the program",
               lambda shell: shell.intents.on_model_chosen(ModelSpec())),
        Action("model.compute", "", "Device, dtype and threads…",
               "Where and in which numbers models are loaded, and what this one would take there", dialogs.ask_loading,
               also="GPU, CUDA, CPU, precision, bfloat16, float16, threads, quantize weights, int8 weights"),
        Action("model.unload", "", "Unload model",
               "Let the model and its caches go; what was done stays, and is done once more when it is loaded again",
               UnloadModel(), "model"),
        Action("model.reload", "", "Load model again",
               "Bring back the model that was unloaded, and do its steps once more",
               lambda shell: shell.reload_wanted.emit(), "unloaded model"),
    ),
    (
        Action("snapshot.open", "Ctrl+O", "Open snapshot or session…",
               "What was exported or saved, viewed without its model; dropping the file on the window does the same",
               dialogs.open_file, also="load cache, safetensors, restore, resume"),
        Action("server.attach", "", "Attach to a server…",
               "A server that publishes KV events, or a recording of them",
               dialogs.ask_server, also="vLLM, SGLang, TensorRT-LLM, KV events, connect, prefix tree, kvevents"),
        Action("session.save", "Ctrl+S", "Save session…",
               "Its steps, branches, edits and notes, for people to read and for the engine to repeat; never K and V",
               dialogs.save_session, "saveable steps", also="keep, write session"),
        Action("session.return", "", "Return to the former session",
               "The one that this prompt, model or file has replaced, as it was; the present one is kept as well",
               lambda shell: shell.return_to_former(), "former session"),
        Action("snapshot.continue", "", "Go on with the model", "Decode on from the opened file with its model",
               lambda shell: shell.intents.on_continued(), "resumable file"),
        Action("snapshot.close", "", "Close file", "Leave the opened file and begin anew with a model",
               lambda shell: shell.intents.on_file_closed(), "file"),
    ),
    (
        Action("export", "Ctrl+E", "Export…", "The cache as a snapshot: one step, some, or the whole session",
               dialogs.ask_export, "kept rows",
               also="save cache, safetensors, snapshot"),
        Action("export.npz", "", "Export as NumPy arrays…", "K and V as numbers, for numpy.load",
               lambda shell: dialogs.ask_export(shell, "npz"), "kept rows"),
        Action("export.table", "", "Export as table…", "The steps as CSV or Parquet, for pandas and spreadsheets",
               lambda shell: dialogs.ask_export(shell, "table"), "steps"),
        Action("export.trace", "", "Export as trace…", "The timings of the steps, for Perfetto",
               lambda shell: dialogs.ask_export(shell, "trace"), "steps"),
        Action("export.session", "", "Export as Python script…", "Repeats the session with the engine alone",
               lambda shell: dialogs.ask_export(shell, "session"), "kept rows"),
        Action("export.picture", "", "Export as picture…", "The window or a panel as PNG or SVG",
               lambda shell: dialogs.ask_export(shell, "picture"), "steps"),
        Action("compare.report", "", "Save comparison report…", "Pictures and numbers of two runs as one HTML page",
               lambda shell: shell.window.compare().save_report(), "comparison"),
    ),
    (
        Action("value.copy", "", "Copy value", "The exact number of the cell that is selected in Head",
               lambda shell: shell.window.head.copy_value(), "cell"),
        Action("picture.copy", "Ctrl+Shift+C", "Copy picture", "The panel that has the focus, as a picture",
               lambda shell: shell.window.picture.copy_picture(), also="clipboard, screenshot"),
        Action("picture.save", "Ctrl+Shift+E", "Save picture…", "The panel that has the focus, as PNG or SVG",
               lambda shell: shell.window.picture.save_picture(), also="screenshot, PNG, SVG"),
    ),
    (
        Action("quit", "Ctrl+Q", "Quit", "End the program", lambda shell: shell.window.close(), also="exit, close"),
    ),
)


# fmt: on


# ---- Edit: edits of the selected rows, undo and redo -----------------------------------------------------------------


def make(edit: EditOfRows, shell: Shell, *, is_whole: bool = False) -> None:
    """Make an edit of the selected rows; `is_whole`: of K and V together, unless channels are selected. Without a
    selection the status line says so."""
    made = edit_of_chosen(shell.models, edit, is_whole=is_whole)
    if made is None:
        shell.models.status.notify(f"Nothing is selected: {NOTHING}")
    else:
        shell.intents.on_edited(made)


def ask_scale(shell: Shell) -> None:
    from app.dialogs.edits import ScaleForm

    _ask(shell, ScaleForm(shell.models, shell.window))


def ask_noise(shell: Shell) -> None:
    from app.dialogs.edits import NoiseForm

    _ask(shell, NoiseForm(shell.models, shell.window))


def ask_overwrite(shell: Shell) -> None:
    from app.dialogs.edits import OverwriteForm

    _ask(shell, OverwriteForm(shell.models, shell.window))


def ask_replace(shell: Shell) -> None:
    from app.dialogs.edits import ReplaceForm

    _ask_tokens(shell, ReplaceForm(shell.models, shell.window))


def ask_bias(shell: Shell, token_ids: tuple[int, ...] = ()) -> None:
    """Open the dialog to bias logits, beginning with these tokens, if any."""
    from app.dialogs.edits import BiasForm

    form = BiasForm(shell.models, shell.window)
    if token_ids:
        form.offer(token_ids)
    _ask_tokens(shell, form)


def ask_typed(shell: Shell) -> None:
    from app.dialogs.edits import TypedForm

    _ask(shell, TypedForm(shell.models, shell.window))


def _ask_tokens(shell: Shell, form: EditForm) -> None:
    form.tokens.wants.connect(shell.intents.take)  # type: ignore[attr-defined]
    _ask(shell, form)


def _ask(shell: Shell, form: EditForm) -> None:
    form.ask(shell.intents.on_edited)


def _whole(name: str, key: str, text: str, tip: str) -> Action:
    """Make an action for an edit of whole rows; it is possible only if the edit would not be refused."""
    do = partial(make, WHOLE_EDITS[name], is_whole=True)
    return Action(f"edit.{name}", key, text, tip, do, f"rows to {name}", where="rows" if key else "window")


_edit = partial(Action, needs="rows")


def _part(part: EditedPart, text: str, tip: str) -> Action:
    def choose(shell: Shell) -> None:
        choose_part(shell.models, part)

    return Action(f"edit.{part}", "", text, tip, choose, "rows", is_check=True)


# fmt: off
EDIT = (
    (
        Action("edit.undo", "Ctrl+Z", "Undo edit", "Return to the step before the newest edit",
               UndoEdit(), "edits"),
        Action("edit.redo", "Ctrl+Shift+Z", "Redo edit", "Return to the step that the last undo left",
               RedoEdit(), "undone edits"),
    ),
    (
        Action("edit.zero", "Z", "Zero", "In a picture: write zeros into the selected rows",
               partial(make, Zero), "rows", where="rows", also="ablate, ablation, erase, clear rows"),
        _edit("edit.scale", "", "Scale…", "Multiply the selected rows by a factor", ask_scale),
        _edit("edit.noise", "", "Add noise…", "Add normal noise to the selected rows", ask_noise),
        _edit("edit.overwrite", "", "Overwrite from…",
              "Write what another step, branch, sequence or snapshot has there: activation patching",
              ask_overwrite),
    ),
    (
        _whole("mask", "M", "Mask",
               "In a picture: hide the selected rows from attention; the cache keeps them"),
        _whole("unmask", "", "Unmask", "Show the selected rows to attention again"),
        _whole("pin", "", "Pin", "Keep the eviction rule from evicting the selected rows"),
        _whole("unpin", "", "Unpin", "Let the eviction rule evict the selected rows"),
        _whole("drop", "Del", "Drop",
               "In a picture: drop the selected rows, as an eviction rule does"),
    ),
    (
        _edit("edit.replace", "", "Replace tokens…",
              "Put other tokens there: overwrite their K and V alone, or compute what follows anew",
              ask_replace, also="swap tokens, counterfactual"),
        Action("edit.bias", "", "Bias logits…", "Favour, ban or force tokens before one is chosen", ask_bias,
               "live steps", also="logit bias, ban token, force token"),
        Action("edit.typed", "Ctrl+T", "Type an edit…", "An edit in words: zero pos=4:8 layer=3 head=1",
               ask_typed, "live steps"),
    ),
    (
        _part("both", "Of the selection: K and V", "Edits are of K and of V"),
        _part("keys", "Of the selection: K alone", "Edits are of K"),
        _part("values", "Of the selection: V alone", "Edits are of V"),
    ),
    (
        Action("note.add", "Ctrl+D", "Bookmark…", "Mark the step, token, page or head that you view, with a note",
               dialogs.ask_bookmark, "steps", also="note, comment, annotate"),
    ),
)


# fmt: on


# ---- Run: prompts, steps, and going to earlier steps -----------------------------------------------------------------


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
    name, needs = f"runner.{row.name}", f"runner {row.name}"
    return Action(name, "", row.label, tip, ChooseRunner(row.name), needs, is_check=True, also=RUNNER_WORDS)


def _paged_attention(row: PagedAttentionRow) -> Action:
    command, needs = ChoosePagedAttention(row.name), f"pages {row.name}"
    return Action(f"pages.{row.name}", "", row.label, row.summary, command, needs, is_check=True)


def _capture(row: CaptureRow) -> Action:
    def choose(shell: Shell) -> None:
        shell.intents.on_capture_chosen(row.name)

    def cost(models: Models) -> str:
        costs = dict(models.status.now.capture.costs_ms)
        return f"{milliseconds(costs[row.name])} a decode step so far" if row.name in costs else "Not measured yet"

    also, name = "capture level, what is measured, overhead, instrumentation", f"capture.{row.name}"
    return Action(name, "", row.label, row.summary, choose, "live model", is_check=True, also=also, more=cost)


def _step(shell: Shell) -> None:
    """Take a step; without a sequence that is the prefill of the typed prompt, once its model is there. A second one
    before the engine has answered follows the first."""
    status = shell.models.status
    if (status.now.sequences or shell.is_prompt_sent) and not status.awaits_model:
        shell.intents.on_step()
    else:
        shell.send_prompt(is_step=True)


def _stop(shell: Shell) -> None:
    """Stop what is going on; an answer that is being written is taken as far as it is."""
    shell.window.prompt.chat.stop_answer()
    shell.intents.send(Cancel())


def _next_phase(shell: Shell) -> None:
    """Take the next phase of a step; if there is no sequence yet, start one from the typed prompt."""
    if shell.models.status.now.sequences:
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
               lambda shell: shell.send_prompt(), "first prompt",
               also="prefill, generate, submit, start, begin, enter"),
        Action("prompt.add", "Ctrl+Shift+Return", "Add as another sequence",
               "Start the prompt beside the sequences that are there; a paged cache shares what they have in common",
               lambda shell: shell.window.prompt.submit_beside(), "prompt",
               also="batch, second prompt, concurrent request"),
    ),
    (
        Action("run.step", "F10", "Step", "Decode one token; the first one sends the prompt",
               _step, "step", also="decode, one token, step over, forward"),
        Action("run.phase", "Ctrl+F11", "Next phase",
               "One step in phases: scheduled, layer by layer, chosen, written; Step finishes it, Stop gives it up. "
               "Without a sequence the prompt is sent, and stops where it is scheduled",
               _next_phase, "phase", also="step into, layer by layer, slow motion"),
        Action("run.back", "Shift+F10", "Step back", "Show the step before",
               lambda shell: shell.intents.on_step_back(), "history", also="previous step, rewind, backwards"),
        Action("run.run", "F5", "Run or pause", "Generate until paused, finished or full",
               lambda shell: shell.intents.on_run_or_pause(), "run", also="generate, continue, play, decode"),
        Action("run.here", "Ctrl+F10", "Run to here",
               "Run on to the step that is chosen on the timeline, or make the step shown the live one",
               lambda shell: shell.intents.on_run_here(), "place ahead"),
        Action("run.here_token", "", "Run to this token",
               "Run on until the sequence has this token, or go back to the step that computed it",
               lambda shell: shell.intents.on_run_to_token(), "token to run to"),
        Action("run.to", "Shift+F5", "Run to…",
               "Generate a number of steps, up to a number of tokens, or to where a condition holds",
               dialogs.ask_run_to, "unfinished", also="run until, number of tokens, max new tokens"),
        Action("run.cancel", "Esc", "Stop",
               "Stop what is going on: a run, a prefill, a load, an export, a step between two phases",
               _stop, "work", also="cancel, abort, interrupt, pause"),
        Action("run.type_next", "Ctrl+Shift+T", "Type what comes next",
               "Go on with another text, or a token by its id, from the step that is shown",
               lambda shell: shell.window.begin_continuation(), "live steps",
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
                   lambda shell: shell.intents.on_all_breakpoints_switched(), "breakpoints",
                   also="disable, enable, mute"),
            Action("breakpoints.find", "Ctrl+Shift+F", "Find steps where…",
                   "Mark the steps of the timeline at which a condition held",
                   lambda shell: shell.window.show_breakpoints().begin_finding(),
                   also="search the past, query, filter"),
            Action("breakpoints.next", "F3", "Next step found", "Show the next step where the condition held",
                   lambda shell: shell.intents.on_match_wanted(+1), "matches"),
            Action("breakpoints.previous", "Shift+F3", "Previous step found",
                   "Show the previous step where the condition held",
                   lambda shell: shell.intents.on_match_wanted(-1), "matches"),
        ),)),
        Submenu("Earlier steps", ((
            Action("run.first", "", "View the first step", "Show every panel as it was at the start",
                   lambda shell: shell.navigator.on_first_step(), "history", also="beginning, rewind, start"),
            Action("run.at_token", "", "View the token's step",
                   "Show every panel as it was when the selected token was computed",
                   lambda shell: shell.intents.on_step_of_token(), "token"),
            Action("run.live", "Ctrl+L", "Back to live", "Follow the newest step again",
                   lambda shell: shell.navigator.on_live(), "past step", also="newest step, follow, now"),
        ), (
            Action("run.go_on", "Ctrl+Shift+F10", "Go on from here",
                   "Make the step shown the live one, exactly; what came after it stays as a branch",
                   lambda shell: shell.intents.on_go_on_from_here(), "live past",
                   also="rewind, restore, time travel, undo steps"),
            Action("run.return", "", "Return to the branch you left", "Make its newest step the live one again",
                   lambda shell: shell.intents.on_returned(), "branch left"),
            Action("view.branches", "Ctrl+B", "Show branches", "The history as a tree: every branch, where they part",
                   lambda shell: shell.window.show_panel("branches"), also="tree, history"),
        ), (
            Action("run.kept", "", "Checkpoints kept in memory…",
                   "How much memory the caches of steps you left may take, and what they take",
                   dialogs.ask_kept_limit, also="memory limit, snapshots in memory, undo memory"),
        ))),
        Submenu("Pace", (tuple(_pace(pace, f"Alt+{number}") for number, pace in enumerate(PACES.values(), 1)),)),
        _on_timeline("timeline.play", "Space", "Replay recorded steps", "On the timeline: play from here, and stop",
                     lambda shell: shell.navigator.on_play_or_stop(), "history", also="animate, movie"),
        _on_timeline("timeline.first", "Home", "Timeline: first step", "On the timeline",
                     lambda shell: shell.navigator.on_first_step(), "history"),
        _on_timeline("timeline.live", "End", "Timeline: live step", "On the timeline",
                     lambda shell: shell.navigator.on_live(), "past step"),
    ),
    (
        Submenu("Runner", (tuple(map(_runner, RUNNERS.values())),)),
        Submenu("Paged attention", (tuple(map(_paged_attention, PAGED_ATTENTION.values())),)),
        Submenu("Measuring", (
            tuple(map(_capture, CAPTURES.values())),
            (
                Action("capture.by_layer", "", "Time every layer",
                       "How long attention, the cache, dequantising and copies take in every layer of a forward; it "
                       "costs a little itself", lambda shell: shell.intents.on_time_by_layer_switched(), "live model",
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


# fmt: on


# ---- Cache: modes, and measurements of what they change and cost -----------------------------------------------------


# Other words under which the modes of a family are looked for.
FAMILY_WORDS: Mapping[Family, str] = {
    "lossless": "cache mode, lossless, exact",
    "quantised": "quantize, quantise, quantization, quantised, quantising codec, fewer bits, compress, lossy",
    "evicting": "evict, eviction, drop rows, sparse, heavy hitters, compress, cache mode, lossy, retention",
}


def _mode(preset: Preset) -> Action:
    def choose(shell: Shell) -> None:
        shell.window.top.cache.choose(preset.spec)

    name, also = f"cache.{preset.name}", FAMILY_WORDS[preset.family]
    return Action(name, "", preset.label, preset.summary, choose, "no file", is_check=True, also=also)


# fmt: off
CACHE = (
    tuple(
        Submenu(title, (tuple(_mode(preset) for preset in PRESETS.values() if preset.family == family),), "Cache")
        for family, title in FAMILIES
    ),
    (
        Action("cache.tune", "", "Parameters of this cache…", "Lengths and sizes of the cache in use",
               dialogs.ask_parameters, "parameters", also="settings, options, tune, configure"),
    ),
    (
        Action("truth.parity", "F8", "Check parity",
               "Compare the steps taken with the same tokens without a cache, or in the mode the Parity panel names",
               lambda shell: shell.window.measure("parity"), "live steps",
               also="exact, correctness, verify, lossless, divergence"),
        Action("truth.sweep", "Shift+F8", "Measure every cache mode",
               "Bytes, speed and damage of every mode on the tokens of this prompt",
               lambda shell: shell.window.measure("sweep"), "live steps",
               also="perplexity, KL, benchmark modes, Pareto, which mode is best, accuracy, agreement"),
        Action("truth.bench", "Ctrl+Shift+F8", "Measure the speed of cache modes",
               "Decode speed and time to the first token at several contexts, modes taking turns",
               lambda shell: shell.window.measure("bench"), "live model",
               also="benchmark, tokens per second, TTFT, latency, throughput"),
        Action("compare.with", "", "Compare with…",
               "The same tokens in another mode or dtype, an earlier step or a snapshot, side by side",
               lambda shell: shell.window.compare().choose_opponent(), "steps",
               also="diff, difference, duel, side by side, versus"),
        Action("truth.regret", "Ctrl+F8", "Leave each row out",
               "What the next token loses (KL) when each row is left out, against the score of an eviction rule",
               lambda shell: shell.window.measure("evicted"), "live steps",
               also="leave one out, regret, importance of rows, ablation, saliency"),
    ),
    (
        Action("cache.calculator", "Ctrl+Shift+B", "Calculator…",
               "How many bytes a cache takes: any model, context, batch and mode", dialogs.open_calculator,
               also="VRAM, GPU memory, how much memory, estimate, fits, plan"),
        Action("cache.max", "Ctrl+Shift+M", "MAX parameters…", "The KVCacheParams of MAX for the loaded model",
               dialogs.open_max_parameters, "model", also="Modular, KVCacheParams"),
    ),
)


# fmt: on


# ---- View: what pictures show, moving the selection, layouts and themes ----------------------------------------------


def open_palette(shell: Shell) -> None:
    from app.actions.finding import entries, typed_edit, typed_place, typed_value
    from app.window.palette import Palette

    typed = [partial(each, shell) for each in (typed_edit, typed_place, typed_value)]
    Palette(entries(shell), shell.window, typed).open_over(shell.window)


def open_places(shell: Shell) -> None:
    """Open the palette for a place to go to alone."""
    from app.actions.finding import typed_place
    from app.window.palette import Palette

    places, none = "K[2,1,7,13] · token 7 · layer 12 · head 3 · step 40", "Type a place, such as one of these."
    Palette((), shell.window, (partial(typed_place, shell),), places, none).open_over(shell.window)


def _walk(name: str, key: str, text: str, do: Callable[[Shell], object]) -> Action:
    return Action(name, key, text, "In a picture", do, "model", where="picture")


_show = partial(Action, where="picture", is_check=True)
_zoom = partial(Action, where="picture")
_walk_tokens = partial(Action, needs="steps")
_mark = partial(Action, is_check=True)

LAYOUT_WORDS = "arrange panels, reset panels, workspace"
THEME_WORDS = "colors, appearance, dark mode, light mode"

# fmt: off
VIEW = (
    (
        _show("view.keys", "K", "Keys", "In a picture: show K", lambda shell: shell.navigator.show_lens("keys")),
        _show("view.values", "V", "Values", "In a picture: show V", lambda shell: shell.navigator.show_lens("values")),
        _show("view.change", "D", "Only what the step changed", "In a picture: the difference to the step before",
              lambda shell: shell.navigator.toggle_change(), also="difference, delta, diff"),
        Action("compare.flip", "X", "Other side of the comparison", "In a picture: B in the place of A, and back",
               lambda shell: shell.window.compare().flip(), "comparison", where="picture"),
    ),
    (
        _walk("view.layer_up", "Up", "Layer above", lambda shell: shell.navigator.walk_layers(-1)),
        _walk("view.layer_down", "Down", "Layer below", lambda shell: shell.navigator.walk_layers(+1)),
        _walk("view.layers_up", "PgUp", "Eight layers up", lambda shell: shell.navigator.walk_layers(-LEAP)),
        _walk("view.layers_down", "PgDown", "Eight layers down", lambda shell: shell.navigator.walk_layers(+LEAP)),
        _walk("view.head_left", "Left", "Head to the left", lambda shell: shell.navigator.walk_heads(-1)),
        _walk("view.head_right", "Right", "Head to the right", lambda shell: shell.navigator.walk_heads(+1)),
        _walk_tokens("view.token_left", "Alt+Left", "Token to the left", "Select the token before",
                     lambda shell: shell.navigator.walk_tokens(-1)),
        _walk_tokens("view.token_right", "Alt+Right", "Token to the right", "Select the token after",
                     lambda shell: shell.navigator.walk_tokens(+1)),
        _walk_tokens("view.go_to", "Ctrl+G", "Go to…",
                     "Type a place: K[2,1,7,13] (layer, kv head, token, channel), token 7, layer 12, head 3 or step 40",
                     open_places, also="jump, address, index, select"),
        _walk_tokens("view.find", "Ctrl+F", "Find token text", "Select the next token that holds a text",
                     lambda shell: shell.window.tokens.open_find(), also="search text, search token"),
        _walk_tokens("view.outliers", "Ctrl+Shift+L", "Largest values…",
                     "The largest K and V by layer, head and channel, the most attended tokens: a list that leads to "
                     "each", dialogs.open_outliers,
                     also="outlier, outliers, massive activations, maximum, extremes, attention sinks"),
    ),
    (
        _zoom("view.reset", "Home", "Show everything", "In a picture: every token again",
              lambda shell: shell.window.picture.reset_view(), also="zoom out, reset view"),
        _zoom("view.zoom", "F", "Zoom to the selection", "In a picture",
              lambda shell: shell.window.picture.zoom_to_selection(), also="zoom in, magnify"),
        _zoom("view.colors", "C", "Fit the colours", "In a picture: to what is visible",
              lambda shell: shell.window.picture.fit_colors(),
              also="colors, contrast, color range, colormap, colour scale"),
    ),
    (
        Submenu("Layout", ((
            Action("layout.learn", "Ctrl+1", "Learn", "The cache and the text, little else",
                   lambda shell: shell.window.arrange("learn"), also=LAYOUT_WORDS),
            Action("layout.inspect", "Ctrl+2", "Inspect", "Every panel",
                   lambda shell: shell.window.arrange("inspect"), also=LAYOUT_WORDS),
            Action("layout.compare", "Ctrl+3", "Compare", "Two runs of the same tokens, side by side",
                   lambda shell: shell.window.arrange("compare"), also=LAYOUT_WORDS),
            Action("layout.truth", "Ctrl+4", "Truth",
                   "What the cache saves and what it costs: what-if, parity, damage, sweep",
                   lambda shell: shell.window.arrange("truth"), also=LAYOUT_WORDS),
            Action("layout.servers", "Ctrl+5", "Servers", "What servers elsewhere have cached, and why no more",
                   lambda shell: shell.window.arrange("servers"), also=LAYOUT_WORDS),
        ),)),
    ),
    (
        Submenu("Theme", ((
            _mark("theme.system", "", "As the desktop", "Dark or light, as the desktop says",
                  lambda shell: shell.set_theme("system"), also=THEME_WORDS),
            _mark("theme.dark", "", "Dark", "Light text on a dark ground", lambda shell: shell.set_theme("dark"),
                  also=THEME_WORDS),
            _mark("theme.light", "", "Light", "Dark text on a light ground", lambda shell: shell.set_theme("light"),
                  also=THEME_WORDS),
        ),)),
        Action("view.warnings", "", "Warnings", "What may surprise you about the model, the prompt or the numbers",
               dialogs.open_warnings, also="problems, errors, NaN, Inf, not finite, messages"),
        _mark("view.full", "F11", "Full screen", "And back", lambda shell: shell.window.toggle_full_screen(),
              also="maximise, maximize"),
    ),
)


# fmt: on


# ---- Help ------------------------------------------------------------------------------------------------------------


# fmt: off
HELP = (
    (
        Action("help.palette", "Ctrl+Shift+P", "Find any action", "Every action, panel, setting and place by its name",
               open_palette, also="command palette, search, commands"),
        Action("help.keys", "?", "Keys", "Which key does what", dialogs.open_keys, also="shortcuts, keyboard, hotkeys"),
    ),
    (
        Action("help.begin", "", "The first five minutes", "What to do first, and what you see then",
               partial(dialogs.open_manual, page="first-five-minutes"), also="tutorial, introduction, getting started"),
        Action("help.glossary", "", "Glossary", "The words of this window, each in a sentence or two",
               partial(dialogs.open_manual, page="glossary"), also="definition, meaning, terms, words, what is"),
        Action("help.manual", "", "Manual", "Every panel on a page, with a search",
               partial(dialogs.open_manual, page=""), also="documentation, docs, readme, help"),
        Action("help.panel", "F1", "Help on this panel", "The page of the manual about the panel that has the focus",
               dialogs.open_help_on_panel, also="what is this, explain"),
    ),
    (
        Action("help.about", "", "About KV Loupe", "Version, licence and what it runs on", dialogs.open_about,
               also="version, licence, license"),
    ),
)
# fmt: on


MENUS: Menus = {"&File": FILES, "&Edit": EDIT, "&Run": RUN, "&Cache": CACHE, "&View": VIEW, "&Help": HELP}
