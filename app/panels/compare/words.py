"""Describes a comparison in words: both sides, the verdict, the first row that differs, and the numbers of a step."""

from __future__ import annotations

from collections.abc import Sequence

from app.draw.format import brief, byte_size, exact, milliseconds, percent, thousands, token_label
from app.kit.cells import ColumnHead, TableCell
from app.kit.provenance import tensor_name
from app.kit.theme import TextRole
from app.models import Models
from app.models.comparison import ComparedPictures
from app.models.places import layer_label
from engine.counted import counted
from engine.spec.lenses import LENSES
from engine.wire.comparison import (
    ComparedSide,
    ComparedStep,
    ComparisonStarted,
    FirstDifference,
    OtherStep,
    TokenDivergence,
)
from engine.wire.pictures import AttentionPicture, HeadPicture, Picture, WallPicture
from engine.wire.records import Candidate

INVITATION = (
    "Two runs side by side: choose above what this one is compared with. The other run is given the same tokens, step "
    "by step."
)
NOT_COMPARED = "This step was not compared: both sides have later ones in common"
LAYER_HEADS = (
    ColumnHead("layer", "Layer of the model"),
    ColumnHead(
        "K", "By how much K of the newest token differs, as a part of its own size, in the head where it is most"
    ),
    ColumnHead(
        "V", "By how much V of the newest token differs, as a part of its own size, in the head where it is most"
    ),
    ColumnHead("attention", "Total variation distance of the newest query's attention, in the head where it is most"),
)
TOP_HEADS = (
    ColumnHead("A", "The most probable next tokens of side A", is_words=True, most=84),
    ColumnHead("p", "The probability that side A gives it"),
    ColumnHead("  ", is_words=True),
    ColumnHead("B", "The most probable next tokens of side B", is_words=True, most=84),
    ColumnHead("p", "The probability that side B gives it"),
)


def sides_words(compared: ComparisonStarted) -> str:
    """`A: sequence 0 · Growing · float32   B: …`, with the models if they differ."""
    has_models = compared.a.model != compared.b.model
    a, b = (side_words(side, has_model=has_models) for side in (compared.a, compared.b))
    return f"A: {a}     B: {b}"


def side_words(side: ComparedSide, *, has_model: bool) -> str:
    """A side's name, its cache mode if the name does not contain it, its dtype, and if `has_model` its model."""
    words = [side.name, side.cache if side.cache not in side.name else "", side.dtype, side.model if has_model else ""]
    return " · ".join(word for word in words if word)


def caption(compared: ComparisonStarted, side: ComparedSide) -> str:
    """The caption of a side's picture: its name, with its dtype if the sides differ in it."""
    return side.name if compared.a.dtype == compared.b.dtype else f"{side.name} · {side.dtype}"


def subject(picture: Picture) -> str:
    """What a picture shows, and when: `K of layer 1, kv head 0, at 70 tokens`."""
    match picture:
        case WallPicture():
            name = tensor_name(picture.request.lens)
            return f"{name} of every layer and head, at {counted(picture.num_tokens, 'token')}"
        case HeadPicture(request=request):
            name = tensor_name(request.lens)
            head = "head" if LENSES[request.lens].heads == "query" else "kv head"
            where = f"layer {request.layer}, {head} {request.kv_head}"
            return f"{name} of {where}, at {counted(request.num_tokens, 'token')}"
        case AttentionPicture():
            count = counted(picture.query_position + 1, "token")
            lens = LENSES[picture.request.lens]
            where = f"{lens.label} of layer {picture.request.layer}"
            where += f", head {picture.request.head}" if not lens.is_of_every_head else ""
            return f"{where}, newest query at {count}"
    return ""


def why_no_pictures(compared: ComparisonStarted, pictures: ComparedPictures | None, otherwise: str) -> str:
    """The text shown instead of pictures, if there are none."""
    if compared.no_rows:
        return compared.no_rows
    notes = [picture.note for picture in (pictures.a, pictures.b, pictures.difference)] if pictures else []
    return next((note for note in (*notes, otherwise) if note), "The pictures of both sides are on their way.")


def tolerance_words(compared: ComparisonStarted) -> str:
    return f"rounding may change a logit by {brief(compared.tolerance)}"


def parts_at(models: Models, compared: ComparisonStarted) -> ComparedStep | None:
    """The last step that two branches have in common, if both continue after it with different tokens; None
    otherwise."""
    steps, against = models.comparison.steps, compared.against
    if not steps or not isinstance(against, OtherStep) or models.timeline.live_path.record(against.step) is not None:
        return None
    record = models.history.record(against.step)
    other = record.of(compared.seq_id) if record is not None else None
    mine, shared = models.timeline.live_path.num_tokens(compared.seq_id), steps[-1].num_tokens
    return steps[-1] if other is not None and shared < min(mine, other.num_tokens) else None


def _until(models: Models, divergence: TokenDivergence) -> str:
    """`until step 3`: the step of side A that computed the last common token."""
    found = (step.step for step in models.comparison.steps if step.num_tokens == divergence.num_tokens)
    step = next(found, None)
    return f"until step {thousands(step)}" if step is not None else f"for {counted(divergence.num_tokens, 'token')}"


def verdict(models: Models, compared: ComparisonStarted) -> tuple[str, TextRole]:
    """(the verdict in words, its colour role)."""
    comparison = models.comparison
    judged = [step for step in comparison.steps if step.is_beyond_rounding is not None]
    departing = [step.num_tokens for step in judged if step.is_beyond_rounding]
    first, beyond, many = comparison.first, len(departing), len(judged)
    divergence = comparison.divergence
    if divergence is not None and not beyond and first is None:
        return f"The same {_until(models, divergence)}; behind it other tokens came", "text"
    if not judged and comparison.num_scanned is None:
        return "Nothing is compared yet: the sides have no step in common whose numbers are kept", "muted"
    if not beyond and first is None:
        rows = f"the rows of {counted(comparison.num_scanned or 0, 'token')}"
        if (last := parts_at(models, compared)) is not None:
            where = f"step {thousands(last.step)}, {counted(last.num_tokens, 'token')}"
            return f"The same up to where they part ({where}): other tokens follow, which are not compared", "text"
        so_far = " so far" if compared.a.moves else ""
        return f"Within rounding{so_far}: {counted(many, 'step') if judged else rows}", "good"
    found = f"{thousands(beyond)} of {counted(many, 'step')}" if beyond else "rows"
    cause = _allowed_cause(compared, [*departing, *([first.position + 1] if first is not None else ())])
    return (f"{cause}: {found} beyond rounding", "warning") if cause else (f"Departs: {found} beyond rounding", "bad")


def _allowed_cause(compared: ComparisonStarted, counts: Sequence[int]) -> str:
    """Why the sides may differ at these numbers of tokens, in the words of Parity; empty if no cause covers all of
    them."""
    is_edited = [compared.is_edited(count) for count in counts]
    if compared.is_lossy:
        return "Edited by hand, and lossy" if any(is_edited) else "Lossy, so it differs"
    return "Edited by hand" if all(is_edited) else ""


def departure_words(
    models: Models, compared: ComparisonStarted, first: FirstDifference | None, num_scanned: int | None
) -> str:
    """The first row that differs by more than rounding, or that there is none."""
    if compared.no_rows:
        return compared.no_rows
    if num_scanned is None:
        return "All rows are compared when the run rests"
    if first is None and (divergence := models.comparison.divergence) is not None:
        a, b = (token_label(text) for text in divergence.texts)
        rows = f"Rows of the {counted(num_scanned, 'token')} that both share are the same within rounding"
        return f"{rows}; then A was given “{a}”, B “{b}”: rows behind that are compared by position alone"
    if first is None:
        return f"All rows of K and V that both hold are the same within rounding: {counted(num_scanned, 'token')}"
    token = models.timeline.live_path.token(compared.seq_id, first.position)
    text = f" “{token_label(token.text)}”" if token is not None else ""
    name = "K" if first.tensor == "keys" else "V"
    return (
        f"First row beyond rounding: layer {first.layer}, {name}, kv head {first.kv_head}, "
        f"token {first.position}{text}, channel {first.channel}: "
        f"{exact(first.number)} against {exact(first.other_number)}  →"
    )


def departure_tip(first: FirstDifference) -> str:
    return (
        f"The row differs by {brief(first.error)} of its own size; rounding may do {brief(first.tolerance)}. "
        "Select this layer, tensor, head, token and channel"
    )


# ---- one step ----------------------------------------------------------------------------------------------------


def step_words(step: ComparedStep, has_rows: bool) -> str:
    """`step 12 · KL 0.002 · |Δ logit| 0.1 · same top token`."""
    words = [f"step {thousands(step.step)}"]
    if step.divergence is not None:
        words.append(f"other tokens since position {thousands(step.divergence.num_tokens)}")
    elif step.is_beyond_rounding is None:
        return f"{words[0]} · nothing of the step itself is compared, only the rows as they are held now"
    if step.kl is None or step.max_abs_logit_diff is None:
        words.append("a side kept no logits of it")
    else:
        words += [f"KL {brief(step.kl)} nats", f"|Δ logit| {brief(step.max_abs_logit_diff)}"]
        words.append("same top token" if step.top1_agrees else "another top token")
    return " · ".join(words if has_rows else [*words, "logits alone"])


Cost = tuple[float | None, int | None]


def costs(models: Models, compared: ComparisonStarted, step: ComparedStep) -> tuple[Cost, Cost]:
    """(milliseconds of the step, bytes of K and V after it) of A and of B, None where unknown. Those of side A are also
    taken from the window's records."""
    record, part = (
        models.timeline.live_path.record(step.step),
        models.timeline.live_path.part(compared.seq_id, step.step),
    )
    (a_ms, b_ms), (a_bytes, b_bytes) = step.ms, step.kv_bytes
    if record is not None and part is not None:
        a_ms = record.timings.total_ms if a_ms is None else a_ms
        a_bytes = part.stored_bytes if a_bytes is None else a_bytes
    return (a_ms, a_bytes), (b_ms, b_bytes)


def cost_words(models: Models, compared: ComparisonStarted, step: ComparedStep) -> str:
    """`A  3.0 ms · 4.0 KiB     B  4.0 ms · 1.0 KiB`."""
    sides = []
    for name, (ms, num_bytes) in zip("AB", costs(models, compared, step), strict=True):
        words = [milliseconds(ms)] if ms is not None else []
        words += [byte_size(num_bytes)] if num_bytes is not None else []
        if words:
            sides.append(f"{name}  {' · '.join(words)}")
    return "     ".join(sides)


def layer_cells(
    models: Models, compared: ComparisonStarted, step: ComparedStep, selected: int
) -> list[tuple[TableCell, ...]]:
    """A row per layer; the selected one is coloured."""
    lines: list[tuple[TableCell, ...]] = []
    for number, layer in enumerate(compared.layers):
        role: TextRole = "selected" if layer == selected else "text"
        values = (float(array[number]) for array in (step.keys, step.values, step.attention))
        cells = (TableCell(_part(value), role, "" if value == value else "Not known of both sides") for value in values)
        lines.append((TableCell(layer_label(models, layer).removeprefix("L"), role), *cells))
    return lines


def _part(value: float) -> str:
    return brief(value) if value == value else "–"


def top_cells(step: ComparedStep) -> list[tuple[TableCell, ...]]:
    """The most probable tokens of both sides by rank; ranks with different tokens are coloured."""
    a, b = step.top
    lines: list[tuple[TableCell, ...]] = []
    for rank in range(max(len(a), len(b))):
        mine, theirs = _at(a, rank), _at(b, rank)
        is_same = mine is not None and theirs is not None and mine.token_id == theirs.token_id
        role: TextRole = "text" if is_same else "warning"
        lines.append((*_candidate(mine, role), TableCell(""), *_candidate(theirs, role)))
    return lines


def _at(candidates: Sequence[Candidate], rank: int) -> Candidate | None:
    return candidates[rank] if rank < len(candidates) else None


def _candidate(found: Candidate | None, role: TextRole) -> tuple[TableCell, TableCell]:
    if found is None:
        return TableCell("–", "muted"), TableCell("", "muted")
    return TableCell(token_label(found.text), role, f"token {found.token_id}"), TableCell(percent(found.prob))
