"""The engine at work: commands in, events out, and the only place that catches everything.

No torch is imported until it runs: the window is painted first. Which thread or process runs it is `engine.client`'s
choice.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.errors import Cancelled, InputError, RowsMissing
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_label, cache_name
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import (
    Bench,
    Cancel,
    CheckParity,
    Command,
    Export,
    FindModels,
    Force,
    ForceText,
    Fork,
    LoadModel,
    MapDamage,
    MeasureRegret,
    Pause,
    RemoveSequence,
    Rewind,
    Run,
    SetCache,
    SetPace,
    SetSampling,
    Shutdown,
    Step,
    StopSequence,
    SubmitPrompt,
    Sweep,
    TakeSlice,
    Tokenize,
    Watch,
    WhatIf,
)
from engine.wire.events import (
    CacheChanged,
    EngineStatus,
    Event,
    Exported,
    Failed,
    Forked,
    ModelsFound,
    Restarted,
    Rewound,
    StateChanged,
    Stopped,
    Submitted,
    Tokenized,
    Work,
)
from engine.wire.measurements import Benched, DamageMap, ParityReport, Regret, Swept, WhatIfAnswer
from engine.wire.records import StepRecord
from engine.wire.slices import Slice, SliceUpdate

if TYPE_CHECKING:
    from engine.look.watch import Watcher
    from engine.session.session import Session

Replies = (
    Slice | Restarted | Submitted | Forked | Rewound | CacheChanged | Tokenized | Exported | ModelsFound
    | WhatIfAnswer | ParityReport | DamageMap | Regret | Swept | Benched | Failed
)  # fmt: skip
Trial = tuple[WhatIf, Iterator[tuple[int, int] | WhatIfAnswer]]

log = logging.getLogger(__name__)

# what a prefill gives way to in the middle of a chunk: for these its work is wanted no more, or somebody waits for rest
INTERRUPTING = (Cancel, LoadModel, RemoveSequence, Rewind, Shutdown, StopSequence)
PROGRESS_INTERVAL_S = 0.05
LONGEST_WAIT_S = 1e6  # for a paced step: a clock cannot wait for ever
CPU_ALLOCATOR = "DefaultCPUAllocator: "


class EngineLoop:
    """Handles commands one after the other and steps the session between them. `send` may be called from any thread;
    `emit` is called on the thread that runs."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self.progress = 0  # advances with every command, step, chunk, layer of a prefill and measured piece
        self.is_idle = False  # waiting for a command, or for the pace
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._waiting: deque[Command] = deque()
        self._session: Session | None = None
        self._cache = CacheSpec()
        self._sampling = SamplingParams()
        self._units: int | None = 0  # units of work still to do; None: until there is none
        self._watcher: Watcher | None = None  # made with the session: it knows torch
        self._pace: SetPace | None = None
        self._step_interval_s = 0.0  # between two decode steps of a run
        self._step_due: float | None = None  # when the next step of a run may begin; None: nobody runs
        self._work: Work | None = None
        self._handled: int | None = None  # the id of the command in hand: what is said meanwhile answers it
        self._stepping: int | None = None  # that of the command that made the engine run
        self._trial: Trial | None = None  # goes on while there is nothing else to do

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    def run(self) -> None:
        """Work until a `Shutdown` comes."""
        os.environ.setdefault("USE_HUB_KERNELS", "0")  # compiled code from the hub is remote code
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        while True:
            command = self._next_command()
            if isinstance(command, Shutdown):
                break
            if command is not None:
                self._guard(command)
            elif self._session is not None and self._has_work():
                self._advance(self._session)
            else:
                self._try_on()
        self._emit(Stopped())

    def _next_command(self) -> Command | None:
        """The next command; None when there is none and there is work to do. Waits when there is neither."""
        self._collect()
        if self._waiting:
            return self._waiting.popleft()
        if self._has_work():
            return self._wait_for_pace()
        return None if self._trial is not None else self._wait(None)

    def _wait(self, timeout_s: float | None) -> Command:
        self.is_idle = True
        try:
            return self._inbox.get(timeout=timeout_s)
        finally:
            self.is_idle = False

    def _wait_for_pace(self) -> Command | None:
        """Before the next decode step of a run that is held back: a command that comes meanwhile, or None in time."""
        rest_s = 0.0 if self._step_due is None else self._step_due - time.monotonic()
        if rest_s <= 0 or (self._session is not None and self._session.is_prefilling):
            return None
        try:
            return self._wait(min(rest_s, LONGEST_WAIT_S))
        except Empty:
            return None

    def _has_work(self) -> bool:
        return self._units != 0 and self._session is not None and self._session.has_work

    def _collect(self) -> None:
        """Move what has arrived into order; of several that a newer one replaces, only the newest stays."""
        self.progress += 1
        while True:
            try:
                command = self._inbox.get_nowait()
            except Empty:
                return
            if (kind := kind_of_latest(command)) is not None:
                self._waiting = deque(c for c in self._waiting if kind_of_latest(c) != kind)
            self._waiting.append(command)

    def _cancelled(self) -> bool:
        """Whether a Cancel or Shutdown is waiting. A Cancel is used up, and with it what was to run before it came."""
        self._collect()
        if any(isinstance(c, Shutdown) for c in self._waiting):
            return True
        cancels = [index for index, c in enumerate(self._waiting) if isinstance(c, Cancel)]
        if not cancels:
            return False
        waiting = enumerate(self._waiting)
        self._waiting = deque(
            c for i, c in waiting if not isinstance(c, Cancel) and (i > cancels[-1] or not isinstance(c, Run | Step))
        )
        return True

    def _check_uninterrupted(self) -> None:
        """Called between the layers of a prefill; raises when a command waits that ends it."""
        self._collect()
        if any(isinstance(command, INTERRUPTING) for command in self._waiting):
            raise Cancelled

    def _guard(self, command: Command) -> None:
        """Handle one command; whatever goes wrong becomes one `Failed` and changes nothing else."""
        if isinstance(command, LoadModel | SetCache | SubmitPrompt | Rewind | RemoveSequence | Cancel | WhatIf):
            self._trial = None  # what it was asked about changes, or nobody waits for it any more
        self._handled = command.id
        try:
            self._handle(command)
        except Exception as error:
            self._fail(error, type(command).__name__)
        has_said, self._work = self._work is not None, None
        if not self._has_work():
            self._show()
        if has_said or not isinstance(command, TakeSlice | Watch | Tokenize | WhatIf):
            self._tell()

    def _advance(self, session: Session) -> None:
        """One unit of work; a prefill counts as one unit, however many chunks it takes. A chunk that is interrupted is
        undone, and nothing is said of it."""
        self._trial = None
        try:
            record = session.step(self._check_uninterrupted)
        except Cancelled:
            if self._watcher is not None:
                self._watcher.doubt()
            return
        except Exception as error:
            self._units, self._handled = 0, self._stepping
            if self._watcher is not None:
                self._watcher.doubt()
            self._fail(error, "a step")
            self._tell()
            return
        is_half = record.phase == "prefill" and session.sequence(record.sequences[0].seq_id).is_prefilling
        if not is_half and self._units is not None:
            self._units -= 1
        if not session.has_work:
            self._units = 0
        if self._step_due is not None:
            self._step_due = max(self._step_due + self._step_interval_s, time.monotonic())
        self._emit(record)
        self._show(record)
        self._tell()

    def _show(self, record: StepRecord | None = None) -> None:
        """Send what is watched: after a step, or what is still owed where there is none to come."""
        session, watcher = self._session, self._watcher
        if session is None or watcher is None:
            return
        if record is not None:
            self._emit_watched(watcher, watcher.after_step(session, record, is_last=not self._has_work()))
        else:
            self._emit_watched(watcher, watcher.catch_up(session))

    def _emit_watched(self, watcher: Watcher, pieces: list[Slice | SliceUpdate]) -> None:
        """Send the pictures, and of each that could not be taken why."""
        for piece in pieces:
            self._emit(piece)
        for self._handled, error in watcher.take_failures():
            self._fail(error, "watching")

    def _handle(self, command: Command) -> None:
        if command.session:
            raise InputError(f"There is no session {command.session} here: this engine has session 0 and no other.")
        match command:
            case LoadModel():
                self._load(command)
            case FindModels():
                from engine.model.hub import models_here

                self._reply(ModelsFound(models_here()))
            case Pause() | Cancel():
                self._units, self._step_due = 0, None
            case SetPace():
                self._set_pace(command)
            case _ if self._session is None:
                raise InputError("There is no model yet: load one first.")
            case _:
                self._handle_in(self._session, command)

    def _handle_in(self, session: Session, command: Command) -> None:
        match command:
            case SubmitPrompt():
                self._submit(session, command)
            case Step():
                session.check_has_work()
                self._step_due, self._stepping = None, command.id
                self._units = (self._units or 0) + self._checked(command.num_steps)  # three quick keys are three steps
            case Run():
                session.check_has_work()
                self._step_due, self._stepping = time.monotonic(), command.id
                self._units = None if command.num_steps is None else self._checked(command.num_steps)
            case SetCache():
                self._set_cache(session, command.cache)
            case SetSampling(sampling, None):
                self._sampling = sampling  # of the next prompt that brings none of its own
            case SetSampling(sampling, int(seq_id)):
                session.set_sampling(sampling, seq_id)
            case Force():
                session.force(command.seq_id, command.token_ids)
            case ForceText():
                session.force_text(command.seq_id, command.text)
            case Rewind():
                self._rewind(session, command.step)
            case Fork():
                self._report(session.fork(command.seq_id, command.step))
            case StopSequence():
                session.halt(command.seq_id)
            case RemoveSequence():
                session.remove(command.seq_id)
            case TakeSlice():
                self._reply(session.take_slice(command.request))
            case Watch() if self._watcher is not None:
                self._emit_watched(self._watcher, self._watcher.watch(session, command.pictures))
            case Tokenize():
                self._tokenize(session, command)
            case Export():
                self._export(session, command)
            case WhatIf() | CheckParity() | MapDamage() | MeasureRegret():
                self._measure(session, command)
            case Sweep():
                self._sweep(session, command)
            case Bench():
                self._bench(session, command)

    def _forget_watched(self) -> None:
        """The present is another one: whoever watches asks again."""
        if self._watcher is not None:
            self._watcher.forget()

    def _set_pace(self, command: SetPace) -> None:
        rate = command.steps_per_second
        for value in (rate, command.pictures_per_second):
            if value is not None and not value > 0:
                raise InputError(f"A pace of {value:g} a second is none: give more than 0.")
        self._step_interval_s = 0.0 if rate is None else 1 / rate
        if self._step_due is not None:
            self._step_due = time.monotonic()
        self._pace = command
        if self._watcher is not None:
            self._watcher.set_pace(command)

    @staticmethod
    def _checked(num_steps: int) -> int:
        if num_steps < 1:
            raise InputError(f"{num_steps} steps is nothing to do: give 1 or more.")
        return num_steps

    def _load(self, command: LoadModel) -> None:
        """A model is taken over only when it is whole; until then the old one lives on."""
        self._units = 0
        if self._session is None:
            self._cache = command.cache
        self._say(Work("Starting torch and transformers", 0, None, can_cancel=False))
        from engine.look.watch import Watcher
        from engine.model.loader import load
        from engine.session.session import Session

        if self._session is None:
            # The libraries' own objects, some 350,000, stay for good: a full collection that visits them all would hold
            # a step up for two tenths of a second.
            gc.freeze()
        last = 0.0

        def report(label: str, done: int, total: int | None) -> None:
            nonlocal last
            if self._cancelled():
                raise Cancelled
            if time.monotonic() - last > PROGRESS_INTERVAL_S:
                last = time.monotonic()
                self._say(Work(label, done, total))

        try:
            model = load(command.model, report)
            session = Session(model, command.cache)
        except Cancelled:
            return
        if self._cancelled():
            return
        self._session, self._cache = session, command.cache
        self._watcher = Watcher()
        if self._pace is not None:
            self._watcher.set_pace(self._pace)
        self._reply(Restarted())

    def _submit(self, session: Session, command: SubmitPrompt) -> None:
        if command.num_steps < 0:
            raise InputError(f"{command.num_steps} steps cannot follow a prompt: give 0 or more.")
        old = [info.seq_id for info in session.sequences]
        prompt = replace(command.prompt, sampling=command.prompt.sampling or self._sampling)
        was_running = self._has_work()
        seq_id = session.submit(prompt)  # a prompt that is refused must not cost the run before it
        if command.alone:
            for other in old:
                session.remove(other)
            session.forget_history()
            self._forget_watched()
            self._reply(Restarted())
        if command.num_steps:
            self._stepping = command.id
        if command.alone or not was_running:
            self._step_due = None  # the pace was that of a run that has ended
        if command.alone:
            self._units = command.num_steps  # whatever ran before has ended with its sequences
        elif self._units is not None:
            self._units += command.num_steps
        ids = tuple(session.sequence(seq_id).token_ids)
        self._report(Submitted(seq_id, ids, tuple(map(session.text_of, ids))))

    def _report(self, event: Submitted | Forked) -> None:
        """Tell of a new sequence, after the status that has it."""
        self._tell()
        self._reply(event)

    def _set_cache(self, session: Session, spec: CacheSpec) -> None:
        if spec == session.cache:
            return  # converting or filling it again would change nothing, and cost what it costs
        began = time.perf_counter()
        self._say(Work("Changing the cache", 0, None, can_cancel=False))
        how = session.set_cache(spec)
        self._cache = spec
        self._forget_watched()
        self._reply(CacheChanged(spec, how, (time.perf_counter() - began) * 1e3, session.bytes()))

    def _rewind(self, session: Session, step: int) -> None:
        began = time.perf_counter()
        self._units = 0
        how = session.rewind(step)
        self._forget_watched()
        self._reply(Rewound(step, how, (time.perf_counter() - began) * 1e3))

    def _tokenize(self, session: Session, command: Tokenize) -> None:
        ids = session.encode(Prompt(text=command.text)) if command.text else []
        self._reply(Tokenized(tuple(ids), tuple(map(session.text_of, ids))))

    def _export(self, session: Session, command: Export) -> None:
        from engine.snapshot.write import write_snapshot

        began = time.perf_counter()
        snapshot = session.snapshot(command.seq_id, command.num_tokens, cache_name(session.cache), command.notes)
        progress: Iterator[int] = write_snapshot(snapshot, command.path)
        last = 0.0
        for done in progress:
            if time.monotonic() - last > PROGRESS_INTERVAL_S:
                last = time.monotonic()
                self._say(Work(f"Writing {command.path.name}", done, snapshot.num_bytes))
                if self._cancelled():
                    progress.close()  # type: ignore[attr-defined]
                    return
        took_ms = (time.perf_counter() - began) * 1e3
        self._reply(Exported(command.path, command.path.stat().st_size, took_ms))

    def _measure(self, session: Session, command: WhatIf | CheckParity | MapDamage | MeasureRegret) -> None:
        """The truth about the live cache; nothing of it is altered, and a cancelled measurement answers nothing."""
        from engine.analysis.damage import measured_damage
        from engine.analysis.parity import live_parity
        from engine.analysis.regret import regret
        from engine.analysis.what_if import what_if

        match command:
            case WhatIf():
                self._trial = command, what_if(session, command)
                self._follow("Trying another cache", *self._trial)
            case CheckParity():
                other = "the model without a cache" if command.against is None else cache_label(command.against)
                self._follow(f"Comparing with {other}", command, live_parity(session, command))
            case MapDamage():
                self._follow("Measuring what the codec does", command, measured_damage(session, command))
            case MeasureRegret():
                self._follow("Removing rows, one after the other", command, regret(session, command))

    def _follow(
        self,
        label: str,
        command: WhatIf | CheckParity | MapDamage | MeasureRegret,
        pieces: Iterator[tuple[int, int] | WhatIfAnswer | ParityReport | DamageMap | Regret],
    ) -> None:
        """Tell how far a measurement is, and its first answer; a cancel ends it between two pieces."""
        last = time.monotonic() if isinstance(command, WhatIf) else 0.0  # a dragged slider is mostly answered sooner
        for piece in pieces:
            if not isinstance(piece, tuple):
                self._reply(piece)
                return
            if time.monotonic() - last > PROGRESS_INTERVAL_S:
                last = time.monotonic()
                self._say(Work(label, *piece))
            if self._cancelled():
                if isinstance(command, WhatIf):  # its panel asks one question at a time and waits for each
                    raise InputError("The trial was given up: choose something, and it is asked again.")
                return

    def _try_on(self) -> None:
        """One more piece of the trial whose estimate has been answered; it gives way to whatever else is asked."""
        assert self._trial is not None
        command, pieces = self._trial
        self._handled = command.id
        try:
            piece = next(pieces, None)
        except Exception as error:
            self._trial = None
            self._fail(error, "a trial")
            return
        if piece is None:
            self._trial = None
        elif not isinstance(piece, tuple):
            self._reply(piece)

    def _sweep(self, session: Session, command: Sweep) -> None:
        """Other caches of the same model, one after the other; a cancel ends it before the next step."""
        from engine.analysis.reference import reference
        from engine.analysis.sweep import sweep

        self._checked(command.num_steps)
        if not command.caches:
            raise InputError("A sweep of no caches has nothing to say: name some.")
        names, total = [name for name, _ in command.caches], len(command.caches)

        def say(label: str, done: int) -> None:
            self._say(Work(label, done, total))

        try:
            say("Sweeping: the exact model first", 0)
            truth = reference(
                session.model, tuple(session.encode(command.prompt)), command.num_steps, self._check_not_cancelled
            )
            say(f"Sweeping: {names[0]}", 0)
            for done, row in enumerate(sweep(session.model, dict(command.caches), truth, self._check_not_cancelled), 1):
                self._reply(Swept(command, row, done == total))
                if done < total:
                    say(f"Sweeping: {names[done]}", done)
        except Cancelled:
            return

    def _bench(self, session: Session, command: Bench) -> None:
        """Caches of the same model against each other in time; a cancel ends it before the next step."""
        from engine.analysis.bench import bench

        specs, num_rows = dict(command.caches), 0
        total = len(specs) * len(command.contexts) * len(command.batches)
        label, last = "Benchmarking", 0.0
        check = self._check_not_cancelled
        try:
            self._say(Work(label, 0, None))
            pieces = bench(session.model, specs, command.contexts, command.num_steps, command.batches, check=check)
            for piece in pieces:
                if not isinstance(piece, tuple):
                    num_rows += 1
                    self._reply(Benched(command, piece, num_rows == total))
                elif time.monotonic() - last > PROGRESS_INTERVAL_S:
                    last = time.monotonic()
                    self._say(Work(label, *piece))
        except Cancelled:
            return

    def _check_not_cancelled(self) -> None:
        """Called between the steps of what is measured; raises when it is to end."""
        if self._cancelled():
            raise Cancelled

    @property
    def can_be_long(self) -> bool:
        """Whether it does what cannot be cancelled and says nothing until it is done: imports, another cache."""
        return self._work is not None and not self._work.can_cancel

    # ---- telling -------------------------------------------------------------------------------------------------

    def _say(self, work: Work) -> None:
        self._work = replace(work, reply_to=self._handled)
        self._tell()

    def _tell(self) -> None:
        session = self._session
        self._emit(
            StateChanged(
                EngineStatus(
                    model=session.model.info if session else None,
                    cache=session.cache if session else self._cache,
                    sampling=self._sampling,
                    sequences=session.sequences if session else (),
                    step=session.last_step if session else None,
                    running=self._has_work(),
                    work=self._work,
                )
            )
        )

    def _reply(self, event: Replies) -> None:
        """Tell something that answers the command in hand."""
        self._emit(replace(event, reply_to=self._handled))

    def _fail(self, error: Exception, what: str) -> None:
        """One sentence; an error that nobody foresaw goes to the log as well."""
        if isinstance(error, InputError):
            self._reply(Failed(str(error), isinstance(error, RowsMissing)))
            return
        log.error("%s failed", what, exc_info=error)
        self._reply(Failed(plain(error)))


def kind_of_latest(command: Command) -> tuple[type, type | None] | None:
    """What a newer command of its kind replaces while both wait: views move, sliders are dragged. None: nothing."""
    if isinstance(command, TakeSlice):
        return TakeSlice, type(command.request)
    return (type(command), None) if isinstance(command, Watch | WhatIf) else None


def plain(error: BaseException) -> str:
    """An unexpected error in one sentence."""
    lines = str(error).strip().splitlines()
    first = lines[0][:200] if lines else "no details"
    if is_out_of_memory(error):
        return f"There is not enough memory for this ({first}): shorten the context or free some."
    return f"Something unexpected went wrong ({type(error).__name__}: {first}); the session is as it was."


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, by what was raised: torch's CPU allocator has no class of its own for it, only a
    `RuntimeError` that begins with its name."""
    torch = sys.modules.get("torch")  # not imported here: that may be what failed
    if isinstance(error, MemoryError | getattr(torch, "OutOfMemoryError", MemoryError)):
        return True
    return type(error) is RuntimeError and CPU_ALLOCATOR in str(error)
