"""Messages on a byte stream: a mark, the number of frames, the length of each, then their bytes. A message without
frames is a heartbeat; from a window on another machine it says that the oldest message is read. An echo is sent back at
once. A large message may come in pieces, with others between them; what has begun and begins again was given up."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from engine.wire.encoding import MAX_FRAMES, Frame, WireError, check_size

_COUNT = struct.Struct("<4sI")
_MARK = b"KVL\n"  # begins every message, so that anything else written to the stream is noticed

_ECHO = struct.Struct("<4sd")

HEARTBEAT: Sequence[Frame] = ()


def echo(time_s: float) -> list[Frame]:
    """A message that the other side sends back, with the time at which it was sent."""
    return [_ECHO.pack(b"echo", time_s)]


def is_echo(frames: Sequence[Frame]) -> bool:
    return len(frames) == 1 and len(frames[0]) == _ECHO.size and frames[0][:4] == b"echo"


def echo_time(frames: Sequence[Frame]) -> float:
    """The time at which an echo was sent."""
    return float(_ECHO.unpack(frames[0])[1])


_PIECE = struct.Struct("<4sII")


def pieces_of(message: Sequence[Frame], size: int) -> Iterator[list[Frame]]:
    """A message as several, of at most `size` bytes each."""
    whole = io.BytesIO()
    write_messages(whole, [message])
    count = -(-len(whole.getbuffer()) // size)
    for number in range(count):
        yield [_PIECE.pack(b"part", number, count), whole.getbuffer()[number * size : (number + 1) * size]]


class Pieces:
    """Puts messages that come in pieces together again."""

    def __init__(self) -> None:
        self._found: list[bytes] = []

    def joined(self, frames: list[bytes]) -> list[bytes] | None:
        """The message that ends with these frames; None where more of it is to come."""
        if len(frames) != 2 or len(frames[0]) != _PIECE.size or frames[0][:4] != b"part":
            return frames
        _, number, count = _PIECE.unpack(frames[0])
        del self._found[number:]
        self._found.append(frames[1])
        check_size([len(piece) for piece in self._found])
        if number != len(self._found) - 1:
            raise WireError("A piece of a message is missing.")
        return read_frames(io.BytesIO(b"".join(self._found))) if len(self._found) == count else None


def write_messages(stream: IO[bytes], messages: Iterable[Sequence[Frame]]) -> None:
    """Write messages, each a list of frames, and flush them together, so that the reader is woken once."""
    for frames in messages:
        lengths = [len(frame) for frame in frames]
        stream.write(_COUNT.pack(_MARK, len(frames)) + struct.pack(f"<{len(lengths)}Q", *lengths))
        for frame in frames:
            stream.write(frame)
    stream.flush()


def read_frames(stream: IO[bytes]) -> list[bytes] | None:
    """Read the frames of the next message, none for a heartbeat; None at the end of the stream. Raises `WireError` for
    bytes that are not a message."""
    head = stream.read(_COUNT.size)
    if not head:
        return None
    mark, count = _COUNT.unpack(_whole(head, _COUNT.size))
    if mark != _MARK or count > MAX_FRAMES:
        raise WireError("Something that is no message stands in the stream of messages.")
    if not count:
        return []
    lengths = struct.unpack(f"<{count}Q", _whole(stream.read(8 * count), 8 * count))
    check_size(lengths)
    return [_whole(stream.read(length), length) for length in lengths]


def _whole(data: bytes, length: int) -> bytes:
    if len(data) < length:
        raise WireError("A message was cut off: the other side has ended.")
    return data
