"""What messages are made of: frozen structs, written as arrays of their fields, tagged with their name where needed."""

from __future__ import annotations

from msgspec import Struct


class Part(Struct, frozen=True, array_like=True):
    """What a message carries, where its place says what it is."""


class Variant(Struct, frozen=True, array_like=True, tag=True):
    """A part that stands where one of several kinds may stand, and a message itself: it names its kind."""


class Reply(Variant, frozen=True, kw_only=True):
    """An event that answers a command: `reply_to` is the command's id, None where nothing was asked."""

    reply_to: int | None = None
