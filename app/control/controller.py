"""Intents in, commands out; events in, models written. The only writer of timeline, slices and status."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from app.control.measuring import Measuring
from app.control.pace import PACES, USUAL_PACE, Pace
from app.control.restore import Restore
from app.control.sender import Sender
from app.control.slice_requests import SliceRequests
from app.draw.format import byte_size, milliseconds
from app.models import Models, Selected
from app.models.measurement import Question
from app.models.sequence_status import FULL, selected_info, why_ended
from app.models.slices import Picture
from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.presets import cache_label
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.commands import (
    Cancel,
    Command,
    Export,
    FindModels,
    Force,
    Fork,
    LoadModel,
    Pause,
    RemoveSequence,
    Rewind,
    Run,
    SetCache,
    SetSampling,
    Step,
    StopSequence,
    SubmitPrompt,
    Tokenize,
)
from engine.wire.events import (
    CacheChanged,
    EngineBack,
    EngineLost,
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
)
from engine.wire.measurements import DamageMap, ParityReport, Regret, Swept, WhatIfAnswer
from engine.wire.page_map import PageMaps
from engine.wire.records import StepRecord
from engine.wire.slices import SliceUpdate

# How soon to look into the outbox again: as often as pictures come while running; at once when a person waits; rarely
# when nothing moves.
RUNNING_MS, EAGER_MS, IDLE_MS = 30, 8, 200
EAGER_FOR_S = 1.0
# After a person stepped or ran, words and status wait for the first picture: so long for its record, and from that on.
RECORD_WAIT_S, PICTURE_WAIT_S = 0.15, 0.03


class Controller(QObject):
    """Drains the engine's outbox once per `tick()`; its `on_…` slots are what views may wish for."""

    woken = Signal()
    models_found = Signal(object)
    tokenized = Signal(object)
    untokenized = Signal(str)
    exported = Signal(object)
    stopped = Signal()

    def __init__(
        self,
        models: Models,
        send: Callable[[Command], None],
        drain: Callable[[], Sequence[Event]],
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._models = models
        self._drain = drain
        self._sender = Sender(send)
        self._requests = SliceRequests(models, self._sender)
        self._eager_until = 0.0
        self._is_step_awaited = False
        self._pictures_until = 0.0  # until then, or until pictures have come, words and status wait for them
        self._status: EngineStatus | None = None  # the newest, which has not been told of yet
        self._page_maps = PageMaps()
        self._are_words_owed = False  # they are due, and not told yet
        self._has_turned = False  # the engine began to run, or to rest: every panel says that of its step
        self._texts: list[int] = []  # the ids of texts that are being counted, oldest first
        self._awaited: dict[int, Fork | SubmitPrompt] = {}  # asked for, and not there yet
        self._pace = PACES[USUAL_PACE]
        self._measuring = Measuring(models, self._sender)
        self._restore = Restore(models, self._sender)
        self._fingerprint: str | None = None  # of the model that was loaded last
        models.viewport.changed.connect(self._on_view_moved)
        models.selection.changed.connect(self._on_selected)
        models.status.changed.connect(self._on_turned)

    # ---- the clock -----------------------------------------------------------------------------------------------

    def tick(self, *, with_words: bool = True, pictures_first: bool = False) -> None:
        """Take what the engine said, tell the models, and ask for the pictures they now want.

        Without words, pictures, tokens, counter and timeline follow a running engine, and words and numbers wait: they
        change too fast to be read. With pictures first, words and status that come with the first picture after a
        person's step wait until the next tick, when it has been painted.
        """
        events = self._drain()
        may_wait = pictures_first and time.monotonic() < self._pictures_until
        were_owed = self._are_words_owed
        if self._take(events, may_wait=may_wait):
            return
        self._are_words_owed |= with_words or self._has_turned
        # of a run, words and pictures are painted one after the other: together they would hold the window up
        come_later = pictures_first and not were_owed and any(isinstance(e, Picture | SliceUpdate) for e in events)
        if not self.is_running or (self._are_words_owed and not come_later):
            self._models.timeline.tell(again=self._has_turned)
            self._has_turned = self._are_words_owed = False
        self._ask_for_pictures()

    def _ask_for_pictures(self) -> None:
        """But not of sequences that a new prompt is about to replace."""
        if self._models.status.is_engine_lost:
            return
        if not any(isinstance(command, SubmitPrompt) and command.alone for command in self._awaited.values()):
            self._requests.ask()

    @property
    def interval_ms(self) -> int:
        """When the next tick is due."""
        status = self._models.status.now
        is_eager = time.monotonic() < self._eager_until
        if is_eager and (self._is_step_awaited or self._requests.is_waiting or self._status is not None):
            return EAGER_MS  # a person did something: the first step or picture that follows is shown at once
        if status is None or status.running or status.work is not None:
            return RUNNING_MS
        return EAGER_MS if is_eager else IDLE_MS

    @property
    def is_running(self) -> bool:
        """Whether the engine takes one step after the other."""
        return self._models.status.is_running

    @property
    def is_settled(self) -> bool:
        """Whether the engine rests and every picture that is wanted has arrived."""
        status = self._models.status.now
        is_busy = status is None or status.running or status.work is not None
        return not is_busy and not self._awaited and self._status is None and self._requests.is_complete

    def _send(self, command: Command) -> int:
        """Send what a person asked for: what went wrong before is not shown any longer, but that the engine is gone."""
        if not self._models.status.is_engine_lost:
            self._models.status.fail("")
        number = self._sender.post(command)
        if isinstance(command, Step | Run):
            self._pictures_until = time.monotonic() + RECORD_WAIT_S
        self._wake()
        return number

    def _wake(self) -> None:
        self._eager_until = time.monotonic() + EAGER_FOR_S
        self._is_step_awaited = True
        self.woken.emit()

    def _on_selected(self, old: Selected, new: Selected) -> None:
        if old.seq_id != new.seq_id:
            self._models.viewport.show_all()
        self._models.timeline.tell()  # every view looks anew, and must find the same step
        self._on_view_moved()

    def _on_turned(self) -> None:
        self._has_turned = True

    def _on_view_moved(self) -> None:
        self._ask_for_pictures()
        self._wake()

    # ---- events --------------------------------------------------------------------------------------------------

    def _take(self, events: Sequence[Event], *, may_wait: bool) -> bool:
        """Whether the status, and with it all words, waits for pictures or until these are painted."""
        records: list[StepRecord] = []
        pictures: list[Picture | SliceUpdate] = []
        for event in events:
            if isinstance(event, StepRecord):
                records.append(event)
                continue
            if isinstance(event, StateChanged):
                self._status = event.status
                continue
            if isinstance(event, Picture | SliceUpdate):
                pictures.append(event)  # after the records, so that these are told of at once
                continue
            self._flush(records)
            self._take_one(event)
            may_wait = False
        waits = may_wait and self._can_wait(self._status)
        if not waits:
            self._take_pending_status()
        if records:
            self._pictures_until = min(self._pictures_until, time.monotonic() + PICTURE_WAIT_S)
        self._flush(records)
        self._restore.follow(self._models.status.now)
        if pictures:
            self._pictures_until = 0.0
            self._models.slices.put(*filter(self._requests.answered, pictures))
        return waits

    def _can_wait(self, status: EngineStatus | None) -> bool:
        """Whether a status tells of nothing but steps: the same model, cache and sequences, and no other work."""
        old = self._models.status.now
        if status is None or old is None:
            return old is not None
        same_sequences = [s.seq_id for s in status.sequences] == [s.seq_id for s in old.sequences]
        return same_sequences and status.work is None and (status.model, status.cache) == (old.model, old.cache)

    def _flush(self, records: list[StepRecord]) -> None:
        if records:
            self._is_step_awaited = False
            folded = [self._with_page_maps(record) for record in records]
            for record in folded:
                self._models.pages.take(record)
            self._models.timeline.append(folded)
            records.clear()

    def _with_page_maps(self, record: StepRecord) -> StepRecord:
        if not record.pools:
            return record
        return replace(record, page_maps=self._page_maps.fold(record.step, record.page_events, record.pools))

    def _take_one(self, event: Event) -> None:
        match event:
            case WhatIfAnswer() | ParityReport() | DamageMap() | Regret() | Swept():
                self._measuring.take(event)
            case Restarted():
                self._restart(event)
            case Submitted():
                self._models.timeline.begin(event.seq_id, event.token_ids, event.texts)
                if self._restore.take(event):
                    self._show_new(event.seq_id, event)
            case Forked():
                self._models.timeline.branch(event.child, event.parent, event.step, event.num_tokens)
                self._show_new(event.child, event)
                words = "Sequence {0} begins as sequence {1} with {2} tokens: {3}"
                self._notify(words.format(event.child, event.parent, event.num_tokens, event.how))
            case Rewound():
                self._take_rewound(event)
            case CacheChanged():
                self._requests.reset()
                self._models.pages.forget()
                self._measuring.change_cache()
                self._models.timeline.change_mode(event.num_bytes)
                label = cache_label(event.cache)
                stored = byte_size(event.num_bytes.stored)
                words = "{0}: {1} in {2} · {3} stored"
                self._notify(words.format(label, event.how, milliseconds(event.took_ms), stored))
            case Tokenized():
                if self._is_newest_text(event):
                    self.tokenized.emit(event.token_ids)
            case Exported():
                self._notify(f"Snapshot written to {event.path}")
                self.exported.emit(event)
            case ModelsFound():
                self.models_found.emit(event.models)
            case Failed():
                self._take_failed(event)
            case EngineLost():
                self._take_lost(event)
            case EngineBack():
                self._models.status.lose_engine("")
                self._models.status.fail("")
            case Stopped():
                self.stopped.emit()

    def _show_new(self, seq_id: int, event: Submitted | Forked) -> None:
        self._awaited.pop(event.reply_to or 0, None)
        self._models.selection.update(seq_id=seq_id, position=None, step=None)

    def _take_failed(self, failure: Failed) -> None:
        """Who asked says so, where somebody waits for the answer; anything else is told to all."""
        if self._measuring.is_mine(failure):
            self._measuring.refused(failure)
        elif failure.reply_to in self._texts:  # asked while somebody types: the prompt says so, and nobody else
            if self._is_newest_text(failure):
                self.untokenized.emit(failure.message)
        else:
            self._requests.refused(failure)
            self._awaited.pop(failure.reply_to or 0, None)
            self._models.status.fail(failure.message)

    def _is_newest_text(self, event: Tokenized | Failed) -> bool:
        """Whether it answers what stands in the prompt now; what was typed before waits for nothing any more."""
        self._texts = [number for number in self._texts if number >= (event.reply_to or 0)]
        return self._texts[:1] == [event.reply_to] and len(self._texts) == 1

    def _restart(self, event: Restarted) -> None:
        self._restore.restarted(event)
        if self._pace.name != USUAL_PACE:  # it may be another engine, which begins with the usual one
            self._sender.post(self._pace.command)
        self._requests.reset()
        self._models.pages.restart()
        self._measuring.outdate()
        self._models.timeline.clear()
        self._models.slices.clear()
        if not self._restore.is_going_on:
            self._models.viewport.show_all()
        self._models.selection.update(step=None, position=None)

    def _take_rewound(self, event: Rewound) -> None:
        self._requests.reset()
        self._models.pages.rewind(event.step)
        self._measuring.outdate()
        self._models.timeline.rewind(event.step)
        position, seq_id = self._models.selection.now.position, self._models.selection.now.seq_id
        if position is not None and position >= self._models.timeline.num_tokens(seq_id):
            position = None
        self._models.selection.update(step=None, position=position)
        where = "the start" if event.step is None else f"step {event.step}"
        self._notify(f"Back at {where}: {event.how} in {milliseconds(event.took_ms)}")

    def _take_pending_status(self) -> None:
        status, self._status = self._status, None
        if status is not None:
            self._take_status(status)

    def _take_status(self, status: EngineStatus) -> None:
        old = self._models.status.now
        self._restore.told()
        if status.model is not None and status.model.fingerprint != self._fingerprint:
            self._fingerprint = status.model.fingerprint
            self._models.viewport.forget_places()
            self._models.viewport.show_all()
            layers = status.model.geometry.attention_layers
            self._models.selection.update(layer=layers[0].index if layers else 0, kv_head=0, position=None)
            self._measuring.forget()
        if old is not None and status.model != old.model:  # over a wire an equal one is another object
            self._models.pages.forget_model()
        ids = [sequence.seq_id for sequence in status.sequences]
        if ids and self._models.selection.now.seq_id not in ids:
            self._models.selection.update(seq_id=ids[-1])
        self._models.status.set(status)
        self._tell_end(old)

    def _take_lost(self, event: EngineLost) -> None:
        """What is on the screen stays. From an engine that has ended nothing is on its way any more."""
        self._models.status.lose_engine("gone" if event.has_ended else "silent")
        remedy = "wait, or restart it"
        if event.has_ended:
            remedy = "restart it"
            self._forget_engine()
        self._models.status.fail(f"{event.cause}: {remedy}. What was recorded stays on the screen.")

    def _forget_engine(self) -> None:
        """Nothing is on its way any more from the engine that there was."""
        self._take_pending_status()
        self._pictures_until = 0.0
        self._requests.reset()
        self._awaited.clear()
        self._texts.clear()
        self._measuring.cancel()
        if (status := self._models.status.now) is not None:
            self._models.status.set(replace(status, running=False, work=None))

    def replay(self) -> None:
        """An engine has begun again with the same model: give it the sequences that there were, to be read anew."""
        self._forget_engine()
        self._restore.begin()
        self._wake()

    def _tell_end(self, old: EngineStatus | None) -> None:
        """Say once why the selected sequence goes on no more."""
        info = selected_info(self._models)
        was = {sequence.seq_id: sequence.stop for sequence in old.sequences} if old is not None else {}
        if info is not None and info.stop is not None and was.get(info.seq_id, info.stop) is None:
            self._notify(f"Sequence {info.seq_id}: {why_ended(info)}")

    def _notify(self, text: str) -> None:
        self._models.status.notify(text)

    # ---- intents -------------------------------------------------------------------------------------------------

    def on_prompt_submitted(self, content: str | tuple[int, ...], sampling: SamplingParams) -> None:
        """A new run from a text or from token ids."""
        if (prompt := self._prompt(content, sampling)) is not None:
            self._await(SubmitPrompt(prompt, num_steps=1))

    def on_prompt_added(self, content: str | tuple[int, ...], sampling: SamplingParams) -> None:
        """Another sequence beside those that are there."""
        if (prompt := self._prompt(content, sampling)) is not None:
            self._await(SubmitPrompt(prompt, alone=False, num_steps=1))

    def on_forked(self, seq_id: int) -> None:
        """A branch of a sequence, from the step that is looked at."""
        self._await(Fork(seq_id, self._models.selection.now.step))

    def _await(self, command: SubmitPrompt | Fork) -> None:
        """Ask for a sequence, which is shown when it is there."""
        self._awaited[self._send(command)] = command

    def on_sequence_stopped(self, seq_id: int) -> None:
        self._send(StopSequence(seq_id))

    def on_sequence_removed(self, seq_id: int) -> None:
        """Its pictures are given up first: the engine cannot answer for it any more."""
        status = self._models.status.now
        others = [info.seq_id for info in status.sequences if info.seq_id != seq_id] if status is not None else []
        if others and self._models.selection.now.seq_id == seq_id:
            self._models.selection.update(seq_id=others[-1], position=None)
        self._send(RemoveSequence(seq_id))

    def _prompt(self, content: str | tuple[int, ...], sampling: SamplingParams) -> Prompt | None:
        try:
            if isinstance(content, str):
                return Prompt(text=content, sampling=sampling)
            return Prompt(token_ids=content, sampling=sampling)
        except InputError as error:
            self._models.status.fail(str(error))
            return None

    def on_sampling_changed(self, sampling: SamplingParams) -> None:
        """How the selected sequence goes on, or where there is none, how the next prompt does."""
        status, seq_id = self._models.status.now, self._models.selection.now.seq_id
        is_there = status is not None and any(info.seq_id == seq_id for info in status.sequences)
        self._send(SetSampling(sampling, seq_id if is_there else None))

    def on_text_edited(self, text: str) -> None:
        """Count the tokens of a text while it is typed, where somebody is there to count."""
        if self._models.status.is_engine_lost:
            return
        self._texts.append(self._sender.post(Tokenize(text)))
        self._wake()

    def on_step(self) -> None:
        """One step on; while looking back, one recorded step towards the live one."""
        if self._models.selection.now.step is None:
            self._send(Step())
        else:
            self._look_from_here(+1)

    def on_step_back(self) -> None:
        """Look at the step before."""
        self._look_from_here(-1)

    def on_run_or_pause(self) -> None:
        if self._models.status.is_running:
            self._send(Pause())
        else:
            self._models.selection.update(step=None)
            self._send(Run())

    def set_pace(self, pace: Pace) -> None:
        """How fast a run goes, and how often its pictures come."""
        self._pace = pace
        if self._models.status.now is not None:  # else the engine is told when it has begun
            self._sender.post(pace.command)

    def on_run_to(self, num_steps: int) -> None:
        self._models.selection.update(step=None)
        self._send(Run(num_steps))

    def on_cancel(self) -> None:
        self._measuring.cancel()
        self._send(Cancel())

    def on_rewind_here(self) -> None:
        """Make the step that is looked at the live one."""
        step = self._models.selection.now.step
        if step is not None:
            self._send(Rewind(step))

    def on_token_forced(self, token_id: int) -> None:
        """Feed another token than the one that was chosen, and step."""
        selected = self._models.selection.now
        if selected.step is not None:
            self._notify(f"This is step {selected.step}: rewind here first, then take another road")
            return
        info = selected_info(self._models)
        if info is not None and info.stop in FULL:
            self._notify(f"Sequence {info.seq_id}: {why_ended(info)}")
            return
        self._send(Force(selected.seq_id, (token_id,)))
        self._send(Step())

    def on_model_chosen(self, model: ModelSpec) -> None:
        self._send(LoadModel(model, self.cache))

    def on_cache_chosen(self, cache: CacheSpec) -> None:
        self._send(SetCache(cache))

    def on_truth_wanted(self, question: Question) -> None:
        """Ask what the cache changes; the newest question of a kind is the one whose answer counts."""
        self._measuring.ask(question)
        self._wake()

    def on_rebuild_wanted(self) -> None:
        self._measuring.rebuild()

    def on_models_wanted(self) -> None:
        self._sender.post(FindModels())
        self._wake()

    def on_export_chosen(self, path: Path, notes: str) -> None:
        """Write the cache as it was at the step that is looked at."""
        selected = self._models.selection.now
        at_step = selected.step is not None
        num_tokens = self._models.timeline.num_tokens(selected.seq_id, selected.step) if at_step else None
        self._send(Export(path, selected.seq_id, num_tokens, notes))

    @property
    def cache(self) -> CacheSpec:
        """The cache mode in use."""
        status = self._models.status.now
        return status.cache if status is not None else CacheSpec()

    def _look_from_here(self, direction: int) -> None:
        self._models.selection.update(step=self._models.timeline.neighbour(self._models.selection.now.step, direction))
