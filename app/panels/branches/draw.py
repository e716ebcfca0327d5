"""Where the branches of a history tree stand: a row each, a place along it for every moment."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from app.draw.change_marks import ORDER, MarkKind

LEAST_GAP = 7.0  # pixels between two marks


class BranchLine(Struct, frozen=True):
    """A branch: its first and its newest moment and how many it has; it parts after the moment `parent`, which is at
    `index` of the branch that begins with `parent_first` (None and -1: at the root)."""

    first: int
    tip: int
    num_nodes: int
    parent: int | None = None
    parent_first: int | None = None
    index: int = -1


class BranchRow(Struct, frozen=True):
    """A branch in its row: it parts from `parent_row` (None: it begins at the root) after the moment at depth `joint`,
    and its own moments stand at the depths `start` + 1 … `end`. `joint` is `start` unless it parts from a branch that
    has no row, on the way from `parent_row`. `num_hidden` branches that came of it have no row because it is folded."""

    branch: BranchLine
    row: int
    parent_row: int | None
    start: int
    end: int
    joint: int = -1
    num_hidden: int = 0
    is_folded: bool = False


def branch_rows(lines: Iterable[BranchLine]) -> tuple[BranchRow, ...]:
    """A row for every branch. Those that part later stand nearer to where they part, so that no two lines cross."""
    begun: dict[int | None, list[BranchLine]] = {}
    for line in lines:
        begun.setdefault(line.parent_first, []).append(line)
    rows: list[BranchRow] = []
    # the last of the list comes next: the one that parts last, of several the oldest
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
    """Of all branches those that have a row: what came of a `folded` branch has none, nor has one that is not `wanted`
    (None: all are); those that are `always` there have. Branches are known by their first moments."""
    found: list[BranchRow] = []
    shown: dict[int, int] = {}  # the row, by the number of the row among all
    inside: dict[int, int | None] = {}  # the folded branch that a row is inside of
    hidden: dict[int, int] = {}
    for row in rows:
        first, parent = row.branch.first, row.parent_row
        above = None if parent is None else rows[parent]
        inside[row.row] = None
        if above is not None:
            outer = inside[above.row]  # the outermost counts
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
    """Depths along a line of pixels: the root is at 0, the first moment at 1."""

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
    """Something that was done, at a place along a row."""

    x: float
    kind: MarkKind


def thinned(marks: Sequence[RowMark]) -> list[RowMark]:
    """As many as have room beside each other, the more telling ones first; by place."""
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
