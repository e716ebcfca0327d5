"""What messages are made of: frozen structs, written as arrays of their fields, tagged with their name where needed.

They are trees that nothing is put into later, so that no reference goes round in a circle, and the garbage collector
need not walk the records of a long history to find none."""

from __future__ import annotations

from msgspec import Struct


class Part(Struct, frozen=True, array_like=True, gc=False):
    """What a message carries, where its place says what it is."""


class Variant(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A part that stands where one of several kinds may stand, and a message itself: it names its kind."""


class EventMessage(Variant, frozen=True, kw_only=True):
    """What every event carries: `reply_to` is the id of the command that it answers, None where nothing was asked. What
    is told as long as something goes on answers the command that began it: a step's record and a condition that held
    answer the `Step` or `Run` that asked for the step, a picture the `Watched` that it belongs to, a step of a duel
    `StartDuel`. How the engine stands, that it is gone, and what a file holds is told without being asked."""

    reply_to: int | None = None


class CommandMessage(Variant, frozen=True, kw_only=True):
    """What every command carries: an `id` that its answers repeat, given by whoever sends it, and the session it is
    meant for; an engine has one."""

    id: int = 0
    session: int = 0
