"""Declarations of a package as lines of text: limits, tolerances and sizes; the defaults of fields and of parameters;
which classes are frozen."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]


def declared(package: str) -> dict[str, list[str]]:
    """The constants and the defaults of every module of `app` or `engine`, by their names without the module: moving
    one to another module changes nothing."""
    found: dict[str, list[str]] = {"constants": [], "defaults": []}
    for path, module in _modules(package):
        found["constants"] += _constants(path, module)
        found["defaults"] += _defaults(module)
    return {what: sorted(lines) for what, lines in found.items()}


def _modules(package: str) -> list[tuple[Path, Any]]:
    places = sorted((ROOT / package).rglob("*.py"))
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in places)
    return [(path, import_module(name)) for path, name in zip(places, names, strict=True)]


# ---- constants ---------------------------------------------------------------------------------------------------


def _constants(path: Path, module: Any) -> Iterator[str]:
    """The names in capitals that a module gives to numbers and words, alone or in tables."""
    assigned = (
        node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.Assign | ast.AnnAssign)
    )
    targets = (each for node in assigned for each in (node.targets if isinstance(node, ast.Assign) else [node.target]))
    for name in (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)):
        value = getattr(module, name, None)
        if name.isupper() and _is_plain(value):
            yield f"{name} = {_words(value)}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return len(value) > 0 and all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, tuple | list | frozenset | set):
        return len(value) > 0 and all(map(_is_plain, value))
    return isinstance(value, int | float | str | bytes)


def _words(value: Any) -> str:
    """A value as Python writes it; sets are sorted."""
    match value:
        case dict():
            return f"{{{', '.join(f'{key!r}: {_words(each)}' for key, each in value.items())}}}"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(_words, value)))}}}"
        case tuple() | list():
            return f"({', '.join(map(_words, value))})"
        case None | bool() | int() | float() | str() | bytes():
            return repr(value)
    return f"a {type(value).__name__}"


# ---- defaults ----------------------------------------------------------------------------------------------------


def _defaults(module: Any) -> Iterator[str]:
    """The kind of every class and the defaults of its fields; the defaults of every function's parameters."""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            if (kind := _kind(value)) or _fields(value):
                yield f"{name}: {kind} {_fields(value)}".rstrip()
            for inner, member in vars(value).items():
                yield from _parameters(f"{name}.{inner}", member)
        else:
            yield from _parameters(name, value)


def _kind(kind: type) -> str:
    if issubclass(kind, msgspec.Struct):
        config = kind.__struct_config__
        names = ("frozen", "array_like", "eq", "gc", "omit_defaults", "forbid_unknown_fields")
        return f"struct ({', '.join(name for name in names if getattr(config, name))})"
    if "__dataclass_params__" in vars(kind):
        options = kind.__dataclass_params__  # type: ignore[attr-defined]
        names = ("frozen", "eq", "order", "kw_only", "slots")
        return f"data ({', '.join(name for name in names if getattr(options, name, False))})"
    return ""


def _fields(kind: type) -> str:
    found: dict[str, Any] = {}
    if issubclass(kind, msgspec.Struct):
        last = kind.__struct_fields__[len(kind.__struct_fields__) - len(kind.__struct_defaults__) :]
        for name, default in zip(last, kind.__struct_defaults__, strict=True):
            if default is not msgspec.NODEFAULT:
                found[name] = default.factory() if hasattr(default, "factory") else default
    elif dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                found[field.name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                found[field.name] = field.default_factory()
    return ", ".join(f"{name}={_words(value)}" for name, value in found.items())


def _parameters(name: str, value: Any) -> Iterator[str]:
    value = value.func if isinstance(value, cached_property) else getattr(value, "fget", value)
    value = inspect.unwrap(getattr(value, "__func__", value))
    is_ours = isinstance(value, FunctionType) and value.__module__.startswith(("app", "engine"))
    if is_ours and value.__code__.co_filename != "<string>":  # a dataclass's own signature repeats its fields
        given = {each.name: each.default for each in inspect.signature(value).parameters.values()}
        words = (
            f"{each}={_words(default)}" for each, default in given.items() if default is not inspect.Parameter.empty
        )
        if found := ", ".join(words):
            yield f"{name}({found})"
