"""An engine that answers at once, on the caller's thread: tests call `tick()` by hand and see what was asked.

Its history is a tree: going back deletes nothing, and what follows has numbers of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from engine.spec.edit import Edit, ReplaceTokens
from engine.wire.commands import (
    BeginBranch,
    DeleteBranch,
    GoTo,
    MakeEdit,
    Run,
    Step,
    SubmitPrompt,
    TakePicture,
    UndoEdit,
    Watch,
    Watched,
)
from engine.wire.events import BranchDeleted, Event, NodeAdded, Restarted, StateChanged, Submitted, WentTo
from engine.wire.measurements import CheckParity, MapDamage, MeasureRegret, Sweep, WhatIf
from engine.wire.message import Command
from engine.wire.pictures import (
    AttentionRequest,
    HeadRequest,
    OutliersRequest,
    Picture,
    PictureRequest,
    RowRequest,
    WallRequest,
)
from engine.wire.records import EditMade, StepRecord
from engine.wire.status import EngineStatus, SequenceInfo
from engine.wire.tree import Node
from tests.app import samples


class FakeEngine:
    """Keeps every command; steps tell the story of the samples. `is_silent` leaves everything unanswered."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.numbered: list[Command] = []
        self.outbox: deque[Event] = deque()
        self.is_silent = False
        self.next_step = 0
        self.live: int | None = None
        self.num_computed: dict[int | None, int] = {None: 0}  # the number of steps on the path to each node
        self.parents: dict[int, int | None] = {}
        self.watched: tuple[Watched, ...] = ()
        self.status: EngineStatus = samples.status()

    def send(self, command: Command) -> None:
        self.numbered.append(command)
        # a test compares with what it would have sent itself; what is answered at length is known by its id
        is_known = isinstance(command, TakePicture | WhatIf | CheckParity | MapDamage | MeasureRegret | Sweep)
        self.sent.append(command if is_known else replace(command, id=0))
        if not self.is_silent:
            self.respond(command)

    def drain(self) -> list[Event]:
        events = list(self.outbox)
        self.outbox.clear()
        return events

    def emit(self, *events: Event) -> None:
        """Say something; after a step whatever is watched as well."""
        self.outbox.extend(events)
        steps = [event.step for event in events if isinstance(event, StepRecord)]
        for step in steps:
            self._enter(step, self.num_computed[self.live] + 1)
        if steps and not self.is_silent:
            for watched in self.watched:
                self._answer_picture(self._request_now(watched), watched.id)

    def loaded(self) -> None:
        """Say that a model is there."""
        self.emit(StateChanged(self.status))

    def of(self, kind: type) -> list[Command]:
        return [command for command in self.sent if isinstance(command, kind)]

    def answer(self, piece: Any) -> None:
        """Answer what this is an answer to."""
        self.emit(self.addressed(piece))

    def addressed(self, piece: Any) -> Any:
        """The same with the id of what was asked: of the newest picture or command that asks for just this."""
        request = piece.request
        if getattr(request, "id", 0):
            return replace(piece, reply_to=request.id)
        same = [number for number, asked in _pictures(self.numbered).items() if asked == request]
        return replace(piece, reply_to=same[-1] if same else self.id_of(type(request)))

    def id_of(self, kind: type) -> int:
        """The id of the newest command of a kind, or of the newest picture asked for by such a request."""
        return self.ids_of(kind)[-1]

    def ids_of(self, kind: type) -> list[int]:
        """Those of all of them, oldest first."""
        pictures = [number for number, request in _pictures(self.numbered).items() if isinstance(request, kind)]
        return pictures or [command.id for command in self.numbered if isinstance(command, kind)]

    def requests(self, kind: type) -> list[Any]:
        """What was asked of that kind, to be answered once or watched, each once."""
        return [request for request in _pictures(self.sent).values() if isinstance(request, kind)]

    def respond(self, command: Command) -> None:
        match command:
            case SubmitPrompt():
                self.next_step, self.live, self.watched = 0, None, ()
                self.num_computed, self.parents = {None: 0}, {}
                self.emit(Restarted(reply_to=command.id))
                self.tell()
                self.emit(Submitted(0, *samples.prompt_tokens(), reply_to=command.id))
                self._step(1 if command.num_steps is None else command.num_steps)  # of a run the first
            case Step(num_steps) | Run(int() as num_steps):
                self._step(num_steps)
            case GoTo(step) | BeginBranch(step=int() as step):
                self._go_to(step, command.id)
            case DeleteBranch(step):
                self.emit(BranchDeleted((step,), reply_to=command.id))
            case MakeEdit(edit):
                self.add_edit(edit, command.id)
            case UndoEdit():
                self._go_to(self.parents[self.live], command.id)
            case TakePicture():
                self._answer_picture(command.request, command.id)
            case Watch():
                before, self.watched = self.watched, command.pictures
                for watched in self.watched:
                    if watched not in before:
                        self._answer_picture(self._request_now(watched), watched.id)
            case _:
                pass

    def _step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            record = samples.step_record(self.num_computed[self.live])
            self.emit(replace(record, step=self.next_step, parent=self.live))
        self.tell()

    def _go_to(self, step: int | None, reply_to: int) -> None:
        self.watched = ()
        self.live = step
        self.emit(WentTo(step, "cropped", 0.5, reply_to=reply_to))
        self.tell()

    def add_edit(self, edit: Edit, number: int) -> None:
        """An edit is the next node, and was measured."""
        node = Node(self.next_step, self.live, (EditMade(edit),), self.status.cache, None)
        self._enter(node.step, self.num_computed[self.live])
        ids = edit.token_ids if isinstance(edit, ReplaceTokens) else ()
        texts = tuple(f"<{token_id}>" for token_id in ids)
        self.emit(NodeAdded(node, is_live=True, how="written", kl=0.25, texts=texts, reply_to=number))

    def _enter(self, step: int, num_computed: int) -> None:
        """Another node follows the live one."""
        self.parents[step], self.num_computed[step] = self.live, num_computed
        self.live, self.next_step = step, max(self.next_step, step + 1)

    def _request_now(self, watched: Watched) -> PictureRequest:
        """What a watched picture asks for after the newest step."""
        request, count = watched.request, samples.PROMPT + max(0, self.num_computed[self.live] - 1)
        positions: dict[str, int | None] = {}
        if isinstance(request, HeadRequest | AttentionRequest):
            if watched.extent == "all":
                positions = {"start": 0, "stop": count if isinstance(request, HeadRequest) else None}
            elif watched.extent == "newest":
                positions = {"start": count - ((request.stop or 0) - request.start), "stop": count}
        if isinstance(request, AttentionRequest):
            return replace(request, step=self.live or 0, **positions)
        return replace(request, num_tokens=count, **positions)

    def _answer_picture(self, request: PictureRequest, number: int) -> None:
        if isinstance(request, WallRequest):
            self._reply(number, samples.wall_picture(request))
        elif isinstance(request, HeadRequest):
            self._reply(number, samples.head_picture(request))
        elif isinstance(request, AttentionRequest):
            self._reply(
                number,
                samples.attention_picture(
                    request, samples.PROMPT + self.num_computed.get(request.step, request.step + 1) - 1
                ),
            )
        elif isinstance(request, OutliersRequest):
            self._reply(number, samples.outliers_picture(request))
        elif isinstance(request, RowRequest):
            self._reply(number, samples.row_picture(request))

    def _reply(self, number: int, piece: Picture) -> None:
        self.emit(replace(piece, reply_to=number))

    def tell(self) -> None:
        computed = self.num_computed[self.live]
        tokens = samples.PROMPT + computed - 1
        info = SequenceInfo(0, "decode" if computed else "waiting", max(tokens, 0), samples.PROMPT, 11, None)
        self.status = replace(self.status, sequences=(info,), step=self.live)
        self.emit(StateChanged(self.status))


def _pictures(commands: Sequence[Command]) -> dict[int, PictureRequest]:
    """Every picture that was asked for, by its id."""
    found: dict[int, PictureRequest] = {}
    for command in commands:
        if isinstance(command, TakePicture):
            found[command.id] = command.request
        elif isinstance(command, Watch):
            found |= {watched.id: watched.request for watched in command.pictures}
    return found
