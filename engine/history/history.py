"""The history of a session: the tree of its steps, the path to the live one, and logs of what the latest steps gave:
logits, attention, rows, norms, and surprisals that are computed after their steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from msgspec.structs import replace

from engine.history.state import SequenceState, States
from engine.history.tree import Tree, TreeEntry, TreePath
from engine.spec.cache import CacheSpec
from engine.wire.events import PromptSurprisal
from engine.wire.records import Change, RowStats, StepRecord
from engine.wire.tree import Node

if TYPE_CHECKING:
    import torch

    from engine.model.batch import Surprisal


class HasBytes(Protocol):
    @property
    def nbytes(self) -> int: ...


Logged = TypeVar("Logged", bound=HasBytes)


class BoundedLog(Generic[Logged]):
    """What steps gave, by (step, seq_id). Keeps at most `max_bytes` of the newest entries, so that observing a session
    takes bounded memory; those of the newest step are kept however much they take."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[tuple[int, int], dict[int, Logged]] = OrderedDict()

    def put(self, key: tuple[int, int], entry: dict[int, Logged]) -> None:
        """Set the entry of a (step, seq_id), and drop the oldest entries beyond the limit."""
        self.drop(key)
        num_bytes = sum([e.nbytes for e in entry.values()])
        self._entries[key] = entry
        self.num_bytes += num_bytes
        while self.num_bytes > self.max_bytes and (oldest := next(iter(self._entries)))[0] != key[0]:
            self.drop(oldest)

    def get(self, key: tuple[int, int] | None) -> dict[int, Logged] | None:
        """The entry of a (step, seq_id), None where none is kept or `key` is None."""
        return None if key is None else self._entries.get(key)

    def before(self, step: int, seq_id: int) -> Iterator[dict[int, Logged]]:
        """The entries of a sequence before a step, newest first."""
        return (self._entries[key] for key in sorted(self._entries, reverse=True) if key[0] < step and key[1] == seq_id)

    def drop(self, key: tuple[int, int]) -> None:
        for entry in self._entries.pop(key, {}).values():
            self.num_bytes -= entry.nbytes

    def drop_steps(self, steps: set[int]) -> None:
        for key in [k for k in self._entries if k[0] in steps]:
            self.drop(key)

    def clear(self) -> None:
        self._entries.clear()
        self.num_bytes = 0


# limits of the logs of the latest steps: all observation together takes less than 250 MB at 8,192 tokens of
# SmolLM2-135M
ATTENTION_LOG_BYTES = 80 << 20  # shared with prompt chunks that wait for their surprisal
LOGITS_LOG_BYTES = 64 << 20
ROWS_LOG_BYTES = 16 << 20
NORMS_LOG_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class LoggedLogits:
    """The logits `[V]` that a step gave a sequence, which had `num_tokens` tokens after it; `cache` is the mode
    then."""

    step: int
    num_tokens: int
    logits: torch.Tensor
    cache: CacheSpec


@dataclass(frozen=True, eq=False)
class HistoryState:
    """What `History.restore` returns to: the live node, the changes since, and nodes not reported yet."""

    last_step: int | None
    changes: list[Change]
    added: list[Node]
    next_step: int


class History:
    """The tree of a session's nodes, the path to the live one, and the logs of steps. `next_step` is the number of the
    next node; numbers are never used twice. `changes` are those made since the newest node of the path; `now` has the
    states of the live sequences."""

    def __init__(self, now: Callable[[int], SequenceState | None] = lambda _: None) -> None:
        self._now = now
        self.attention: BoundedLog[torch.Tensor] = BoundedLog(ATTENTION_LOG_BYTES)
        self.logits: BoundedLog[torch.Tensor] = BoundedLog(LOGITS_LOG_BYTES)
        self.rows: BoundedLog[torch.Tensor] = BoundedLog(ROWS_LOG_BYTES)
        self.norms: BoundedLog[RowStats] = BoundedLog(NORMS_LOG_BYTES)  # by the number of tokens after the step
        self.surprisal = LateSurprisal()
        self._clear()

    def _clear(self) -> None:
        self.tree = Tree()
        self.path = TreePath(self.tree, now=self._now)
        self.changes: list[Change] = []
        self.added: list[Node] = []  # nodes without a forward that were not reported yet
        self.undone: list[tuple[int | None, int]] = []  # of each undo: the node it went to, and the node it came from
        self.next_step = 0

    def restart(self) -> None:
        """Clear everything: steps count from 0 again, and there is nothing to go back to."""
        for log in self._logs:
            log.clear()
        self._clear()

    def begin_at(
        self,
        step: int,
        seq_id: int,
        state: SequenceState,
        cache: CacheSpec,
        logits: torch.Tensor | None,
        attention: dict[int, torch.Tensor],
    ) -> None:
        """Begin the history of a session that continues a snapshot: its first node is `step`, after which one sequence
        is as `state` says, with these logits `[V]` and attention rows `[H, S]` by layer."""
        self.restart()
        self.next_step = step
        if logits is not None:
            self.log(seq_id, logits, attention)
        self.add({seq_id: state}, Node(step, None, (), cache))

    @property
    def _logs(self) -> tuple[BoundedLog[torch.Tensor] | BoundedLog[RowStats] | LateSurprisal, ...]:
        return self.attention, self.logits, self.rows, self.norms, self.surprisal

    @property
    def last_step(self) -> int | None:
        """The newest node on the path: the live state is that node's, plus `changes`. None before the first."""
        steps = self.path.steps
        return steps[-1] if steps else None

    def is_before_first(self, step: int) -> bool:
        """Whether a step is of the snapshot that this session continues: its steps are not among the nodes."""
        steps = self.path.steps
        first = self.tree.at(steps[0]).node if steps else None
        return first is not None and step < first.step and first.parent is None and not first.changes

    @property
    def num_bytes(self) -> int:
        return sum([log.num_bytes for log in self._logs])

    # ---- a step --------------------------------------------------------------------------------------------------

    def log(self, seq_id: int, logits: torch.Tensor, attention: dict[int, torch.Tensor]) -> None:
        """Log what the step being done gave a sequence: logits `[V]`, attention rows `[H, S]` by layer."""
        key = (self.next_step, seq_id)
        self.logits.put(key, {0: logits})
        if attention:
            self.attention.max_bytes = ATTENTION_LOG_BYTES - self.surprisal.num_bytes
            self.attention.put(key, attention)

    def log_rows(self, step: int, seq_id: int, rows: Mapping[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Log the new rows of a step as they were computed: K and V `[H_kv, T, D]` by layer."""
        entry = {2 * layer + part: pair[part] for layer, pair in rows.items() for part in (0, 1)}
        self.rows.put((step, seq_id), entry)

    def log_norms(self, record: StepRecord) -> None:
        """Log the statistics of the new rows of a step."""
        for part in record.sequences:
            if part.rows is not None:
                self.norms.put((record.step, part.seq_id), {part.num_tokens: part.rows})

    def drop_logs(self, seq_id: int) -> None:
        """Drop what was logged for a sequence in the step being done, because it failed."""
        for log in self._logs:
            log.drop((self.next_step, seq_id))

    def add(self, states: States, node: Node) -> None:
        """Add a finished step, or another node, to the tree and the path. `states` are those of all sequences after it.
        Raises and changes nothing on failure; afterwards the step cannot fail any more."""
        self.tree.add(TreeEntry(node, states))
        try:
            self.path.add(node.step)
        except BaseException:
            self.tree.remove([node.step])
            raise
        self.changes.clear()
        self.next_step = node.step + 1

    def add_changes(self, states: States, cache: CacheSpec, *, is_empty_allowed: bool = False) -> Node | None:
        """Make the changes since the newest node a node of their own; None where there are none, unless
        `is_empty_allowed`."""
        if not (self.changes or is_empty_allowed):
            return None
        node = Node(self.next_step, self.last_step, tuple(self.changes), cache)
        self.add(states, node)
        self.added.append(node)
        return node

    def take_added(self) -> list[Node]:
        """Return the nodes without a forward that were not reported yet, and forget that they were not."""
        added, self.added = self.added, []
        return added

    def copy_path(self, other: History, step: int | None) -> None:
        """Copy the path to `step` from another history into this empty one, to continue after that step."""
        for between in other.tree.path(step):
            entry = other.tree.at(between)
            self.tree.add(TreeEntry(entry.node, entry.states))
        self.path.add(*other.tree.path(step))

    def go_to(self, step: int | None) -> None:
        """Make the path to a step of any branch the live one. O(steps from where the two paths part)."""
        common = self.tree.common_ancestor(self.last_step, step)
        self.path.cut_after(-1 if common is None else common)
        self.path.add(*self.tree.path(step, above=common))
        self.changes.clear()

    def state(self) -> HistoryState:
        """The state that `restore` returns to. O(what was done since the newest step)."""
        return HistoryState(self.last_step, [*self.changes], [*self.added], self.next_step)

    def restore(self, state: HistoryState) -> None:
        """Return to an earlier `state()`; nodes that were added since are removed, with their logs."""
        if self.last_step != state.last_step:
            self.go_to(state.last_step)
        self.tree.remove([step for step in range(state.next_step, self.next_step) if step in self.tree])
        for log in self._logs:
            log.drop_steps({*range(state.next_step, self.next_step + 1)})
        self.changes, self.added = state.changes, state.added
        self.next_step = state.next_step

    def path_to(self, step: int) -> TreePath:
        """The path to a step of any branch. O(its steps)."""
        return TreePath(self.tree, self.tree.path(step))

    def forget_branch(self, step: int) -> tuple[int, ...]:
        """Remove a node and all its descendants, with their logs; returns their steps, ascending."""
        steps = sorted(self.tree.below(step))
        self.tree.remove(steps)
        for log in self._logs:
            log.drop_steps(set(steps))
        self.undone = [(at, back_to) for at, back_to in self.undone if back_to not in steps]
        return tuple(steps)

    # ---- what steps gave -----------------------------------------------------------------------------------------

    def logits_at(self, seq_id: int, step: int) -> torch.Tensor | None:
        """The logits `[V]` that a sequence had after a step of any branch, if they are still kept."""
        entry = self.logits.get(self.tree.computed_by(seq_id, step))
        return entry[0] if entry else None

    def attention_at(self, seq_id: int, step: int, path: TreePath | None = None) -> dict[int, torch.Tensor]:
        """The attention weights `[H, S]` by layer of the newest step up to `step` that computed a sequence; empty where
        they are not kept. `path`: the one to look at; None: the live one."""
        path = self.path if path is None else path
        return self.attention.get(path.computed_by(seq_id, step)) or {}

    def _back_from_now(self, seq_id: int, least: int) -> Iterator[tuple[int, SequenceState]]:
        """The steps of the live path from the newest back, while a sequence had at `least` so many tokens, and its
        states. Steps after which it (or the sequence it was forked from) had tokens that were replaced since are left
        out."""
        now = self._now(seq_id)
        for step in reversed(self.path.steps):
            state = self.path.state_of(*self.path.owner(seq_id, step))
            if state is None or state.num_tokens < least:
                return
            is_of_now = now is None or state.num_tokens <= now.num_same(step)
            if is_of_now and self.path.state(seq_id, step) is state:
                yield step, state

    def attention_with(self, seq_id: int, num_tokens: int) -> dict[int, torch.Tensor]:
        """The attention weights `[H, S]` by layer of the step after which a sequence had `num_tokens` tokens; empty
        where they are not kept."""
        for _, state in self._back_from_now(seq_id, num_tokens):
            rows = self.attention.get(state.computed_by)
            if state.num_tokens == num_tokens and rows is not None:
                return rows
        return {}

    def logged_queries(self, seq_id: int, num_tokens: int) -> dict[int, dict[int, torch.Tensor]]:
        """The attention weights `[H, S]` by layer that are kept of the queries of a sequence's first `num_tokens`
        tokens, by position."""
        found: dict[int, dict[int, torch.Tensor]] = {}
        for _, state in self._back_from_now(seq_id, 1):
            rows = self.attention.get(state.computed_by)
            if rows is None and found:
                break  # the log keeps the latest
            if rows is not None and 0 < state.num_tokens <= num_tokens:
                found.setdefault(state.num_tokens - 1, rows)
        return found

    def written_rows(
        self, seq_id: int, position: int, stops: Mapping[int, int] | None = None
    ) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """K and V `[H_kv, D]` by layer of a position, as its step wrote them; empty where they are not kept. The rows
        of a layer end with the newest token of their step, or before the position in `stops`."""
        ends = stops or {}
        for _, state in self._back_from_now(seq_id, position + 1):
            entry = self.rows.get(state.computed_by) or {}
            backs = {key: ends.get(key // 2, state.num_tokens) - position for key in entry}
            found = {key: rows[:, -backs[key]] for key, rows in entry.items() if 0 < backs[key] <= rows.shape[1]}
            if found:
                return {key // 2: (found[key], found[key + 1]) for key in found if key % 2 == 0 and key + 1 in found}
        return {}

    def norms_back(self, seq_id: int, step: int | None) -> Iterator[tuple[int, RowStats]]:
        """The statistics that are kept of the rows of a sequence on the path to `step`, each with the number of tokens
        after its step, newest first. O(steps that are looked at)."""
        while step is not None and (by := self.tree.computed_by(seq_id, step)) is not None and by[0] in self.tree:
            yield from (self.norms.get(by) or {}).items()
            node, seq_id = self.tree.at(by[0]).node, by[1]
            if node.parent is None and not node.changes:  # it continues a snapshot
                for entry in self.norms.before(node.step, seq_id):
                    yield from entry.items()
            step = node.parent

    def norms_of(self, seq_id: int, step: int | None, position: int) -> RowStats | None:
        """The statistics of a position's row as the newest step up to `step` wrote it; None where they are not kept."""
        for stop, stats in self.norms_back(seq_id, step):
            if stop - stats.num_rows <= position < stop:
                return stats.of(position - stop)
        return None

    def with_norms(self, record: StepRecord) -> StepRecord:
        """The record of a step with the statistics of all its rows, as far as they are kept."""
        kept = (self.norms.get((record.step, part.seq_id)) or {} for part in record.sequences)
        rows = [next(iter(each.values()), part.rows) for each, part in zip(kept, record.sequences, strict=True)]
        parts = (replace(part, rows=each) for part, each in zip(record.sequences, rows, strict=True))
        return replace(record, sequences=tuple(parts))

    def logged_logits(self, seq_id: int, above: int = -1) -> list[LoggedLogits]:
        """The logits still kept of all steps that computed a sequence up to more than `above` tokens, as far as it
        still has the same tokens. O(steps since it had more)."""
        found = []
        for step, state in self._back_from_now(seq_id, above + 1):
            entry = self.logits.get(state.computed_by)
            if (
                entry is not None
                and state.computed_by is not None
                and state.computed_by[0] == step
                and step in self.tree
            ):
                found.append(LoggedLogits(step, state.num_tokens, entry[0], self.tree.at(step).node.cache))
        return found[::-1]

    def step_at(self, seq_id: int, num_tokens: int) -> int | None:
        """The newest step that computed a sequence up to exactly `num_tokens` tokens; None where none is known."""
        for step, state in self._back_from_now(seq_id, num_tokens):
            if state.num_tokens == num_tokens:
                return step if state.computed_by is None else state.computed_by[0]
        return None

    def step_with(self, seq_id: int, num_tokens: int) -> int | None:
        """The first step after which a sequence had the first `num_tokens` of its present tokens; the newest step where
        there is none."""
        now = self._now(seq_id)
        for step in self.path.steps:
            state = self.path.state(seq_id, step)
            is_of_now = now is None or now.num_same(step) >= num_tokens
            if is_of_now and state is not None and state.num_tokens >= num_tokens:
                return step
        return self.last_step


# ---- surprisals of prompt tokens, computed after their steps ---------------------------------------------------------

MAX_BYTES = 256 << 20  # of what waits; beyond it the surprisal of a chunk is computed within its step


@dataclass(eq=False)
class PendingChunk:
    """A prompt chunk whose surprisal is not fully computed yet; `position` is the next token to compute. `seq_ids` are
    the sequences with these tokens: the one that was computed, and its forks."""

    seq_ids: set[int]
    position: int
    surprisal: Surprisal


class LateSurprisal:
    """Computes surprisals slice by slice, in the order of their chunks, and keeps them by step and sequence. `advance`
    takes about 50 ms on a CPU."""

    def __init__(self) -> None:
        self.is_wanted = True  # False: surprisals of prompts are not computed at all
        self._waiting: dict[tuple[int, int], PendingChunk] = {}
        self._found: dict[tuple[int, int], list[PromptSurprisal]] = {}

    @property
    def has_room(self) -> bool:
        """Whether another chunk may wait."""
        return self.num_bytes < MAX_BYTES

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def num_bytes(self) -> int:
        return sum([waiting.surprisal.num_bytes for waiting in self._waiting.values()])

    def put(self, step: int, seq_id: int, position: int, surprisal: Surprisal) -> None:
        """Add a chunk whose surprisal the step left to be computed, from `position` on."""
        self._waiting[step, seq_id] = PendingChunk({seq_id}, position, surprisal)

    def advance(self) -> PromptSurprisal:
        """Compute and return the next slice of the oldest chunk. A chunk that fails is dropped, and the error
        raised."""
        (step, seq_id), waiting = next(iter(self._waiting.items()))
        try:
            values = tuple(waiting.surprisal.advance().tolist())
        except BaseException:
            del self._waiting[step, seq_id]
            raise
        found = PromptSurprisal(step, seq_id, waiting.position, values)
        self._found.setdefault((step, seq_id), []).append(found)
        waiting.position += len(values)
        if not waiting.surprisal.is_waiting:
            del self._waiting[step, seq_id]
        return found

    def finish(self) -> Iterator[PromptSurprisal]:
        """Compute everything that waits, slice by slice."""
        while self.is_waiting:
            yield self.advance()

    def filled(self, record: StepRecord) -> StepRecord:
        """The record of a step, with the surprisals found since."""
        for part in record.sequences:
            for found in self._found.get((record.step, part.seq_id), ()):
                record = record.with_surprisal(part.seq_id, found.first_position, found.values)
        return record

    # ---- forks, removals and undone steps ------------------------------------------------------------------------

    def fork(self, parent: int, child: int, step: int | None) -> None:
        """Note that `child` has the tokens that `parent` had after a step (None: has now)."""
        for (at, _), waiting in self._waiting.items():
            if parent in waiting.seq_ids and (step is None or at <= step):
                waiting.seq_ids.add(child)

    def remove(self, seq_id: int) -> None:
        """Drop a removed sequence; chunks whose tokens no other sequence has are not computed."""
        for waiting in self._waiting.values():
            waiting.seq_ids.discard(seq_id)
        self._waiting = {key: waiting for key, waiting in self._waiting.items() if waiting.seq_ids}

    def owners(self) -> list[tuple[tuple[int, int], PendingChunk, set[int]]]:
        """The waiting chunks and the sequences that have their tokens, for `restore_owners`."""
        return [(key, waiting, set(waiting.seq_ids)) for key, waiting in self._waiting.items()]

    def restore_owners(self, owners: list[tuple[tuple[int, int], PendingChunk, set[int]]]) -> None:
        """Return to an earlier `owners()`."""
        self._waiting = {key: waiting for key, waiting, _ in owners}
        for _, waiting, seq_ids in owners:
            waiting.seq_ids = seq_ids

    def drop(self, key: tuple[int, int]) -> None:
        """Drop a chunk, (step, seq_id), because its step is undone."""
        self._waiting.pop(key, None)
        self._found.pop(key, None)

    def drop_steps(self, steps: set[int]) -> None:
        for key in [key for key in (*self._waiting, *self._found) if key[0] in steps]:
            self.drop(key)

    def clear(self) -> None:
        self._waiting.clear()
        self._found.clear()
