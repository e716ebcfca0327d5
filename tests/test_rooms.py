"""What the window may import of the engine, and the names of test files."""

from __future__ import annotations

import pkgutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import engine

ROOT = Path(__file__).resolve().parents[1]
# parts of the engine that the window imports
SEEN = {"client", "errors", "files", "garbage", "geometry", "interrupts", "max", "predict", "saved", "spec", "wire"}
# subjects of test files that are not named after a module: the first words of the file's name
TOPICS = {
    "answers": "answers that come late, and which no panel may show",
    "approved": "all that a folder's code says or shows, compared with files that a person approved",
    "attacks": "hostile files",
    "bad_input": "wrong arguments, on any command line",
    "benchmark": "the scripts of tests/benchmarks",
    "by_hand": "edits by mouse on the real panels",
    "constants": "limits, defaults and what is frozen, in the engine and in the window",
    "edges": "the last number that is accepted and the first that is refused",
    "encoder_decoder": "encoder-decoders",
    "following": "every panel follows the selection",
    "gallery": "how the widgets of the kit look",
    "lossy_modes": "lossy modes in every panel",
    "moments": "moments at which the cache holds less than the picture on the screen",
    "monkey": "random clicks and keys",
    "of_two_sequences": "two sequences in every panel",
    "on_card": "when the host waits for a GPU, and which bytes leave it",
    "on_the_engine": "a panel in a window on the real engine",
    "passages": "code that stands twice",
    "pictures": "pictures of every kind: each shows what its label says",
    "planting": "the script that plants bugs",
    "programs": "random programs of commands",
    "random_commands": "random commands to the engine's loop",
    "readme": "what the README says",
    "rebuilding": "panels that let a cache be rebuilt before they measure",
    "recurrent": "models with recurrent states in every panel",
    "rooms": "folders, and which may import which",
    "session_kills": "kills of a window at work",
    "small_sizes": "panels that have little room",
    "theme_change": "another theme while the window is open",
    "window": "the installed command on a real X server",
}


def test_every_part_of_the_engine_is_allowed_or_forbidden_to_the_window() -> None:
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


def _begins(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}_")


def _modules(room: Path) -> Iterator[str]:
    """Names of the modules and packages of a folder, and of the folder itself; the root has none."""
    if room.parts:
        yield room.name
        yield from (found.name for found in pkgutil.iter_modules([str(ROOT / room)]))
