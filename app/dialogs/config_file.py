"""A model's config.json as dimensions of a cache; nothing else of the model is opened."""

from __future__ import annotations

from pathlib import Path

from engine.files.text import read_json_object
from engine.geometry.dimensions import CacheGeometry


def read_geometry(path: Path) -> CacheGeometry:
    """The cache dimensions that a config.json describes; `InputError` says in one sentence why there are none."""
    return CacheGeometry.from_config(read_json_object(path, "model config"))
