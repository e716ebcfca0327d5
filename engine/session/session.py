"""The session facade: one model, its sequences and their caches. Every command and step goes through here and is
delegated to the module that does the work. Synchronous; a failed step changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from msgspec import structs

from engine.cache.sequence_cache import SequenceCache
from engine.errors import Check
from engine.history.history import History
from engine.history.state import Move, SequenceState
from engine.look.source import CacheSource
from engine.look.transfer import ObservationRing
from engine.model.loader import LoadedModel
from engine.model.tokenizer import TokenTexts
from engine.session import commands
from engine.session.chunks import PrefillPlan
from engine.session.driver import refresh
from engine.session.edits import RowsFrom
from engine.session.forward import Captured, Reached
from engine.session.going_back import StateRestorer, fork
from engine.session.ledger import Ledger
from engine.session.mode import CacheMode
from engine.session.observe import Observer
from engine.session.pictures import OtherBranches, PictureReader
from engine.session.rerun import Reruns
from engine.session.scheduler import Scheduler
from engine.session.states import KeptStates, LiveSequence, LiveSequences, SessionState
from engine.session.stepper import Stepper
from engine.spec.cache import CacheSpec
from engine.spec.model import DEFAULT_CAPTURE, CaptureLevel
from engine.spec.sampling import SamplingParams
from engine.wire.pictures import Picture, PictureRequest
from engine.wire.records import CacheBytes, StepRecord
from engine.wire.status import CaptureState, EngineStatus, SequenceInfo, Work
from engine.wire.tree import Node

OpenRows = Callable[[str], AbstractContextManager[RowsFrom]]


LOST_BYTES, LOST_PART = 64 << 20, 10  # rows kept for going back may take 64 MiB and a tenth of the cache
BOUND_EVERY = 16  # steps between two checks of that limit


class Session:
    """The sequences of one model in one cache mode, and the commands on them.

    `step()` does one unit of work: one prefill chunk of one sequence, else one decode step of every running sequence.
    `prefill_chunk` is the chunk size in tokens; None: chosen for the model. `capture` is how much is measured of every
    step; `late_steps` is how many steps' measurements may be under way from the device at once (None: the device's
    default); `surprisal=False` skips the surprisal of prompt tokens.
    `is_scratch`: a scratch session that repeats steps for another one; its records reach no client.
    """

    def __init__(
        self,
        model: LoadedModel,
        cache: CacheSpec | CacheMode,
        *,
        prefill_chunk: int | None = None,
        capture: CaptureLevel = DEFAULT_CAPTURE,
        late_steps: int | None = None,
        surprisal: bool = True,
        is_scratch: bool = False,
    ) -> None:
        self.model = model
        self.text_of = TokenTexts(model.tokenizer)
        self.live = LiveSequences(cache if isinstance(cache, CacheMode) else CacheMode(model, cache))
        self.live.mode.check()
        self.history = History(self.live.state_of)
        self.history.surprisal.is_wanted = surprisal
        self.reruns = Reruns(model)
        self.open_rows: OpenRows | None = None  # opens the rows of a snapshot file; None: files cannot be read here
        self.kept = KeptStates(self.live, model.runners.forget)
        self.restorer = StateRestorer(model, self.live, self.history, self.kept, self._scratch_session)
        plan = PrefillPlan.of(model, prefill_chunk)
        self.scheduler = Scheduler(self.live, self.history, plan, self.kept)
        self.ledger = Ledger(model, self.live, self.history, self.reruns, self.kept)
        self.captured = Captured(capture)
        ring = ObservationRing(model.device, late_steps)
        self.observer = Observer(ring, self.captured, self.history, self.text_of, is_scratch=is_scratch)
        self.stepper = Stepper(self.live, self.scheduler, self.observer, self.ledger)
        others = OtherBranches(self.history, self.restorer, self.kept)
        self.pictures = PictureReader(model, self.live, self.history, self.stepper, others)

    # ---- steps ---------------------------------------------------------------------------------------------------

    def step(self, check: Check | None = None, reached: Reached | None = None) -> StepRecord:
        """Do one unit of work and return its record. `check` is called between the layers of a prefill and raises to
        cancel. `reached` is called at every phase of the step; the step waits until it returns, and pictures meanwhile
        show what has been computed so far. Raises and changes nothing if any part fails."""
        self._begin_step(check)
        return self.stepper.step(check, reached)

    def step_late(self, check: Check | None = None) -> list[StepRecord]:
        """Do one unit of work as `step` does, without waiting for its measurements. Returns the records of earlier
        steps whose measurements have arrived by now; `observer.complete` waits for the rest."""
        self._begin_step(check)
        return self.stepper.step_late(check)

    def _begin_step(self, check: Check | None) -> None:
        self.kept.trim()
        # before the step, since a failed step could not undo it
        if self.history.next_step % BOUND_EVERY == 0 and sum(c.lost_bytes for c in self.live.caches) > LOST_BYTES:
            self.live.bound_lost_rows(LOST_BYTES + self.bytes().stored // LOST_PART)
        self.restorer.fill_emptied(check)

    def pin_first_state(self) -> None:
        """Pin a copy of the live state, which the history begins with: no earlier step could compute it again."""
        assert self.last_step is not None
        self.kept.pin(self.restorer.state_at(self.last_step))

    def _scratch_session(self, cache: CacheSpec | CacheMode, after: SessionState | None = None) -> Session:
        """A scratch session, in which steps are repeated for this one: empty, or with the state after one of them."""
        made = Session(self.model, cache, capture="off", surprisal=False, is_scratch=True)
        made.open_rows = self.open_rows
        if after is not None:
            made.live.replace(after.mode, after.sequences)
            made.history.copy_path(self.history, after.step)
        return made

    def close(self) -> None:
        """Free all caches, live and kept; the session is not used again."""
        self.kept.clear()
        for live in self.live:
            live.cache.close()

    # ---- state -------------------------------------------------------------------------------------------------------

    @property
    def cache(self) -> CacheSpec:
        return self.live.mode.spec

    @property
    def sequences(self) -> tuple[SequenceInfo, ...]:
        return tuple(live.info() for live in self.live)

    @property
    def last_step(self) -> int | None:
        return self.history.last_step

    @property
    def has_work(self) -> bool:
        return any(live.sequence.has_work for live in self.live)

    @property
    def is_prefilling(self) -> bool:
        return any(live.sequence.has_work and live.sequence.is_prefilling for live in self.live)

    def status(self, sampling: SamplingParams, work: Work | None, *, running: bool) -> EngineStatus:
        """The engine's status with this session; `sampling` is that of the next prompt, `work` what runs now."""
        phases, captured, note = self.stepper.phases, self.captured, self.observer.ring.note
        return EngineStatus(
            self.model.info,
            self.cache,
            sampling,
            self.sequences,
            self.last_step,
            running,
            work,
            suspended=None if phases is None else phases.suspended,
            pending=tuple(self.history.changes),
            kept=self.kept.sizes,
            kept_bytes=self.kept.num_bytes,
            kept_limit=self.kept.max_bytes,
            runner=self.model.runners.state,
            capture=CaptureState(captured.level, captured.by_layer, captured.costs_ms, note),
        )

    def allow_steps(self) -> None:
        """Before steps that a person asks for: where every sequence has ended, those that had as many tokens as were
        asked for have no such limit any more. Raises with the reason when there is nothing to step."""
        if not self.has_work:
            commands.lift_limits(self)
            self.scheduler.check_has_work()

    def sequence(self, seq_id: int) -> SequenceState:
        return self.live.get(seq_id).sequence

    def cache_of(self, seq_id: int) -> SequenceCache:
        return self.live.get(seq_id).cache

    def logits(self, seq_id: int) -> torch.Tensor | None:
        """The newest logits `[V]`, if the sequence has been stepped."""
        return self.live.get(seq_id).logits

    def bytes(self) -> CacheBytes:
        """The bytes that all caches hold now."""
        return self.ledger.now()

    # ---- pictures --------------------------------------------------------------------------------------------------

    def take_picture(self, request: PictureRequest, node: int | None = None) -> Picture:
        """One screen-sized picture of the live sequences, or of the state at a node of any branch; see
        `engine.look.pictures`."""
        return self.pictures.take(request, node)

    def rows_at(self, seq_id: int, num_tokens: int) -> CacheSource:
        """The rows of a live sequence as they were when it had `num_tokens` tokens."""
        return self.pictures.rows_at(seq_id, num_tokens)

    # ---- commands ------------------------------------------------------------------------------------------------

    submit = commands.submit
    remove = commands.remove
    stop = commands.stop
    force = commands.force
    force_text = commands.force_text
    set_sampling = commands.set_sampling
    continue_with = commands.continue_with
    preview = commands.preview
    branch = commands.branch
    delete_branch = commands.delete_branch
    undo_edit = commands.undo_edit
    redo_edit = commands.redo_edit
    join = commands.join
    set_cache = commands.set_cache
    fork = fork

    def go_to(self, step: int | None, check: Check | None = None, then: Callable[[], None] = lambda: None) -> str:
        """Make the exact state after `step` of any branch (None: before the first) the live one, in the cache mode of
        that step, then call `then`; returns in words how the rows came. Nothing is deleted: changes since the newest
        step become a node of their own. `check` is called between the steps of a replay and raises to cancel. Raises
        and changes nothing where the state cannot be restored, or `check` or `then` raises."""
        self.stepper.discard_ahead()
        return self.restorer.go_to(step, check, then)

    def add_changes(self, *, is_empty_allowed: bool = False) -> Node | None:
        """Make the changes since the newest step a node of their own, the live one from then on; None where there are
        none, unless `is_empty_allowed`."""
        states = {live.seq_id: live.sequence for live in self.live}
        return self.history.add_changes(states, self.cache, is_empty_allowed=is_empty_allowed)

    def session_at(self, step: int) -> Session:
        """A scratch session with a copy of the state after `step` of any branch, to be read, not stepped; the caller
        closes it. It shares the logs of logits and attention of this session."""
        state = self.restorer.state_at(step)
        state.assign_pages(is_live=False)
        made = self._scratch_session(state.mode, state)
        made.history.logits, made.history.attention = self.history.logits, self.history.attention
        return made

    def refresh(self, live: LiveSequence) -> None:
        """Compute the rows of a sequence again if a failed step emptied its cache."""
        self.restorer.fill_emptied()
        refresh(self.model, self.history, live)

    def forget_history(self) -> None:
        """Drop the history and all kept states: steps count from 0 again, and there is nothing to go back to."""
        self.history.restart()
        for live in self.live:
            begun = (Move(-1, 0, self.cache),)
            live.sequence = structs.replace(live.sequence, computed_by=None, moves=begun, origins=())
        self.history.changes.extend(commands.sequence_added(live) for live in self.live)
        self.kept.clear()
        self.reruns.forget()
        if self.live.mode.store is not None:
            self.live.mode.store.restart_steps()
