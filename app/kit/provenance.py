"""Describes what a picture shows: which record, which step a picture belongs to, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from app.draw.format import brief, short_dtype, thousands, token_label
from app.kit.words import branch_name
from app.models import Models, RowEviction
from app.models.places import layer_label
from engine.counted import counted
from engine.spec.lenses import LENSES
from engine.spec.model import reads_in_place
from engine.wire.pictures import AttentionPicture, HeadPicture, WallPicture
from engine.wire.records import Ints, SequenceStep, StepRecord

NARROW = 540

STORED_NOW = "as stored now"  # rows as they are now, shown for an earlier step at which they may have differed


class Provenance(Struct, frozen=True):
    """Where a panel's numbers come from: `words` beside a dot, the `kind` that colours it, and the `sentence` of the
    tool tip; `brief` is shown where the words do not fit. The kind `past` is amber: not of the newest step."""

    words: str
    kind: str = "live cache"
    sentence: str = ""
    brief: str = ""


def shown_record(models: Models) -> StepRecord | None:
    """The record of the selected step, or the newest."""
    return models.timeline.at(models.selection.now.step)


def shown_part(models: Models) -> tuple[StepRecord, SequenceStep] | None:
    """The newest record, up to the step shown, that computed the selected sequence, with its part; None if there is
    none."""
    now = models.selection.now
    record = models.timeline.newest_of(now.seq_id, now.step)
    part = models.timeline.part(now.seq_id, record.step) if record is not None else None
    return (record, part) if record is not None and part is not None else None


def step_of(models: Models, seq_id: int, num_tokens: int) -> int | None:
    """The step after which a sequence had `num_tokens` tokens; None if it does not have them on this path."""
    latest = models.timeline.latest
    part = models.timeline.part(seq_id)
    if latest is not None and part is not None and part.num_tokens == num_tokens:
        return latest.step
    newest = models.timeline.token(seq_id, num_tokens - 1)
    return newest.step if newest is not None else None


def suspended_step(models: Models, seq_id: int, num_tokens: int) -> int | None:
    """The step suspended between two phases, if a picture with `num_tokens` tokens shows its state; else None."""
    status = models.status.now
    suspended = status.suspended if models.selection.now.step is None else None
    if suspended is None or seq_id not in suspended.seq_ids:
        return None
    return suspended.step if num_tokens == suspended.num_tokens[suspended.seq_ids.index(seq_id)] else None


PositionSpan = tuple[int, int]


def selected_run(models: Models) -> PositionSpan | None:
    """The selected positions `start … stop`: one token, the area dragged over, or all tokens of the selected page."""
    now, record = models.selection.now, shown_record(models)
    if now.area is not None:
        return now.area.start, now.area.stop
    if now.position is None:
        return None
    if now.page is None or record is None or not record.page_maps:
        return now.position, now.position + 1
    stop = now.position + record.page_maps[0].page_size
    return now.position, max(min(stop, models.timeline.num_tokens(now.seq_id, record.step)), now.position + 1)


def span_of_run(columns: Callable[[int], PositionSpan | None], run: PositionSpan | None) -> PositionSpan | None:
    """The columns that show a run of positions, as far as it is in the picture; `columns` returns those of one
    position."""
    if run is None:
        return None
    found = [span for span in (columns(run[0]), columns(run[1] - 1)) if span is not None]
    return (min(first for first, _ in found), max(stop for _, stop in found)) if found else None


def lateness(
    models: Models, seq_id: int, num_tokens: int, shown: str = "", wanted: str = "", *, is_last: bool = False
) -> str:
    """`showing K of step 804`: what a picture shows, if that is not what is selected now; else the empty text.

    While the engine runs, every picture is late: when it is drawn, the next step has been taken. `shown` and `wanted`
    name the tensor of the picture and that of the selection. `is_last`: the picture compares two runs, and no later
    step was compared.
    """
    now = models.selection.now
    is_other_step = num_tokens != models.timeline.num_tokens(now.seq_id, now.step)
    is_other_step |= now.step is None and models.status.now.running
    if not (is_other_step or seq_id != now.seq_id or shown != wanted):
        return ""
    if (suspended := suspended_step(models, seq_id, num_tokens)) is not None:
        return f"step {thousands(suspended)} so far"
    step = step_of(models, seq_id, num_tokens)
    where = f"step {thousands(step)}" if step is not None else "an undone step"
    where = f"sequence {seq_id}, {where}" if seq_id != now.seq_id else where
    words = [f"showing {shown} of {where}" if shown else f"showing {where}"]
    if models.status.loss:
        words.append(f"engine {models.status.loss}")
    elif shown != wanted:
        words.append(f"{wanted} is on its way")
    elif now.step is not None and is_other_step:
        words.append(f"step {thousands(now.step)} {'was not compared' if is_last else 'is on its way'}")
    return " · ".join(words)


def source_of(
    models: Models,
    provenance: str,
    dtype: str,
    step: int | None,
    late: str = "",
    *,
    is_whole: bool = True,
    computed_in: int | None = None,
    is_of_cache_now: bool = False,
    parts: str = "",
) -> Provenance:
    """Where the numbers of a step come from, and whether they are of the newest step.

    The words are the provenance, followed where necessary by what the picture shows instead of the selection (`late`),
    or that part of it is missing. The step is named only when it is not the one in the top bar, and while the engine
    runs, when that is ahead. Looking back, rows of the live cache are called by their step alone, as they are not all
    of it. Numbers that may not be of the newest step are amber, as are those recorded in a cache mode that was left
    since, unless they were measured after that (`is_of_cache_now`). A branch that is not the live one is named. The
    tool tip has the whole sentence, with the step `computed_in` that computed the sequence last, if the newest one did
    not. `parts` says which rows are dequantised, if others are exact.
    """
    asked = models.selection.now.step
    record = shown_record(models)
    shown = record.step if record is not None else asked
    status = models.status.now
    model = status.model
    place = short_dtype(dtype)
    named = f"partly {provenance}" if parts and provenance == "dequantised" else provenance
    whole = [
        f"{named} ({parts})" if parts else named,
        f"{model.device} {place}" if model is not None and place else place,
    ]
    if step is None:
        whole.append("of an undone step")
    elif computed_in is not None and computed_in != step:
        whole.append(f"step {thousands(computed_in)}, the newest that computed this sequence")
    else:
        whole.append(f"step {thousands(step)}")
    computed = models.timeline.at(step) if step is not None else None
    if computed is not None and reads_in_place(computed.runner):
        whole.append("pages read in place, which rounds otherwise than gathered ones")
    elif computed is not None and computed.cache.is_paged and computed.runner:
        whole.append("pages gathered where they lie scattered")
    is_before_change = asked is None and models.timeline.is_before_change
    is_other_mode = computed is None or computed.cache != status.cache
    is_old = is_before_change and is_other_mode and provenance == "recorded" and not is_of_cache_now
    if is_before_change and is_other_mode and is_of_cache_now:
        whole.append("after the change of the cache mode")
    is_moving = asked is None and status.running and not late
    words, step_words = [named], "undone step" if step is None else f"step {thousands(step)}"
    brief = ""
    loss = ""
    if provenance != "recorded" and (models.status.loss or (models.status.is_known and model is None)):
        loss = f"engine {models.status.loss}" if models.status.loss else "model not loaded"
    elif provenance != "recorded" and models.status.is_replaying:
        loss = "from before"
    if late or not is_whole:
        words = [late or "part of it is not loaded yet"]
        brief = step_words if late and "sequence" not in late else ""
        whole += words
    elif asked is not None and step is not None and provenance == "live cache":
        words, brief = [step_words], step_words
    elif step != shown or is_moving:
        words.append(step_words)
        brief = step_words
        if step != shown and not models.status.loss:
            whole.append("step {} is on its way".format("–" if shown is None else thousands(shown)))
    elif is_old:
        words = ["earlier mode"]
        whole.append("before the change of the cache mode")
    if loss and not late:
        words.append(loss)
        brief = brief or loss
        whole.append(loss)
    if asked is not None:
        whole.append("looking back")
    if asked is not None and models.timeline.is_elsewhere:
        brief = branch_name(models, models.history.branch_of(asked).first)
        words.append(brief)
        whole.append(f"branch {brief}, not the live one")
    is_random = model is not None and model.random_weights
    if is_random:
        words.append("random weights")
        whole.append("random weights")
    is_late = asked is not None or step != shown or bool(late) or not is_whole or is_old or is_moving or bool(loss)
    kind = "past" if is_late else "random" if is_random else provenance
    return Provenance(" · ".join(words), kind, " · ".join(word for word in whole if word), brief)


def picture_source(
    models: Models,
    picture: WallPicture | HeadPicture | AttentionPicture,
    shown: str = "",
    wanted: str = "",
    *,
    is_whole: bool = True,
) -> Provenance:
    """`source_of` for a picture; see `lateness` and `source_of` for the other parameters."""
    seq_id, num_tokens, dtype, parts = picture.request.seq_id, num_pictured(picture), "", ""
    if not isinstance(picture, AttentionPicture):
        dtype, parts = picture.dtype, parts_words(models, picture)
    late, record = lateness(models, seq_id, num_tokens, shown, wanted), shown_record(models)
    # a sequence that the newest step did not compute is nevertheless up to date
    step = step_of(models, seq_id, num_tokens) if late or record is None else record.step
    step = suspended_step(models, seq_id, num_tokens) if step is None else step
    newest = models.timeline.newest_of(seq_id, step) if not late and step is not None else None
    computed_in, provenance = newest.step if newest is not None else None, picture.provenance
    found = source_of(models, provenance, dtype, step, late, is_whole=is_whole, computed_in=computed_in, parts=parts)
    if not (edited := since_words(models)):
        return found
    return replace(
        found, words=f"{found.words} · edited", sentence=f"{found.sentence} · {edited}", brief=found.brief or "edited"
    )


def num_pictured(picture: WallPicture | HeadPicture | AttentionPicture) -> int:
    """How many tokens the sequence had at the step of a picture."""
    return picture.query_position + 1 if isinstance(picture, AttentionPicture) else picture.request.num_tokens


def since_words(models: Models) -> str:
    """`edited by hand since step 12`; empty if there is no edit on the path to the step shown."""
    edits = models.edits.on_path(models.selection.now.step)
    return f"edited by hand since step {thousands(edits[0].step)}" if edits else ""


def tensor_name(lens: str, *, change: bool = False) -> str:
    """`K`, `ΔV`, `|K|`: the label of a lens, and whether what a step changed is seen through it."""
    return ("Δ" if change else "") + LENSES[lens].label


def pooling_words(tokens_per_column: int) -> str:
    """What a column stands for, for the axis; empty if it is one token."""
    return f"largest of {counted(tokens_per_column, 'token')}" if tokens_per_column > 1 else ""


def token_name(models: Models, seq_id: int, position: int, max_chars: int = 12) -> str:
    """A token's text for an axis, or its position if its text is not known."""
    token = models.timeline.token(seq_id, position)
    text = models.phases.text_at(seq_id, position) if token is None else token.text
    return str(position) if text is None else token_label(text, max_chars)


def eviction_of(
    models: Models, layer: int, kv_head: int, position: int, step: int | None, seq_id: int | None = None
) -> RowEviction | None:
    """The eviction of a row of a sequence (None: the selected one), up to a step (None: the newest); None if
    unknown."""
    status, latest = models.status.now, models.timeline.latest
    if latest is None:
        return None
    log = models.evictions.follow(models.timeline.records)
    until = latest.step if step is None else step
    whose = models.selection.now.seq_id if seq_id is None else seq_id
    return log.eviction_of(whose, layer, kv_head, position, until, status.cache)


def eviction_words(models: Models, layer: int, kv_head: int, position: int, step: int | None, seq_id: int) -> str:
    """`evicted at step 37: largest key norm (-14.2 < -11)`: since when a row is gone, and why."""
    eviction = eviction_of(models, layer, kv_head, position, step, seq_id)
    if eviction is None:
        return "evicted"
    words = f"evicted at step {thousands(eviction.step)}: {eviction.rule}"
    scores = score_words(models, eviction)
    return f"{words} ({scores})" if scores else words


def score_words(models: Models, eviction: RowEviction) -> str:
    """`0.442 < 1.18`: the row's score and the lowest score that was kept; empty if the rule goes by position alone."""
    status = models.status.now
    if eviction.lowest_kept is None or status.cache.retention.is_by_position:
        return ""
    return f"{brief(eviction.score)} < {brief(eviction.lowest_kept)}"


class Holders(Struct, frozen=True, eq=False):
    """How many heads and layers hold each token of a sequence, `[S]` each, of how many in all. `is_now`: as they are
    now, because the state at the step shown is not known any more."""

    heads: Ints
    layers: Ints
    all_heads: int
    all_layers: int
    is_now: bool = False

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Holders)
            and (self.all_heads, self.all_layers, self.is_now) == (other.all_heads, other.all_layers, other.is_now)
            and np.array_equal(self.heads, other.heads)
            and np.array_equal(self.layers, other.layers)
        )

    __hash__ = None  # type: ignore[assignment]

    def words(self, position: int) -> str:
        """`held by 5 of 24 heads, in 3 of 6 layers`."""
        heads, layers = int(self.heads[position]), int(self.layers[position])
        if not heads:
            return "evicted by now in every head" if self.is_now else "evicted by every head of every layer"
        words = "held by {0} of {1}, in {2} of {3}"
        words = f"now {words}" if self.is_now else words
        return words.format(heads, counted(self.all_heads, "head"), layers, counted(self.all_layers, "layer"))


def holders_of(models: Models) -> Holders | None:
    """Who holds the tokens at the step shown; None if nothing was evicted, or it is not known yet."""
    picture, now, record = models.pictures.wall, models.selection.now, shown_record(models)
    if picture is None or picture.holders is None or record is None or picture.request.seq_id != now.seq_id:
        return None
    count = models.timeline.num_tokens(now.seq_id, now.step)
    is_near = picture.num_tokens == count or (now.step is None and picture.num_tokens < count)
    if not is_near:
        return None
    is_now = picture.provenance == STORED_NOW
    return Holders(picture.holders[0], picture.holders[1], sum(picture.heads), len(picture.layers), is_now)


EXACT, DEQUANTISED = "exact", "dequantised"


# What the line over a picture is, for its legend
LINE = "line: exact from here on"


def residual_start(exact_from: int, first: int, stop: int) -> int | None:
    """Where within the positions `first … stop - 1` the rows that the codec leaves exact begin; None if all of them are
    alike."""
    return exact_from if first < exact_from < stop else None


def residual_starts(picture: WallPicture) -> dict[int, int]:
    """The same for each layer of the wall; layers whose rows are all alike are left out."""
    starts = zip(picture.layers, picture.exact_from, strict=False)  # empty where all rows are exact
    return {layer: start for layer, start in starts if residual_start(start, 0, picture.num_tokens) is not None}


def run_words(exact_from: int, first: int, stop: int) -> str:
    """What the rows of positions `first … stop - 1` are: `exact`, `dequantised`, or both, as in `dequantised, exact
    from token 64 on`."""
    if exact_from <= first:
        return EXACT
    return DEQUANTISED if exact_from >= stop else f"{DEQUANTISED}, exact from token {thousands(exact_from)} on"


def layer_rows_words(picture: WallPicture, layer: int) -> str:
    """What the rows of a layer of the wall are; empty where all rows of the wall are exact."""
    if not picture.exact_from or layer not in picture.layers:
        return ""
    return run_words(picture.exact_from[picture.layers.index(layer)], 0, picture.num_tokens)


def parts_words(models: Models, picture: WallPicture | HeadPicture) -> str:
    """Which rows of a picture are exact, and which are not: `L0 … L3: dequantised; X0 … X3: exact`. Empty where all of
    them are the same."""
    if isinstance(picture, HeadPicture):
        request = picture.request
        words = run_words(picture.exact_from, request.start, min(request.stop, request.num_tokens))
        return "" if words in (EXACT, DEQUANTISED) else words
    groups: dict[str, list[int]] = {}
    for layer in picture.layers:
        groups.setdefault(layer_rows_words(picture, layer), []).append(layer)
    if len(groups) == 1:
        words = next(iter(groups))
        return "" if words in ("", DEQUANTISED) else words
    return "; ".join(f"{_labels(models, layers)}: {words}" for words, layers in groups.items())


def source_words(models: Models, picture: object) -> str:
    """Where the rows of a picture come from, part by part if they come from several."""
    parts = parts_words(models, picture) if isinstance(picture, WallPicture | HeadPicture) else ""
    provenance = str(getattr(picture, "provenance", ""))
    if not parts or provenance == DEQUANTISED:
        return parts or provenance
    return f"{provenance} ({parts})"


def _labels(models: Models, layers: list[int]) -> str:
    """`L0 … L5`, or all of them: `L0, L2`."""
    labels = [layer_label(models, layer) for layer in layers]
    is_run = len(layers) > 2 and layers == list(range(layers[0], layers[-1] + 1)) and labels[0][0] == labels[-1][0]
    return f"{labels[0]} … {labels[-1]}" if is_run else ", ".join(labels)
