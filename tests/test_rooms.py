"""What the window may import of the engine."""

from __future__ import annotations

import pkgutil
import tomllib
from pathlib import Path

import engine

ROOT = Path(__file__).resolve().parents[1]
# parts of the engine that the window imports
SEEN = {
    "client",
    "counted",
    "errors",
    "files",
    "garbage",
    "geometry",
    "history",
    "max",
    "predict",
    "saved",
    "spec",
    "startup",
    "wire",
}


def test_every_part_of_the_engine_is_allowed_or_forbidden_to_the_window() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (window,) = (each for each in contracts if each["name"].startswith("The window sees the wire"))
    forbidden = {name.removeprefix("engine.") for name in window["forbidden_modules"]}
    rooms = {found.name for found in pkgutil.iter_modules(engine.__path__)} - {"__main__"}
    assert rooms - forbidden == SEEN
    assert forbidden <= rooms
