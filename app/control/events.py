"""Handlers of the engine's events: one per event type; they write what they are told into the models."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, get_args

from msgspec.structs import replace
from PySide6.QtCore import QObject, Signal

from app.control.requests import MeasurementControl, Replaying, Requests
from app.control.sender import PersonWaiting, Sender
from app.draw.format import byte_size, decimal, divergence_words, milliseconds
from app.kit.asking import ignore
from app.kit.widgets import prose
from app.models import Models
from app.models.places import geometry_of
from app.models.sequence_status import selected_info, why_ended
from app.models.status import HALTED
from engine.counted import counted
from engine.history.pages import PageMaps
from engine.spec.cache import cache_label
from engine.wire import breakpoints, comparison, devices, events, serving
from engine.wire.events import StateChanged
from engine.wire.measurements import EditMeasured
from engine.wire.message import Answer
from engine.wire.pictures import Picture, PictureUpdate
from engine.wire.records import CacheBytes, EditMade, StepRecord
from engine.wire.status import EngineStatus, LayerDone, ModelInfo, PhaseReached

PICTURES = get_args(Picture | PictureUpdate)
# Events of these types are collected and applied together; an event of any other type first applies those before it.
OF_STEPS = (StepRecord, events.StateChanged, comparison.ComparedStep, events.Done, events.Cancelled, *PICTURES)


class EventHandlers(QObject):
    """The only writer of timeline, pictures, pages and status.

    Signal: `session_opened(event)` with the names, bookmarks, breakpoints and draft of that session.
    """

    session_opened = Signal(object)

    def __init__(
        self, models: Models, sender: Sender, requests: Requests, waiting: PersonWaiting, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._models = models
        self._sender = sender
        self._requests = requests
        self._waiting = waiting
        self.status = StatusWriter(models, requests.measurements, requests.replaying)
        self._page_maps = PageMaps()
        self._records: list[StepRecord] = []
        self._pictures: list[Picture | PictureUpdate] = []
        self.handlers: dict[type, Callable[[Any], object]] = {
            StepRecord: self._records.append,
            events.StateChanged: self.status.keep_newest,
            **dict.fromkeys(PICTURES, self._pictures.append),
            EditMeasured: self._models.edits.take,
            events.Restarted: self._on_restarted,
            events.SessionOpened: self._on_session_opened,
            events.Submitted: self._on_submitted,
            events.ForkMade: self._on_forked,
            events.WentTo: self._on_went_to,
            events.NodeAdded: self._on_node_added,
            events.BranchDeleted: self._on_branch_deleted,
            PhaseReached: self._on_phase,
            events.PromptSurprisal: self._on_prompt_surprisal,
            events.StepRedone: self._on_step_redone,
            events.Redone: self._on_redone,
            events.CacheChanged: self._on_cache_changed,
            devices.Unloaded: self._on_unloaded,
            events.Failed: self._on_failed,
            events.EngineLost: self._on_engine_lost,
            events.EngineBusy: self._on_engine_busy,
            events.EngineBack: self._on_engine_back,
            events.EngineLine: self._on_engine_line,
            comparison.ComparisonStarted: requests.comparing.take_started,
            comparison.ComparedStep: requests.comparing.take_step,
            comparison.ComparisonScanned: requests.comparing.take_scanned,
            comparison.ComparisonEnded: requests.comparing.take_ended,
            serving.ServersChanged: models.servers.take,
            breakpoints.BreakpointHit: self._on_breakpoint_hit,
            **dict.fromkeys(Answer.__subclasses__(), ignore),
        }

    def take(self, arrived: Sequence[events.Event], *, may_wait: bool) -> bool:
        """Handle events in their order, and write records and pictures into the models, pictures last.

        Returns True if the status, and all texts with it, was held back until the pictures of the step have arrived or
        been painted (only when `may_wait`, and when nothing but steps arrived).
        """
        for event in arrived:
            if not isinstance(event, OF_STEPS):
                self._write_records()
                may_wait = False
            self.handlers[type(event)](event)
            if not isinstance(event, (StepRecord, events.StateChanged, events.Failed, *PICTURES)):
                self._sender.take(event)
        waits = may_wait and self.status.can_wait
        if not waits:
            self.status.write()
        self._write_records()
        self._write_pictures()
        return waits

    def forget_engine(self) -> None:
        """Drop all that is pending because the engine that was there will not answer any more."""
        self.status.write()
        self._waiting.take_pictures()
        self._requests.pictures.reset()
        self._requests.comparing.forget()
        self._sender.lose_engine()
        if self._models.status.is_known:
            self._models.status.set(replace(self._models.status.now, running=False, work=None))

    # ---- what comes with steps -----------------------------------------------------------------------------------

    def _write_records(self) -> None:
        if not self._records:
            return
        self._waiting.take_record()
        folded = [self._with_page_maps(record) for record in self._records]
        self._records.clear()
        for record in folded:
            self._models.pages.take(record)
        self._models.timeline.append(folded)

    def _with_page_maps(self, record: StepRecord) -> StepRecord:
        if not record.pools:
            return record
        return replace(record, page_maps=self._page_maps.fold(record.step, record.page_events, record.pools))

    def _write_pictures(self) -> None:
        if self._pictures:
            self._waiting.take_pictures()
            mine = [picture for picture in self._pictures if not self._sender.take(picture)]
            wanted = [picture for picture in mine if self._requests.pictures.answered(picture)]
            self._pictures.clear()
            self._models.pictures.put(*wanted)

    def _on_prompt_surprisal(self, event: events.PromptSurprisal) -> None:
        self._models.timeline.fill(event.step, event.seq_id, event.first_position, event.values)

    # ---- another history -----------------------------------------------------------------------------------------

    def _on_restarted(self, event: events.Restarted) -> None:
        self._requests.replaying.restarted(event)
        self._requests.settings.repeat()
        self._requests.outdate()
        self._models.pages.restart()
        if self._requests.replaying.is_going_on:
            return  # what is on the screen stays
        self._clear()

    def _clear(self) -> None:
        """Show nothing of the history that the engine has no more."""
        self._models.bookmarks.set_all(())
        self._models.timeline.clear()
        self._models.pictures.clear()
        self._models.viewport.show_all()
        self._models.selection.update(step=None, position=None)

    def _on_session_opened(self, event: events.SessionOpened) -> None:
        for first, name in event.names:
            self._models.history.rename(first, name)
        self._models.bookmarks.set_all(event.bookmarks)
        self._requests.breakpoints.bring_back(event.stops)
        self.status.write()  # whoever shows the place looked at asks for its pictures, which a file may not have
        self.session_opened.emit(event)

    def _on_submitted(self, event: events.Submitted) -> None:
        self._models.timeline.begin(event.seq_id, event.token_ids, event.texts)
        self._requests.sequences.show(event.seq_id, event)
        if event.note:
            self._notify(event.note)

    def _on_forked(self, event: events.ForkMade) -> None:
        self._models.timeline.branch(event.child, event.parent, event.step, event.num_tokens)
        self._requests.sequences.show(event.child, event)
        count = counted(event.num_tokens, "token")
        self._notify(f"Sequence {event.child} begins as sequence {event.parent} with {count}: {event.how}")

    def _on_went_to(self, event: events.WentTo) -> None:
        self._requests.outdate()
        self._show_path_to(event.step, event.num_bytes)
        where = "the start" if event.step is None else f"step {event.step}"
        self._notify(f"At {where}: {event.how} · {milliseconds(event.took_ms)}")

    def _show_path_to(self, step: int | None, held: CacheBytes | None = None) -> None:
        """Make `step` the live one, where the cache holds so many bytes; None is the start, before the first step."""
        self._models.timeline.go_to(step, held)
        position, seq_id = self._models.selection.now.position, self._models.selection.now.seq_id
        self._models.selection.update(step=None)
        if position is not None and position >= self._models.timeline.num_tokens(seq_id):
            self._models.selection.update(position=None)

    def _on_node_added(self, event: events.NodeAdded) -> None:
        self._models.timeline.add_node(event)
        if event.is_live:
            self._requests.outdate()
        if event.how:
            self._notify(_added_words(event))

    def _on_branch_deleted(self, event: events.BranchDeleted) -> None:
        if self._models.selection.now.step in event.steps:
            self._models.selection.update(step=None)
        self._models.history.delete(event.steps)

    def _on_phase(self, event: PhaseReached) -> None:
        """Show the layer that a step in phases has just computed; pinned panels keep theirs."""
        models = self._models
        models.phases.take(event)
        geometry = geometry_of(models)
        if not isinstance(event.phase, LayerDone) or geometry is None or models.selection.now.step is not None:
            return
        layer = geometry.layers[event.phase.layer]
        if layer.num_kv_heads:
            kv_head = min(models.selection.now.kv_head, layer.num_kv_heads - 1)
            models.selection.update(layer=layer.index, kv_head=kv_head)

    def _on_step_redone(self, event: events.StepRedone) -> None:
        """Keep the record of a repeated step, except for its pages, which are those of a new pool."""
        self.status.write()  # writing the model into the status clears the pages, so it must come first
        if (record := self._models.history.record(event.step)) is not None:
            redone = self._with_page_maps(replace(record, page_events=event.page_events, pools=event.pools))
            self._models.pages.take(redone)
            self._models.timeline.replace(redone)

    def _on_redone(self, event: events.Redone) -> None:
        self._requests.replaying.take(event)
        self.status.write()
        self._requests.pictures.reset()
        latest = self._models.timeline.live_path.latest
        if latest is not None and latest.step != event.step:
            self._show_path_to(event.step)
        self._models.timeline.announce(again=True)

    def _on_cache_changed(self, event: events.CacheChanged) -> None:
        self._requests.outdate()
        self._models.pages.forget()
        self._models.timeline.change_mode(event.num_bytes)
        words = [f"{cache_label(event.cache)}: {event.how}"]
        if event.num_bytes.stored:
            words += [milliseconds(event.took_ms), f"{byte_size(event.num_bytes.stored)} stored"]
        self._notify(" · ".join(words))

    # ---- answers and failures ------------------------------------------------------------------------------------

    def _on_breakpoint_hit(self, hit: breakpoints.BreakpointHit) -> None:
        self._models.breakpoints.take_hit(hit)
        self._notify(f"{HALTED}step {hit.step}: {hit.condition} · {hit.value} · sequence {hit.seq_id}")

    def _on_unloaded(self, event: devices.Unloaded) -> None:
        self._requests.outdate()
        self._models.pictures.clear()
        held = f"{byte_size(event.weight_bytes)} of weights and {byte_size(event.cache_bytes)} of caches"
        freed = f"{byte_size(event.freed_bytes)} became free"
        self._notify(f"{prose(event.name)} is unloaded from {event.device}: it held {held}, {freed}")

    def _on_failed(self, failure: events.Failed) -> None:
        """If whoever asked shows the failure itself, leave it to that; otherwise show it in the status line."""
        replaying = self._requests.replaying
        if replaying.is_going_on:
            self.status.write()  # which says whether it has its model
            if replaying.refused(failure):
                self._clear()
        if not self._sender.take(failure) and not self._requests.pictures.refused(failure):
            self._models.status.fail(failure.message)

    def _on_engine_lost(self, event: events.EngineLost) -> None:
        """Say that the engine is gone or silent. Panels keep what they show; a dead engine's answers are dropped."""
        self._models.status.lose_engine("gone" if event.has_ended else "silent")
        model = self._models.status.now.model
        elsewhere = ", or go on on the CPU" if model is not None and model.device not in ("cpu", "file") else ""
        remedy = f"wait, or restart it{elsewhere}"
        if event.has_ended:
            remedy = f"restart it{elsewhere}"
            self.forget_engine()
        self._models.status.fail(f"{event.cause}: {remedy}. What was recorded stays on the screen.")

    def _on_engine_busy(self, event: events.EngineBusy) -> None:
        self._models.status.set_busy(f"busy with {event.what} for {event.seconds} s" if event.what else "")

    def _on_engine_back(self, _event: events.EngineBack) -> None:
        self._models.status.lose_engine("")
        self._models.status.fail("")

    def _on_engine_line(self, event: events.EngineLine) -> None:
        self._models.status.set_line(f"{event.machine} · {decimal(event.delay_ms, 0)} ms", event.versions)

    def _notify(self, text: str) -> None:
        self._models.status.notify(self.status.with_given_up(text))


def _added_words(event: events.NodeAdded) -> str:
    """What an edit did, then which edit, then how long it took: a narrow window cuts off the end of the sentence."""
    edits = [change.edit.describe() for change in event.node.changes if isinstance(change, EditMade)]
    moved = [] if event.kl is None else [f"the next token moved by {divergence_words(event.kl)}"]
    words = " · ".join((*moved, *edits, event.how))
    return words[:1].upper() + words[1:]


# ---- the status, which may wait for a picture ------------------------------------------------------------------------

GAVE_UP = " · the step between its phases was given up"
AT_ONCE_S = 2.0  # a message within this time of a given-up step is taken for what gave it up


class StatusWriter:
    """Holds the newest status until `write()` writes it into the models: it may wait for the picture of the same
    step."""

    def __init__(self, models: Models, measuring: MeasurementControl, replaying: Replaying) -> None:
        self._models = models
        self._replaying = replaying
        self._measuring = measuring
        self._unwritten: EngineStatus | None = None
        self.has_news = False  # a status was written since texts were last announced
        self._news, self._news_at = "", -AT_ONCE_S  # the latest message in the status line, and its time
        self._given_up_at = -AT_ONCE_S  # when a step suspended between its phases was last given up
        self._known: object = None  # identity of the model that was loaded last

    @property
    def is_written(self) -> bool:
        """Whether the models have been given everything that arrived."""
        return self._unwritten is None

    @property
    def can_wait(self) -> bool:
        """Whether the held status differs in nothing but steps: same model, cache and sequences, and no other work."""
        old, new = self._models.status.now, self._unwritten
        if new is None or not self._models.status.is_known:
            return self._models.status.is_known
        same_sequences = [s.seq_id for s in new.sequences] == [s.seq_id for s in old.sequences]
        return same_sequences and new.work is None and (new.model, new.cache) == (old.model, old.cache)

    def keep_newest(self, event: StateChanged) -> None:
        """Hold a newer status in place of the one before."""
        self._unwritten = event.status

    def write(self) -> None:
        """Write the held status into the models, if there is one."""
        status, self._unwritten = self._unwritten, None
        if status is None:
            return
        self.has_news = True
        old = self._models.status.now
        if self._replaying.is_going_on:  # the engine is still replaying: keep showing the old state
            status = replace(status, sequences=old.sequences, step=old.step, cache=old.cache)
        if status.model is not None and _identity(status.model) != self._known:
            self._begin_model(status)
        if status.model != old.model:  # compared by value: each message brings a new object
            self._models.pages.forget_model()
        ids = [sequence.seq_id for sequence in status.sequences]
        if ids and self._models.selection.now.seq_id not in ids and not self._models.timeline.is_elsewhere:
            self._models.selection.update(seq_id=ids[-1])
        self._models.status.set(status)
        if self._models.phases.follow(status.suspended, status.step):
            self._report_given_up()
        self._report_end(old)

    def with_given_up(self, news: str) -> str:
        """The message for a command that was carried out, with a note if it gave up a suspended step."""
        self._news, self._news_at = news, time.monotonic()
        return f"{news}{GAVE_UP}" if self._news_at - self._given_up_at <= AT_ONCE_S else news

    def _report_given_up(self) -> None:
        """Say that a suspended step was given up: alone, or appended to the message about what replaced it. The engine
        may report the two in either order."""
        now = time.monotonic()
        if now - self._news_at <= AT_ONCE_S:
            self._models.status.notify(f"{self._news}{GAVE_UP}")
        else:
            self._given_up_at = now
            self._models.status.notify("The step was given up between its phases: nothing has changed")

    def _begin_model(self, status: EngineStatus) -> None:
        """Reset selection, view and measurements for another model."""
        assert status.model is not None
        self._known = _identity(status.model)
        self._models.viewport.forget_places()
        self._models.viewport.show_all()
        layers = status.model.geometry.attention_layers
        self._models.selection.update(layer=layers[0].index if layers else 0, kv_head=0, position=None)
        self._measuring.forget()

    def _report_end(self, old: EngineStatus) -> None:
        """Say once why the selected sequence has ended."""
        info = selected_info(self._models)
        was = {sequence.seq_id: sequence.stop for sequence in old.sequences}
        if info is not None and info.stop is not None and was.get(info.seq_id, info.stop) is None:
            self._models.status.notify(f"Sequence {info.seq_id}: {why_ended(info)}")


def _identity(model: ModelInfo) -> object:
    """What identifies a model: a file from elsewhere may have no fingerprint, so the number of layers counts too."""
    return model.fingerprint, len(model.geometry.layers)
