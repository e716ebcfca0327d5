"""Every action of the window, declared: what it is called, its key, where it acts and when it is possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from app.models import Models
from app.models.standing import selected_info, why_ended
from app.start.cache_modes import MODES, family_of
from engine.spec.presets import preset_of

# Where a shortcut acts: everywhere, or only while a widget of that kind has the focus (letters and Space stay typing).
Scope = Literal["window", "picture", "timeline"]
# Why an action is not possible now, in a few words; empty when it is.
Condition = Callable[[Models], str]


@dataclass(frozen=True)
class Entry:
    """One action, declared. `text` and `tip` are English and translated where they are shown."""

    key: str
    menu: str
    text: str
    shortcut: str = ""
    tip: str = ""
    scope: Scope = "window"
    needs: Condition | None = None
    is_check: bool = False
    group: str = ""


# ---- conditions --------------------------------------------------------------------------------------------------


def needs_model(models: Models) -> str:
    status = models.status.now
    return "" if status is not None and status.model is not None else "no model is loaded yet"


def needs_prompt(models: Models) -> str:
    return needs_model(models) or models.draft.problem


def needs_sequence(models: Models) -> str:
    status = models.status.now
    return "" if status is not None and status.sequences else "send a prompt first"


def needs_unfinished(models: Models) -> str:
    status = models.status.now
    if missing := needs_sequence(models):
        return missing
    if status is None or any(info.state != "finished" for info in status.sequences):
        return ""
    return why_ended(selected_info(models) or status.sequences[-1])


def needs_step(models: Models) -> str:
    """Stepping is possible while looking back, too: towards the live step."""
    return "" if models.selection.now.step is not None else needs_unfinished(models)


def needs_run(models: Models) -> str:
    return "" if models.status.is_running else needs_unfinished(models)


def needs_history(models: Models) -> str:
    return "" if len(models.timeline) > 1 else "there is no step to go back to yet"


def needs_past(models: Models) -> str:
    return "" if models.selection.now.step is not None else "look at a past step first"


def needs_work(models: Models) -> str:
    status = models.status.now
    if status is None or not (status.running or status.work is not None):
        return "nothing is going on"
    return "" if status.work is None or status.work.can_cancel else "this cannot be stopped half-way"


def needs_steps(models: Models) -> str:
    return "" if len(models.timeline) else "send a prompt first"


def needs_parameters(models: Models) -> str:
    status = models.status.now
    tunable = status is not None and preset_of(status.cache).parameters
    return "" if tunable else "this cache has no parameters"


# ---- the table ---------------------------------------------------------------------------------------------------

FILE, RUN, CACHE, VIEW, HELP = "&File", "&Run", "&Cache", "&View", "&Help"
MENUS = (FILE, RUN, CACHE, VIEW, HELP)

TABLE: tuple[Entry, ...] = (
    Entry(
        "model.open",
        FILE,
        "Open model folder…",
        "Ctrl+O",
        "A folder in Hugging Face layout; dropping it on the window does the same",
    ),
    Entry("model.hub", FILE, "Model by hub name…", "", "A model that is on this computer, or a download you allow"),
    Entry(
        "model.shape",
        FILE,
        "Shape from config.json…",
        "",
        "Build an architecture with random weights, to see its cache",
    ),
    Entry("model.bundled", FILE, "Bundled model", "", "Load the small model that comes with the program"),
    Entry(
        "export",
        FILE,
        "Export…",
        "Ctrl+E",
        "The cache as a snapshot, the steps as a table",
        needs=needs_steps,
        group="out",
    ),
    Entry(
        "picture.copy", FILE, "Copy picture", "Ctrl+Shift+C", "The panel that has the focus, as a picture", group="out"
    ),
    Entry(
        "picture.save",
        FILE,
        "Save picture…",
        "Ctrl+Shift+E",
        "The panel that has the focus, as a PNG file",
        group="out",
    ),
    Entry("quit", FILE, "Quit", "Ctrl+Q", "End the program", group="end"),
    Entry(
        "prompt.send",
        RUN,
        "Send prompt",
        "Ctrl+Return",
        "Start a new sequence and fill the cache with the prompt",
        needs=needs_prompt,
    ),
    Entry(
        "prompt.add",
        RUN,
        "Add as another sequence",
        "Ctrl+Shift+Return",
        "Start the prompt beside the sequences that are there; a paged cache shares what they have in common",
        needs=needs_prompt,
    ),
    Entry("run.step", RUN, "Step", "F10", "One token on", needs=needs_step, group="run"),
    Entry("run.back", RUN, "Step back", "Shift+F10", "Look at the step before", needs=needs_history, group="run"),
    Entry(
        "run.run", RUN, "Run or pause", "F5", "Generate until paused, finished or full", needs=needs_run, group="run"
    ),
    Entry(
        "run.to",
        RUN,
        "Run steps…",
        "Ctrl+F10",
        "Generate a number of tokens, then rest",
        needs=needs_unfinished,
        group="run",
    ),
    Entry(
        "run.cancel",
        RUN,
        "Stop",
        "Esc",
        "Stop what is going on: a run, a prefill, a load, an export",
        needs=needs_work,
        group="run",
    ),
    Entry(
        "run.first",
        RUN,
        "Look at the first step",
        "",
        "Show every panel as it was at the start",
        needs=needs_history,
        group="past",
    ),
    Entry("run.live", RUN, "Back to live", "Ctrl+L", "Follow the newest step again", needs=needs_past, group="past"),
    Entry(
        "run.rewind",
        RUN,
        "Rewind here",
        "Ctrl+Shift+F10",
        "Make the step you look at the live one, exactly",
        needs=needs_past,
        group="past",
    ),
    Entry(
        "timeline.play",
        RUN,
        "Replay recorded steps",
        "Space",
        "On the timeline: play from here, and stop",
        "timeline",
        needs_history,
        group="past",
    ),
    Entry(
        "timeline.first",
        RUN,
        "Timeline: first step",
        "Home",
        "On the timeline",
        "timeline",
        needs_history,
        group="past",
    ),
    Entry("timeline.live", RUN, "Timeline: live step", "End", "On the timeline", "timeline", needs_past, group="past"),
    *(
        Entry(
            f"cache.{preset.name}", CACHE, preset.label, "", preset.summary, is_check=True, group=family_of(preset.spec)
        )
        for preset in MODES.values()
    ),
    Entry(
        "cache.tune",
        CACHE,
        "Parameters of this cache…",
        "",
        "Lengths and sizes of the cache in use",
        needs=needs_parameters,
        group="parameters",
    ),
    Entry(
        "truth.parity",
        CACHE,
        "Check parity",
        "F8",
        "Compare the steps taken with the same tokens without a cache, or in the mode chosen in the Parity panel",
        needs=needs_steps,
        group="truth",
    ),
    Entry(
        "truth.sweep",
        CACHE,
        "Measure every cache mode",
        "Shift+F8",
        "Bytes, speed and damage of every mode on the tokens of this prompt",
        needs=needs_steps,
        group="truth",
    ),
    Entry(
        "truth.regret",
        CACHE,
        "Measure policy regret",
        "Ctrl+F8",
        "What removing each row does to the next token, against the score of a rule",
        needs=needs_steps,
        group="truth",
    ),
    Entry(
        "cache.calculator",
        CACHE,
        "Calculator…",
        "Ctrl+Shift+B",
        "How many bytes a cache takes: any model, context, batch and mode",
        group="sums",
    ),
    Entry(
        "cache.max",
        CACHE,
        "MAX parameters…",
        "Ctrl+Shift+M",
        "The KVCacheParams of MAX for the loaded model",
        needs=needs_model,
        group="sums",
    ),
    Entry("view.keys", VIEW, "Keys", "K", "In a picture: show K", "picture", is_check=True),
    Entry("view.values", VIEW, "Values", "V", "In a picture: show V", "picture", is_check=True),
    Entry(
        "view.change",
        VIEW,
        "Only what the step changed",
        "D",
        "In a picture: the difference to the step before",
        "picture",
        is_check=True,
    ),
    Entry("view.layer_up", VIEW, "Layer above", "Up", "In a picture", "picture", needs_model, group="walk"),
    Entry("view.layer_down", VIEW, "Layer below", "Down", "In a picture", "picture", needs_model, group="walk"),
    Entry("view.layers_up", VIEW, "Eight layers up", "PgUp", "In a picture", "picture", needs_model, group="walk"),
    Entry(
        "view.layers_down", VIEW, "Eight layers down", "PgDown", "In a picture", "picture", needs_model, group="walk"
    ),
    Entry("view.head_left", VIEW, "Head to the left", "Left", "In a picture", "picture", needs_model, group="walk"),
    Entry("view.head_right", VIEW, "Head to the right", "Right", "In a picture", "picture", needs_model, group="walk"),
    Entry(
        "view.token_left",
        VIEW,
        "Token to the left",
        "Alt+Left",
        "Select the token before",
        needs=needs_steps,
        group="walk",
    ),
    Entry(
        "view.token_right",
        VIEW,
        "Token to the right",
        "Alt+Right",
        "Select the token after",
        needs=needs_steps,
        group="walk",
    ),
    Entry(
        "view.find",
        VIEW,
        "Find token text",
        "Ctrl+F",
        "Select the next token that holds a text",
        needs=needs_steps,
        group="walk",
    ),
    Entry(
        "view.outliers",
        VIEW,
        "Largest values…",
        "Ctrl+Shift+L",
        "The largest K and V by layer, head and channel, and the most attended tokens: a list that leads to each",
        needs=needs_steps,
        group="walk",
    ),
    Entry("view.reset", VIEW, "Show everything", "Home", "In a picture: every token again", "picture", group="zoom"),
    Entry("view.zoom", VIEW, "Zoom to the selection", "F", "In a picture", "picture", group="zoom"),
    Entry("view.colors", VIEW, "Fit the colours", "C", "In a picture: to what is visible", "picture", group="zoom"),
    Entry("layout.learn", VIEW, "Layout: Learn", "Ctrl+1", "The cache and the text, little else", group="layout"),
    Entry("layout.inspect", VIEW, "Layout: Inspect", "Ctrl+2", "Every panel", group="layout"),
    Entry(
        "layout.truth",
        VIEW,
        "Layout: Truth",
        "Ctrl+4",
        "What the cache saves and what it costs: what-if, parity, damage, sweep",
        group="layout",
    ),
    Entry(
        "theme.system",
        VIEW,
        "Theme: as the desktop",
        "",
        "Dark or light, as the desktop says",
        is_check=True,
        group="theme",
    ),
    Entry("theme.dark", VIEW, "Theme: dark", "", "", is_check=True, group="theme"),
    Entry("theme.light", VIEW, "Theme: light", "", "", is_check=True, group="theme"),
    Entry("view.full", VIEW, "Full screen", "F11", "And back", is_check=True, group="theme"),
    Entry("help.palette", HELP, "Find any action", "Ctrl+Shift+P", "Every action by its name"),
    Entry("help.keys", HELP, "Keys", "?", "Which key does what"),
    Entry("help.about", HELP, "About KV Loupe", "", "Version, licence and what it runs on", group="about"),
)
