"""Which branches of the history tree have a row, and where nodes are on the screen."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QPointF, QRectF, QSizeF

from app.models import Branch, Models
from app.models.branches import branch_text
from app.panels.branches.draw import BranchLine, BranchRow, DepthAxis, branch_rows, with_rows
from engine.wire.tree import BranchBytes

ROW = 24
INSET = 12.0  # pixels between the ends of the axis and the first and last node
STEPS_WIDTH, OWN_WIDTH, BYTES_WIDTH, TEXT_SHARE = 46, 76, 168, 0.42
ROOM_FOR_STEPS, ROOM_FOR_OWN, ROOM_FOR_BYTES = 360, 430, 700


class Drawn(Struct, frozen=True):
    """A version of the tree, its live and selected node, the sequence whose text is shown, and the memory of kept
    nodes."""

    version: int
    live: int | None
    looked_at: int | None
    seq_id: int
    path: frozenset[int] = frozenset()  # first nodes of the branches on the live path
    kept: tuple[BranchBytes, ...] = ()
    bookmarked: frozenset[int] = frozenset()
    origins: tuple[tuple[int, int], ...] = ()  # (live sequence, node that it was forked from)

    @property
    def num_bytes(self) -> Mapping[int, BranchBytes]:
        """The kept memory, by node."""
        return {held.step: held for held in self.kept}


NOTHING = Drawn(-1, None, None, 0)


class TreeRows:
    """The rows of the branches in a frame of `size`, scrolled down by `scrolled` pixels. `picked`: nodes marked in
    addition to the selected one; `hovered`: the row under the mouse; `has_keys`: whether the tree has the focus."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self.drawn = NOTHING
        self.rows: tuple[BranchRow, ...] = ()
        self._all_rows: tuple[BranchRow, ...] = ()
        self.folded: set[int] = set()  # first nodes of branches whose sub-branches are hidden
        self.sought = ""  # only branches whose name or text contains this have a row
        self._row_of: dict[int, int] = {}
        self._shape = -1
        self.picked: tuple[int, ...] = ()
        self.hovered = -1
        self.has_keys = False
        self.size = QSizeF(1, 1)
        self.scrolled = 0

    def take(self, drawn: Drawn) -> None:
        """Take a new version of the tree, or another live or selected node."""
        history = self._models.history
        if self._shape != history.shape:
            self._shape = history.shape
            self._all_rows = branch_rows(map(self.line, history.branches()))
            self.folded &= {row.branch.first for row in self._all_rows}
            self.drawn = drawn
            self.choose_rows()
        elif self.drawn.version != drawn.version and drawn.live is not None:
            self._grow(history.branch_of(drawn.live))
        self.picked = tuple(step for step in self.picked if step in history)
        was_at, self.drawn = self.drawn.looked_at, drawn
        if was_at != drawn.looked_at and len(self.rows) < len(self._all_rows):
            self.choose_rows()

    @property
    def num_branches(self) -> int:
        """The number of all branches, visible or not."""
        return len(self._all_rows)

    def choose_rows(self) -> None:
        """Decide which branches have a row; those of the live path and of the selected node always do."""
        always, looked_at = set(self.drawn.path), self.drawn.looked_at
        if looked_at is not None:
            always.add(self._models.history.branch_of(looked_at).first)
        wanted = None
        if self.sought:
            wanted = {row.branch.first for row in self._all_rows if self._has_words(row.branch.first)}
        self.rows = with_rows(self._all_rows, self.folded, always, wanted)
        self._row_of = {row.branch.first: row.row for row in self.rows}

    def _has_words(self, first: int) -> bool:
        history = self._models.history
        words = history.name(first) + "\n" + branch_text(history, first, self.drawn.seq_id)
        return self.sought.casefold() in words.casefold()

    def fold(self, first: int) -> None:
        """Hide the rows of the branches below a branch, or show them again."""
        self.folded ^= {first}
        self.choose_rows()

    def has_fold(self, row: BranchRow) -> bool:
        """Whether a branch has sub-branches, so that it can be folded."""
        return row.is_folded or any(other.parent_row == row.row for other in self.rows[row.row + 1 : row.row + 2])

    def fold_at(self, point: QPointF) -> int | None:
        """The branch whose fold sign is at a point; None if there is none."""
        row = self._row_under(point.y())
        if row is None or not self.has_fold(row):
            return None
        left = self._text_left()
        return row.branch.first if left - 20 <= point.x() < left else None

    def _row_under(self, y: float) -> BranchRow | None:
        """The row at a height; the live one may be pinned to an edge."""
        if (pinned := self.pinned) is not None and self._pinned_top <= y < self._pinned_top + ROW:
            return pinned
        number = int((y + self.scrolled) // ROW)
        return self.rows[number] if 0 <= number < len(self.rows) else None

    @property
    def pinned(self) -> BranchRow | None:
        """The row of the live branch, if it is scrolled out of sight."""
        live, history = self.drawn.live, self._models.history
        if live is None or live not in history or self.size.height() < 4 * ROW:
            return None
        row = self.rows[self._row_of[history.branch_of(live).first]]
        top = self._top(row.row)
        return row if top < -ROW / 2 or top > self.size.height() - ROW / 2 else None

    @property
    def _pinned_top(self) -> float:
        """The y of the pinned row: at the edge beyond which its own place is."""
        pinned = self.pinned
        return 0.0 if pinned is not None and self._top(pinned.row) < 0 else self.size.height() - ROW

    def _grow(self, branch: Branch) -> None:
        """Extend the row of the live branch, when nothing else has changed."""
        number = self._row_of[branch.first]
        line = self.line(branch)
        self.rows = tuple(_grown(row, line) if row.row == number else row for row in self.rows)
        self._all_rows = tuple(_grown(row, line) if row.branch.first == line.first else row for row in self._all_rows)

    def line(self, branch: Branch) -> BranchLine:
        history, parent = self._models.history, branch.parent
        if parent is None:
            return BranchLine(branch.first, branch.tip, branch.num_nodes)
        parent_first, index = history.branch_of(parent).first, history.index_of(parent)
        return BranchLine(branch.first, branch.tip, branch.num_nodes, parent, parent_first, index)

    @property
    def step(self) -> int | None:
        """The selected node, else the live one."""
        asked = (self.drawn.looked_at, self.drawn.live)
        return next((step for step in asked if step in self._models.history), None)

    @property
    def height(self) -> int:
        return len(self.rows) * ROW

    # ---- places --------------------------------------------------------------------------------------------------

    @property
    def _axis(self) -> DepthAxis:
        deepest = max((row.end for row in self.rows), default=1)
        return DepthAxis(INSET, max(INSET + 1, self._text_left() - 22), deepest)

    def _text_left(self) -> float:
        return self.size.width() - self._sizes_width() - self.size.width() * TEXT_SHARE

    def _sizes_width(self) -> float:
        return (STEPS_WIDTH if self.size.width() >= ROOM_FOR_STEPS else 0) + self._bytes_width()

    def _bytes_width(self) -> float:
        """The width of the sizes; where it is narrow, shared bytes are only in the tool tip."""
        if not self.drawn.kept or self.size.width() < ROOM_FOR_OWN:
            return 0
        return BYTES_WIDTH if self.size.width() >= ROOM_FOR_BYTES else OWN_WIDTH

    def _top(self, row: int) -> float:
        return row * ROW - self.scrolled

    def text_cell(self, row: int) -> QRectF:
        left = self._text_left()
        return QRectF(left, self._top(row), self.size.width() - self._sizes_width() - left, ROW)

    def place_of(self, step: int) -> tuple[BranchRow, float]:
        """(row, x) of a node; if its branch is hidden, of the node where it leaves a visible one."""
        history = self._models.history
        while (first := history.branch_of(step).first) not in self._row_of:
            parent = history.branch(first).parent
            if parent is None:
                return self.rows[0], self._axis.x_of(0)
            step = parent
        row = self.rows[self._row_of[first]]
        return row, self._axis.x_of(row.start + history.index_of(step) + 1)

    def has_row(self, step: int) -> bool:
        """Whether a node's branch is visible."""
        return step in self._models.history and self._models.history.branch_of(step).first in self._row_of

    def step_at(self, point: QPointF) -> int | None:
        """The node at a point; in a branch's text its newest node; None if there is no row."""
        row = self._row_under(point.y())
        if row is None:
            return None
        if point.x() >= self._text_left() - 8:
            return row.branch.tip
        depth = self._axis.depth_at(point.x())
        return self._models.history.node_at(row.branch.first, depth - row.start - 1)

    def point_of(self, step: int) -> QPointF:
        """The point of a node on the screen."""
        row, x = self.place_of(step)
        return QPointF(x, self._top(row.row) + ROW / 2)


def _grown(row: BranchRow, line: BranchLine) -> BranchRow:
    return replace(row, branch=line, end=row.start + line.num_nodes)
