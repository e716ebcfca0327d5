"""A controller on an engine that says only what a story has it say, and all that comes of that, line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, structs
from msgspec.structs import replace

from app.control.controller import Controller
from app.kit.asking import Question
from app.models import Models
from engine.spec.condition import Breakpoint
from engine.wire import events
from engine.wire.message import Command
from engine.wire.records import StepRecord
from engine.wire.status import SequenceInfo
from engine.wire.tree import Node
from tests.app import samples
from tests.app.fake_engine import FakeEngine
from tests.approve import changes, fields_of, is_default, short


def told(value: Any) -> str:
    """A message in words, without its number and the fields that have their defaults."""
    match value:
        case StepRecord():
            return f"step {value.step}"
        case Node():
            return f"node {value.step}<{value.parent}"
        case Struct():
            numbers = ("reply_to",) if isinstance(value, Breakpoint) else ("reply_to", "id")
            found = ((field, getattr(value, field.name)) for field in fields_of(type(value)))
            words = (
                f"{field.name}={told(each)}"
                for field, each in found
                if field.name not in numbers and not is_default(field, each)
            )
            return f"{type(value).__name__}({', '.join(words)})"
        case tuple() | list():
            return f"[{', '.join(map(told, value))}]"
        case Path():
            return str(value)
    return repr(value)


class Story:
    """A controller on an engine that says only what the story has it say."""

    def __init__(self) -> None:
        self.models, self.engine = Models(), FakeEngine()
        self.controller = Controller(self.models, self.engine.send, self.engine.drain)
        self.wish, self.requests = self.controller.intents, self.controller.requests
        self.lines: list[str] = []
        self.heard: list[str] = []
        news: tuple[tuple[str, Any], ...] = (
            ("a model is wanted", self.wish.model_wanted),
            ("a session is opened", self.controller.events.session_opened),
            ("written", self.requests.exports.written),
        )
        for name, signal in news:
            signal.connect(lambda *said, name=name: self.heard.append(f"{name}: {', '.join(map(told, said))}"))
        for name, signal in (
            ("texts_due", self.models.timeline.texts_due),
            ("reset", self.models.timeline.reset),
            ("notice", self.models.status.noticed),
            ("failure", self.models.status.failed),
            ("pictures", self.models.pictures.changed),
            ("pictured", self.models.comparison.pictured),
        ):
            signal.connect(lambda *said, name=name: self.heard.append(" ".join((name, *map(str, said)))))
        self.requests.pictures._clock = lambda: 0.0  # nothing is asked again because a computer is slow
        self._known = list(self._state())

    def tell(self, *said: events.Event) -> Callable[[], None]:
        """What the engine says."""
        return lambda: self.engine.outbox.extend(said)

    def answer(self, kind: type, said: Any) -> Callable[[], None]:
        """What it says to the newest command of a kind, and then to none that was sent."""
        return lambda: self.engine.outbox.extend((replace(said, reply_to=self.engine.id_of(kind)),))

    def ask(self, command: Command, slot: str = "") -> Callable[[], None]:
        """What a view asks, which notes the answer or the refusal."""

        def answer(event: object) -> None:
            self.heard.append(f"an answer: {told(event)}")

        def refuse(failure: events.Failed) -> None:
            self.heard.append(f"a refusal: {failure.message or 'no more to come'}")

        return lambda: self.wish.take(Question(command, answer, refuse, slot or None))

    def status(self, **changed: Any) -> Callable[[], None]:
        """Another state of the engine, from now on."""

        def change() -> None:
            self.engine.status = replace(self.engine.status, **changed)
            self.engine.outbox.append(events.StateChanged(self.engine.status))

        return change

    def go(self, name: str, *acts: Callable[[], object]) -> None:
        """Do it, let the window turn once, and note what that made of everything."""
        self.engine.sent.clear()
        self.heard.clear()
        numbered = len(self.engine.numbered)
        for act in acts:
            act()
        wished = len(self.engine.numbered)
        self.controller.tick()
        now = list(self._state())
        sent = [told(replace(command, id=0)) for command in self.engine.numbered[numbered:]]
        told_now = [f"> {line}" for line in sent[: wished - numbered]]
        told_now += [f">> {line}" for line in sent[wished - numbered :]]
        if pictures := [line.removeprefix("pictures ") for line in self.heard if line.startswith("pictures ")]:
            self.heard = [line for line in self.heard if not line.startswith("pictures ")]
            self.heard.append(f"pictures {' '.join(pictures)}")
        heard = (f"! {line}" for line in self.heard)
        self.lines += ["", f"== {name}", *map(short, (*told_now, *heard)), *changes(self._known, now)]
        self._known = now

    def _state(self) -> Iterator[str]:
        models, requests = self.models, self.requests
        timeline, history, status = models.timeline, models.history, models.status
        for name, value in structs.asdict(models.selection.now).items():
            yield f"selected {name}: {told(value)}"
        for name, value in structs.asdict(models.viewport.now).items():
            yield f"wanted {name}: {value}"
        yield f"path: {[r.step for r in timeline]} to {timeline.tip}, live {timeline.history.live}, of {history.steps}"
        yield f"ahead {timeline.num_steps_ahead}, elsewhere {timeline.is_elsewhere}"
        yield f"before a change of mode: {timeline.is_before_change}, {_stored(models)}"
        for seq_id in timeline.sequence_ids():
            run = timeline.tokens(seq_id)
            yield f"tokens of {seq_id}: {' '.join(token.text for token in run)} ({len(run)})"
        yield f"names {history.names}, left {history.left}"
        yield f"bookmarks {told(models.bookmarks.all)}"
        yield f"edits {[m.step for m in models.edits.on_path()]}, undone {[m.step for m in models.edits.undone]}"
        yield f"measured edits {[m.step for m in models.edits.made if models.edits.measured(m.step)]}"
        yield f"engine {status.engine!r} {status.loss!r} {status.busy!r}, busy {status.is_busy}"
        kinds = ("wall", "head", "attention", "row")
        yield f"pictures: {[kind for kind in kinds if getattr(models.pictures, kind) is not None]}"
        for each in models.measurements.all:
            words = f"{each.state.value} {told(each.question)} at {each.step} {each.refusal}"
            work = each.work(status.now.work)
            far = f"{work.done}/{work.total}" if work is not None else "0/0"
            yield f"measurement {each.command.__name__}: {words} {len(each.answers)} {far}"
        compared = models.comparison
        yield f"compared: {compared.now is not None} asked {told(compared.asked)} {compared.refusal}"
        yield f"compared steps {[s.step for s in compared.steps]} scanned {compared.num_scanned} {told(compared.first)}"
        yield f"compared pictures {compared.pictures is not None} {compared.no_pictures}"
        yield f"breakpoints {told(models.breakpoints.listed)} hits {sorted(models.breakpoints.hits)}"
        phases = models.phases.now
        yield f"phases: {None if phases is None else (phases.step, phases.place, len(phases.passed))}"
        yield f"pages know {models.pages.text(100)!r}"
        yield f"settled {self.controller.is_idle}, replaced {requests.sequences.is_replacing_all}"
        yield f"waits: step {self.controller.waiting.is_for_step}, replay {requests.replaying.is_going_on}"


def _stored(models: Models) -> int | None:
    held = models.timeline.num_bytes(None)
    return held.stored if held is not None else None


def info(seq_id: int, num_tokens: int, **more: Any) -> SequenceInfo:
    return replace(SequenceInfo(seq_id, "decode", num_tokens, samples.PROMPT, 11, None), **more)


def step(number: int, place: int, parent: int | None, *seq_ids: int) -> StepRecord:
    """A step of the story that computes the token of a place."""
    record = samples.step_record(place)
    parts = tuple(replace(record.sequences[0], seq_id=seq_id) for seq_id in seq_ids or (0,))
    return replace(record, step=number, parent=parent, sequences=parts)
