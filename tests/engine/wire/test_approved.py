"""What travels between a window and its engine, and into session files, approved: every field in its place, with its
default. Another order or default is another version of the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np

from engine.saved.journal import JournalEntry
from engine.wire.commands import COMMANDS
from engine.wire.events import Event
from tests.engine.told import approve, told


def structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """The structs that a type names."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in get_args(kind):
        yield from structs_in(part)


def reachable(*kinds: Any) -> list[type[msgspec.Struct]]:
    """These and all that their fields hold, in the order in which they are met."""
    found: dict[type[msgspec.Struct], None] = {}
    waiting = [struct for kind in kinds for struct in structs_in(kind)]
    while waiting:
        struct = waiting.pop(0)
        if struct not in found:
            found[struct] = None
            waiting += [inner for kind in get_type_hints(struct).values() for inner in structs_in(kind)]
    return list(found)


def described(struct: type[msgspec.Struct]) -> str:
    config = struct.__struct_config__
    written = f"{'array' * config.array_like}{' tagged' * (config.tag is not None)}{' frozen' * config.frozen}"
    return f"{struct.__name__} ({written}): " + "; ".join(map(_field, msgspec.structs.fields(struct)))


def _field(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return field.name
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return f"{field.name} = {told(default)}{default.dtype if isinstance(default, np.ndarray) else ''}"


def test_messages_are_as_approved() -> None:
    lines = map(described, reachable(*COMMANDS, Event, JournalEntry))
    approve(Path(__file__).parent / "approved" / "messages.txt", sorted(lines))
