"""A path of the history tree, from the root to a node: its steps in order, and the tokens of every sequence on it.

Step numbers ascend along a path, with gaps where numbers were given to other branches or to nodes without a step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from app.models.history import HistoryTree
from app.models.sequence_tokens import NO_TOKENS, SequenceTokens, Token
from engine.history.state import Run
from engine.spec.edit import ReplaceTokens
from engine.wire.changes import Change, EditMade, SequenceForked
from engine.wire.records import SequenceStep, StepRecord

Prompts = dict[int, tuple[tuple[int, str], ...]]


class PathFork(Struct, frozen=True):
    """How a sequence was forked: from what `parent` had after `step`, which may be on another branch, when `until` was
    the path's newest step and `since` its newest node."""

    parent: int
    step: int
    until: int
    since: int


class Path:
    """The path's newest node is its `tip`. `history` is the whole tree; `prompts` has the (id, text) pairs of every
    prompt in it, by sequence."""

    def __init__(self, history: HistoryTree, prompts: Prompts | None = None) -> None:
        self.history = history
        self._prompts: Prompts = {} if prompts is None else prompts
        self._nodes: list[int] = []  # all nodes of the path, with or without a step
        self._records: list[StepRecord] = []
        self._steps: list[int] = []
        self._sequences: dict[int, SequenceTokens] = {}
        self._births: dict[int, PathFork] = {}
        self._other: Path | None = None

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self._records)

    @property
    def records(self) -> Sequence[StepRecord]:
        """Every record, oldest first. A live view: do not keep it."""
        return self._records

    @property
    def steps(self) -> Sequence[int]:
        """The step numbers of the records. A live view: do not keep it."""
        return self._steps

    @property
    def nodes(self) -> Sequence[int]:
        """The numbers of all nodes of the path, with or without a step. A live view: do not keep it."""
        return self._nodes

    @property
    def latest(self) -> StepRecord | None:
        return self._records[-1] if self._records else None

    @property
    def first(self) -> StepRecord | None:
        return self._records[0] if self._records else None

    @property
    def tip(self) -> int | None:
        """The newest node of the path, with or without a step; None if the path is empty."""
        return self._nodes[-1] if self._nodes else None

    def record(self, step: int) -> StepRecord | None:
        """The record of a step; None if it is not on the path."""
        index = self.index_of(step)
        return self._records[index] if index is not None else None

    def index_of(self, step: int) -> int | None:
        """The index of a step among the records; None if it is not on the path."""
        index = bisect_left(self._steps, step)
        return index if index < len(self._steps) and self._steps[index] == step else None

    def since_first(self, seq_id: int) -> Iterator[StepRecord]:
        """The records from the one on that fed the first token of a sequence."""
        sequence = self._sequences.get(seq_id)
        if sequence is not None and sequence.first_step is not None:
            yield from map(self._records.__getitem__, range(bisect_left(self._steps, sequence.first_step), len(self)))

    def at(self, step: int | None) -> StepRecord | None:
        """The record to show for `Selected.step`: that of the step, or the newest for None. For a node without a step,
        the record of the step before it."""
        if step is None:
            return self.latest
        found = self.record(step)
        return self.before(step) if found is None and self.node_index(step) is not None else found

    def node_index(self, step: int) -> int | None:
        """The index of a node on the path; None if it is not on it."""
        index = bisect_left(self._nodes, step)
        return index if index < len(self._nodes) and self._nodes[index] == step else None

    def part(self, seq_id: int, step: int | None = None) -> SequenceStep | None:
        """What a step (None: the newest) did to a sequence; None if nothing. For a fork before its own first step, that
        is what it did to the parent sequence."""
        record, birth = self.at(step), self._births.get(seq_id)
        if record is None:
            return None
        if birth is None or record.step > birth.until:
            return record.of(seq_id)
        if self.record(birth.step) is not None:
            return self.part(birth.parent, min(record.step, birth.step))
        source = self._elsewhere(birth.step)
        return source.part(birth.parent, record.step if source.record(record.step) is not None else birth.step)

    def birth(self, seq_id: int) -> PathFork | None:
        """How a sequence was forked; None if it was not."""
        return self._births.get(seq_id)

    def lineage(self, seq_id: int, step: int | None) -> Iterator[tuple[int, int | None]]:
        """The sequence as it is after a step (None: now), then the sequences it descends from, which may be on other
        branches: pairs of sequence and the node up to which its tokens are shared. Ends where the branch of an ancestor
        was deleted."""
        yield seq_id, step
        path, birth = self, self.birth(seq_id)
        while birth is not None and birth.step in self.history:
            step = step if step is not None and self.history.is_on_path(step, birth.step) else birth.step
            yield birth.parent, step
            path = path if path.node_index(birth.step) is not None else path._elsewhere(birth.step)
            birth = path.birth(birth.parent)

    def before(self, step: int) -> StepRecord | None:
        """The record of the last step before `step`."""
        index = bisect_left(self._steps, step)
        return self._records[index - 1] if index else None

    def neighbour(self, step: int | None, direction: int) -> int | None:
        """The node before (-1) or after (+1) a node (None: the newest) of the path, limited to its ends; None if it is
        empty."""
        if not self._nodes:
            return None
        last = len(self._nodes) - 1
        here = last if step is None else bisect_left(self._nodes, step)
        return self._nodes[min(max(here + direction, 0), last)]

    def fed(self, seq_id: int, step: int | None = None) -> StepRecord | None:
        """The newest record up to a step (None: of all) that fed the sequence, which may have ended while others went
        on; O(log n)."""
        record, sequence = self.at(step), self._sequences.get(seq_id)
        if record is None or sequence is None or self.part(seq_id, record.step) is not None:
            return record if sequence is not None else None
        fed = sequence.last_computed(record.step)
        return self.record(fed) if fed is not None else None

    def tokens(self, seq_id: int, step: int | None = None) -> Run[Token]:
        """The tokens of a sequence in the cache after a step (None: now)."""
        sequence = self._sequences.get(seq_id)
        return sequence.until(step) if sequence else NO_TOKENS

    def token(self, seq_id: int, position: int) -> Token | None:
        """One token that is in the cache now; None if there is none."""
        tokens = self.tokens(seq_id)
        return tokens[position] if 0 <= position < len(tokens) else None

    def num_tokens(self, seq_id: int, step: int | None = None) -> int:
        """How many tokens of a sequence are in the cache after a step (None: now)."""
        return len(self.tokens(seq_id, step))

    def sequence_ids(self) -> tuple[int, ...]:
        """Every sequence that has tokens, oldest first."""
        return tuple(self._sequences)

    def awaits_surprisal(self, seq_id: int) -> bool:
        """Whether surprisals of the sequence are still to be computed."""
        sequence = self._sequences.get(seq_id)
        return sequence is not None and sequence.num_awaiting > 0

    # ---- written by the timeline ---------------------------------------------------------------------------------

    def _served(self, record: StepRecord, part: SequenceStep) -> list[Token]:
        """The tokens of a prompt before the first one that a step fed: their K and V came from a prefix hit."""
        served = self._prompts.get(part.seq_id, ())[: part.first_position]
        return [
            Token(position, token_id, text, None, record.step, False, position < part.num_prompt_tokens, True)
            for position, (token_id, text) in enumerate(served)
        ]

    def _enter(self, record: StepRecord) -> None:
        self._make(record.step, record.changes)
        self._records.append(record)
        self._steps.append(record.step)
        for part in record.sequences:
            sequence = self._sequences.setdefault(part.seq_id, SequenceTokens())
            served = self._served(record, part) if sequence.is_empty else ()
            sequence.extend(record, part, served)

    def _make(self, node: int, changes: Iterable[Change]) -> None:
        """Apply the changes that a node carries, and add the node."""
        for change in changes:
            match change:
                case SequenceForked(seq_id, parent, step, count) if seq_id not in self._births:  # else from ForkMade
                    self._fork(seq_id, parent, step, count)
                case EditMade(ReplaceTokens() as edit) if edit.seq_id in self._sequences:
                    new, is_prefill = self._put_in(node, edit), edit.how == "re-prefill"
                    sequence, count = self._sequences[edit.seq_id], edit.stop - edit.position
                    sequence.replace_tokens(node, edit.position, count, new, is_prefill=is_prefill)
        self._nodes.append(node)

    def _put_in(self, node: int, edit: ReplaceTokens) -> list[tuple[int, str]]:
        """The (id, text) pairs of tokens that an edit put in; the id as text where the engine has sent none."""
        added = self.history.added(node)
        texts = added.texts if added is not None else ()
        known = len(texts) == len(edit.token_ids)
        return [(token_id, texts[n] if known else f"#{token_id}") for n, token_id in enumerate(edit.token_ids)]

    def follow(self, step: int | None) -> bool:
        """Become the path to another node (None: the empty path); the common part is kept. Returns whether the path
        changed."""
        wanted = self._path_to(step)
        keep = _common(self._nodes, wanted)
        is_same = keep == len(self._nodes) == len(wanted)
        self._cut(keep)
        for node in wanted[keep:]:
            record = self.history.record(node)
            if record is not None:
                self._enter(record)
            else:
                self._make(node, self.history.changes(node))
        return not is_same

    def _fork(self, seq_id: int, parent: int, step: int | None, num_tokens: int | None) -> bool:
        """Note a fork and copy its parent's tokens; returns whether tokens were added."""
        if step is not None and self._steps:
            self._births[seq_id] = PathFork(parent, step, self._steps[-1], self._nodes[-1])
        is_here = step is None or self.record(step) is not None or step not in self.history
        source = self if is_here or step is None else self._elsewhere(step)
        if seq_id in self._sequences or not source.tokens(parent, step):
            return False
        self._sequences[seq_id] = source._sequences[parent].fork(step, num_tokens)
        return True

    def _elsewhere(self, step: int | None) -> Path:
        """The path to a node that is not on this one (None: to the start); the latest is cached."""
        if self._other is None or self._other.tip != step:
            self._other = Path(self.history, self._prompts)
            self._other.follow(step)
        return self._other

    def _path_to(self, step: int | None) -> Sequence[int]:
        if step is None or step in self.history:
            return self.history.path(step)
        return self._nodes[: bisect_right(self._nodes, step)]

    def _cut(self, keep: int) -> None:
        """Keep the first `keep` nodes."""
        self._forget_unborn(self._nodes[keep - 1] if keep else -1)
        if keep == len(self._nodes):
            return
        last = self._nodes[keep - 1] if keep else -1
        del self._nodes[keep:]
        count = bisect_right(self._steps, last)
        del self._records[count:], self._steps[count:]
        for sequence in self._sequences.values():
            sequence.truncate(last)
        self._sequences = {seq_id: sequence for seq_id, sequence in self._sequences.items() if not sequence.is_empty}

    def _forget_unborn(self, last: int) -> None:
        """Remove forks that were made at or after node `last`."""
        unborn = [seq_id for seq_id, birth in self._births.items() if birth.since >= last]
        for seq_id in unborn:
            del self._births[seq_id]
            self._sequences.pop(seq_id, None)

    def _clear(self) -> None:
        self._cut(0)
        self._births.clear()
        self._sequences.clear()
        self._prompts.clear()
        self._other = None


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common beginning of two ascending lists of nodes: once two paths part they do not meet
    again."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[middle - 1] == other[middle - 1] else (low, middle - 1)
    return low
