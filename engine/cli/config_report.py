"""What `params` and `budget` share: finding the config.json, printing the result or why there is none."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from engine.cli.output import print_facts
from engine.errors import InputError
from engine.files.text import read_json_object
from engine.geometry.dimensions import CacheGeometry
from engine.max import InsufficientMemoryError
from engine.spec.model import BUNDLED, RESOURCES, SHAPE_PREFIX

DTYPES: Final = ("bfloat16", "float16", "float32", "float8_e4m3fn")


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
    print_facts(found, args.json)
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
