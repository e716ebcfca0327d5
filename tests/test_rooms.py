"""Rooms of the engine that the window may look into; all others are forbidden to it by name, none is forgotten."""

from __future__ import annotations

import pkgutil
import tomllib
from pathlib import Path

import engine

ROOT = Path(__file__).resolve().parents[1]
# what it says and hears, what a cache mode is, what it will take, what files of sessions hold, and how to be a client
SEEN = {"client", "errors", "files", "geometry", "max", "predict", "saved", "spec", "wire"}


def test_every_room_of_the_engine_is_seen_by_the_window_or_forbidden_to_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (window,) = (each for each in contracts if each["name"].startswith("The window sees the wire"))
    forbidden = {name.removeprefix("engine.") for name in window["forbidden_modules"]}
    rooms = {found.name for found in pkgutil.iter_modules(engine.__path__)} - {"__main__"}
    assert rooms - forbidden == SEEN
    assert forbidden <= rooms
