"""Recordings of KV events (`.kvevents`): for each batch u32 length of the topic, topic, sequence number (8 bytes,
big-endian), u32 length of the payload, payload; lengths little-endian. Nothing before, between or after."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from engine.errors import InputError
from engine.files.text import open_regular
from engine.serving.schema import MAX_BYTES

MAX_TOPIC = 4096
END_MARK = (1 << 64) - 1  # the sequence number that ends a replay
_U32, _SEQ = struct.Struct("<I"), struct.Struct(">Q")


class Message(NamedTuple):
    """A batch as it came: three frames."""

    topic: bytes
    seq: int
    payload: bytes


# What a source gives where a server restarted and has published nothing since; it is not recorded.
RESTARTED = Message(b"", END_MARK, b"")


def packed(message: Message) -> bytes:
    topic, seq, payload = message
    return b"".join((_U32.pack(len(topic)), topic, _SEQ.pack(seq), _U32.pack(len(payload)), payload))


class Recording:
    """Reads a recording batch by batch. `cut` says afterwards whether the file ends within a batch."""

    def __init__(self, path: Path) -> None:
        self.path, self.cut = path, False

    def __iter__(self) -> Iterator[Message]:
        """Raises InputError for a file that cannot be read, or is no recording."""
        try:
            with open(open_regular(self.path, "recording"), "rb") as stream:
                yield from self._messages(stream)
        except OSError as error:
            raise InputError(
                f"'{self.path}' cannot be read ({error.strerror}): give a recording of KV events."
            ) from None

    def _messages(self, stream: BinaryIO) -> Iterator[Message]:
        number = 0
        while head := stream.read(4):
            size = _U32.unpack(head)[0] if len(head) == 4 else 0
            if size > MAX_TOPIC:
                raise self._is_none(number)
            rest = stream.read(size + 12)
            if len(head) < 4 or len(rest) < size + 12:
                self.cut = True
                break
            length = _U32.unpack_from(rest, size + 8)[0]
            if length > MAX_BYTES:
                raise self._is_none(number)
            payload = stream.read(length)
            if len(payload) < length:
                self.cut = True
                break
            seq = _SEQ.unpack_from(rest, size)[0]
            if seq != END_MARK:
                number += 1
                yield Message(rest[:size], seq, payload)
        if not number:
            raise self._is_none(0)

    def _is_none(self, number: int) -> InputError:
        if not number:
            return InputError(f"'{self.path}' is no recording of KV events: make one with `events record`.")
        return InputError(f"'{self.path}' is damaged after batch {number:,}: record it again, or use --at {number}.")
