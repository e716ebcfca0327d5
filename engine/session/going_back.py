"""Going back, or to another branch: the exact state after any node of the history tree becomes the live one. Nothing is
deleted. A fork adds an exact copy of one sequence as it was at a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from engine.cache.paged.pool import PoolExhausted
from engine.cache.sequence_cache import SequenceCache
from engine.counted import counted
from engine.errors import Check, InputError
from engine.history.history import History
from engine.history.state import Move, Origin, SequenceState
from engine.history.tree import TreeEntry, TreePath
from engine.model.loader import LoadedModel
from engine.session.driver import refill, refresh
from engine.session.mode import CacheMode
from engine.session.replay import Replay
from engine.session.states import (
    KeptStates,
    LiveSequence,
    LiveSequences,
    SessionState,
    StateBefore,
    atomic,
    on_failure,
)
from engine.spec.cache import CacheSpec, cache_label
from engine.wire.events import ForkMade
from engine.wire.records import SequenceForked, SequenceRemoved, SequenceStopped, TokensForced
from engine.wire.tree import Node

if TYPE_CHECKING:
    from engine.session.session import Session


NOTHING_SCHEDULED = frozenset[int]()


class StateRestorer:
    """Restores the state after a node of the history tree. Three ways, the cheapest first: swap in a kept state; fork a
    later state that still holds the rows; replay the steps from the nearest state that can be had, in a scratch session
    that `new_session` makes."""

    def __init__(
        self,
        model: LoadedModel,
        live: LiveSequences,
        history: History,
        kept: KeptStates,
        new_session: Callable[[CacheSpec | CacheMode, SessionState | None], Session],
    ) -> None:
        self._model, self._live, self._history, self._kept = model, live, history, kept
        self._new_session = new_session

    # ---- exchange the live state ---------------------------------------------------------------------------------

    def go_to(self, step: int | None, check: Check | None = None, then: Callable[[], None] = lambda: None) -> str:
        """Make the state after `step` (None: before the first) the live one, then call `then`; returns in words how the
        rows came. The state that was live is kept. Raises and changes nothing where that, or `then`, fails."""
        history = self._history
        if step is not None:
            history.tree.at(step)
        if step == history.last_step and not history.changes:
            then()
            return "it is the live step already"
        spec, current, was_kept = self._live.mode.spec, self._live_state(), step in self._kept
        self._note_step(history.next_step if history.changes else current.step)
        before = StateBefore(self._live, history, self._kept)
        target: SessionState | None = None
        try:
            current.assign_pages(is_live=False)
            target, how = self._next_live_state(step, self.sources(), check)
            self._keep_left(current)
            history.go_to(step)
            for seq_id, state in ({} if step is None else history.tree.at(step).states).items():
                target.sequences[seq_id].sequence = state
            self._live.replace(target.mode, target.sequences)
            self._register_prefixes()
            then()
            if target.mode.spec != spec:
                how = f"back in the cache mode of that step, {cache_label(target.mode.spec)}: {how}"
        except BaseException:
            current.assign_pages(is_live=True)
            before.restore()
            if target is not None and was_kept:
                self._kept.keep(target)
            self._register_prefixes()
            raise
        with suppress(MemoryError):  # the state is exchanged already; the next step trims what is kept
            if current.step not in self._kept:
                current.close()
            self._kept.trim()
        return how

    def _live_state(self) -> SessionState:
        """The state of the live sequences: the sequences themselves, not copies."""
        return SessionState.of(self._history.last_step, self._live)

    def state_of(self, seq_id: int) -> SessionState:
        """The state of one live sequence: the sequence itself, not a copy."""
        return SessionState(self._history.last_step, self._live.mode, {seq_id: self._live.get(seq_id)})

    def state_of_newest_step(self) -> SessionState | None:
        """The live state with sequences copied and caches shared, to be kept while the live sequences get other caches.
        None where there is no step yet, something was changed since the newest step, or rows are missing."""
        current = self._live_state()
        if current.step is None or self._history.changes or any(each.is_stale for each in current.sequences.values()):
            return None
        for seq_id, each in current.sequences.items():
            current.sequences[seq_id] = each.copied(each.cache)
        return current

    def _keep_left(self, current: SessionState) -> None:
        """Keep the live state, which is left. What was changed since the newest step becomes a node of its own."""
        self._history.add_changes({i: each.sequence for i, each in current.sequences.items()}, current.mode.spec)
        current.step = self._history.last_step
        if current.step is not None and not any(each.is_stale for each in current.sequences.values()):
            self._kept.keep(current)

    def _register_prefixes(self) -> None:
        """Register the prefixes of the live path in the pool again, and forget those of other branches, so that the
        next prompt finds the pages of its own path."""
        if (store := self._live.mode.store) is None:
            return
        store.evict_outside_path(set(self._history.path.steps))
        for each in self._live:
            store.groups[0].pool.recommit(each.cache.tables[0], each.sequence.token_ids)
        self._note_step(self._history.last_step)

    def _note_step(self, step: int | None) -> None:
        """Note that pages became findable with a step, also by changes that follow the one before."""
        if self._live.mode.store is not None and step is not None:
            self._live.mode.store.note_step(step)

    def fill_emptied(self, check: Check | None = None) -> None:
        """Restore sequences that lost their rows to a failed step, if a prefill of their tokens would not give the same
        rows: rows that were edited by hand, were computed in a batch with others, or were taken over from another
        sequence. Where the state cannot be restored, this does nothing."""
        step, tree = self._history.last_step, self._history.tree
        emptied = [each for each in self._live if each.is_stale]
        if step is None or not any(
            each.cache.by_hand or each.continued or tree.is_batched_with_others(each.seq_id, step) for each in emptied
        ):
            return
        try:
            state = self.state_at(step, check)
        except (PoolExhausted, InputError):
            return
        try:
            for each in emptied:
                self._copy_into(each, state)
            self._register_prefixes()
        finally:
            state.close()

    def _copy_into(self, live: LiveSequence, state: SessionState) -> None:
        """Copy the rows of the same sequence out of `state`, if it is in the same mode and the pool has room."""
        then, mode = state.sequences.get(live.seq_id), self._live.mode
        if then is None or state.mode.spec != mode.spec or then.sequence.num_tokens != live.sequence.num_tokens:
            return
        cache = mode.new_cache(live.seq_id, live.sequence.num_prompt_tokens)
        try:
            with on_failure(cache.close):
                if not cache.fork_from(then.cache, then.cache.num_tokens, as_itself=True):
                    cache.copy_from(then.cache)  # its pages are in another pool
        except PoolExhausted:
            return
        live.cache.close()
        live.cache, live.is_stale = cache, False

    # ---- make a state --------------------------------------------------------------------------------------------

    def sources(self) -> list[SessionState]:
        """The live state and all kept ones; kept states of deleted branches are dropped first."""
        self._kept.drop_missing(self._history.tree)
        return [self._live_state(), *self._kept]

    def descends_from(self, state: SessionState, step: int) -> bool:
        """Whether `state` is at `step` or descends from it, with no tokens replaced in between."""
        tree = self._history.tree
        if not tree.is_on_path(step, state.step):
            return False
        return not tree.has_other_text(step, state.step)

    def state_at(self, step: int, check: Check | None = None) -> SessionState:
        """A copy of the state after a step of any branch, which the caller closes; the live state stays as it is."""
        return self.state_and_words(step, check)[0]

    def state_and_words(self, step: int, check: Check | None = None) -> tuple[SessionState, str]:
        """`state_at`, and in words how its rows came."""
        sources, store = self.sources(), self._live.mode.store
        with nullcontext() if store is None else store.found_as_before():
            forked = self._forked(step, sources)
            return self._replayed(step, sources, check) if forked is None else (forked, "copied the rows")

    def _next_live_state(
        self, step: int | None, sources: list[SessionState], check: Check | None
    ) -> tuple[SessionState, str]:
        """The state after a step, to become the live one, and in words how its rows came: the kept state itself, else a
        fork of one of the `sources`, else a replay."""
        if step is None:
            return self._empty_state(), "before the first step"
        if (kept := self._kept.take_out(step)) is not None:
            return kept, "it was kept as it stood"
        if (forked := self._forked(step, sources)) is not None:
            return forked, state_in_words(forked)
        return self._replayed(step, sources, check)

    def _empty_state(self) -> SessionState:
        """The state before the first step: no sequences, in the cache mode of the first node."""
        first = min((entry.node.step for entry in self._history.tree), default=None)
        spec = self._live.mode.spec if first is None else self._history.tree.at(first).node.cache
        mode = self._live.mode if spec == self._live.mode.spec else CacheMode(self._model, spec)
        return SessionState(None, mode, {})

    def _forked(
        self, step: int, sources: Iterable[SessionState], scheduled: frozenset[int] = NOTHING_SCHEDULED
    ) -> SessionState | None:
        """A copy of the state after `step`, forked from the first source that descends from it and still holds the rows
        and logits; None if none does. Sequences in `scheduled` need no logits: the next step computes them."""
        tree = self._history.tree
        entry = tree.at(step)
        logits = {i: self._history.logits_at(i, step) for i in entry.states}
        missing = {
            i: at for i in logits if logits[i] is None and i not in scheduled and (at := tree.computed_by(i, step))
        }
        removed = [each for each in self._kept.removed if self.descends_from(each, step)]
        for source in sources:
            if not self.descends_from(source, step):
                continue
            among = [source, *removed]
            holders = {i: self._with_logits_of(among, i, at) for i, at in missing.items()}
            if any(live is None for live in holders.values()):
                continue
            state = fork_of(self._model, among, entry, scheduled)
            if state is not None:
                for seq_id, live in state.sequences.items():
                    holder = holders.get(seq_id)
                    live.set_logits(logits[seq_id] if holder is None else holder.logits)
                return state
        return None

    def _with_logits_of(
        self, among: list[SessionState], seq_id: int, computed_by: tuple[int, int]
    ) -> LiveSequence | None:
        """The sequence in one of these states that was last computed at `computed_by`: it still has the logits of that
        step."""
        tree = self._history.tree
        for state in among:
            if (
                seq_id in state.sequences
                and state.step is not None
                and tree.computed_by(seq_id, state.step) == computed_by
            ):
                return state.sequences[seq_id]
        return None

    def _replayed(self, step: int, sources: list[SessionState], check: Check | None) -> tuple[SessionState, str]:
        """The state after `step`, replayed from the nearest step whose state can be forked, else from the root; and in
        words how. A replay from a fork is used only if it is exact. Raises `InputError` where steps are missing."""
        tree = self._history.tree
        nodes = [tree.at(each).node for each in tree.needed_for(step)]
        for base in self._bases(step, sources):
            before = set(tree.path(base))
            rest = [node for node in nodes if node.step not in before]
            below = {base}
            below.update(node.step for node in rest if node.parent in below)  # parents come before their children
            if len(below) <= len(rest):
                continue  # a needed node is on a branch that left the path before `base`
            state = self._forked(base, sources, overwritten_by(rest[0]))
            if state is None:
                continue
            replayed = self._replay_on(rest, state, check)
            if replayed is not None:
                return replayed, f"repeated {steps_in_words(rest)} from a checkpoint"
        if not tree.has_root(step):
            raise InputError(f"Step {step} cannot be computed again: the steps before it are not kept any more.")
        if nodes[0].work is None and not nodes[0].changes:
            raise InputError(f"Step {step} cannot be computed again: the run went on from a snapshot, open that again.")
        return self._replay_from_root(nodes, check)

    def _bases(self, step: int, sources: list[SessionState]) -> list[int]:
        """Steps on the path to `step` from which it could be replayed, the nearest first."""
        tree = self._history.tree
        found = {tree.common_ancestor(source.step, step) for source in sources} | {tree.parent(step)}
        return sorted((each for each in found if each is not None and each != step), reverse=True)

    def _replay_on(self, nodes: list[Node], base: SessionState, check: Check | None) -> SessionState | None:
        """Replay nodes on a copied state; None where its pool has no room, or the replay does not give the same tokens
        and rows."""
        try:
            return self._run(nodes, base.mode, base, check)[0]
        except (PoolExhausted, InputError, MemoryError):
            return None

    def _replay_from_root(self, nodes: list[Node], check: Check | None) -> tuple[SessionState, str]:
        try:
            state, replay = self._run(nodes, nodes[0].cache, None, check)
        except PoolExhausted as error:
            raise InputError(f"The page pool cannot hold what it held then ({error}): make it larger.") from None
        rounding = "" if replay.is_exact else f", exact but for rounding: {replay.why_not_exact}"
        return state, f"repeated {steps_in_words(nodes)} from the start{rounding}"

    def _run(
        self, nodes: list[Node], mode: CacheSpec | CacheMode, base: SessionState | None, check: Check | None
    ) -> tuple[SessionState, Replay]:
        """Replay nodes in a scratch session, on a copied state or from the root. Raises `InputError` for a replay on a
        copy that is not exact."""
        scratch = self._new_session(mode, base)
        with on_failure(scratch.close):
            replay = Replay(scratch, nodes)
            for _ in replay.steps(check):
                pass
            if base is not None and not replay.is_exact:
                raise InputError(replay.why_not_exact)
            scratch.kept.clear()
            return SessionState.of(nodes[-1].step, scratch.live), replay


# ---- a copy of a state ---------------------------------------------------------------------------------------------


def fork_of(
    model: LoadedModel, sources: list[SessionState], entry: TreeEntry, scheduled: frozenset[int]
) -> SessionState | None:
    """Copies of all sequences as they were at a node; None where a cache no longer holds those rows. Each comes from
    the first of the `sources`, states that descend from the node, that has the sequence; the copies are in
    the page pool of the first source. In a recomputing layout the rows of sequences in `scheduled` are not copied,
    since the next step computes them."""
    mode = mode_for(model, sources[0], entry.node.cache)
    if mode is None:
        return None
    state = SessionState(entry.node.step, mode, {})
    with suppress(PoolExhausted, InputError, MemoryError), on_failure(state.close):
        for seq_id, was in entry.states.items():
            source = next((each for each in sources if seq_id in each.sequences), None)
            one = None
            if source is not None:
                one = sequence_at(source, mode, seq_id, was, entry.node.step, is_scheduled=seq_id in scheduled)
            if source is None or one is None:
                state.close()
                return None
            state.sequences[seq_id] = one
        return state
    return None


def mode_for(model: LoadedModel, source: SessionState, spec: CacheSpec) -> CacheMode | None:
    """The mode for a copy that shall have `spec`: the source's own if it has that spec, else a new one if both keep
    exact rows; None if the rows cannot be converted exactly."""
    if source.mode.spec == spec:
        return source.mode
    if not (source.mode.spec.is_exact and spec.is_exact and spec.is_append_only):
        return None
    try:
        return CacheMode(model, spec)
    except InputError:
        return None


def sequence_at(
    source: SessionState, mode: CacheMode, seq_id: int, was: SequenceState, step: int, is_scheduled: bool
) -> LiveSequence | None:
    """One sequence as it was at `was`, with rows copied from its cache in `source`; None where they are gone."""
    origin = source.sequences[seq_id]
    cache = mode.new_cache(seq_id, was.num_prompt_tokens)
    with on_failure(cache.close):
        if is_scheduled and cache.spec.recomputes:
            cache.num_tokens = was.num_tokens
        elif was.num_tokens and not copy_rows(source, origin, cache, step, was.num_tokens, as_itself=True):
            cache.close()
            return None
        cache.register_prefix(was.token_ids)
    return LiveSequence(seq_id, was, cache)


def copy_rows(
    source: SessionState,
    origin: LiveSequence,
    cache: SequenceCache,
    step: int,
    num_tokens: int,
    *,
    as_itself: bool = False,
) -> bool:
    """Copy into an empty cache the first `num_tokens` rows, as the sequence `origin` of `source` had them after an
    earlier step. False where they are not known any more, or may differ in the last bit."""
    spec = cache.spec
    if spec.recomputes and spec == source.mode.spec:
        if num_tokens != origin.cache.num_tokens or origin.sequence.moves_since(step):
            return False  # rows recomputed with more tokens may differ in the last bit; another mode's are gone
    elif not source.holds(origin.seq_id, step, num_tokens):
        return False
    if source.mode.spec == spec:
        return cache.fork_from(origin.cache, num_tokens, as_itself=as_itself)
    has_room = cache.capacity is None or origin.cache.num_tokens <= cache.capacity
    is_exact = source.mode.spec.is_exact and spec.is_exact
    is_known = is_exact and has_room and origin.cache.knows(num_tokens)
    return is_known and cache.convert_from(origin.cache) and cache.crop(num_tokens)


# ---- nodes, and states in words --------------------------------------------------------------------------------------


def overwritten_by(node: Node) -> frozenset[int]:
    """The sequences whose logits a node overwrites without reading them first."""
    are_read = any(not isinstance(change, TokensForced | SequenceStopped | SequenceRemoved) for change in node.changes)
    if node.work is None or are_read:
        return NOTHING_SCHEDULED
    return frozenset(part.seq_id for part in node.work.parts)


def steps_in_words(nodes: list[Node]) -> str:
    """The number of nodes with a forward, in words."""
    count = sum(node.work is not None for node in nodes)
    return counted(count, "step")


def sharing_in_words(num_pages: int) -> str:
    """The number of shared pages, in words."""
    return f"shares {counted(num_pages, 'page')}"


def state_in_words(state: SessionState) -> str:
    """In words how the rows of a forked state came."""
    caches = [live.cache for live in state.sequences.values()]
    num_restored = sum(cache.num_restored for cache in caches)
    if num_restored:
        return f"put {num_restored:,} evicted rows back where they were"
    if state.mode.spec.is_paged:
        return f"{sharing_in_words(sum(cache.page_counts().shared for cache in caches))} with other steps"
    return "cropped to the rows it had"


# ---- forks ----------------------------------------------------------------------------------------------------------

COMPUTED_LATER = "its rows are computed when it goes on"


@dataclass(frozen=True, eq=False)
class ForkOrigin:
    """Where the rows of a fork come from: sequence `owner` (the forked sequence, or the one that it was itself forked
    from after `step`), as `state` says it was after `step`. `path` is the one to `step`; None: the live one."""

    owner: int
    step: int
    state: SequenceState
    path: TreePath | None


@atomic
def fork(session: Session, seq_id: int, step: int | None = None, num_tokens: int | None = None) -> ForkMade:
    """Add an exact copy of a sequence as it was after `step` of any branch. `step` None: as it is now, or the first
    `num_tokens` of its rows. Raises `InputError` where that cannot be.

    Paged layouts share every page, others copy the rows; rows that cannot be copied are computed again. Where the page
    pool has no room, kept states are evicted from it.
    """
    live, history = session.live, session.history
    if num_tokens is not None and not 0 < num_tokens <= live.get(seq_id).sequence.num_tokens:
        raise InputError(f"Sequence {seq_id} does not have rows of {counted(num_tokens, 'token')}: fork fewer of them.")
    origin = None if step is None else origin_of(session, seq_id, step)
    while True:
        try:
            made = fork_live(session, seq_id, num_tokens) if origin is None else fork_past(session, seq_id, origin)
            break
        except PoolExhausted as error:
            if not session.kept.evict_from(live.mode.store):
                raise InputError(
                    f"A fork needs pages that the pool does not have ({error}): remove a sequence."
                ) from None
    child, how = made
    live.add(child)
    child.sequence = with_origin(session, child.sequence, seq_id, origin)
    history.surprisal.fork(seq_id, child.seq_id, step)
    history.changes.append(SequenceForked(child.seq_id, seq_id, step, num_tokens))
    if live.mode.store is not None:  # prompts find them at once, as after going away and back, which no replay repeats
        child.cache.register_prefix(child.sequence.token_ids)
        live.mode.store.groups[0].pool.recommit(child.cache.tables[0], child.sequence.token_ids)
    at = history.last_step if step is None else step
    return ForkMade(seq_id, child.seq_id, at, len(child.sequence.token_ids), how)


def origin_of(session: Session, seq_id: int, step: int) -> ForkOrigin:
    """Where the rows of a fork at a step come from; raises `InputError` where there are none for the present mode."""
    history, live = session.history, session.live
    then = history.tree.at(step).node.cache
    is_live = history.path.states(step) is not None
    path = history.path if is_live else history.path_to(step)
    state = path.state(seq_id, step)
    if state is None and seq_id >= live.next_id:
        live.get(seq_id)
    if state is None:
        raise InputError(f"Sequence {seq_id} was not there yet at step {step}: fork it from a later step.")
    if then != live.mode.spec and not (then.is_exact and live.mode.spec.is_exact):
        raise InputError(
            f"Step {step} ran in another cache mode ({cache_label(then)}), whose rows are not those of now: "
            "go to that step first, then fork."
        )
    owner, last = path.owner(seq_id, step)
    return ForkOrigin(owner, last, state, None if is_live else path)


def with_origin(session: Session, sequence: SequenceState, seq_id: int, origin: ForkOrigin | None) -> SequenceState:
    """The state of a fork with where its rows come from: those of the sequence `seq_id` until then, and from there on
    its own."""
    history, spec, count = session.history, session.live.mode.spec, sequence.num_tokens
    newest, moves = history.path.newest, sequence.moves if origin is None else origin.state.moves
    if not moves:  # the sequence was added after that step and had no rows
        moves = (Move(newest, 0, spec),)
    if moves[-1].cache != spec:
        before = moves[-1].cache
        moves += (Move.to_mode(newest, count, before, spec, is_converted=True, has_evicted=False),)
    origins = sequence.origins if origin is None else origin.state.origins
    if newest >= 0:
        owner, last = (seq_id, newest) if origin is None else (origin.owner, origin.step)
        if origin is not None and origin.path is not None:
            common = history.tree.common_ancestor(newest, origin.step)
            last = -1 if common is None else common
        origins = (Origin(owner, last, newest, len(sequence.token_ids)), *origins)
    return structs.replace(sequence, moves=moves, origins=origins)


# ---- the rows of the fork --------------------------------------------------------------------------------------------


def fork_live(session: Session, seq_id: int, num_tokens: int | None) -> tuple[LiveSequence, str]:
    """A copy of a sequence as it is now, or of its first `num_tokens` rows; and in words how its rows came."""
    parent = session.live.get(seq_id)
    refresh(session.model, session.history, parent)
    child = new_child(session, parent.sequence.forked(num_tokens))
    with on_failure(child.cache.close):
        count = parent.sequence.num_tokens if num_tokens is None else num_tokens
        if count and not child.cache.fork_from(parent.cache, count):
            raise InputError(f"Sequence {parent.seq_id} cannot be copied in this cache mode: take another one.")
        if num_tokens is not None:
            child.cache.unshare_last_page()
    if num_tokens is None:
        child.set_logits(parent.logits)
    return child, rows_in_words(child.cache) if count else COMPUTED_LATER


def fork_past(session: Session, seq_id: int, origin: ForkOrigin) -> tuple[LiveSequence, str]:
    """A copy of a sequence as it was at a step: of the rows of a state that still holds them, else of the whole state
    after that step, which is restored in a scratch session."""
    history, restorer = session.history, session.restorer
    logits = history.logits_at(origin.owner, origin.step)
    if logits is not None or not history.tree.computed_by(origin.owner, origin.step):
        for source in restorer.sources():
            is_live = source.step == history.last_step
            names = (seq_id, origin.owner) if is_live and origin.path is None else (origin.owner,)
            for name in names:
                if name not in source.sequences or not restorer.descends_from(source, origin.step):
                    continue
                child = new_child(session, origin.state.forked())
                child.set_logits(logits)
                if not origin.state.num_tokens:
                    return child, COMPUTED_LATER
                if copy_rows(source, source.sequences[name], child.cache, origin.step, origin.state.num_tokens):
                    return child, rows_in_words(child.cache)
                child.cache.close()
    state, how = restorer.state_and_words(origin.step)
    try:
        then = state.sequences[origin.owner]
        child = new_child(session, then.sequence.forked())
        with on_failure(child.cache.close):
            take_rows(session, child, then, origin)
    finally:
        state.close()
    child.set_logits(then.logits)
    return child, how


def take_rows(session: Session, child: LiveSequence, then: LiveSequence, origin: ForkOrigin) -> None:
    """Copy the rows of a sequence of a restored state, converted where that was in another mode."""
    cache, count = child.cache, then.sequence.num_tokens
    if not count:
        return
    if cache.spec == then.cache.spec:
        if not cache.fork_from(then.cache, count):
            cache.copy_from(then.cache)
    elif not cache.convert_from(then.cache):  # both are exact: only rows outside a window are missing
        if then.cache.by_hand:
            raise InputError(
                f"Rows of sequence {origin.owner} were edited by hand, and this mode computes them anew from the "
                "tokens: go to that step first, then fork."
            )
        refill(session.model, session.history, child.sequence, cache, origin.owner, origin.step, origin.path)


def new_child(session: Session, state: SequenceState) -> LiveSequence:
    seq_id = session.live.next_id
    return LiveSequence(seq_id, state, session.live.mode.new_cache(seq_id, state.num_prompt_tokens))


def rows_in_words(cache: SequenceCache) -> str:
    """In words how the rows of a fork came."""
    return sharing_in_words(cache.page_counts().shared) if cache.spec.is_paged else "copied the rows"
