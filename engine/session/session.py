"""A session: one model, its sequences and their caches, in front of those who do the work. Synchronous; a failed step
changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from engine.errors import InputError
from engine.history.history import History
from engine.look.ring import ObservationRing
from engine.model.loader import LoadedModel
from engine.model.text import TokenTexts
from engine.session import sequence_commands
from engine.session.captured import Captured
from engine.session.change_mode import set_mode
from engine.session.chunks import PrefillPlan
from engine.session.edits.numbers import RowsFrom
from engine.session.fork import Forking
from engine.session.going import GoingTo
from engine.session.kept import KEPT_BYTES, KeptStates, SessionState
from engine.session.ledger import Ledger
from engine.session.live import LiveSequence, LiveSequences
from engine.session.mode import CacheMode
from engine.session.observer import Observer
from engine.session.phases import Reached
from engine.session.prompt import encode_forced
from engine.session.reading import SessionReading
from engine.session.replay import Replay
from engine.session.rerun import Reruns
from engine.session.scheduler import Scheduler
from engine.session.seen import OtherBranches
from engine.session.slices import SliceReader
from engine.session.stepper import Stepper
from engine.session.whole import whole
from engine.spec.cache import CacheSpec
from engine.spec.capture import DEFAULT_CAPTURE, CaptureLevel
from engine.spec.chat import Chat
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.events import ForkMade
from engine.wire.records import StepRecord
from engine.wire.tree import Node, PlannedStep

OpenRows = Callable[[str], AbstractContextManager[RowsFrom]]


JOURNAL_BYTES, JOURNAL_PART = 64 << 20, 10  # of rows kept for going back: so many, and a tenth of the cache
JOURNALS_EVERY = 16  # steps between two looks at how many they are


class Session(SessionReading):
    """Sequences of one model in one cache mode: what is done to them.

    `step()` does one unit of work: one prefill chunk of one sequence, else one decode step of every sequence that has
    something to do. `prefill_chunk` is its size; None: what the model allows. `capture` is how much is measured of
    every step, `late_steps` how many may be on their way from the device at once (None: what the device is given);
    `surprisal` False leaves that of prompts out. `kept_bytes` is what moments may take that are kept to be returned to.
    `is_aside`: it repeats steps for another session, and nobody is told of them.
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
        kept_bytes: int = KEPT_BYTES,
        is_aside: bool = False,
    ) -> None:
        self.model = model
        self.text_of = TokenTexts(model.tokenizer)
        self.live = LiveSequences(cache if isinstance(cache, CacheMode) else CacheMode(model, cache))
        self.live.mode.check()
        self.magnitudes = self.live.magnitudes
        self.history = History()
        self.history.surprisal.is_wanted = surprisal
        self.reruns = Reruns(model)
        self.open_rows: OpenRows | None = None  # of snapshot files, where somebody can read them
        self._replay = Replay(model, self.history)
        self.kept = KeptStates(self.live, kept_bytes, model.runners.forget)
        self._going = GoingTo(model, self.live, self.history, self.kept, self._aside)
        self._forking = Forking(self.live, self.history, self._replay, self._going, self.kept)
        plan = PrefillPlan.of(model, prefill_chunk)
        self._scheduler = Scheduler(self.live, self.history, self._replay, plan, self.kept)
        self.ledger = Ledger(model, self.live, self.history, self.reruns, self.kept)
        self.captured = Captured(capture)
        self.ring = ObservationRing(model.device, late_steps)
        self._observer = Observer(self.ring, self.captured, self.history, self.text_of, is_aside=is_aside)
        self._stepper = Stepper(
            model, self.live, self.history, self._scheduler, self.text_of, self.ledger.of_step, self.captured,
            self._observer, is_aside,
        )  # fmt: skip
        others = OtherBranches(self.history, self._going, self.kept, len(model.info.geometry.layers))
        self.slices = SliceReader(model, self.live, self.history, self._stepper, others)

    # ---- steps ---------------------------------------------------------------------------------------------------

    def step(self, check: Callable[[], None] | None = None, reached: Reached | None = None) -> StepRecord:
        """Do one unit of work. Raises and changes nothing if any part of it fails, or if `check` raises, which is
        called between the layers of a prefill. `reached` is told of every phase, and returns when the step goes on;
        while it waits, pictures show what is there so far."""
        self._begin_step(check)
        return self._stepper.step(check, reached=reached)

    def step_late(self, check: Callable[[], None] | None = None) -> list[StepRecord]:
        """Do one unit of work as `step` does, without waiting for what it measures: returns the records of those steps
        before it whose measurements are there by now. `finish_records` gives the rest."""
        self._begin_step(check)
        return self._stepper.step_late(check)

    def finish_records(self) -> list[StepRecord]:
        """The records of all steps that are done and were not told yet. What could not be read of them is left out, and
        `take_unread` says so."""
        return self._observer.complete()

    def take_unread(self) -> list[InputError]:
        """Of each step since this was asked whose measurements could not be read why."""
        return self._observer.take_unread()

    def rest(self) -> None:
        """Nothing is stepped for a while: what passes until the next step belongs to none."""
        self._stepper.rest()

    def forget_ahead(self) -> None:
        """After `step_late` something else than a step comes: the next one begins anew."""
        self._stepper.forget_ahead()

    def _begin_step(self, check: Callable[[], None] | None) -> None:
        self.kept.trim()
        if self.history.next_step % JOURNALS_EVERY == 0:  # what comes after the step could not be undone with it
            self.live.bound_journals(JOURNAL_BYTES + self.bytes().stored // JOURNAL_PART)
        self._going.fill_emptied(check)

    def redo_step(self, planned: PlannedStep, check: Callable[[], None] | None = None) -> StepRecord:
        """Do a step as it was done before: the same tokens of the same sequences. The token that was chosen then is
        chosen again; the record has the one that would have been. Raises and changes nothing where that cannot be."""
        self._going.fill_emptied(check)
        return self._stepper.step(check, planned)

    def keep_beginning(self) -> None:
        """The live moment is the first one that is known and nothing could compute it again: keep a copy of it."""
        assert self.last_step is not None
        self.kept.pin(self._going.state_at(self.last_step))

    def _aside(self, cache: CacheSpec | CacheMode) -> Session:
        """An empty session to repeat steps in."""
        made = Session(self.model, cache, capture="off", surprisal=False, is_aside=True)
        made.open_rows = self.open_rows
        return made

    def close(self) -> None:
        """Give back all that its caches hold; the session is not used again."""
        self.kept.clear()
        for live in self.live:
            live.cache.close()

    # ---- commands ------------------------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, chat: Chat | None = None) -> int:
        """Add a sequence, which is prefilled with the next steps; its `seq_id`. `chat`: what ids were rendered from."""
        return sequence_commands.submit(self, prompt, chat)

    def remove(self, seq_id: int) -> None:
        """End a sequence. What it holds is kept for going back, as moments are; its pages stay findable."""
        sequence_commands.remove(self, seq_id)

    def halt(self, seq_id: int) -> None:
        """Stop a sequence where it stands; one that has ended keeps its reason."""
        sequence_commands.halt(self, seq_id)

    @whole
    def fork(self, seq_id: int, step: int | None = None, num_tokens: int | None = None) -> ForkMade:
        """A second sequence as the first stood after `step` of any branch (None: as it stands now, or the first
        `num_tokens` of its rows), exactly, or an `InputError`."""
        return self._forking.fork(seq_id, step, num_tokens)

    def force(self, seq_id: int, token_ids: tuple[int, ...]) -> None:
        """The next tokens are these; the first replaces the one already chosen."""
        sequence_commands.force(self, seq_id, token_ids)

    def force_text(self, seq_id: int, text: str) -> None:
        """As `force`, with the tokens of a text, without special tokens."""
        self.force(seq_id, encode_forced(self.model, text))

    def set_sampling(self, sampling: SamplingParams, seq_id: int) -> None:
        """Choose a sequence's tokens differently from now on; one chosen but not yet fed is chosen again, unless it was
        forced."""
        sequence_commands.set_sampling(self, sampling, seq_id)

    def go_to(
        self, step: int | None, check: Callable[[], None] | None = None, then: Callable[[], None] = lambda: None
    ) -> str:
        """Make the state after `step` of any branch (None: before the first) the live one, exactly, in the cache mode
        of then, and do `then` there, which changes nothing where it raises; says how. Nothing is deleted: what was done
        since the newest step is a node of its own. Raises and changes nothing where that cannot be; so does `check`,
        which is called between the steps of a replay."""
        self.forget_ahead()
        return self._going.go_to(step, check, then)

    def add_changes(self, *, is_empty_allowed: bool = False) -> Node | None:
        """What was done since the newest step is a node by itself, which is the live one; None where nothing was."""
        marks = {live.seq_id: live.sequence.mark() for live in self.live}
        return self.history.add_changes(marks, self.cache, is_empty_allowed=is_empty_allowed)

    def state_of_newest_step(self) -> SessionState | None:
        """The live moment, to be kept while its sequences are exchanged; None where it is not as the newest step left
        it."""
        return self._going.state_of_newest_step()

    def state_of(self, seq_id: int) -> SessionState:
        """A sequence as it stands, to be kept when it ends."""
        return self._going.state_of(seq_id)

    def state_at(self, step: int, check: Callable[[], None] | None = None) -> SessionState:
        """The state after a step of any branch, for somebody who closes it; the live one stays."""
        return self._going.state_at(step, check)

    def moment(self, step: int) -> Session:
        """A session aside that stands after `step` of any branch, for somebody who looks at it, steps nothing in it and
        closes it. It reads the logits and the attention that this one keeps."""
        state = self.state_at(step)
        state.own(is_live=False)
        made = self._aside(state.mode)
        made.live.replace(state.mode, state.sequences)
        made.history.begin_after(self.history, step)
        made.history.logits, made.history.attention = self.history.logits, self.history.attention
        return made

    def refresh(self, live: LiveSequence) -> None:
        """Fill the cache of a sequence again, where it had to be emptied."""
        self._going.fill_emptied()
        self._replay.refresh(live)

    def set_cache(self, spec: CacheSpec) -> str:
        """Move the live sequences into another cache mode; says how. All of it succeeds or nothing changes."""
        return set_mode(self, spec)

    def forget_history(self) -> None:
        """Steps count from 0 again, and there is nothing to go back to."""
        self.history.restart(self.live.ids, self.cache)
        self.history.changes.extend(sequence_commands.added(live.sequence) for live in self.live)
        self.kept.clear()
        self.reruns.forget()
        if self.live.mode.store is not None:
            self.live.mode.store.restart_steps()
