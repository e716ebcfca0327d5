"""The read-only part of the session: its status, sequences, bytes and slices."""

from __future__ import annotations

import torch

from engine.cache.sequence_cache import SequenceCache
from engine.history.history import History
from engine.history.state import SequenceState
from engine.look.ring import ObservationRing
from engine.look.rows_at import RowsAt
from engine.model.loader import LoadedModel
from engine.session.captured import Captured
from engine.session.kept import KeptStates
from engine.session.ledger import Ledger
from engine.session.live import LiveSequences
from engine.session.observer import Observer
from engine.session.phases import PhasedStep
from engine.session.scheduler import Scheduler
from engine.session.slices import SliceReader
from engine.session.stepper import Stepper
from engine.spec.cache import CacheSpec
from engine.spec.sampling import SamplingParams
from engine.wire.records import CacheBytes
from engine.wire.requests import SliceRequest
from engine.wire.slices import Slice
from engine.wire.status import CaptureState, EngineStatus, SequenceInfo, Work


class SessionReading:
    """Everything that can be asked of a session without changing it."""

    model: LoadedModel
    live: LiveSequences
    history: History
    kept: KeptStates
    ledger: Ledger
    captured: Captured
    ring: ObservationRing
    slices: SliceReader
    _observer: Observer
    _scheduler: Scheduler
    _stepper: Stepper

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
    def phases(self) -> PhasedStep | None:
        """The step that waits between two of its phases; None where none does."""
        return self._stepper.phases

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def is_prefilling(self) -> bool:
        return self._scheduler.is_prefilling

    def status(self, sampling: SamplingParams, work: Work | None, *, running: bool) -> EngineStatus:
        """The engine's status with this session; `sampling` is that of the next prompt, `work` what runs now."""
        suspended = None if self.phases is None else self.phases.suspended
        pending = tuple(self.history.changes)
        return EngineStatus(
            self.model.info,
            self.cache,
            sampling,
            self.sequences,
            self.last_step,
            running,
            work,
            suspended=suspended,
            pending=pending,
            kept=self.kept.sizes,
            kept_bytes=self.kept.num_bytes,
            kept_limit=self.kept.max_bytes,
            runner=self.model.runners.state,
            capture=self.capture,
        )

    @property
    def capture(self) -> CaptureState:
        """How much is measured of every step, and what it costs."""
        now = self.captured
        return CaptureState(now.level, now.by_layer, now.costs_ms, self.ring.note)

    @property
    def has_open_records(self) -> bool:
        """Whether there are finished steps whose measurements have not arrived yet."""
        return self._observer.num_open > 0

    def check_has_work(self) -> None:
        """Raises with the reason when there is nothing to step."""
        self._scheduler.check_has_work()

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

    # ---- slices --------------------------------------------------------------------------------------------------

    def take_slice(self, request: SliceRequest, node: int | None = None) -> Slice:
        """One screen-sized slice of the live sequences, or of the state at a node of any branch; see
        `engine.look.slices`."""
        return self.slices.take(request, node)

    def rows_at(self, seq_id: int, num_tokens: int) -> RowsAt:
        """The rows of a live sequence as they were when it had `num_tokens` tokens."""
        return self.slices.rows_at(seq_id, num_tokens)
