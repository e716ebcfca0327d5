"""Base classes of messages: frozen structs, encoded as arrays of their fields, and tagged with their name where needed.

They cannot be part of a reference cycle, because nothing is put into them after construction. Therefore they are not
tracked by the garbage collector (`gc=False`), which would otherwise visit all records of a long history.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0, lt=1 << 31)]  # an id of a sequence or token, or a number of tokens


class Nested(Struct, frozen=True, array_like=True, gc=False):
    """A part of a message whose type follows from the field it is in."""


class Variant(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A message, or a part of one in a field that can hold several types. It is encoded with its type's name."""


class Event(Variant, frozen=True, kw_only=True):
    """Base of all events. `reply_to` is the id of the command that the event answers, None if there is none. Events of
    something ongoing answer the command that began it: the record of a step and a condition that held answer the `Step`
    or `Run` that asked for the step, a picture answers the id of its `Watched`, a step of a comparison answers
    `StartComparison`. The status of the engine, its loss and the contents of an opened file answer no command."""

    reply_to: int | None = None


class Answer(Event, frozen=True, kw_only=True):
    """Base of events that are for whoever sent the command, and change nothing that others show."""


Needs = Literal["nothing", "rows", "session"]


class Facts(NamedTuple):
    """What the engine knows about all commands of a type.

    `words` say what the engine is busy with. `needs` is what has to be there: `rows` are those of a session or of an
    opened file. `answers`: the last word of a command is its `one` answer, or a `Done` after `any` number of them.
    `effect` is on a step that is suspended in one of its phases: a command that `looks` is answered, one that
    `measures` is refused, one that `steps` continues the step, and one that `acts` discards it. `interrupts`: it ends a
    prefill between two layers, which it makes useless or waits for. `goes_with_cancel`: a `Cancel` behind it removes it
    from the queue. `newest`: of waiting commands for which this gives the same, only the newest stays. `ends_trial`: it
    outdates a what-if trial. `is_quiet`: no status follows it. `when_cancelled`: the sentence for a person who waits
    for its answer, where it was cancelled.
    """

    words: str = "a command"
    needs: Needs = "session"
    answers: Literal["one", "any"] = "any"
    effect: Literal["looks", "measures", "steps", "acts"] = "acts"
    interrupts: bool = False
    goes_with_cancel: bool = False
    newest: Callable[[Any], Hashable] | None = None
    ends_trial: bool = False
    is_quiet: bool = False
    when_cancelled: str = ""


class Command(Variant, frozen=True, kw_only=True):
    """Base of all commands: an `id`, chosen by the sender and repeated in the answers, and the session it is meant for,
    of which an engine has one. `facts` are those of its type.

    Each gets exactly one last word: its only answer, or `Done`, `Failed` or `Cancelled`. The loss of the engine is that
    of all commands before it."""

    facts: ClassVar[Facts] = Facts()

    id: int = 0
    session: int = 0
