"""Base classes of messages: frozen structs, encoded as arrays of their fields, and tagged with their name where needed.

They cannot be part of a reference cycle, because nothing is put into them after construction. Therefore they are not
tracked by the garbage collector (`gc=False`), which would otherwise visit all records of a long history.
"""

from __future__ import annotations

from msgspec import Struct


class Part(Struct, frozen=True, array_like=True, gc=False):
    """A part of a message whose type follows from the field it is in."""


class Variant(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A message, or a part of one in a field that can hold several types. It is encoded with its type's name."""


class EventMessage(Variant, frozen=True, kw_only=True):
    """Base of all events. `reply_to` is the id of the command that the event answers, None if there is none. Events of
    something ongoing answer the command that began it: the record of a step and a condition that held answer the `Step`
    or `Run` that asked for the step, a picture answers the id of its `Watched`, a step of a duel answers `StartDuel`.
    The status of the engine, its loss and the contents of an opened file answer no command."""

    reply_to: int | None = None


class CommandMessage(Variant, frozen=True, kw_only=True):
    """Base of all commands: an `id`, chosen by the sender and repeated in the answers, and the session it is meant for,
    of which an engine has one."""

    id: int = 0
    session: int = 0
