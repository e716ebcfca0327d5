"""Repeats nodes of a history tree in a session, in the order of their numbers, and compares the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from engine.errors import InputError
from engine.session.changes import repeat_change
from engine.wire.changes import Change
from engine.wire.edits import EditMeasured
from engine.wire.records import StepRecord
from engine.wire.tree import Node, PlannedStep

if TYPE_CHECKING:
    from engine.session.session import Session


class Redoing:
    """Repeats nodes in `session`: goes to the parent of each, repeats its changes and then its step, with the same
    tokens of the same sequences in the same mode. The recorded next token is chosen again, whatever this run samples.

    `measured` has what each repeated edit did to the next token, by the number of its node. `num_computed_anew` counts
    prompt tokens that were prefix hits originally and are not here: they are computed in other chunks, which is exact
    but for rounding. `other_tokens` are the steps where this run sampled another token, `other_rows` those where K and
    V have another checksum.
    """

    def __init__(self, session: Session, nodes: tuple[Node, ...]) -> None:
        self._session, self._nodes = session, sorted(nodes, key=lambda node: node.step)
        self.measured: dict[int, EditMeasured] = {}
        self.num_computed_anew = 0
        self.other_tokens: list[int] = []
        self.other_rows: list[int] = []

    @property
    def is_exact(self) -> bool:
        return not (self.num_computed_anew or self.other_tokens or self.other_rows)

    @property
    def why_not_exact(self) -> str:
        """In words how this run differed; empty if it did not."""
        if self.num_computed_anew:
            return f"{self.num_computed_anew:,} tokens were in pages of an earlier run"
        if self.other_tokens:
            return f"from step {self.other_tokens[0]} on other tokens would have been chosen"
        return f"from step {self.other_rows[0]} on K and V are others" if self.other_rows else ""

    def steps(self, check: Callable[[], None] | None = None) -> Iterator[tuple[Node, StepRecord | None]]:
        """Repeat the nodes one by one; yields each with the record of its step, None for a node without a forward.
        `check` is called before every node and between the layers of a prefill, and raises to cancel."""
        session = self._session
        if self._nodes and session.last_step is None and session.cache != self._nodes[0].cache:
            session.set_cache(self._nodes[0].cache)
            session.forget_history()
        for node in self._nodes:
            if check is not None:
                check()
            if session.last_step != node.parent or session.history.changes:
                session.go_to(node.parent, check)
            session.history.next_step = node.step
            for change in node.changes:
                if (measured := repeat_change(session, change)) is not None:
                    self.measured[node.step] = measured
            if node.work is None:
                session.add_changes(is_empty_allowed=True)
                yield node, None
            else:
                record = session.redo_step(node.work, check)
                self._compare(node, node.work, record)
                yield node, record

    def finish(self, at: int | None, changes: tuple[Change, ...]) -> None:
        """Go to the node `at` and repeat the `changes` made after it. If that node was not repeated, go to its nearest
        ancestor that was, and force the tokens that followed there."""
        session, by_step = self._session, {node.step: node for node in self._nodes}
        missing: list[Node] = []
        while at is not None and at not in session.history.tree:
            missing.append(by_step[at])
            at = by_step[at].parent
        if session.last_step != at or session.history.changes:
            session.go_to(at)
        if not missing:
            for change in changes:
                repeat_change(session, change)
        for seq_id, token_ids in tokens_fed(missing[::-1]).items():
            if seq_id in session.live.ids:
                session.force(seq_id, token_ids)

    def _compare(self, node: Node, work: PlannedStep, record: StepRecord) -> None:
        for then, now in zip(work.parts, record.sequences, strict=True):
            self.num_computed_anew += max(0, then.first_position - now.first_position)
            if then.sampled != now.sampled:
                self.other_tokens.append(node.step)
        if node.checksums and record.checksums and node.checksums != record.checksums:
            self.other_rows.append(node.step)


def tokens_fed(nodes: list[Node]) -> dict[int, tuple[int, ...]]:
    """By `seq_id` the tokens that decode steps fed, in order, followed by the token that was sampled last."""
    found: dict[int, tuple[int, ...]] = {}
    for node in nodes:
        for part in node.work.parts if node.work is not None else ():
            if part.token_id is not None:
                before = found.get(part.seq_id, ())[:-1]
                chosen = () if part.sampled is None else (part.sampled,)
                found[part.seq_id] = (*before, part.token_id, *chosen)
    return found


def check_can_be_redone(session: Session, nodes: tuple[Node, ...], at: int | None) -> None:
    """Raise `InputError` if the session is not empty, if `at` is not among the nodes, or if the nodes do not begin at
    the root of the tree."""
    if session.sequences or session.last_step is not None:
        raise InputError("Steps can be done once more in a session that has none: load the model anew.")
    known = {node.step for node in nodes}
    if at is not None and at not in known:
        raise InputError(f"There is no step {at} among those that are to be done once more.")
    lost = [node for node in nodes if node.parent is not None and node.parent not in known]
    if lost:
        raise InputError(f"Step {lost[0].step} follows on step {lost[0].parent}, which is not there: begin with it.")
    if any(node.parent is None and not node.changes for node in nodes):
        raise InputError("The run went on from a snapshot: open that again.")
