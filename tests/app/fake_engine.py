"""An engine that answers at once, on the caller's thread: tests call `tick()` by hand and see what was asked."""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from engine.wire.commands import (
    AttentionRequest,
    Command,
    HeadRequest,
    OutliersRequest,
    Rewind,
    RowRequest,
    Run,
    SliceRequest,
    Step,
    SubmitPrompt,
    TakeSlice,
    WallRequest,
    Watch,
    Watched,
)
from engine.wire.records import (
    EngineStatus,
    Event,
    Restarted,
    Rewound,
    SequenceInfo,
    StateChanged,
    StepRecord,
)
from tests.app import samples


class FakeEngine:
    """Keeps every command; steps tell the story of the samples. `is_silent` leaves everything unanswered."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.outbox: deque[Event] = deque()
        self.is_silent = False
        self.next_step = 0
        self.watched: tuple[Watched, ...] = ()
        self.status: EngineStatus = samples.status()

    def send(self, command: Command) -> None:
        self.sent.append(command)
        if not self.is_silent:
            self._answer(command)

    def drain(self) -> list[Event]:
        events = list(self.outbox)
        self.outbox.clear()
        return events

    def emit(self, *events: Event) -> None:
        """Say something; after a step whatever is watched as well."""
        self.outbox.extend(events)
        steps = [event.step for event in events if isinstance(event, StepRecord)]
        if steps and not self.is_silent:
            self.next_step = steps[-1] + 1
            for watched in self.watched:
                self._answer_slice(self._request_now(watched))

    def loaded(self) -> None:
        """Say that a model is there."""
        self.emit(StateChanged(self.status))

    def of(self, kind: type) -> list[Command]:
        return [command for command in self.sent if isinstance(command, kind)]

    def requests(self, kind: type) -> list[object]:
        """What was asked of that kind, to be answered once or watched, each once."""
        found: dict[int, object] = {}
        for command in self.sent:
            asked = (
                [command.request]
                if isinstance(command, TakeSlice)
                else [watched.request for watched in command.pictures]
                if isinstance(command, Watch)
                else []
            )
            found.update({request.stamp: request for request in asked if isinstance(request, kind)})
        return list(found.values())

    def _answer(self, command: Command) -> None:
        match command:
            case SubmitPrompt():
                self.next_step, self.watched = 0, ()
                self.emit(Restarted())
                self._tell()
            case Step(num_steps) | Run(int() as num_steps):
                self.emit(*(samples.step_record(self.next_step + n) for n in range(num_steps)))
                self._tell()
            case Rewind(step):
                self.watched = ()
                self.next_step = step + 1
                self.emit(Rewound(step, "cropped", 0.5))
                self._tell()
            case TakeSlice():
                self._answer_slice(command.request)
            case Watch():
                before, self.watched = self.watched, command.pictures
                for watched in self.watched:
                    if watched not in before:
                        self._answer_slice(self._request_now(watched))
            case _:
                pass

    def _request_now(self, watched: Watched) -> SliceRequest:
        """What a watched picture asks for after the newest step."""
        request, count = watched.request, samples.PROMPT + max(0, self.next_step - 1)
        positions: dict[str, int | None] = {}
        if isinstance(request, HeadRequest | AttentionRequest):
            if watched.extent == "all":
                positions = {"start": 0, "stop": count if isinstance(request, HeadRequest) else None}
            elif watched.extent == "newest":
                positions = {"start": count - ((request.stop or 0) - request.start), "stop": count}
        if isinstance(request, AttentionRequest):
            return replace(request, step=max(0, self.next_step - 1), **positions)
        return replace(request, num_tokens=count, **positions)

    def _answer_slice(self, request: SliceRequest) -> None:
        if isinstance(request, WallRequest):
            self.emit(samples.wall_slice(request))
        elif isinstance(request, HeadRequest):
            self.emit(samples.head_slice(request))
        elif isinstance(request, AttentionRequest):
            self.emit(samples.attention_slice(request, samples.PROMPT + request.step))
        elif isinstance(request, OutliersRequest):
            self.emit(samples.outliers_slice(request))
        elif isinstance(request, RowRequest):
            self.emit(samples.row_slice(request))

    def _tell(self) -> None:
        tokens = samples.PROMPT + self.next_step - 1
        info = SequenceInfo(0, "decode" if self.next_step else "waiting", max(tokens, 0), samples.PROMPT, 11, None)
        step = self.next_step - 1 if self.next_step else None
        self.status = replace(self.status, sequences=(info,), step=step)
        self.emit(StateChanged(self.status))
