"""Replays a saved session with its model, and compares every step with what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec.structs import replace

from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.saved.difference import Compared, ReplayDifference, differences
from engine.saved.session import SavedSession
from engine.session.edits.numbers import RowsFrom
from engine.session.redoing import Redoing
from engine.session.session import OpenRows, Session
from engine.wire.records import StepRecord
from engine.wire.tree import Node


class Rebuilding:
    """Replays the nodes of a saved session in a new `session`. `records` are those of the repeated steps by number,
    `measured` the effects of the repeated edits, `differences` what was found so far, `compared` how much was compared.
    If a node cannot be repeated, `steps` raises `InputError`; `finish` then goes to the last node that was repeated on
    the way to the live one, and forces the tokens that followed. Recorded edits open files through `open_rows`; by
    default none is opened, since a saved session from elsewhere may name any file."""

    def __init__(self, model: LoadedModel, saved: SavedSession, open_rows: OpenRows | None = None) -> None:
        self._saved = saved
        self.session = Session(model, saved.nodes[0].cache if saved.nodes else saved.cache)
        self.session.open_rows = open_rows or refuse_rows
        self.records: dict[int, StepRecord] = {}
        self.differences: list[ReplayDifference] = []
        self.compared = Compared()
        self.num_done = 0
        self._redoing = Redoing(self.session, saved.nodes)
        self.measured = self._redoing.measured
        self._layers = [layer.index for layer in model.info.geometry.attention_layers]

    def steps(self, check: Callable[[], None] | None = None) -> Iterator[tuple[int, list[ReplayDifference]]]:
        """Repeat the nodes one by one; yields the number of each and how it differs from what was recorded."""
        for node, record in self._redone(check):
            self.num_done += 1
            self.compared.add(node, record, self._layers)
            found: list[ReplayDifference] = []
            if record is not None:
                self.records[node.step] = record
                found = list(differences(node, record, self._layers))
                self.differences += found
            yield node.step, found

    def _redone(self, check: Callable[[], None] | None) -> Iterator[tuple[Node, StepRecord | None]]:
        """The repeated nodes; an `InputError` names the step that could not be repeated."""
        try:
            yield from self._redoing.steps(check)
        except InputError as error:
            step = self._saved.nodes[self.num_done].step
            raise InputError(f"Step {step} could not be done once more: {error}") from error

    def finish(self) -> None:
        """Go to the node that was live when the session was saved, and repeat the changes made since."""
        self._redoing.finish(self._saved.live, self._saved.pending)
        self.session.history.take_added()

    def as_far_as_it_went(self) -> SavedSession:
        """The part of the saved session that was repeated: all of it, or the nodes before one that could not be."""
        return replace(self._saved, nodes=self._saved.nodes[: self.num_done], live=self.session.last_step)


def refuse_rows(path: str) -> AbstractContextManager[RowsFrom]:
    """Raise `InputError`: no file is opened."""
    raise InputError(
        f"its edit takes rows from '{path}', and no file that a session names is opened unasked. Make that edit by "
        "hand, or replay the session with --allow-file."
    )


def only_rows_of(files: Collection[Path], open_rows: OpenRows) -> OpenRows:
    """An `open_rows` that opens these files and refuses all others."""
    allowed = {file.resolve() for file in files}

    def open_allowed(path: str) -> AbstractContextManager[RowsFrom]:
        return (open_rows if Path(path).resolve() in allowed else refuse_rows)(path)

    return open_allowed
