"""The layout of a history tree: a row for each branch, and along it a place for each node."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from app.draw.edited import ORDER, MarkKind

LEAST_GAP = 7.0  # least distance of two marks in pixels


class BranchLine(Struct, frozen=True):
    """A branch: its first and newest node and its number of nodes. It begins after node `parent`, which is at `index`
    of the branch that begins with `parent_first` (None and -1: it begins at the root)."""

    first: int
    tip: int
    num_nodes: int
    parent: int | None = None
    parent_first: int | None = None
    index: int = -1


class BranchRow(Struct, frozen=True):
    """A branch in its row. It begins at `parent_row` (None: at the root), after the node at depth `joint`; its own
    nodes have the depths `start` + 1 … `end`. `joint` equals `start` unless the parent branch itself has no row.
    `num_hidden` branches below it are hidden because it is folded."""

    branch: BranchLine
    row: int
    parent_row: int | None
    start: int
    end: int
    joint: int = -1
    num_hidden: int = 0
    is_folded: bool = False


def branch_rows(lines: Iterable[BranchLine]) -> tuple[BranchRow, ...]:
    """A row for every branch. Branches that begin later have rows nearer to their parent's, so that no lines cross."""
    begun: dict[int | None, list[BranchLine]] = {}
    for line in lines:
        begun.setdefault(line.parent_first, []).append(line)
    rows: list[BranchRow] = []
    # the last of the list is next: the branch that begins last, or of several the oldest
    waiting: list[tuple[BranchLine, int | None, int]] = [
        (line, None, 0) for line in sorted(begun.get(None, ()), key=_order)
    ]
    while waiting:
        line, parent_row, start = waiting.pop()
        row = len(rows)
        rows.append(BranchRow(line, row, parent_row, start, start + line.num_nodes, start))
        waiting += [(child, row, start + child.index + 1) for child in sorted(begun.get(line.first, ()), key=_order)]
    return tuple(rows)


def with_rows(
    rows: Sequence[BranchRow], folded: Collection[int], always: Collection[int], wanted: Collection[int] | None
) -> tuple[BranchRow, ...]:
    """The rows that are visible: not those of branches below a `folded` one, nor those not `wanted` (None: all are),
    but always those in `always`. Branches are given by their first nodes."""
    found: list[BranchRow] = []
    shown: dict[int, int] = {}  # original row -> visible row
    inside: dict[int, int | None] = {}  # original row -> the folded branch that contains it
    hidden: dict[int, int] = {}
    for row in rows:
        first, parent = row.branch.first, row.parent_row
        above = None if parent is None else rows[parent]
        inside[row.row] = None
        if above is not None:
            outer = inside[above.row]  # of nested folds the outermost counts
            inside[row.row] = above.branch.first if outer is None and above.branch.first in folded else outer
        is_in = first in always or (inside[row.row] is None and (wanted is None or first in wanted))
        if not is_in:
            if (fold := inside[row.row]) is not None:
                hidden[fold] = hidden.get(fold, 0) + 1
            continue
        joint = row.start
        while above is not None and above.row not in shown:
            joint, above = above.start, None if above.parent_row is None else rows[above.parent_row]
        shown[row.row] = len(found)
        parent_row = None if above is None else shown[above.row]
        found.append(replace(row, row=len(found), parent_row=parent_row, joint=joint, is_folded=first in folded))
    return tuple(replace(row, num_hidden=hidden.get(row.branch.first, 0)) for row in found)


def _order(line: BranchLine) -> tuple[int, int]:
    return line.index, -line.first


class DepthAxis(Struct, frozen=True):
    """Depths on a horizontal axis: the root is at 0, the first node at 1."""

    left: float
    right: float
    deepest: int

    def x_of(self, depth: float) -> float:
        first, last = 1, max(self.deepest, 2)
        return self.left + (self.right - self.left) * (max(depth, first) - first) / (last - first)

    def depth_at(self, x: float) -> int:
        share = (x - self.left) / max(1.0, self.right - self.left)
        return round(1 + share * (max(self.deepest, 2) - 1))


class RowMark(Struct, frozen=True):
    """A mark for a change, at a place along a row."""

    x: float
    kind: MarkKind


def thinned(marks: Sequence[RowMark]) -> list[RowMark]:
    """As many marks as fit beside each other, the more important ones first; sorted by place."""
    kept: list[RowMark] = []
    for kind in ORDER:
        for mark in (mark for mark in marks if mark.kind == kind):
            place = bisect_left(kept, mark.x, key=_x_of)
            beside = kept[max(0, place - 1) : place + 1]
            if all(abs(other.x - mark.x) >= LEAST_GAP for other in beside):
                kept.insert(place, mark)
    return kept


def _x_of(mark: RowMark) -> float:
    return mark.x
