"""Every message comes back as it was sent, and nothing else is taken for one."""

from __future__ import annotations

import contextlib
import enum
import gc
import threading
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.geometry.dimensions import CacheGeometry
from engine.spec.condition import Breakpoint
from engine.spec.sampling import Prompt, Turn
from engine.wire import encoding
from engine.wire.commands import COMMANDS, Step, SubmitPrompt, Tokenize
from engine.wire.encoding import VERSION, WireError, decode_command, decode_event, encode
from engine.wire.events import EVENTS
from engine.wire.exporting import Export
from engine.wire.pictures import CellUpdate, WallPicture
from engine.wire.records import StepRecord
from tests.app import samples

LARGE = (40, 30)  # a frame of its own; small arrays lie inside the message


def example(kind: Any, size: int = 1) -> Any:
    """A value of a type; tuples of any length have `size` members."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return args[-1]
    if origin in (Union, types.UnionType):
        return example(next(each for each in args if each is not type(None)), size)
    if origin is np.ndarray:
        dtype = get_args(args[1])[0]
        return (np.arange(1200).reshape(LARGE) if size > 1 else np.arange(3)).astype(dtype)
    if origin is tuple:
        return tuple(example(args[0], size) for _ in range(size)) if args[-1] is ... else tuple(map(example, args))
    if origin is dict:
        return {example(args[0]): example(args[1], size)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return example_struct(kind, size)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    return {int: 7, float: 0.25, str: "Wörter \x00", bool: True, bytes: b"\x00\xff" * 8, Path: Path("/tmp/ü")}[kind]


def example_struct(kind: type, size: int) -> Any:
    """Specs refuse what does not go together, so what has a default keeps it there."""
    fields = msgspec.structs.fields(kind)  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    is_checked = hasattr(kind, "__post_init__")
    if kind is Prompt:
        return Prompt(token_ids=(1, 2, 3))
    if kind is Turn:
        return Turn("user", "Wörter")
    if kind is Breakpoint:
        return Breakpoint(7, "entropy > 2", is_enabled=False)
    if kind is CacheGeometry:
        return CacheGeometry.uniform(2, 3, 16)
    wanted = [f for f in fields if f.required or (not is_checked and f.name not in ("page_maps", "session"))]
    return kind(**{f.name: example(hints[f.name], size) for f in wanted})


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, tuple):
        return type(b) is type(a) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, msgspec.Struct):
        return type(a) is type(b) and same(msgspec.structs.astuple(a), msgspec.structs.astuple(b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_every_command_comes_back(kind: type) -> None:
    command = example(kind)
    assert command.id == 7
    assert same(decode_command(encode(command)), command)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_comes_back_with_its_arrays_read_only(kind: type, size: int) -> None:
    event = example(kind, size)
    frames = encode(event)
    again = decode_event(frames)
    assert same(again, event)
    if isinstance(again, WallPicture):
        assert len(frames) == (1 if size == 1 else 16)
        assert not again.low.flags.writeable


def test_what_is_no_array_in_memory_order_comes_back_as_well() -> None:
    turned = np.arange(1200, dtype=np.float32).reshape(LARGE).T
    sent = msgspec.structs.replace(example(WallPicture), low=turned, high=turned[::2])
    again = decode_event(encode(sent))
    assert isinstance(again, WallPicture)
    assert same(again.low, turned)
    assert same(again.high, turned[::2])


def test_an_array_in_two_fields_goes_once_and_comes_back_as_one() -> None:
    cells = np.arange(1200, dtype=np.float32).reshape(LARGE)
    sent = msgspec.structs.replace(example(WallPicture), low=cells, high=cells)
    frames = encode(sent)
    again = decode_event(frames)
    assert isinstance(again, WallPicture)
    assert same(again, sent)
    assert again.low is again.high
    assert sum(map(len, frames)) < 2 * cells.nbytes


@pytest.mark.parametrize("bits", [7, 15, 31, 63])
@pytest.mark.parametrize("sign", [1, -1])
def test_whole_numbers_take_as_few_bytes_as_they_need(bits: int, sign: int) -> None:
    most = 2**bits - 1 if sign > 0 else -(2**bits)
    places = np.zeros((3, 400), np.int64)
    places[1, 7] = most
    frames = encode(CellUpdate(example(WallPicture), places, 4))
    again = decode_event(frames)
    assert isinstance(again, CellUpdate)
    assert same(again.places, places)
    assert len(frames[-1]) == places.size * (bits + 1) // 8


def test_a_path_need_not_be_text() -> None:
    path = Path("/tmp/\udcff.safetensors")  # bytes that are no UTF-8, as Python spells them
    again = decode_command(encode(Export(path, 0)))
    assert isinstance(again, Export)
    assert again.path == path


def test_numbers_of_numpy_are_numbers() -> None:
    again = decode_command(encode(Step(np.int64(3))))  # type: ignore[arg-type]
    assert again == Step(3)


def test_what_the_wire_does_not_carry_is_named() -> None:
    with pytest.raises(WireError, match=r"A Tokenize cannot be sent .*surrogates"):
        encode(Tokenize("half \ud800"))
    with pytest.raises(WireError, match="object is not carried"):
        encode(Tokenize(object()))  # type: ignore[arg-type]
    record = msgspec.structs.replace(example(WallPicture), low=np.array([object()]))
    with pytest.raises(WireError, match="arrays of object are not carried"):
        encode(record)


def test_another_version_is_refused_by_name() -> None:
    (frame,) = encode(Step())
    newer = bytes(frame[:3]) + bytes([VERSION + 1]) + bytes(frame[4:])
    with pytest.raises(WireError, match=f"version {VERSION + 1} of the wire, newer than {VERSION}"):
        decode_command([newer])


def test_what_is_too_large_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(WireError, match="too large: at most 100"):
        encode(Tokenize("x" * 200))
    with pytest.raises(WireError, match="too large"):
        decode_command([b"x" * 200])


def test_a_command_is_no_event_and_what_is_refused_at_birth_is_refused_here() -> None:
    with pytest.raises(WireError, match="Step"):
        decode_event(encode(Step()))
    body = encode(SubmitPrompt(example_struct(get_type_hints(SubmitPrompt)["prompt"], 1)))[0]
    spoiled = bytes(body).replace(b"\x93\x01\x02\x03", b"\x90\x90\x90\x90")
    with pytest.raises(WireError):
        decode_command([spoiled])


ARRAYS = [
    ["<f4", [3], b"\x00" * 11],
    ["<f4", [1 << 62, 4], b""],
    ["<f4", [-1], b""],
    ["<f4", [True], b"\x00" * 4],
    ["<f4", [1] * 40, b"\x00" * 4],
    ["<f4", [3], 7],
    ["<f4", [3], -1],
    ["|O", [1], b"\x00" * 8],
    ["<i8", [1], b"\x00" * 8],
    ["<f4", [3]],
    "text",
    None,
]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_an_array_that_is_none_is_refused(array: object) -> None:
    frames = encode(example(WallPicture))
    fields = msgspec.msgpack.decode(bytes(frames[0])[4:])
    fields[1 + WallPicture.__struct_fields__.index("low")] = array
    with pytest.raises(WireError, match="cannot be read"):
        decode_event([bytes(frames[0])[:4] + msgspec.msgpack.encode(fields)])


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_any_bytes_are_refused_in_one_way(frames: list[bytes]) -> None:
    for decode in (decode_command, decode_event):
        with pytest.raises(WireError):
            decode(frames)


@given(st.data())
def test_a_message_with_other_bytes_in_it_is_refused_or_another_message(data: st.DataObject) -> None:
    body = bytearray(encode(example(StepRecord))[0])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        assert isinstance(decode_event([bytes(body)]), EVENTS)


def test_two_threads_that_read_at_once_keep_their_own_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of one message another thread reads a second one of the same kind."""
    first, second = (
        msgspec.structs.replace(example(WallPicture, 2), low=np.full(LARGE, n, np.float32)) for n in (1, 2)
    )
    others: list[Any] = []
    frombuffer = np.frombuffer

    def interrupted(contents: Any, dtype: Any) -> Any:
        if not others:
            others.append(None)
            other = threading.Thread(target=lambda: others.append(decode_event(encode(second))))
            other.start()
            other.join()
        return frombuffer(contents, dtype)

    monkeypatch.setattr(np, "frombuffer", interrupted)
    read = decode_event(encode(first))
    for wall, number in ((read, 1), (others[1], 2)):
        assert isinstance(wall, WallPicture)
        assert (wall.low == number).all()


def test_the_garbage_collector_has_nothing_to_do_with_a_history() -> None:
    """Of a hundred records that were read, it walks none."""
    frames = encode(samples.step_record(3))
    decode_event(frames)  # the first one makes what all others share
    gc.collect()
    before = {id(thing) for thing in gc.get_objects()}
    records = [decode_event(frames) for _ in range(100)]
    gc.collect()
    new = [thing for thing in gc.get_objects() if id(thing) not in before and isinstance(thing, msgspec.Struct | tuple)]
    assert len(records) == 100
    assert len(new) < 10


def test_the_steps_of_a_long_session_are_one_message() -> None:
    """Their arrays are more than a message may have frames: the rest travels inside it."""
    record = samples.step_record(3)
    rows = record.sequences[0].rows
    assert rows is not None
    norms = np.arange(240, dtype=np.float32).reshape(6, 4, 10)
    wide = (msgspec.structs.replace(rows, key_norm=norms.copy()) for _ in range(encoding.MAX_FRAMES + 1))
    parts = (msgspec.structs.replace(record.sequences[0], rows=each) for each in wide)
    records = tuple(msgspec.structs.replace(record, sequences=(part,)) for part in parts)
    frames = encode(Export(Path("/tmp/x"), 0, records=records))
    assert len(frames) == encoding.MAX_FRAMES
    again = decode_command(frames)
    assert isinstance(again, Export)
    assert len(again.records) == len(records)
    assert same(again.records[-1], records[-1])
