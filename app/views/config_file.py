"""A model's config.json as dimensions of a cache; nothing else of the model is opened."""

from __future__ import annotations

import json
from pathlib import Path

from engine.errors import InputError
from engine.geometry import CacheGeometry

MAX_BYTES = 16 * 1024**2


def read_geometry(path: Path) -> CacheGeometry:
    """The cache dimensions that a config.json describes; `InputError` says in one sentence why there are none."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path.name} is too large for a config.json: choose another file.")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}): choose another file.") from problem
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise InputError(f"{path.name} is not valid JSON: choose a model's config.json.") from problem
    if not isinstance(found, dict):
        raise InputError(f"{path.name} holds no JSON object: choose a model's config.json.")
    return CacheGeometry.from_config(found)
