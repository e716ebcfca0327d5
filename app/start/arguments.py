"""The command line of the window, checked before anything slow is imported, and where the program stores its files."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn, get_args

import platformdirs
from msgspec import Struct

from engine.client import CHOICES, ClientChoice, check_choice, is_elsewhere
from engine.errors import InputError
from engine.saved.journal import check_nobody_writes
from engine.spec.cache import NAMES, CacheSpec, cache_named
from engine.spec.model import AUTO_DEVICE, PAGED_ATTENTION, RUNNERS, WEIGHTS, Dtype, ModelSpec, with_adapters
from engine.wire.serving import ServerSpec

DEFAULT_STEPS = 40
MOST_KEPT_MIB = 1 << 20


class Arguments(Struct, frozen=True):
    """The parsed command line. None for `engine`, `theme`, `prompt`, `loading` or `kept_bytes` means: as in the
    settings. `loading` says where and how to load models; if given, it equals `model`."""

    model: ModelSpec
    loading: ModelSpec | None
    snapshot: Path | None
    cache: CacheSpec
    engine: ClientChoice | None
    theme: str | None
    prompt: str | None
    tour: Path | None
    steps: int
    size: tuple[int, int]
    settings: Path | None
    sessions: Path | None
    doctor: bool
    kept_bytes: int | None = None
    servers: tuple[ServerSpec, ...] = ()


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports an error in one line and exits with status 2."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"kvloupe: {message}\n")
        sys.exit(2)


def parse(argv: list[str]) -> Arguments:
    """Parse the arguments; invalid ones end the program with one line and exit status 2."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        asked = ModelSpec(
            with_adapters(given.model, given.adapter),
            given.dtype or "auto",
            given.device or AUTO_DEVICE,
            num_threads=given.threads,
            runner=given.runner,
            weights=given.weights or "stored",
            paged_attention=given.paged_attention,
        )
        cache = cache_named(given.cache)
        engine = None if given.engine is None else check_choice(given.engine)
    except InputError as error:
        parser.error(str(error))
    if given.steps < 1:
        parser.error(f"{given.steps} steps is nothing to do: give 1 or more.")
    if given.kept_mib is not None and not 0 <= given.kept_mib <= MOST_KEPT_MIB:
        parser.error(f"{given.kept_mib} MiB for checkpoints is out of range: give 0 to {MOST_KEPT_MIB}.")
    if given.settings is not None and os.path.exists(given.settings) and not os.path.isfile(given.settings):
        parser.error(f"The settings {given.settings} are no regular file: give another one.")
    is_here = engine is None or not is_elsewhere(engine)
    if given.snapshot is not None and is_here and not os.path.isfile(given.snapshot):
        parser.error(f"{given.snapshot} is no file: give a snapshot that was exported, or a session that was saved.")
    if given.snapshot is not None and is_here:
        try:
            check_nobody_writes(given.snapshot)
        except InputError as error:
            parser.error(str(error))
    if given.prompt is not None and not given.prompt:
        parser.error("The prompt is empty: give some text.")
    return Arguments(
        model=asked,
        loading=asked if any((given.dtype, given.device, given.threads, given.weights)) else None,
        snapshot=given.snapshot,
        cache=cache,
        engine=engine,
        theme=given.theme,
        prompt=given.prompt,
        tour=given.tour,
        steps=given.steps,
        size=_size(given.size, parser),
        settings=given.settings,
        sessions=given.sessions,
        doctor=given.doctor,
        kept_bytes=None if given.kept_mib is None else given.kept_mib << 20,
        servers=_servers(given, parser),
    )


def _servers(given: argparse.Namespace, parser: OneLineParser) -> tuple[ServerSpec, ...]:
    """The servers to attach to: what belongs to the first `--serving`, then to the second, and so on."""
    parts = given.replay, given.metrics, given.tokenizer, given.speed
    for name, part in zip(("replay", "metrics", "tokenizer", "speed"), parts, strict=True):
        if len(part) > len(given.serving):
            parser.error(f"There are more --{name} than --serving: give one for each, in the same order.")
    if not all(0 <= speed < float("inf") for speed in given.speed):
        parser.error("A recording is played 0 (at once) or more times as fast as it was: give such a --speed.")
    for name in given.serving:
        if "://" not in name and not os.path.isfile(name):
            parser.error(f"'{name}' is no address and no recording: give one like tcp://HOST:5557.")
    specs = []
    for number, endpoint in enumerate(given.serving):
        replay, metrics, tokenizer = (
            "" if number >= len(part) or part[number] == "-" else part[number] for part in parts[:3]
        )
        speed = given.speed[number] if number < len(given.speed) else 0.0
        specs.append(ServerSpec(endpoint, replay, metrics, tokenizer, speed))
    return tuple(specs)


def _parser() -> OneLineParser:
    parser = OneLineParser("kvloupe", description="Look into the KV cache of a language model, step by step.")
    parser.add_argument(
        "snapshot",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="a snapshot or a session to be looked at, without its model",
    )
    parser.add_argument(
        "--model", default="bundled", help="bundled, a folder, a hub name on this computer, or shape:CONFIG.json"
    )
    parser.add_argument(
        "--adapter", action="append", default=[], metavar="DIR", help="a LoRA adapter that is put on the model"
    )
    parser.add_argument("--cache", default="growing", metavar="NAME", help=f"one of {NAMES}")
    parser.add_argument(
        "--device", help="auto, cpu, cuda, cuda:1, mps, or split: over all GPUs; as remembered unless given"
    )
    parser.add_argument("--dtype", help=f"{', '.join(get_args(Dtype))}; as remembered unless given")
    parser.add_argument("--threads", type=int, help="threads of a CPU; as remembered unless given")
    parser.add_argument("--weights", help=f"{', '.join(WEIGHTS)}; as remembered unless given")
    parser.add_argument("--runner", default="auto", help=f"what computes the forwards: {', '.join(RUNNERS)}")
    parser.add_argument("--paged-attention", default="auto", help=f"how pages are read: {', '.join(PAGED_ATTENTION)}")
    parser.add_argument(
        "--engine",
        metavar="WHERE",
        help=f"where the engine runs: {', '.join(CHOICES)} (as suits the device), or another machine, as "
        "ssh://[user@]HOST[:port][/COMMAND]; as remembered unless given",
    )
    parser.add_argument("--theme", choices=("system", "dark", "light"), help="as remembered unless given")
    parser.add_argument("--prompt", help="the text in the prompt panel")
    parser.add_argument("--tour", type=Path, metavar="DIR", help="drive the window; pictures and exports go into DIR")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="how many tokens the tour generates")
    parser.add_argument("--size", default="1600x1000", metavar="WxH", help="size of the tour's window")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="another settings file")
    parser.add_argument("--sessions", type=Path, metavar="DIR", help="another folder for the journals of sessions")
    parser.add_argument(
        "--kept-mib", type=int, metavar="MIB",
        help="memory that checkpoints (caches of steps you left) may take; as remembered unless given",
    )  # fmt: skip
    parser.add_argument(
        "--serving", action="append", default=[], metavar="ADDRESS",
        help="attach to a server that publishes KV events, like tcp://HOST:5557 (ranks: tcp://HOST:5557-5560), or "
        "play a recording of one; again for each further server",
    )  # fmt: skip
    parser.add_argument("--replay", action="append", default=[], metavar="ADDRESS",
                        help="where it repeats what was missed, like tcp://HOST:5558; - for none")  # fmt: skip
    parser.add_argument("--metrics", action="append", default=[], metavar="URL",
                        help="its page of metrics, like http://HOST:8000/metrics; - for none")  # fmt: skip
    parser.add_argument("--tokenizer", action="append", default=[], metavar="DIR",
                        help="the folder of the model that it serves; - for none")  # fmt: skip
    parser.add_argument("--speed", action="append", default=[], type=float, metavar="X",
                        help="how many times as fast a recording is played; at once unless given")  # fmt: skip
    parser.add_argument("--doctor", action="store_true", help="say what is installed and what is missing")
    return parser


def _size(text: str, parser: OneLineParser) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        parser.error(f"The size '{text}' is not WIDTHxHEIGHT, like 1600x1000.")
    size = int(width), int(height)
    if not all(200 <= side <= 16_000 for side in size):
        parser.error(f"The size {text} is outside 200 … 16000 pixels.")
    return size


def sessions_path() -> Path:
    """Return the folder of the sessions' journals, by the conventions of this system."""
    return Path(platformdirs.user_data_dir("kvloupe", appauthor=False)) / "sessions"


def settings_path() -> Path:
    """Return the settings file, by the conventions of this system."""
    return Path(platformdirs.user_config_dir("kvloupe", appauthor=False)) / "settings.ini"
