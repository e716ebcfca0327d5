"""Questions about the branches of a history tree: a branch's text, the nodes after a node, its segments and marks."""

from __future__ import annotations

from msgspec import Struct

from app.draw.edited import MarkKind, edit_name, kind_of
from app.models.history import HistoryTree
from app.models.timeline import Timeline
from engine.wire.records import EditMade

TEXT_LIMIT = 400  # characters of a branch's text, which is shown on one line


def branch_text(history: HistoryTree, first: int, seq_id: int | None = None, limit: int = TEXT_LIMIT) -> str:
    """The text that the steps of the branch beginning with `first` computed of one sequence: `seq_id`, or if that is
    None or was not computed, the first sequence that was. If the steps computed nothing, the names of the edits made on
    the branch."""
    text, chosen = "", seq_id
    for index, step in enumerate(history.steps_of(first)):
        record = history.record(step)
        if record is None:
            continue
        computed = {part.seq_id for part in record.sequences}
        if not text and computed and chosen not in computed:
            chosen = min(computed)
        part = record.of(chosen) if chosen is not None else None
        text += "".join(part.texts) if part is not None else ""
        if len(text) > limit or index > limit:
            break
    return text[:limit] or _edits_text(history, first)[:limit]


def _edits_text(history: HistoryTree, first: int) -> str:
    """The names of the edits that were made on a branch: `zero, mask`."""
    made = (change for step in history.changed_of(first) for change in history.changes(step))
    return ", ".join(dict.fromkeys(edit_name(one.edit).lower() for one in made if isinstance(one, EditMade)))


def steps_ahead(history: HistoryTree, step: int | None) -> tuple[int, ...]:
    """The nodes after `step` (None: after the root) that were left by going back to it or before it: those on the way
    to the newest node after the one that was left last, else to the newest node of all."""
    if not history.children_of(step):  # asked with every picture: most often nothing follows, and a path is long
        return ()
    return history.path(history.newest_below(step), above=step)


def tip_left(history: HistoryTree) -> int | None:
    """The newest node of the branch that was left last: after the live one where the user went back, else on the branch
    that was live before this one. None if no branch was left."""
    if behind := steps_ahead(history, history.live):
        return behind[-1]
    left = history.left
    if left is None or history.live is None or history.is_on_path(left, history.live):
        return None
    return history.newest_below(left)


def first_of_segment(history: HistoryTree, step: int) -> int:
    """The first node of the segment of a branch that `step` is on. A segment begins after a node where another branch
    begins, or where the branch leaves the path to the live node."""
    branch = history.branch_of(step)
    shared = history.common_ancestor(step, history.live)
    parted = [other.parent for other in history.branches() if other.parent is not None] + [shared]
    before = [node for node in parted if node is not None and branch.first <= node < step]
    before = [node for node in before if history.branch_of(node).first == branch.first]
    return history.node_at(branch.first, history.index_of(max(before)) + 1) if before else branch.first


def count_from(history: HistoryTree, step: int) -> int:
    """The number of nodes in the subtree of `step`, itself included."""
    count, waiting = 0, [step]
    while waiting:
        count += 1
        waiting += history.children_of(waiting.pop())
    return count


class SequenceOrigin(Struct, frozen=True):
    """Sequence `seq_id` was forked from `parent` after `step`. `branch` is the first node of the branch that this step
    is on, if it is not on the path shown, else None."""

    seq_id: int
    parent: int
    step: int
    branch: int | None


def origin_of(timeline: Timeline, seq_id: int) -> SequenceOrigin | None:
    """Where a sequence of the path shown was forked from; None if it was not forked."""
    birth, history = timeline.birth(seq_id), timeline.history
    if birth is None:
        return None
    is_other = birth.step in history and not history.is_on_path(birth.step, timeline.tip)
    branch = history.branch_of(birth.step).first if is_other else None
    return SequenceOrigin(seq_id, birth.parent, birth.step, branch)


class PathMark(Struct, frozen=True):
    """A node of a path where another branch begins, or before which something was changed."""

    step: int
    kind: MarkKind | None  # None: a branch begins here


def path_marks(history: HistoryTree, tip: int | None) -> tuple[PathMark, ...]:
    """The marks to draw on the path to `tip`; O(branches + changes), not O(nodes)."""
    found: list[PathMark] = []
    for branch in history.branches():
        if branch.parent is not None and history.is_on_path(branch.parent, tip) and branch.parent != tip:
            found.append(PathMark(branch.parent, None))
        for step in history.changed_of(branch.first):
            kind = kind_of(history.changes(step))
            if kind in ("edit", "mode") and history.is_on_path(step, tip):
                found.append(PathMark(step, kind))
    return tuple(dict.fromkeys(found))
