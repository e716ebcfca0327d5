"""What is asked of the branches of a history tree: their texts, what came of a moment, what a deletion forgets."""

from __future__ import annotations

from msgspec import Struct

from app.draw.change_marks import MarkKind, kind_of
from app.draw.edit_words import edit_name
from app.models.history import HistoryTree
from app.models.timeline import Timeline
from engine.wire.changes import EditMade

TEXT_LIMIT = 400  # characters of a branch's text, which is shown on one line


def branch_text(history: HistoryTree, first: int, seq_id: int | None = None, limit: int = TEXT_LIMIT) -> str:
    """What the steps of the branch that begins with `first` fed to a sequence, from its beginning: of the first that
    they fed at all where they fed that one nothing, or for None. What was edited where they fed nothing."""
    text, chosen = "", seq_id
    for index, step in enumerate(history.steps_of(first)):
        record = history.record(step)
        if record is None:
            continue
        fed = {part.seq_id for part in record.sequences}
        if not text and fed and chosen not in fed:
            chosen = min(fed)
        part = record.of(chosen) if chosen is not None else None
        text += "".join(part.texts) if part is not None else ""
        if len(text) > limit or index > limit:
            break
    return text[:limit] or _edits_text(history, first)[:limit]


def _edits_text(history: HistoryTree, first: int) -> str:
    """The names of the edits that a branch consists of: `zero, mask`."""
    made = (change for step in history.changed_of(first) for change in history.changes(step))
    return ", ".join(dict.fromkeys(edit_name(one.edit).lower() for one in made if isinstance(one, EditMade)))


def beyond(history: HistoryTree, step: int | None) -> tuple[int, ...]:
    """The moments that came of one (None: of the root) and were left: those towards the newest that came of the moment
    that was left last, else towards the newest of all."""
    if not history.children_of(step):  # asked with every picture: a path is long, and mostly nothing is behind it
        return ()
    return history.path(history.end_beyond(step), above=step)


def arm_of(history: HistoryTree, step: int) -> int:
    """The first moment of the piece of a branch that a moment stands on: the one after the last parting, or after the
    path to the live one."""
    branch = history.branch_of(step)
    shared = history.common_ancestor(step, history.live)
    parted = [other.parent for other in history.branches() if other.parent is not None] + [shared]
    before = [node for node in parted if node is not None and branch.first <= node < step]
    before = [node for node in before if history.branch_of(node).first == branch.first]
    return history.node_at(branch.first, history.index_of(max(before)) + 1) if before else branch.first


def count_from(history: HistoryTree, step: int) -> int:
    """How many moments there are of one and all that came of it."""
    count, waiting = 0, [step]
    while waiting:
        count += 1
        waiting += history.children_of(waiting.pop())
    return count


class SequenceOrigin(Struct, frozen=True):
    """Sequence `seq_id` began as what `parent` had after `step`; `branch` is the first moment of the branch of that
    step where it is another one than the path that is shown, else None."""

    seq_id: int
    parent: int
    step: int
    branch: int | None


def origin_of(timeline: Timeline, seq_id: int) -> SequenceOrigin | None:
    """Where a sequence of the path that is shown was forked from; None where it was not."""
    birth, history = timeline.birth(seq_id), timeline.history
    if birth is None:
        return None
    is_other = birth.step in history and not history.is_on_path(birth.step, timeline.tip)
    branch = history.branch_of(birth.step).first if is_other else None
    return SequenceOrigin(seq_id, birth.parent, birth.step, branch)


class PathMark(Struct, frozen=True):
    """A moment of a path where another branch parts, or before which something was done."""

    step: int
    kind: MarkKind | None  # None: a branch parts here


def path_marks(history: HistoryTree, tip: int | None) -> tuple[PathMark, ...]:
    """What is to be marked on the path to a moment; costs what there are of branches and changes, not of moments."""
    found: list[PathMark] = []
    for branch in history.branches():
        if branch.parent is not None and history.is_on_path(branch.parent, tip) and branch.parent != tip:
            found.append(PathMark(branch.parent, None))
        for step in history.changed_of(branch.first):
            kind = kind_of(history.changes(step))
            if kind in ("edit", "mode") and history.is_on_path(step, tip):
                found.append(PathMark(step, kind))
    return tuple(dict.fromkeys(found))
