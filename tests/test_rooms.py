"""Rooms of the engine are seen by the window or forbidden to it by name; tests stand and are named as their modules."""

from __future__ import annotations

import pkgutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import engine

ROOT = Path(__file__).resolve().parents[1]
# what it says and hears, what a cache mode is, what it will take, what files of sessions hold, how to be a client, and
# who collects garbage
SEEN = {"client", "errors", "files", "garbage", "geometry", "max", "predict", "saved", "spec", "wire"}
MOST_LINES, MOST_METHODS = 350, 40
# what tests are about that are of no module: the first words of their files
TOPICS = {
    "answers": "late answers, which no panel shows",
    "approved": "all that a room says or shows, compared with files that were read",
    "attacks": "hostile files",
    "bad_input": "what a person can get wrong, on any command line",
    "benchmark": "the scripts of tests/benchmarks",
    "by_hand": "edits by mouse on the real panels",
    "constants": "limits, defaults and what is frozen, in the engine and in the window",
    "edges": "the last number that is taken and the first that is not",
    "encoder_decoder": "encoder-decoders",
    "following": "a selection that moves, and every panel behind it",
    "gallery": "how the widgets of the kit look",
    "lossy_modes": "lossy modes in every panel",
    "moments": "moments at which the cache holds less than a picture shows",
    "monkey": "random clicks and keys",
    "of_two_sequences": "two sequences in every panel",
    "on_card": "what a GPU is never waited for, and what leaves it",
    "on_the_engine": "a panel in a window on the real engine",
    "passages": "code that stands twice",
    "pictures": "pictures of every kind, each of what its label says",
    "planting": "the script that plants bugs",
    "programs": "random programs of commands",
    "random_commands": "random commands to the engine's loop",
    "readme": "what the README says",
    "rebuilding": "panels that have a cache rebuilt before they measure",
    "recurrent": "models with recurrent states in every panel",
    "rooms": "folders, and what may look into which",
    "session_kills": "kills of a window at work",
    "small_sizes": "panels that have little room",
    "theme_change": "another theme while the window is open",
    "window": "the installed command on a real X server",
}


def test_every_room_of_the_engine_is_seen_by_the_window_or_forbidden_to_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (window,) = (each for each in contracts if each["name"].startswith("The window sees the wire"))
    forbidden = {name.removeprefix("engine.") for name in window["forbidden_modules"]}
    rooms = {found.name for found in pkgutil.iter_modules(engine.__path__)} - {"__main__"}
    assert rooms - forbidden == SEEN
    assert forbidden <= rooms


def test_every_test_file_is_named_by_a_module_of_its_room_or_by_a_topic() -> None:
    used: set[str] = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        name = file.stem.removeprefix("test_")
        if any(_begins(name, module) for module in _modules(file.parent.relative_to(ROOT / "tests"))):
            continue
        topics = {topic for topic in TOPICS if _begins(name, topic)}
        assert topics, f"{file.relative_to(ROOT)}: no module of its room and no topic"
        used |= topics
    assert used == set(TOPICS)


def test_no_file_of_the_product_is_longer_than_350_lines_and_no_class_has_more_than_40_methods() -> None:
    for file in (file for room in ("app", "engine") for file in (ROOT / room).rglob("*.py")):
        lines, num_methods = file.read_text("utf-8").splitlines(), 0
        assert len(lines) <= MOST_LINES, file.relative_to(ROOT)
        for line in lines:
            num_methods = (
                0 if line.startswith("class ") else num_methods + line.startswith(("    def ", "    async def "))
            )
            assert num_methods <= MOST_METHODS, f"{file.relative_to(ROOT)}: {line}"


def _begins(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}_")


def _modules(room: Path) -> Iterator[str]:
    """Modules and packages of a room, and the room itself; the root has none."""
    if room.parts:
        yield room.name
        yield from (found.name for found in pkgutil.iter_modules([str(ROOT / room)]))
