"""Going to a moment: any node of the history tree becomes the live one, exactly; nothing is deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from engine.cache.paged.pages import PoolExhausted
from engine.errors import InputError
from engine.history.history import History
from engine.model.loader import LoadedModel
from engine.session.copying import fork_of
from engine.session.kept import KeptStates, SessionState
from engine.session.live import LiveSequence, LiveSequences, closed_on_failure
from engine.session.mode import CacheMode
from engine.session.redoing import Redoing
from engine.session.whole import Before
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_label
from engine.wire.changes import SequenceRemoved, SequenceStopped, TokensForced
from engine.wire.tree import Node

if TYPE_CHECKING:
    from engine.session.session import Session

Check = Callable[[], None] | None
NOTHING_FED = frozenset[int]()


class GoingTo:
    """The ways to a moment: a swap with one that is kept, a fork of one that came of it and still has its rows, or a
    replay of the steps from the nearest one that can be had, in a session aside that `new_session` makes."""

    def __init__(
        self,
        model: LoadedModel,
        live: LiveSequences,
        history: History,
        kept: KeptStates,
        new_session: Callable[[CacheSpec | CacheMode], Session],
    ) -> None:
        self._model, self._live, self._history, self._kept = model, live, history, kept
        self._new_session = new_session

    # ---- the live moment is another one --------------------------------------------------------------------------

    def go_to(self, step: int | None, check: Check = None, then: Callable[[], None] = lambda: None) -> str:
        """Make the state after `step` (None: before the first) the live one, and do `then` there; says how. Refuses, or
        fails, having changed nothing. The moment that is left is kept."""
        history = self._history
        if step is not None:
            history.tree.at(step)
        if step == history.last_step and not history.changes:
            then()
            return "it is the live moment already"
        spec, here, was_kept = self._live.mode.spec, self._here(), step in self._kept
        before, state = Before(self._live, history), history.state()
        target: SessionState | None = None
        try:
            here.own(is_live=False)
            target, how = self._state_at(step, self.sources(), check)
            self._leave(here)
            history.go_to(step)
            self._live.replace(target.mode, target.sequences)
            self._show_prefixes()
            then()
            if target.mode.spec != spec:
                how = f"back in the cache mode of that step, {cache_label(target.mode.spec)}: {how}"
        except BaseException:
            self._kept.take_back(here)
            history.restore(state)
            before.restore()
            if target is not None and was_kept:
                self._kept.put(target)
            raise
        with suppress(MemoryError):  # it is done, and the next step lets those go that are too many
            if here.step not in self._kept:
                here.close()
            self._kept.trim()
        return how

    def _here(self) -> SessionState:
        return SessionState.of(self._history.last_step, self._live, self._history.journal)

    def state_of(self, seq_id: int) -> SessionState:
        """One sequence of the live moment, as it stands."""
        live, moves = self._live.get(seq_id), self._history.journal.all_moves(seq_id)
        return SessionState(self._history.last_step, self._live.mode, {seq_id: live}, {seq_id: moves})

    def state_of_newest_step(self) -> SessionState | None:
        """The live state with lists of its own, to be kept while its caches are exchanged; None where it is not as the
        newest step left it."""
        here = self._here()
        if here.step is None or self._history.changes or any(each.is_stale for each in here.sequences.values()):
            return None
        for seq_id, each in here.sequences.items():
            here.sequences[seq_id] = each.copied(each.cache)
        return here

    def _leave(self, here: SessionState) -> None:
        """What was done since the newest step becomes a moment of its own."""
        self._history.add_changes({i: each.sequence.mark() for i, each in here.sequences.items()}, here.mode.spec)
        here.step = self._history.last_step
        if here.step is not None and not any(each.is_stale for each in here.sequences.values()):
            self._kept.put(here)

    def _show_prefixes(self) -> None:
        """A prompt that comes now finds pages of its own path."""
        store = self._live.mode.store
        if store is None:
            return
        store.evict_outside_path(set(self._history.journal.steps))
        for each in self._live:
            store.groups[0].pool.recommit(each.cache.tables[0], each.sequence.token_ids)

    def fill_emptied(self, check: Check = None) -> None:
        """Give sequences that lost their rows to a step that failed what the newest step left them, where their own
        tokens alone would not: rows that were computed with those of others are so again, and edits are made again."""
        step, tree = self._history.last_step, self._history.tree
        emptied = [each for each in self._live if each.is_stale]
        if step is None or not any(
            each.cache.by_hand or each.sequence.continued or tree.is_fed_with_others(each.seq_id, step)
            for each in emptied
        ):
            return
        try:
            state = self.state_at(step, check)
        except (PoolExhausted, InputError):
            return
        try:
            for each in emptied:
                self._take_rows(each, state)
        finally:
            state.close()

    def _take_rows(self, live: LiveSequence, state: SessionState) -> None:
        """Those of the same sequence in a state of the same mode, if the pool has room for them."""
        then, mode = state.sequences.get(live.seq_id), self._live.mode
        if then is None or state.mode.spec != mode.spec or then.sequence.num_tokens != live.sequence.num_tokens:
            return
        cache = mode.new_cache(live.seq_id, live.sequence.num_prompt_tokens)
        try:
            with closed_on_failure(cache):
                if not cache.fork_from(then.cache, then.cache.num_tokens, as_itself=True):
                    cache.copy_from(then.cache)  # it lies in another pool
        except PoolExhausted:
            return
        live.cache.close()
        live.cache, live.is_stale = cache, False

    # ---- the ways there ------------------------------------------------------------------------------------------

    def sources(self) -> list[SessionState]:
        """The live moment, and those that are kept and not forgotten."""
        self._kept.let_go_beside(self._history.tree)
        return [self._here(), *self._kept]

    def came_of(self, state: SessionState, step: int) -> bool:
        """Whether a step is on the path to a state."""
        tree = self._history.tree
        if not tree.is_on_path(step, state.step):
            return False
        return not tree.has_other_text(step, state.step)

    def state_at(self, step: int, check: Check = None) -> SessionState:
        """The state after a step of any branch, made for somebody who closes it; the live one stays."""
        return self.made(step, check)[0]

    def made(self, step: int, check: Check = None) -> tuple[SessionState, str]:
        """`state_at`, and how its rows came."""
        sources = self.sources()
        forked = self._forked(step, sources)
        return self._replayed(step, sources, check) if forked is None else (forked, "copied the rows")

    def _state_at(self, step: int | None, sources: list[SessionState], check: Check) -> tuple[SessionState, str]:
        if step is None:
            return self._root(), "before the first step"
        if (kept := self._kept.take(step)) is not None:
            return kept, "it was kept as it stood"
        if (forked := self._forked(step, sources)) is not None:
            return forked, words(forked)
        return self._replayed(step, sources, check)

    def _root(self) -> SessionState:
        first = min((moment.node.step for moment in self._history.tree), default=None)
        spec = self._live.mode.spec if first is None else self._history.tree.at(first).node.cache
        mode = self._live.mode if spec == self._live.mode.spec else CacheMode(self._model, spec)
        return SessionState(None, mode, {}, {})

    def _forked(
        self, step: int, sources: Iterable[SessionState], fed: frozenset[int] = NOTHING_FED
    ) -> SessionState | None:
        """A copy of what a state that came of `step` still knows of it; those that are `fed` next need no logits."""
        tree = self._history.tree
        checkpoint = tree.at(step).checkpoint
        logits = {i: self._history.logits_on_path(i, step) for i in checkpoint.marks}
        missing = {i: at for i in logits if logits[i] is None and i not in fed and (at := tree.fed_at(i, step))}
        removed = [each for each in self._kept.removed if self.came_of(each, step)]
        for source in sources:
            if not self.came_of(source, step):
                continue
            among = [source, *removed]
            resting = {i: self._resting(among, i, at) for i, at in missing.items()}
            if any(live is None for live in resting.values()):
                continue
            state = fork_of(self._model, among, checkpoint, fed)
            if state is not None:
                for seq_id, live in state.sequences.items():
                    rested = resting.get(seq_id)
                    live.set_logits(logits[seq_id] if rested is None else rested.logits)
                return state
        return None

    def _resting(self, among: list[SessionState], seq_id: int, fed_at: tuple[int, int]) -> LiveSequence | None:
        """A sequence that has the logits which a step gave it, and was not fed since."""
        tree = self._history.tree
        for state in among:
            if seq_id in state.sequences and state.step is not None and tree.fed_at(seq_id, state.step) == fed_at:
                return state.sequences[seq_id]
        return None

    def _replayed(self, step: int, sources: list[SessionState], check: Check) -> tuple[SessionState, str]:
        tree = self._history.tree
        nodes = [tree.at(each).node for each in tree.needed_for(step)]
        for base in self._bases(step, sources):
            before = set(tree.path(base))
            rest = [node for node in nodes if node.step not in before]
            below = {base}
            below.update(node.step for node in rest if node.parent in below)  # they are in order
            if len(below) <= len(rest):
                continue  # something was taken from a branch that parted before
            state = self._forked(base, sources, fed_first(rest[0]))
            if state is None:
                continue
            redone = self._try(rest, state, check)
            if redone is not None:
                return redone, f"repeated {told(rest)} from a moment that was kept"
        if not tree.has_root(step):
            raise InputError(f"Step {step} cannot be computed again: the steps before it are not kept any more.")
        if nodes[0].work is None and not nodes[0].changes:
            raise InputError(f"Step {step} cannot be computed again: the run went on from a snapshot, open that again.")
        return self._redone_from_root(nodes, check)

    def _bases(self, step: int, sources: list[SessionState]) -> list[int]:
        """Steps on the path to one from which it could be replayed, the nearest first."""
        tree = self._history.tree
        found = {tree.common_ancestor(source.step, step) for source in sources} | {tree.parent(step)}
        return sorted((each for each in found if each is not None and each != step), reverse=True)

    def _try(self, nodes: list[Node], base: SessionState, check: Check) -> SessionState | None:
        """Replay nodes on a copied state; None where its pool has no room, or it did not go as it went."""
        scratch = self._new_session(base.mode)
        scratch.live.replace(base.mode, base.sequences)
        scratch.history.begin_after(self._history, base.step)
        try:
            return self._run(scratch, nodes, check)[0]
        except (PoolExhausted, InputError, MemoryError):
            scratch.close()
            return None
        except BaseException:
            scratch.close()
            raise

    def _redone_from_root(self, nodes: list[Node], check: Check) -> tuple[SessionState, str]:
        scratch = self._new_session(nodes[0].cache)
        try:
            state, redoing = self._run(scratch, nodes, check, must_match=False)
        except PoolExhausted as error:
            scratch.close()
            raise InputError(f"The page pool cannot hold what it held then ({error}): make it larger.") from None
        except BaseException:
            scratch.close()
            raise
        rounding = "" if redoing.is_exact else f", exact but for rounding: {redoing.why_not_exact}"
        return state, f"repeated {told(nodes)} from the start{rounding}"

    def _run(
        self, scratch: Session, nodes: list[Node], check: Check, must_match: bool = True
    ) -> tuple[SessionState, Redoing]:
        redoing = Redoing(scratch, tuple(nodes))
        for _ in redoing.steps(check):
            pass
        if must_match and not redoing.is_exact:
            raise InputError(redoing.why_not_exact)
        scratch.kept.clear()
        return SessionState.of(nodes[-1].step, scratch.live, scratch.history.journal), redoing


def fed_first(node: Node) -> frozenset[int]:
    """The sequences whose logits a node replaces before anything asks for them."""
    are_read = any(not isinstance(change, TokensForced | SequenceStopped | SequenceRemoved) for change in node.changes)
    if node.work is None or are_read:
        return NOTHING_FED
    return frozenset(part.seq_id for part in node.work.parts)


def told(nodes: list[Node]) -> str:
    count = sum(node.work is not None for node in nodes)
    return f"{count:,} step{'' if count == 1 else 's'}"


def shares(num_pages: int) -> str:
    """How many pages are shared."""
    return f"shares {num_pages:,} {'page' if num_pages == 1 else 'pages'}"


def words(state: SessionState) -> str:
    """How the rows of a forked state came."""
    caches = [live.cache for live in state.sequences.values()]
    num_restored = sum(cache.num_restored for cache in caches)
    if num_restored:
        return f"put {num_restored:,} dropped rows back where they were"
    if state.mode.spec.is_paged:
        return f"{shares(sum(cache.page_counts().shared for cache in caches))} with other moments"
    return "cropped to the rows it had"
