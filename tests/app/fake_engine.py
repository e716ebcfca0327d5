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
    Step,
    SubmitPrompt,
    TakeSlice,
    WallRequest,
)
from engine.wire.records import (
    EngineStatus,
    Event,
    Restarted,
    Rewound,
    SequenceInfo,
    StateChanged,
)
from tests.app import samples


class FakeEngine:
    """Keeps every command; steps tell the story of the samples. `is_silent` leaves everything unanswered."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.outbox: deque[Event] = deque()
        self.is_silent = False
        self.next_step = 0
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
        self.outbox.extend(events)

    def loaded(self) -> None:
        """Say that a model is there."""
        self.emit(StateChanged(self.status))

    def of(self, kind: type) -> list[Command]:
        return [command for command in self.sent if isinstance(command, kind)]

    def requests(self, kind: type) -> list[object]:
        return [c.request for c in self.sent if isinstance(c, TakeSlice) and isinstance(c.request, kind)]

    def _answer(self, command: Command) -> None:
        match command:
            case SubmitPrompt():
                self.next_step = 0
                self.emit(Restarted())
                self._tell()
            case Step(num_steps) | Run(int() as num_steps):
                for _ in range(num_steps):
                    self.emit(samples.step_record(self.next_step))
                    self.next_step += 1
                self._tell()
            case Rewind(step):
                self.next_step = step + 1
                self.emit(Rewound(step, "cropped", 0.5))
                self._tell()
            case TakeSlice():
                self._answer_slice(command)
            case _:
                pass

    def _answer_slice(self, command: TakeSlice) -> None:
        request = command.request
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
