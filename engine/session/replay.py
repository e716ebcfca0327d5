"""Replays nodes of a history tree in a session, in the order of their numbers, and compares the results: for going
back, for an engine that takes the place of one that died, for saved sessions, and for the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from engine.counted import counted
from engine.errors import Check, InputError
from engine.session.commands import append_prompt
from engine.session.edits import RowsFrom, repeat_edit
from engine.spec.sampling import Prompt
from engine.wire.measurements import EditMeasured
from engine.wire.records import (
    Change,
    EditMade,
    ModeChanged,
    PromptAppended,
    SamplingChanged,
    SequenceAdded,
    SequenceForked,
    SequenceRemoved,
    SequenceStep,
    SequenceStopped,
    StepRecord,
    TokensForced,
)
from engine.wire.tree import Node, PlannedPart, PlannedStep

if TYPE_CHECKING:
    from engine.session.session import OpenRows, Session


class ReplayDifference(Struct, frozen=True):
    """Another token than recorded, or rows of a layer with another checksum. `seq_id` is None for rows that several
    sequences wrote in one step; `layer` is None for a token."""

    step: int
    what: str
    expected: int | None
    found: int | None
    seq_id: int | None = None
    layer: int | None = None

    def describe(self) -> str:
        """The difference in words."""
        where = "" if self.seq_id is None else f", sequence {self.seq_id}"
        if self.layer is not None:
            return f"step {self.step}{where}, layer {self.layer}: the rows of K and V are others"
        return f"step {self.step}{where}: {self.what} token {self.found}, where it was {self.expected}"


class Replayed(NamedTuple):
    """A replayed node, the record of its step (None for a node without a forward), and how it differs from what was
    recorded."""

    node: Node
    record: StepRecord | None
    differences: tuple[ReplayDifference, ...]


class Replay:
    """Replays `nodes` in `session`: goes to the parent of each, repeats its changes and then its step, with the same
    tokens of the same sequences in the same mode. The recorded next token is chosen again, whatever this run samples.

    `num_done` nodes are replayed. `measured` has what each repeated edit did to the next token, by the number of its
    node. `num_computed_anew` counts prompt tokens that were prefix hits originally and are not here: they are computed
    in other chunks, which is exact but for rounding. `differences` are all that were found, `compared` says how much
    was compared. Raises `InputError` for a token that the model does not have.
    """

    def __init__(self, session: Session, nodes: Iterable[Node]) -> None:
        self.session, self.nodes = session, sorted(nodes, key=lambda node: node.step)
        self.num_done = self.num_computed_anew = 0
        self.measured: dict[int, EditMeasured] = {}
        self.differences: list[ReplayDifference] = []
        self.compared = Compared()
        self._layers = [layer.index for layer in session.model.info.geometry.attention_layers]
        check_ids_are_known(session, self.nodes)

    @property
    def is_exact(self) -> bool:
        return not (self.num_computed_anew or self.differences)

    @property
    def why_not_exact(self) -> str:
        """In words how this run differed; empty if it did not."""
        if self.num_computed_anew:
            return f"{counted(self.num_computed_anew, 'token')} came from pages of an earlier run"
        tokens = next((each.step for each in self.differences if each.layer is None), None)
        if tokens is not None:
            return f"from step {tokens} on other tokens would have been chosen"
        return f"from step {self.differences[0].step} on K and V are others" if self.differences else ""

    def steps(self, check: Check | None = None) -> Iterator[Replayed]:
        """Replay the nodes one by one. `check` is called before every node and between the layers of a prefill, and
        raises to cancel. Raises `InputError` at a node that cannot be repeated: those before it are."""
        session = self.session
        if self.nodes and session.last_step is None and session.cache != self.nodes[0].cache:
            session.set_cache(self.nodes[0].cache)
            session.forget_history()
        for node in self.nodes:
            if check is not None:
                check()
            try:
                record = self._repeat(node, check)
            except InputError as error:
                raise InputError(f"Step {node.step} could not be done once more: {error}") from error
            yield self._compared(node, record)

    def _repeat(self, node: Node, check: Check | None) -> StepRecord | None:
        session = self.session
        if session.last_step != node.parent or session.history.changes:
            session.go_to(node.parent, check)
        session.history.next_step = node.step
        for change in node.changes:
            if (measured := repeat_change(session, change)) is not None:
                self.measured[node.step] = measured
        if node.work is not None:
            session.restorer.fill_emptied(check)
            return session.stepper.repeat(node.work, check)
        session.add_changes(is_empty_allowed=True)
        return None

    def _compared(self, node: Node, record: StepRecord | None) -> Replayed:
        self.num_done += 1
        self.compared.add(node, record, self._layers)
        if node.work is None or record is None:
            return Replayed(node, record, ())
        for then, now in zip(node.work.parts, record.sequences, strict=True):
            self.num_computed_anew += max(0, then.first_position - now.first_position)
        found = tuple(differences(node, record, self._layers))
        self.differences += found
        return Replayed(node, record, found)

    def finish(self, at: int | None, pending: tuple[Change, ...]) -> None:
        """Go to the node `at` and repeat the changes made after it. If that node was not replayed, go to its nearest
        ancestor that was, and force the tokens that followed there. No node is left to be reported."""
        session, by_step = self.session, {node.step: node for node in self.nodes}
        missing: list[Node] = []
        while at is not None and at not in session.history.tree:
            missing.append(by_step[at])
            at = by_step[at].parent
        try:
            if session.last_step != at or session.history.changes:
                session.go_to(at)
            if not missing:
                for change in pending:
                    repeat_change(session, change)
            for seq_id, token_ids in tokens_computed(missing[::-1]).items():
                if seq_id in session.live.ids:
                    session.force(seq_id, token_ids)
        finally:
            session.history.take_added()


def tokens_computed(nodes: list[Node]) -> dict[int, tuple[int, ...]]:
    """By `seq_id` the tokens that decode steps computed, in order, followed by the token that was sampled last."""
    found: dict[int, tuple[int, ...]] = {}
    for node in nodes:
        for part in node.work.parts if node.work is not None else ():
            if part.token_id is not None:
                before = found.get(part.seq_id, ())[:-1]
                chosen = () if part.sampled is None else (part.sampled,)
                found[part.seq_id] = (*before, part.token_id, *chosen)
    return found


def check_ids_are_known(session: Session, nodes: Iterable[Node]) -> None:
    """Raise `InputError` where a step computed or chose a token that is not in the model's vocabulary."""
    size = session.model.vocab_size
    for node in nodes:
        for part in node.work.parts if node.work is not None else ():
            strange = next((each for each in (part.token_id, part.sampled) if each is not None and each >= size), None)
            if strange is not None:
                name = session.model.info.name
                raise InputError(
                    f"Step {node.step} has token {strange:,} of sequence {part.seq_id}, and the vocabulary of '{name}' "
                    f"ends at {size - 1:,}: the session is of another model, or was changed."
                )


def check_can_be_replayed(session: Session, nodes: tuple[Node, ...], at: int | None) -> None:
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


def repeat_change(session: Session, change: Change) -> EditMeasured | None:
    """Repeat a recorded change, or raise `InputError`. Returns what it did to the next token if it is an edit."""
    match change:
        case SequenceAdded(seq_id, token_ids, sampling, chat):
            set_next_id(session, seq_id)
            session.submit(Prompt(token_ids=token_ids, sampling=sampling, has_start=True), chat)
        case SequenceForked(seq_id, parent, step, num_tokens):
            set_next_id(session, seq_id)
            session.fork(parent, step, num_tokens)
        case PromptAppended(seq_id, token_ids, sampling, chat):
            append_prompt(session, seq_id, token_ids, sampling, chat)
        case SequenceRemoved(seq_id):
            session.remove(seq_id)
        case SequenceStopped(seq_id):
            session.stop(seq_id)
        case TokensForced(seq_id, token_ids):
            session.force(seq_id, token_ids)
        case SamplingChanged(seq_id, sampling):
            session.set_sampling(sampling, seq_id)
        case ModeChanged(cache):
            session.set_cache(cache)
        case EditMade(edit):
            return repeat_edit(session, edit)
    return None


def set_next_id(session: Session, seq_id: int) -> None:
    """Have the next sequence get this `seq_id`; `InputError` where it is taken."""
    if seq_id in session.live.ids:
        raise InputError(f"There is a sequence {seq_id} already.")
    session.live.next_id = seq_id


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


# ---- comparing -----------------------------------------------------------------------------------------------


def differences(node: Node, record: StepRecord, layers: Sequence[int]) -> Iterator[ReplayDifference]:
    """How a replayed step differs from its node; `layers` are the indices of the layers with rows. Rows are not
    compared where `why_rows_not_compared` says why."""
    assert node.work is not None
    found = {step.seq_id: step for step in record.sequences}
    for part in node.work.parts:
        yield from _of_tokens(node.step, part, found.get(part.seq_id))
    if why_rows_not_compared(node, record):
        return
    seq_id = node.work.parts[0].seq_id if len(node.work.parts) == 1 else None
    for layer, was, now in zip(layers, node.checksums, record.checksums, strict=False):
        if was != now:
            yield ReplayDifference(node.step, "rows", was, now, seq_id, layer)


def _of_tokens(step: int, part: PlannedPart, now: SequenceStep | None) -> Iterator[ReplayDifference]:
    if now is None or now.num_tokens != part.num_tokens:
        count = None if now is None else now.num_tokens
        yield ReplayDifference(step, "after it stands", part.num_tokens, count, part.seq_id)
        return
    if part.token_id is not None and now.token_ids[-1] != part.token_id:
        yield ReplayDifference(step, "it computed", part.token_id, now.token_ids[-1], part.seq_id)
    if part.sampled != now.sampled:
        yield ReplayDifference(step, "it chose", part.sampled, now.sampled, part.seq_id)


def are_same_pieces(work: PlannedStep, record: StepRecord) -> bool:
    """Whether every sequence was computed from the same position on, so that its chunk was the same."""
    found = {step.seq_id: step for step in record.sequences}
    return all(part.seq_id in found and found[part.seq_id].first_position == part.first_position for part in work.parts)


class Compared:
    """Counts what was compared: tokens computed or chosen, checksums of K and V, and by reason the nodes whose rows
    were not compared."""

    def __init__(self) -> None:
        self.num_tokens = self.num_checksums = 0
        self.rows_not_compared: Counter[str] = Counter()

    def add(self, node: Node, record: StepRecord | None, layers: Sequence[int]) -> None:
        """Count a replayed node."""
        if node.work is not None:
            parts = node.work.parts
            self.num_tokens += sum((part.token_id is not None) + (part.sampled is not None) for part in parts)
        if why := why_rows_not_compared(node, record):
            self.rows_not_compared[why] += 1
        else:
            self.num_checksums += min(len(layers), len(node.checksums))

    def describe(self) -> str:
        """The counts in one line."""
        words = f"compared: {counted(self.num_tokens, 'token')}, {counted(self.num_checksums, 'checksum')} of K and V"
        for why, count in sorted(self.rows_not_compared.items()):
            words += f"; not the rows of {counted(count, 'step')}: {why}"
        return words


def why_rows_not_compared(node: Node, record: StepRecord | None) -> str:
    """Why the K and V of a node were not compared; empty where their checksums were."""
    if node.work is None or record is None:
        return "an edit or a change alone, which no step wrote"
    if not node.checksums:
        return "no checksum was written of them"
    if len(node.checksums) != len(record.checksums):
        return "their checksums are of another number of layers"
    if not are_same_pieces(node.work, record):
        return "tokens came from pages of an earlier run, and were computed in other pieces"
    return ""
