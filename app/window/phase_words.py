"""The description of a phase of a step, in one line."""

from __future__ import annotations

from typing import TypeVar

from app.draw.format import brief, counted, percent, thousands, token_label
from app.kit.provenance import token_name
from app.models import Models
from engine.wire.phases import (
    Chosen,
    ChosenToken,
    LayerDone,
    NewRow,
    PhaseReached,
    Scheduled,
    ScheduledSequence,
    Written,
    WrittenRows,
)
from engine.wire.records import Floats

MOST_PAGES, MOST_CHARS, MOST_OTHERS = 4, 16, 3

T = TypeVar("T", ScheduledSequence, NewRow, ChosenToken, WrittenRows)


def phase_words(models: Models, event: PhaseReached) -> str:
    """Describe a phase for the selected sequence, or if it is not in the step, for the first; others are only
    counted."""
    match event.phase:
        case Scheduled(sequences=sequences, preempted=preempted):
            words, others = scheduled_words(_mine(models, sequences)), len(sequences) - 1
            of = f"sequence{'s' if len(preempted) > 1 else ''} {', '.join(map(str, preempted))}"
            words += f" · pages taken from {of}" if preempted else ""
        case LayerDone(rows=rows):
            words, others = row_words(models, _mine(models, rows)), len(rows) - 1
        case Chosen(tokens=tokens):
            words, others = chosen_words(_mine(models, tokens)), len(tokens) - 1
        case Written(sequences=written):
            words, others = written_words(_mine(models, written)), len(written) - 1
    return f"{words} · and {counted(others, 'other sequence')}" if others else words


def _mine(models: Models, parts: tuple[T, ...]) -> T:
    seq_id = models.selection.now.seq_id
    return next((part for part in parts if part.seq_id == seq_id), parts[0])


def scheduled_words(part: ScheduledSequence) -> str:
    """`“ cat” at position 12 · page 4 is taken for its row`."""
    count, first = len(part.token_ids), part.first_position
    if count == 1:
        words = f"{token_label(part.texts[0], MOST_CHARS)} is fed at position {thousands(first)}"
    else:
        words = f"{counted(count, 'token')} are fed at positions {thousands(first)} … {thousands(first + count - 1)}"
    if part.hit_tokens and part.phase == "prefill":
        words += f" · {thousands(part.hit_tokens)} before them were found in pages"
    if part.pages:
        shown = ", ".join(map(str, part.pages[:MOST_PAGES])) + (" …" if len(part.pages) > MOST_PAGES else "")
        words += f" · into page{'s' if len(part.pages) > 1 else ''} {shown}"
    return words


def row_words(models: Models, row: NewRow) -> str:
    """`‖K‖ 3.1, 2.8 · ‖V‖ 0.4, 0.6 · looked most at “Once” (0) 41 % · output ‖·‖ 12.4`."""
    words = []
    if row.key_norm.size:
        words += [f"‖K‖ {_norms(row.key_norm)}", f"‖V‖ {_norms(row.value_norm)}"]
    else:
        words.append("this layer keeps no K and V")
    if row.position is not None and row.weight is not None:
        name = token_name(models, row.seq_id, row.position, MOST_CHARS)
        is_own = models.timeline.token(row.seq_id, row.position) is None
        where = f"itself, {name}" if is_own else f"{name} (position {thousands(row.position)})"
        words.append(f"looked most at {where}, {percent(row.weight)}")
    if row.output_norm is not None:
        words.append(f"‖output‖ {brief(row.output_norm)}")
    return " · ".join(words)


def _norms(norms: Floats) -> str:
    """Each norm if there are at most four, else the smallest and the largest."""
    values = [brief(float(value)) for value in norms]
    return ", ".join(values) if len(values) <= 4 else f"{brief(float(norms.min()))} … {brief(float(norms.max()))}"


def chosen_words(token: ChosenToken) -> str:
    """`“ sat” · 41 % raw, 63 % filtered · drawn with seed 7 at position 13`."""
    found = next((c for c in token.candidates if c.token_id == token.token_id), None)
    words = [f"{token_label(token.text, MOST_CHARS)} is chosen"]
    if found is not None:
        filtered = f", {percent(found.sampled_prob)} after sampling" if token.seed is not None else ""
        words.append(f"{percent(found.prob)} raw{filtered}")
    after = [c for c in token.candidates if c.token_id != token.token_id][:MOST_OTHERS]
    is_drawn = token.seed is not None
    words.append(f"drawn with seed {token.seed} at position {token.position}" if is_drawn else "the most probable")
    words += (
        [f"then {', '.join(f'{token_label(c.text, MOST_CHARS)} {percent(c.prob)}' for c in after)}"] if after else []
    )
    return " · ".join(words)


def written_words(part: WrittenRows) -> str:
    """`6 rows written, one a layer · 96 older ones coded anew · 12 dropped · 1 new page`."""
    words = [f"{counted(part.num_written, 'row')} written in all layers"]
    if part.num_rewritten:
        words.append(f"{counted(part.num_rewritten, 'older one')} written anew")
    words.append(f"{thousands(part.num_dropped)} dropped" if part.num_dropped else "none dropped")
    if part.num_new_pages:
        words.append(counted(part.num_new_pages, "new page"))
    return " · ".join(words)
