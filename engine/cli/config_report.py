"""What `params` and `budget` share: finding the config.json, parsing numbers, printing the result."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from engine.errors import InputError
from engine.files.text import read_json_object
from engine.geometry.dimensions import CacheGeometry
from engine.max.capacity import InsufficientMemoryError
from engine.spec.model import BUNDLED, RESOURCES, SHAPE_PREFIX

DTYPES: Final = ("bfloat16", "float16", "float32", "float8_e4m3fn")
SIZE_LIMIT: Final = 2**31 - 1
BYTES_LIMIT: Final = 2**63 - 1


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a config.json."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--model", metavar="M", help=f"a model folder, {BUNDLED!r}, or {SHAPE_PREFIX}CONFIG.json")
    source.add_argument("--config", metavar="FILE", help="a config.json")


def report(args: argparse.Namespace, find: Callable[[argparse.Namespace], dict[str, Any]]) -> int:
    """Print the result of `find`, or its error on one line; returns the exit code."""
    try:
        found = find(args)
    except (ValueError, InsufficientMemoryError) as refusal:
        print(f"kvloupe-engine: {' '.join(str(refusal).split())}", file=sys.stderr)
        return 2
    print(json.dumps(found) if args.json else _as_text(found))
    return 0


def read_config(args: argparse.Namespace) -> dict[str, Any]:
    """The parsed config.json that the arguments name; no other file of the model is opened."""
    if args.config is None and args.model is None:
        raise InputError("No model is named; give --model or --config.")
    path = Path(args.config) if args.config is not None else _config_path(args.model)
    return read_json_object(path, "model config")


def _config_path(model: str) -> Path:
    if model == BUNDLED:
        return RESOURCES / "demo_model" / "config.json"
    if model.startswith(SHAPE_PREFIX):
        return Path(model[len(SHAPE_PREFIX) :])
    path = Path(model)
    if not path.exists() and model.count("/") == 1:
        from engine.model.hub import resolve_hub_name  # imported here, since the hub's client is slow to import

        path = resolve_hub_name(model, False, lambda *_: None)
    return path / "config.json" if path.is_dir() else path


def geometry_on_disk(model: str) -> CacheGeometry | None:
    """The geometry of a model whose config.json is on this disk; None for any other, or if it cannot be read: loading
    the model then tells why."""
    is_here = model == BUNDLED or model.startswith(SHAPE_PREFIX) or Path(model).is_dir()
    try:
        return CacheGeometry.from_config(read_json_object(_config_path(model), "model config")) if is_here else None
    except InputError:
        return None


def whole(option: str, text: str, limit: int = SIZE_LIMIT) -> int:
    """Parse a whole number from 1 to `limit`; raises `InputError` otherwise."""
    is_short_number = text.isascii() and text.isdecimal() and len(text) <= 20
    if not is_short_number or not 1 <= int(text) <= limit:
        raise InputError(f"{option} must be a whole number from 1 to {limit:,}, not {text[:40]!r}.")
    return int(text)


def one_of(option: str, text: str, known: Any) -> str:
    """Return the text if it is among `known`; raises `InputError` otherwise."""
    if text not in known:
        raise InputError(f"{option} {text[:40]!r} is not known; use one of {', '.join(known)}.")
    return text


def _as_text(found: Mapping[str, Any]) -> str:
    """One line per entry, and one per row if the entry is a list of rows."""
    lines = []
    for name, value in found.items():
        rows = value if isinstance(value, list) and value and isinstance(value[0], Mapping) else None
        if rows is None:
            lines.append(f"{name}: {_plain(value)}")
            continue
        lines.append(f"{name}:")
        lines += ["  " + "  ".join(f"{key} {_plain(cell)}" for key, cell in row.items()) for row in rows]
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        return ", ".join(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(cell)}" for key, cell in value.items())
    return str(value)
