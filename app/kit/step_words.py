"""Describes nodes and branches of the history in words: step, changes, an edit's effect, origin of a sequence."""

from __future__ import annotations

from app.draw.format import divergence_words, milliseconds, shortened, thousands, visible
from app.models import Models
from app.models.branches import branch_text, origin_of
from engine.counted import counted
from engine.spec.cache import cache_label
from engine.wire.records import (
    Change,
    EditMade,
    ModeChanged,
    PromptAppended,
    SamplingChanged,
    SequenceAdded,
    SequenceForked,
    SequenceRemoved,
    SequenceStopped,
    TokensForced,
    has_chosen,
)


def branch_name(models: Models, first: int) -> str:
    """A branch's name, or the beginning of its text if it has none."""
    return models.history.name(first) or f"“{text_line(models, first, 24)}”"


def text_line(models: Models, first: int, max_chars: int) -> str:
    """The beginning of a branch's text, on one line."""
    text = branch_text(models.history, first, models.selection.now.seq_id, max_chars + 1)
    return shortened(" ".join(map(visible, text.split(" "))).lstrip(), max_chars)


def origin_words(models: Models, seq_id: int) -> str:
    """`branch “a dragon” · step 6`: where a sequence was forked from; empty if it was not."""
    origin = origin_of(models.timeline, seq_id)
    if origin is None:
        return ""
    where = f"sequence {origin.parent}" if origin.branch is None else f"branch {branch_name(models, origin.branch)}"
    return f"{where} · step {thousands(origin.step)}"


MOST_CHANGES = 4


def change_words(change: Change) -> str:
    """Describe a change: `cache: KIVI-2`, `sequence 1 forked from 0 after step 5`."""
    match change:
        case EditMade(edit):
            return f"edit: {edit.describe()}"
        case ModeChanged(cache):
            return f"cache: {cache_label(cache)}"
        case TokensForced(seq_id, token_ids):
            return f"{counted(len(token_ids), 'token')} forced on sequence {seq_id}"
        case SamplingChanged(seq_id, sampling):
            how = "greedy" if sampling.is_greedy else f"temperature {sampling.temperature:g}, seed {sampling.seed}"
            return f"sampling of sequence {seq_id}: {how}"
        case SequenceAdded(seq_id, token_ids):
            return f"prompt of {counted(len(token_ids), 'token')} as sequence {seq_id}"
        case SequenceForked(seq_id, parent, _, int(num_tokens)):
            return f"sequence {seq_id} goes on from {parent}: {counted(num_tokens, 'token')} kept"
        case SequenceForked(seq_id, parent, step):
            where = "" if step is None else f" after step {thousands(step)}"
            return f"sequence {seq_id} forked from {parent}{where}"
        case PromptAppended(seq_id, token_ids):
            return f"{counted(len(token_ids), 'token')} more of the prompt of sequence {seq_id}"
        case SequenceRemoved(seq_id):
            return f"sequence {seq_id} removed"
        case SequenceStopped(seq_id):
            return f"sequence {seq_id} stopped"


def node_lines(models: Models, step: int) -> list[str]:
    """Describe a node: its step with token and time, the changes before it, and an edit's effect."""
    history = models.history
    record, added = history.record(step), history.added(step)
    lines = []
    if record is not None:
        part = record.of(models.selection.now.seq_id) or next(iter(record.sequences), None)
        computed = "" if part is None else f" · computed “{shortened(visible(''.join(part.texts[-8:])), 24)}”"
        next_one = f", chose “{shortened(visible(part.sampled_text), 16)}”" if part and has_chosen(part) else ""
        took = f" · {milliseconds(ms)}" if (ms := record.timings.total_ms) else ""  # 0: not measured
        lines.append(f"step {thousands(step)} · {record.phase}{computed}{next_one}{took}")
    changes = history.changes(step)
    if record is None:
        lines.append(_unstepped(models, step, changes))
        changes = tuple(change for change in changes if not isinstance(change, EditMade))
    lines += [change_words(change) for change in changes[:MOST_CHANGES]]
    if len(changes) > MOST_CHANGES:
        lines.append(f"and {thousands(len(changes) - MOST_CHANGES)} changes more")
    if added is not None and added.kl is not None:
        lines.append(f"next token moved by {divergence_words(added.kl)}")
    return lines


def _unstepped(models: Models, step: int, changes: tuple[Change, ...]) -> str:
    """Describe a node that no step made: `step 17, edit after step 16: zero position 4`."""
    path = models.history.path(step)
    before = next((node for node in reversed(path) if models.history.record(node) is not None), None)
    where = "" if before is None else f" after step {thousands(before)}"
    edits = [change.edit.describe() for change in changes if isinstance(change, EditMade)]
    if not edits:
        return f"step {thousands(step)}, what was done{where}"
    return f"step {thousands(step)}, edit{where}: {', '.join(edits)}"
