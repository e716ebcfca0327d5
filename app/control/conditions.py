"""What actions need, and why it is not there; and which have their check mark. Each is one table, so that what several
actions need is asked once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from app.models import Models
from app.models.places import NOTHING, EditOfRows, chosen_rows, edit_of_chosen
from app.models.selection import chosen_cell
from app.models.sequence_status import why_all_ended
from app.models.timeline import tip_left
from engine.errors import InputError
from engine.spec.cache import PRESETS, parameters_of
from engine.spec.edit import Drop, Mask, Pin
from engine.spec.model import CAPTURES, PAGED_ATTENTION, RUNNERS

# The edits of whole rows, of K and V together, by name; those of `OF_RULES` have an effect only on an eviction rule.
WHOLE_EDITS: Mapping[str, EditOfRows] = {
    "mask": Mask,
    "unmask": partial(Mask, hidden=False),
    "drop": Drop,
    "pin": Pin,
    "unpin": partial(Pin, pinned=False),
}
OF_RULES = ("pin", "unpin")
OPENED_FILE = "this is an opened file: go on with its model first, or load another"
NO_STEP, NO_FILE, NO_MODEL = "send a prompt first", "no file is open", "no model was loaded yet"


def reasons(models: Models) -> dict[str, str]:
    """Why what actions need is not there, in a few words, by its name; the empty text where it is."""
    status, told, draft, now = models.status, models.status.now, models.draft, models.selection.now
    timeline, history, file, is_first = models.timeline, models.history, told.opened, not told.sequences
    gone = status.why_no_engine
    # an action during loading would act on the session that the load is about to replace
    wait = gone or unless(not status.is_loading, "a model is being loaded: wait for it, or cancel")
    model = wait or unless(
        told.model, "the model is unloaded: load it again" if status.is_unloaded else "no model is loaded yet"
    )
    no_file = unless(file is None, OPENED_FILE)
    live, steps = no_file or model, unless(len(timeline), NO_STEP)  # a file has no model that computes
    live_steps, past = live or steps, unless(now.step is not None, "view a past step first")
    unfinished = live or unless(told.sequences, NO_STEP) or why_all_ended(models)
    prompt = live or draft.problem
    first_prompt = gone or draft.problem if status.awaits_model else prompt  # also for the model on its way
    token = None if now.position is None else timeline.token(now.seq_id, now.position)
    no_token, search = unless(token, "select a token first"), models.breakpoints.queried
    is_ahead = now.ahead or timeline.num_steps_ahead
    rows = live_steps or unless(now.step is None, "edits are made on the live step: go to this one first")
    rows = rows or unless(chosen_rows(models), NOTHING)
    keeps_all = told.cache.retention.keeps_all
    evictable = rows or unless(not keeps_all, "this cache keeps every row: take one with an eviction rule")
    is_tunable = status.is_known and (parameters_of(told.cache) or not told.cache.row.takes_no)
    runners, ways = dict(told.runner.refused), dict(told.runner.refused_pages)
    return {
        "model": model,
        "former session": wait or unless(models.kept_sessions.former, "no other session has ended in this window"),
        "unloaded model": NO_MODEL
        if not status.is_known
        else unless(told.model is None, "the model is loaded") or wait or unless(status.last_source, NO_MODEL),
        "live model": live,
        "no file": no_file,
        "file": NO_FILE if file is None else gone,
        "resumable file": NO_FILE if file is None else file.why_not or gone,
        "prompt": prompt,
        "first prompt": first_prompt,
        "unfinished": unfinished,
        # without sequences it is the first one of the typed prompt; while an earlier one is shown, the next recorded
        "step": "" if now.step is not None else first_prompt if status.awaits_model or is_first else unfinished,
        "phase": prompt if is_first else unfinished,
        "run": unless(told.running, unfinished),
        "history": unless(len(timeline) > 1, "there is no step to go back to yet"),
        "past step": past,
        "live past": no_file or past,
        # steps chosen ahead of the live one, or a step that is not the live one
        "place ahead": unfinished
        if is_ahead
        else no_file or unless(now.step is not None, "choose a place on the timeline first"),
        "token": no_token,
        "token to run to": no_file
        or no_token
        or unless(token is None or token.step != history.live, "the live step ends with this token"),
        "branch left": no_file or unless(tip_left(history) is not None, "no branch was left"),
        "work": gone or _why_no_work(models),
        "steps": steps,
        "kept rows": "a session file has no K and V: go on with its model first"
        if file is not None and not file.has_rows
        else steps,
        "saveable steps": unless(file is None, "this is an opened file, which is saved already") or steps,
        "live steps": live_steps,
        "edits": live_steps or unless(models.edits.on_path(), "nothing was edited on the way here"),
        "undone edits": live_steps or unless(models.edits.undone, "nothing was undone"),
        "rows": rows,
        "comparison": unless(models.comparison.now, "compare two runs first"),
        "parameters": no_file or unless(is_tunable, "this cache has no parameters"),
        "matches": unless(search, "type a condition to look for first")
        or unless(search is not None and search.matches, "it held at no step"),
        "breakpoints": unless(models.breakpoints.listed, "there is no breakpoint"),
        "cell": unless(chosen_cell(now), "select a cell in Head first"),
        **{f"runner {name}": live or runners.get(name, "") for name in RUNNERS},
        **{f"pages {way}": live or ways.get(way, "") for way in PAGED_ATTENTION},
        **{
            f"rows to {name}": (evictable if name in OF_RULES else rows) or _why_refused(edit, models)
            for name, edit in WHOLE_EDITS.items()
        },
    }


def marks(models: Models) -> dict[str, bool]:
    """Whether the actions that choose something have their check mark, by name; those of the models alone."""
    told, now, rows, preset = models.status.now, models.selection.now, chosen_rows(models), models.status.preset
    runner = None if told.model is None else told.runner
    return {
        **{f"runner.{name}": runner is not None and name == runner.chosen for name in RUNNERS},
        **{f"pages.{way}": runner is not None and way == runner.pages for way in PAGED_ATTENTION},
        **{f"capture.{level}": level == told.capture.level for level in CAPTURES},
        "capture.by_layer": told.capture.by_layer,
        **{f"cache.{name}": name == preset for name in PRESETS},
        **{f"edit.{part}": rows is not None and rows.part == part for part in ("both", "keys", "values")},
        **{f"view.{lens}": lens == now.lens for lens in ("keys", "values")},
        "view.change": now.change,
    }


def unless(holds: object, why: str) -> str:
    """Why something is not there, unless it is."""
    return "" if holds else why


def _why_no_work(models: Models) -> str:
    told = models.status.now
    if not (told.running or told.work is not None or told.suspended is not None):
        return "nothing is going on"
    return "" if told.work is None or told.work.can_cancel else "this cannot be stopped half-way"


def _why_refused(edit: EditOfRows, models: Models) -> str:
    """Why an edit of the chosen rows as whole rows would be refused."""
    made, model = edit_of_chosen(models, edit, is_whole=True), models.status.now.model
    assert made is not None
    assert model is not None
    try:
        made.check(model.geometry, models.timeline.num_tokens(made.seq_id))
    except InputError as error:
        why = str(error).rstrip(".")
        return f"{why[:1].lower()}{why[1:]}"
    return ""
