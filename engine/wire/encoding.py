"""Encodes messages as bytes without pickle, and decodes them with every type checked. What cannot be decoded is refused
with the reason.

A message is a list of frames. The first holds magic bytes, the version of the wire format and the message in
MessagePack. The others are the contents of its large arrays, which are sent without copying; whole numbers with as few
bytes each as they need, and an array that stands in two fields once. Small arrays are written inside the message.
"""

from __future__ import annotations

import math
import os
import struct
import threading
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Union, cast, get_args

import numpy as np
from msgspec import MsgspecError, Struct, msgpack

from engine.errors import InputError
from engine.wire.commands import COMMANDS
from engine.wire.events import EVENTS
from engine.wire.message import Command, Event

VERSION = 8  # raised with every change of a message, so that two versions of this program refuse each other by name
MAX_MESSAGE_BYTES = 1 << 28
MAX_FRAMES = 1 << 12

Frame = bytes | memoryview

_HEADER = struct.Struct("<3sB")
_MAGIC = b"KVL"
_INLINE_BYTES = 512  # an array this small costs less inside the message than as a frame of its own
_MAX_DIMENSIONS = 8
_NAMES = ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
_ANY_COMMAND = Union[COMMANDS]  # type: ignore[valid-type]  # noqa: UP007
_ANY_EVENT = Union[EVENTS]  # type: ignore[valid-type]  # noqa: UP007
_DTYPES = frozenset(np.dtype(name).str for name in _NAMES)


class WireError(ValueError):
    """A message that cannot be encoded or decoded. Its text is one sentence."""


def encode(message: Struct) -> list[Frame]:
    """Encode a message as frames; raises `WireError` if it holds a type that cannot be sent."""
    arrays: dict[int, np.ndarray[Any, Any]] = {}
    try:
        body = msgpack.encode(message, enc_hook=partial(_encode_other, arrays))
    except (MsgspecError, TypeError, UnicodeError, OverflowError, RecursionError) as error:
        raise WireError(f"A {type(message).__name__} cannot be sent ({error}): it was left out.") from error
    frames: list[Frame] = [_HEADER.pack(_MAGIC, VERSION) + body, *(each.data.cast("B") for each in arrays.values())]
    check_size([len(frame) for frame in frames])
    return frames


def packed(message: Struct) -> bytes:
    """Encode a message as one piece of bytes with its arrays inside, for files. Raises `WireError` as `encode` does."""
    try:
        return msgpack.encode(message, enc_hook=partial(_encode_other, None))
    except (MsgspecError, TypeError, UnicodeError, OverflowError, RecursionError) as error:
        raise WireError(f"A {type(message).__name__} cannot be written ({error}): it was left out.") from error


def unpacked(content: bytes, kind: Any) -> Any:
    """Decode a message of type `kind` that `packed` wrote, with every type checked; raises `WireError` for anything
    else."""
    try:
        return _decoder(kind).decode(content, ())
    except (MsgspecError, InputError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise WireError(f"{error}") from error


def check_size(lengths: Sequence[int]) -> None:
    """Raise `WireError` if a message has more frames or bytes than allowed."""
    if not 1 <= len(lengths) <= MAX_FRAMES:
        raise WireError(f"A message of {len(lengths):,} frames is no message of this program.")
    if (total := sum(lengths)) > MAX_MESSAGE_BYTES:
        raise WireError(f"A message of {total:,} bytes is too large: at most {MAX_MESSAGE_BYTES:,} are read.")


def decode_command(frames: Sequence[Frame]) -> Command:
    """Decode a command from its frames; raises `WireError` for anything else."""
    return cast(Command, _decode(frames, _ANY_COMMAND))


def decode_event(frames: Sequence[Frame]) -> Event:
    """Decode an event from its frames, with read-only arrays; raises `WireError` for anything else."""
    return cast(Event, _decode(frames, _ANY_EVENT))


def _decode(frames: Sequence[Frame], kind: object) -> object:
    check_size([len(frame) for frame in frames])
    first = memoryview(frames[0])
    if len(first) < _HEADER.size:
        raise WireError("A message was cut off before its first byte.")
    magic, version = _HEADER.unpack_from(first)
    if magic != _MAGIC:
        raise WireError("These bytes are no message of this program.")
    if version != VERSION:
        age = "newer" if version > VERSION else "older"
        raise WireError(f"This message speaks version {version} of the wire, {age} than {VERSION}: use one version.")
    try:
        return _decoder(kind).decode(first[_HEADER.size :], frames[1:])
    except (MsgspecError, InputError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise WireError(f"A message cannot be read: {error}.") from error


class _MessageDecoder(threading.local):
    """A decoder for one message type that holds the array frames of the message being decoded. Each thread has its own,
    so that two clients that decode at the same time do not mix up their arrays."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgpack.Decoder(kind, dec_hook=self._decode_other)
        self._arrays: Sequence[Frame] = ()
        self._made: dict[tuple[int, str, tuple[int, ...]], np.ndarray[Any, Any]] = {}

    def decode(self, body: Frame, arrays: Sequence[Frame]) -> object:
        self._arrays = arrays
        try:
            return self._decoder.decode(body)
        finally:
            self._arrays = ()
            self._made.clear()

    def _decode_other(self, kind: Any, written: Any) -> object:
        """Decode the types that MessagePack does not know: paths and arrays."""
        if kind is Path:
            if not isinstance(written, bytes):
                raise ValueError("a path is written as bytes")
            return Path(os.fsdecode(written))
        return self._array(kind, written)

    def _array(self, kind: Any, written: Any) -> np.ndarray[Any, Any]:
        """Decode an array from `(dtype, shape, contents)`; contents are bytes, or the index of a frame."""
        if not (isinstance(written, list) and len(written) == 3):
            raise ValueError("an array is written as dtype, shape and contents")
        name, shape, contents = written
        if not isinstance(name, str) or name not in _DTYPES:
            raise ValueError(f"arrays of {str(name)[:20]!r} are not carried")
        dtype = np.dtype(name)
        if dtype.kind != (wanted := _scalar(kind)).kind:
            raise ValueError(f"an array of {dtype} stands where {wanted} belongs")
        if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(_is_size(n) for n in shape):
            raise ValueError("the shape of an array is a few numbers from 0 up")
        if isinstance(contents, int):
            if not 0 <= contents < len(self._arrays):
                raise ValueError(f"there is no frame {contents} for an array")
            if (made := self._made.get(key := (contents, name, tuple(shape)))) is None:
                made = self._made[key] = self._filled(dtype, wanted, shape, self._arrays[contents])
            return made
        return self._filled(dtype, wanted, shape, contents)

    @staticmethod
    def _filled(
        dtype: np.dtype[Any], wanted: np.dtype[Any], shape: list[int], contents: object
    ) -> np.ndarray[Any, Any]:
        if not isinstance(contents, bytes | memoryview) or len(contents) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"an array of shape {tuple(shape)} has other contents")
        array = np.frombuffer(contents, dtype).reshape(shape)
        if dtype.kind == "i":
            array = array.astype(wanted, copy=False)
        array.flags.writeable = False
        return array


@cache
def _decoder(kind: object) -> _MessageDecoder:
    return _MessageDecoder(kind)


@cache
def _scalar(kind: Any) -> np.dtype[Any]:
    """The dtype in an annotation such as `np.ndarray[tuple[Any, ...], np.dtype[np.float32]]`."""
    dtype: np.dtype[Any] = np.dtype(get_args(get_args(kind)[1])[0])
    return dtype


def _is_size(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _narrow(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Whole numbers with as few bytes each as they need; any other array as it is."""
    if array.dtype != np.int64 or not array.size:
        return array
    most = max(int(array.max()), ~int(array.min()))
    return next((array.astype(kind) for kind in (np.int8, np.int16, np.int32) if most <= np.iinfo(kind).max), array)


def _encode_other(arrays: dict[int, np.ndarray[Any, Any]] | None, value: object) -> object:
    """Encode the types that MessagePack does not know. If there are `arrays`, large ones are added to them, by id."""
    if isinstance(value, np.ndarray):
        if value.dtype.str not in _DTYPES:
            raise TypeError(f"arrays of {value.dtype} are not carried")
        if arrays is None or value.nbytes <= _INLINE_BYTES or len(arrays) >= MAX_FRAMES - 1:
            return value.dtype.str, value.shape, value.tobytes()
        if (sent := arrays.get(id(value))) is not None:
            return sent.dtype.str, value.shape, [*arrays].index(id(value))
        sent = arrays[id(value)] = np.ascontiguousarray(_narrow(value))
        return sent.dtype.str, value.shape, len(arrays) - 1
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return os.fsencode(value)
    raise TypeError(f"{type(value).__name__} is not carried")
