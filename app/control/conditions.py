"""When an action is possible: each function returns why it is not, in a few words, or "" when it is."""

from __future__ import annotations

from app.models import Models
from app.models.places import NOTHING, EditOfRows, chosen_rows, edit_of_chosen
from app.models.selection import chosen_cell
from app.models.sequence_status import why_all_ended
from app.models.timeline import tip_left
from engine.errors import InputError
from engine.spec.cache import parameters_of


def while_loading(models: Models) -> str:
    """An action during loading would act on the session that the load is about to replace."""
    return "a model is being loaded: wait for it, or cancel" if models.status.is_loading else ""


def needs_model(models: Models) -> str:
    status = models.status
    why_none = "the model is unloaded: load it again" if status.is_unloaded else "no model is loaded yet"
    return models.status.why_no_engine or while_loading(models) or ("" if status.now.model is not None else why_none)


def needs_former(models: Models) -> str:
    """A session that another one has replaced in this window."""
    why_none = "" if models.kept_sessions.former is not None else "no other session has ended in this window"
    return models.status.why_no_engine or while_loading(models) or why_none


def needs_unloaded(models: Models) -> str:
    """A model that was loaded here and then unloaded."""
    status = models.status
    if not status.is_known or status.now.model is not None:
        return "the model is loaded" if status.now.model is not None else "no model was loaded yet"
    return (
        models.status.why_no_engine
        or while_loading(models)
        or ("" if status.last_source else "no model was loaded yet")
    )


def needs_live(models: Models) -> str:
    """A model that can compute: an opened file has none."""
    if models.status.has_file:
        return "this is an opened file: go on with its model first, or load another"
    return needs_model(models)


def needs_runner(name: str, models: Models) -> str:
    """A live model that the named runner can run."""
    status = models.status.now
    return needs_live(models) or dict(status.runner.refused).get(name, "")  # type: ignore[call-overload]


def needs_paged_attention(name: str, models: Models) -> str:
    """A live model whose attention can read pages in the named way."""
    status = models.status.now
    refused = {str(way): why for way, why in status.runner.refused_pages}
    return needs_live(models) or refused.get(name, "")


def needs_edited(models: Models) -> str:
    return needs_live_steps(models) or ("" if models.edits.on_path() else "nothing was edited on the way here")


def needs_undone(models: Models) -> str:
    return needs_live_steps(models) or ("" if models.edits.undone else "nothing was undone")


def needs_rows(models: Models) -> str:
    """Selected rows that an edit can be made on: only rows of the live step."""
    if why_not := needs_live_steps(models):
        return why_not
    if models.selection.now.step is not None:
        return "edits are made on the live step: go to this one first"
    return "" if chosen_rows(models) is not None else NOTHING


def needs_whole_rows(edit: EditOfRows, models: Models) -> str:
    """Selected rows on which `edit` is possible, as whole rows (of K and V together)."""
    model = models.status.now.model
    if (why_not := needs_rows(models)) or model is None:
        return why_not
    now = models.selection.now
    made = edit_of_chosen(models, edit, is_whole=True)
    assert made is not None
    try:
        made.check(model.geometry, models.timeline.num_tokens(now.seq_id, None))
    except InputError as error:
        why_not = str(error).rstrip(".")
    return f"{why_not[:1].lower()}{why_not[1:]}"


def needs_eviction_rule(models: Models) -> str:
    """Selected rows of a cache with an eviction rule: a pin has an effect only there."""
    keeps_all = models.status.now.cache.retention.keeps_all
    return needs_rows(models) or ("this cache keeps every row: take one with an eviction rule" if keeps_all else "")


def needs_evictable_rows(edit: EditOfRows, models: Models) -> str:
    """The same for an edit that needs a cache with an eviction rule, such as a pin."""
    return needs_eviction_rule(models) or needs_whole_rows(edit, models)


def needs_no_file(models: Models) -> str:
    """No opened file; whether a model is loaded does not matter."""
    return needs_live(models) if models.status.has_file else ""


def needs_file(models: Models) -> str:
    """An opened file."""
    return "no file is open" if not models.status.has_file else models.status.why_no_engine


def needs_resumable(models: Models) -> str:
    """An opened file that decoding can continue from with its model."""
    opened = models.status.now.opened
    return "no file is open" if opened is None else opened.why_not or models.status.why_no_engine


def needs_prompt(models: Models) -> str:
    return needs_live(models) or models.draft.problem


def needs_prompt_or_load(models: Models) -> str:
    """A prompt for the live model, or for the one that is being loaded."""
    if is_model_expected(models):
        return models.status.why_no_engine or models.draft.problem
    return needs_prompt(models)


def is_model_expected(models: Models) -> bool:
    """Whether a model is being loaded, or the engine is only starting."""
    return not models.status.is_known or models.status.is_loading


def needs_unfinished(models: Models) -> str:
    """Sequences of a live model, at least one of which is not finished."""
    return needs_live(models) or ("" if has_sequences(models) else "send a prompt first") or why_all_ended(models)


def has_sequences(models: Models) -> bool:
    return bool(models.status.now.sequences)


def needs_phase(models: Models) -> str:
    """A step that can be taken in phases; without sequences that is the first step of the typed prompt."""
    return needs_unfinished(models) if has_sequences(models) else needs_prompt(models)


def needs_step(models: Models) -> str:
    """A next step; while an earlier step is shown, the next recorded one; without a sequence the prompt's prefill."""
    if models.selection.now.step is not None:
        return ""
    is_first = is_model_expected(models) or not has_sequences(models)
    return needs_prompt_or_load(models) if is_first else needs_unfinished(models)


def needs_run(models: Models) -> str:
    return "" if models.status.now.running else needs_unfinished(models)


def needs_history(models: Models) -> str:
    return "" if len(models.timeline) > 1 else "there is no step to go back to yet"


def needs_past(models: Models) -> str:
    return "" if models.selection.now.step is not None else "view a past step first"


def needs_here(models: Models) -> str:
    """A place to run to: steps chosen ahead of the live one, or a step that is not the live one."""
    now = models.selection.now
    if now.ahead or models.timeline.num_steps_ahead:
        return needs_unfinished(models)
    return needs_no_file(models) or ("" if now.step is not None else "choose a place on the timeline first")


def needs_token_here(models: Models) -> str:
    """A selected token to run to: one that was not computed by the live step."""
    now, timeline = models.selection.now, models.timeline
    if why_not := needs_no_file(models) or needs_token(models):
        return why_not
    token = timeline.token(now.seq_id, now.position or 0)
    return "the live step ends with this token" if token is not None and token.step == timeline.history.live else ""


def needs_left(models: Models) -> str:
    """A branch that the user went back from, or that another one was begun beside."""
    return needs_no_file(models) or ("" if tip_left(models.history) is not None else "no branch was left")


def needs_live_past(models: Models) -> str:
    return needs_no_file(models) or needs_past(models)


def needs_work(models: Models) -> str:
    status = models.status.now
    if gone := models.status.why_no_engine:
        return gone
    if not (status.running or status.work is not None or status.suspended is not None):
        return "nothing is going on"
    return "" if status.work is None or status.work.can_cancel else "this cannot be stopped half-way"


def needs_steps(models: Models) -> str:
    return "" if len(models.timeline) else "send a prompt first"


def needs_kept_rows(models: Models) -> str:
    """Recorded steps with their K and V, of a live model or in an opened file."""
    opened = models.status.now.opened
    if opened is not None and not opened.has_rows:
        return "a session file has no K and V: go on with its model first"
    return needs_steps(models)


def needs_saveable(models: Models) -> str:
    """Steps that were done here; an opened file is saved already."""
    if models.status.has_file:
        return "this is an opened file, which is saved already"
    return needs_steps(models)


def needs_comparison(models: Models) -> str:
    return "" if models.comparison.now is not None else "compare two runs first"


def needs_live_steps(models: Models) -> str:
    return needs_live(models) or needs_steps(models)


def needs_parameters(models: Models) -> str:
    cache = models.status.now.cache
    tunable = models.status.is_known and (parameters_of(cache) or not cache.row.takes_no)
    return needs_no_file(models) or ("" if tunable else "this cache has no parameters")


def needs_matches(models: Models) -> str:
    """Steps at which the condition searched for held."""
    search = models.breakpoints.queried
    if search is None:
        return "type a condition to look for first"
    return "" if search.matches else "it held at no step"


def needs_breakpoints(models: Models) -> str:
    return "" if models.breakpoints.listed else "there is no breakpoint"


def needs_cell(models: Models) -> str:
    """A selected cell of a head: one channel of one token."""
    return "" if chosen_cell(models.selection.now) is not None else "select a cell in Head first"


def needs_token(models: Models) -> str:
    now = models.selection.now
    has_token = now.position is not None and models.timeline.token(now.seq_id, now.position) is not None
    return "" if has_token else "select a token first"
