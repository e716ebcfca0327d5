"""Is a key painted as soon with an engine over ssh as with one in a process beside the window?

Two windows in one process, on loopback: one on the local process, one on an engine over a real ssh and a real sshd that
is started for it (where there is none, a stub that runs its last argument: it encrypts nothing). In turn, the order
swapped with each pair: from a key or a click to the painted picture of the head, for a step (its forward included), for
looking back a step, and for choosing a head. Target: at most 1.5 times the local process.

Then, where there is an sshd, over a line of 1 MB/s and beside the window: how old a picture of the head is when it is
painted, from the end of its step on, behind the prompt and during a run; and at rest, how long it takes until another
lens is painted on the wall, and until the whole of it is, and the same of the three walls of a comparison. Target: at
most 0.3 s, but for the whole. On a machine that is busy the engine's own time is more than the line's.

    python tests/benchmarks/ssh_line.py [--short] [--cache paged] [--model bundled] [--ages] [--prompt TOKENS]
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.spec.cache import cache_preset
from engine.wire.comparison import OtherRun
from tests.benchmarks.live_window import ANSWERS, Live, scrubs, selects, steps
from tests.benchmarks.protocol import Paired, header
from tests.engine.client.sshd import Sshd, programs, sshd

TOKENS = 100
SHORT = 8
LONG, MANY = 300, 500  # tokens of a prompt, and of a run over the slow line
REST_S = 2.0  # longer than a whole wall takes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help=f"{SHORT} pairs in place of {ANSWERS}")
    parser.add_argument("--cache", default="paged")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--ages", action="store_true", help="only the slow line")
    parser.add_argument("--prompt", type=int, default=LONG, metavar="TOKENS", help="over the slow line")
    args = parser.parse_args()
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    with tempfile.TemporaryDirectory() as folder, sshd(Path(folder)) as server:
        print(f"over {'a real sshd' if isinstance(server, Sshd) else f'a stub of ssh ({server})'}, {args.cache} cache")
        bin_ = programs(Path(tempfile.mkdtemp(dir=folder))) if isinstance(server, str) else server.bin
        os.environ["PATH"] = f"{bin_}{os.pathsep}{os.environ['PATH']}"
        if not args.ages:
            keys(f"ssh://rack{bin_}/kvloupe-engine", args)
        if isinstance(server, Sshd):
            words = [sys.executable, str(Path(__file__).with_name("slow_line.py")), str(server.port)]
            slow = server.add_host("slow", f"ProxyCommand {shlex.join(words)}")
            for where, address in (("beside the window", "process"), ("over 1 MB/s", slow)):
                prompt, found, walls, compared = ages(address, args.model, args.cache, args.prompt)
                middle, late, oldest = (found[round(share * (len(found) - 1))] for share in (0.5, 0.95, 1.0))
                first, whole = map(max, zip(*walls, strict=True))
                three, all_three = map(max, zip(*compared, strict=True))
                print(
                    f"{where} the picture of the prompt is {prompt:.2f} s old, others {middle:.2f} s, "
                    f"95 % at most {late:.2f} s, the oldest {oldest:.2f} s "
                    f"({len(found)} pictures); at rest another wall is there after at most {first:.2f} s, "
                    f"whole after {whole:.2f} s, the three of a comparison after {three:.2f} s and {all_three:.2f} s",
                    flush=True,
                )
    os._exit(0)


def keys(address: str, args: argparse.Namespace) -> None:
    """Print how long keys and clicks take."""
    windows = [Live(engine, args.model, args.cache, TOKENS) for engine in ("process", address)]
    for live in windows:
        live.run()
        live.until(lambda live=live: live.shell.controller.is_idle, 30.0)  # type: ignore[misc]
    print(header("process", "ssh"), flush=True)
    for name, waits in (("step", steps), ("look back", scrubs), ("choose a head", selects)):
        print(pairs([waits(live) for live in windows], SHORT if args.short else ANSWERS).row(name, "ms"), flush=True)
    for live in windows:
        live.client.close(10.0)


Waits = list[tuple[float, float]]  # seconds until a picture is there first, and whole


def ages(address: str, model: str, cache: str, num_prompt: int) -> tuple[float, list[float], Waits, Waits]:
    """Seconds between the end of a long prompt and the painting of its picture of a head; those of the steps behind it,
    shortest first; and those until another wall is painted at rest, and until three of a comparison have come."""
    live, found, of_prompt = Live(address, model, cache, MANY, num_prompt), list[float](), list[float]()

    def on_painted(name: str) -> None:
        piece, records = live.shell.window.head.picture, live.shell.models.timeline.records
        if name == "head" and piece is not None and (live.meter.is_warm or not of_prompt):
            done = (
                record.wall_time
                for record in reversed(records)
                if record.sequences[0].num_tokens == piece.request.num_tokens
            )
            (found if live.meter.is_warm else of_prompt).extend(time.time() - each for each in islice(done, 1))

    live.painted.heard = on_painted
    live.run()
    live.painted.heard = None
    live.until(lambda: live.shell.controller.is_idle, 20.0)
    live.until(lambda: False, REST_S)
    walls = [another_wall(live, lens) for lens in ("values", "keys") * 2]
    live.shell.window.arrange("compare")
    live.shell.window.compare().compare_with(OtherRun(cache_preset("int8").spec))
    comparison = live.shell.models.comparison
    live.until(lambda: comparison.pictures is not None, 60.0)
    live.until(lambda: False, 2 * REST_S)
    compared = [other_walls(live, lens) for lens in ("values", "keys") * 2]
    live.client.close(10.0)
    return of_prompt[0], sorted(found), walls, compared


def other_walls(live: Live, lens: str) -> tuple[float, float]:
    """Seconds until the walls of a comparison have come in that lens, and until the whole of them have."""
    times, began = list[float](), time.perf_counter()
    live.shell.models.comparison.pictured.connect(lambda: times.append(time.perf_counter()))
    live.shell.models.selection.update(lens=lens)
    live.until(lambda: False, 2 * REST_S)
    live.shell.models.comparison.pictured.disconnect()
    return times[0] - began, times[-1] - began


def another_wall(live: Live, lens: str) -> tuple[float, float]:
    """Seconds until a wall of that lens is painted, and until the last one of it is."""
    canvas, times = live.shell.window.wall.canvas, list[float]()

    def on_painted(name: str) -> None:
        picture = canvas.state.picture
        if name == "wall" and picture is not None and picture.request.lens == lens:
            times.append(time.perf_counter())

    live.painted.heard = on_painted
    began = time.perf_counter()
    live.shell.models.selection.update(lens=lens)
    live.until(lambda: False, REST_S)
    live.painted.heard = None
    return times[0] - began, times[-1] - began


def pairs(waits: list[Iterator[float]], count: int) -> Paired:
    """Milliseconds of both windows, in turn; the first of each is a warm-up."""
    found: tuple[list[float], list[float]] = [], []
    for number in range(count):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            found[side].append(next(waits[side]))
    for each in waits:
        list(each)  # to where they end, as the next question begins there
    return Paired(tuple(found[0][1:]), tuple(found[1][1:]))


if __name__ == "__main__":
    main()
