"""Encodes structs as JSON objects with named fields, where the wire encodes them as arrays: the files are readable, and
fields can be added later.

For every struct a twin with the same fields is made, which msgspec encodes as an object; in a union, its field `type`
says which struct it is. Fields with default values are left out. Decoding validates as the wire does: types by msgspec,
values by the struct's own `__post_init__`.
"""

from __future__ import annotations

import math
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

Kind = TypeVar("Kind")

NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}  # written as strings, since JSON has no such numbers


def encoded(value: Struct | tuple[Struct, ...]) -> bytes:
    """Encode a struct as a JSON object on one line, or several as a JSON list."""
    return msgspec.json.encode(_named(value))


def decoded(content: bytes | str, kind: type[Kind]) -> Kind:
    """Decode a struct of that kind; raises `msgspec.MsgspecError` or `ValueError` for anything else."""
    found: Kind = _plain(msgspec.json.decode(content, type=_named_type(kind)))
    return found


@cache
def _twin(kind: type[Struct]) -> type[Struct]:
    """The twin of a struct, encoded as an object with named fields."""
    tag = kind.__struct_config__.tag
    found = []
    for field, default in _defaults(kind):
        found.append((field.name, _named_type(field.type), *(() if default is NODEFAULT else (_named(default),))))
    twin = msgspec.defstruct(
        kind.__name__,
        found,
        tag=tag,
        tag_field=None if tag is None else "type",
        omit_defaults=True,
        frozen=True,
        gc=False,
        module=__name__,
    )
    _KIND_OF[twin] = kind
    return twin


_KIND_OF: dict[type, type[Struct]] = {}
_PATCHES: set[type] = set()  # structs of which any field may be left out


def patch(kind: type[Kind]) -> type[Kind]:
    """Decorator for a struct of which every field may be missing in a file."""
    _PATCHES.add(kind)
    return kind


def _named_type(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _twin(kind)
    if kind is float:
        return float | str
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return Annotated[_named_type(arguments[0]), *arguments[1:]]
    if origin in (Union, UnionType):
        return Union[tuple(map(_named_type, arguments))]  # noqa: UP007
    if origin in (tuple, dict):
        return origin[tuple(each if each is Ellipsis else _named_type(each) for each in arguments)]
    return kind


def _named(value: Any) -> Any:
    """The value with every struct in it replaced by its twin."""
    match value:
        case Struct():
            twin = _twin(type(value))
            found = ((field.name, getattr(value, field.name), default) for field, default in _defaults(type(value)))
            return twin(**{name: _named(each) for name, each, default in found if not _is_default(each, default)})
        case tuple():
            return tuple(map(_named, value))
        case dict():
            return {key: _named(each) for key, each in value.items()}
        case str():
            return writable(value)
        case float() if not math.isfinite(value):
            return str(value)
    return value


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


@cache
def _defaults(kind: type[Struct]) -> tuple[tuple[FieldInfo, Any], ...]:
    """Each field with its default. The first field of an untagged struct counts as having none, so that it is always
    written."""
    found = []
    for index, field in enumerate(fields(kind)):
        default = field.default if field.default_factory is NODEFAULT else field.default_factory()
        is_first = index == 0 and kind.__struct_config__.tag is None and kind not in _PATCHES
        found.append((field, NODEFAULT if is_first else default))
    return tuple(found)


def writable(text: str) -> str:
    """The text with lone surrogates escaped, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _plain(value: Any, kind: Any = None) -> Any:
    """The value with every twin replaced by its struct."""
    if (original := _KIND_OF.get(type(value))) is not None:
        return original(**{name: _plain(getattr(value, name), of) for name, of in _types(original)})
    if isinstance(value, tuple):
        inner = next((each for each in _members(kind) if get_origin(each) is tuple), None)
        return tuple(_plain(each, of) for each, of in zip(value, _inner(inner, len(value)), strict=True))
    if isinstance(value, str) and str not in _members(kind):
        return _text(value, _members(kind))
    return value


def _text(value: str, members: tuple[Any, ...]) -> Any:
    """The number that is not finite which a string stands for, where a float is allowed; else the string itself."""
    if float not in members:
        return value
    if value not in NOT_FINITE:
        raise ValueError(f"{value[:20]!r} is no number")
    return NOT_FINITE[value]


@cache
def _types(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in fields(kind))


def _members(kind: Any) -> tuple[Any, ...]:
    """The types that a value may have, without their bounds."""
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _inner(kind: Any, count: int) -> tuple[Any, ...]:
    """The types of the `count` items of a tuple."""
    arguments = get_args(kind)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return (arguments[0],) * count
    return arguments if len(arguments) == count else (NoneType,) * count
