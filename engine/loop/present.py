"""What there is to work on: a live session, or an opened file in its place; how one takes the place of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import InputError
from engine.loop.activity import Activity
from engine.loop.duelling import Duelling
from engine.loop.inbox import Inbox
from engine.loop.loading import HeldModel, load_model, session_of
from engine.loop.opened import OpenFile
from engine.loop.reporter import Reporter
from engine.loop.steps_to_do import StepsToDo
from engine.loop.stops import StopConditions
from engine.loop.watching import Watching
from engine.predict.capacity import possible_layout
from engine.shortage import Memory
from engine.spec.cache import CacheSpec
from engine.spec.capture import check_capture
from engine.spec.presets import cache_label
from engine.spec.sampling import NEWEST_DRAWS, SamplingParams
from engine.wire.commands import CloseSnapshot, Continue, LoadModel, OpenSnapshot, SetCapture
from engine.wire.devices import Unloaded
from engine.wire.events import CacheChanged, Failed, NodeAdded, Restarted

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.opened.file import OpenedSnapshot
    from engine.opened.session import OpenedSession
    from engine.session.session import Session


class Present:
    """At most one `session` and at most one file in `opened`, never both. Whatever cannot take the other's place is
    refused, and that lives on."""

    def __init__(
        self,
        reporter: Reporter,
        inbox: Inbox,
        activity: Activity,
        steps: StepsToDo,
        stops: StopConditions,
        watching: Watching,
        duelling: Duelling,
    ) -> None:
        self._reporter, self._inbox, self._activity = reporter, inbox, activity
        self._steps, self._stops, self._watching, self._duelling = steps, stops, watching, duelling
        self.session: Session | None = None
        self.opened = OpenFile(reporter)
        self.sampling = SamplingParams(draws=NEWEST_DRAWS)  # of the next prompt that brings none of its own
        self._kept_limit: int | None = None  # bytes of kept moments, where a person has said how many
        self._cache = CacheSpec()  # of the session before an opened file, or of the first one
        self._capture: SetCapture | None = None
        self._model: LoadedModel | None = None  # of the session before an opened file

    @property
    def cache(self) -> CacheSpec:
        """The mode of the live session, or of the next where there is none."""
        return self._cache if self.session is None else self.session.cache

    @property
    def at_work(self) -> OpenedSnapshot | OpenedSession | Session | None:
        """What is looked at: the opened file, else the session."""
        return self.opened.file or self.session

    def load(self, command: LoadModel) -> None:
        """A model is taken over only when it is whole; until then the old one, or the opened file, lives on. A model
        that fits the file, or does so in the file's numbers, goes on from it, as far as the file can be read."""
        self._steps.end()
        if self.session is None:
            self._cache = command.cache
        model = load_model(command.model, self._reporter, self._inbox, self._activity, is_first=self.session is None)
        self._inbox.check_uncancelled()
        if (wanted := self.opened.in_other_numbers(command.model, model)) is not None:
            del model
            model = load_model(wanted, self._reporter, self._inbox, self._activity, is_first=self.session is None)
            self._inbox.check_uncancelled()
        if self.opened.saved is not None and self.opened.fits(model):
            self._rebuild(model, self.opened.saved)
        elif (resumed := self.opened.resumed_where_it_fits(model)) is not None:
            self._go_on(*resumed)
        else:
            self._begin_anew(model, command.cache)

    @property
    def model(self) -> LoadedModel | None:
        """The one at work, or behind an opened file."""
        return self._model if self.session is None else self.session.model

    @property
    def held(self) -> HeldModel | None:
        """The model that is there, at work or behind an opened file; None where there is none."""
        if self.session is not None:
            held = self.session.bytes()
            return HeldModel(self.session.model.info, held.reserved + held.looking)
        return None if self._model is None else HeldModel(self._model.info, 0)

    @property
    def device(self) -> str:
        """Where the model is, in a word."""
        return "The device" if self.model is None else self.model.info.device

    def memory(self) -> Memory | None:
        """Give back what nothing refers to, and say what is free then, and what the next step would take; None where
        there is no model."""
        from engine.memory import free_bytes, give_back

        model = self.model
        if model is None:
            return None
        give_back(model.device)
        needed = 0 if self.session is None else self.session.ledger.next_step_bytes()
        return Memory(model.info.device, free_bytes(model.device), needed)

    def unload(self) -> None:
        """Let the model go, and with it the session: what was done stays known to whoever recorded it."""
        from engine.memory import give_back, used_bytes

        held, model = self.held, self.model
        if held is None or model is None:
            raise InputError("No model is loaded: there is nothing to free.")
        device, before = model.device, used_bytes(model.device)
        self._steps.end()
        self._duelling.end("the model was unloaded")
        if self.session is not None:
            self._cache = self.session.cache
            self.session.add_changes()
            for node in self.session.history.take_added():
                self._reporter.reply(NodeAdded(node, is_live=True))
            self.session.close()
        self.session = self._model = model = None
        self._stops.forget()
        self._watching.begin()
        give_back(device)
        freed = max(0, before - used_bytes(device))
        self._reporter.tell()
        self._reporter.reply(
            Unloaded(held.info.name, held.info.device, held.info.weight_bytes, held.cache_bytes, freed)
        )

    def _begin_anew(self, model: LoadedModel, cache: CacheSpec) -> None:
        """In the mode that is asked for, or in one that grows where no model with an encoder can have it."""
        taken = possible_layout(cache, model.info.geometry)
        session = session_of(model, taken)
        self._use(session, "another model was loaded")
        self._reporter.reply(Restarted())
        if taken != cache:
            why = f"the mode before, {cache_label(cache)}, takes no model with an encoder"
            self._reporter.emit(CacheChanged(taken, why, 0.0, session.bytes()))

    def set_kept_limit(self, num_bytes: int) -> None:
        """What kept moments may take, in this session and those that come."""
        if num_bytes < 0:
            raise InputError(f"Kept moments cannot take {num_bytes:,} bytes: give 0 or more.")
        self._kept_limit = num_bytes
        if self.session is not None:
            self.session.kept.set_limit(num_bytes)

    def set_capture(self, command: SetCapture) -> None:
        """How much is measured, in this session and those that come."""
        self._capture = SetCapture(check_capture(command.level), command.by_layer)
        if self.session is not None:
            self.session.captured.set(command.level, by_layer=command.by_layer)

    def _use(self, session: Session, why: str) -> None:
        if self._capture is not None:
            session.captured.set(self._capture.level, by_layer=self._capture.by_layer)
        if self._kept_limit is not None:
            session.kept.set_limit(self._kept_limit)
        self._duelling.end(why)
        before = self.model
        left = None if before is None or before is session.model else before.device
        self.session = before = self._model = None
        self.session = session
        if left is not None and left.type != "cpu":  # a GPU's allocator keeps what nobody has
            from engine.memory import give_back

            give_back(left)
        self.opened.close()
        self._stops.forget()
        self._watching.begin()

    # ---- an opened file ------------------------------------------------------------------------------------------

    def open(self, command: OpenSnapshot) -> None:
        """A file stands in place of the session, whose model is kept in case it goes on from there."""
        file = self.opened.read(command, has_model=(self.session or self._model) is not None)
        self._steps.end()
        self._duelling.end("a file was opened")
        if self.session is not None:
            self._model, self._cache = self.session.model, self.session.cache
        self.session = None
        self.opened.replace(file)

    def leave_file(self, command: Continue | CloseSnapshot) -> None:
        """Go on from it, or close it, with the model loaded before where there is one that will do."""
        goes_on, model = isinstance(command, Continue), self._model
        self.opened.check_can_be_left(goes_on=goes_on)
        if model is None or (goes_on and not self.opened.fits(model)):
            wanted = self.opened.as_in_file(command.model) if goes_on else command.model
            model = load_model(wanted, self._reporter, self._inbox, self._activity, is_first=model is None)
            self._inbox.check_uncancelled()
        if goes_on:
            self._go_on_from_file(model, may_open_files=isinstance(command, Continue) and command.may_open_files)
        else:
            self._begin_anew(model, self._cache)

    def _go_on_from_file(self, model: LoadedModel, *, may_open_files: bool) -> None:
        """With the model that the opened file ran."""
        if self.opened.saved is not None:
            self._rebuild(model, self.opened.saved, may_open_files=may_open_files)
        else:
            self._go_on(*self.opened.resumed(model))

    def _rebuild(self, model: LoadedModel, file: OpenedSession, *, may_open_files: bool = False) -> None:
        """Its moments are told anew, with their numbers."""
        from engine.loop.rebuilding import rebuilt

        if why_not := file.why_not(model.info):
            raise InputError(f"'{file.path}' cannot be gone on from: {why_not}.")
        done = rebuilt(model, file, self._reporter, self._inbox, may_open_files=may_open_files)
        self._use(done.session, "the opened session goes on")
        self.sampling = file.saved.sampling
        self._reporter.reply(Restarted())
        self._reporter.tell()
        for event in done.events:
            self._reporter.emit(event)
        self._reporter.reply(done.said)
        self._reporter.tell()
        self._reporter.reply(done.answer)
        if done.warning:
            self._reporter.reply(Failed(done.warning))

    def _go_on(self, session: Session, changed: CacheChanged) -> None:
        """Its sequence lives again; what was told of its steps stays."""
        self._use(session, "the opened snapshot goes on")
        self._reporter.tell()
        self._reporter.reply(changed)
