"""Is a key painted as soon with an engine over ssh as with one in a process beside the window?

Two windows in one process, on loopback: one on the local process, one on an engine over a real ssh and a real sshd that
is started for it (where there is none, a stub that runs its last argument: it encrypts nothing). In turn, the order
swapped with each pair: from a key or a click to the painted picture of the head, for a step (its forward included), for
looking back a step, and for choosing a head. Target: at most 1.5 times the local process.

    python tests/benchmarks/ssh_line.py [--short] [--cache paged] [--model bundled]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.live_window import ANSWERS, Live, scrubs, selects, steps
from tests.benchmarks.protocol import Paired, header
from tests.engine.client.sshd import Sshd, programs, sshd

TOKENS = 100
SHORT = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help=f"{SHORT} pairs in place of {ANSWERS}")
    parser.add_argument("--cache", default="paged")
    parser.add_argument("--model", default="bundled")
    args = parser.parse_args()
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    with tempfile.TemporaryDirectory() as folder, sshd(Path(folder)) as server:
        print(f"over {'a real sshd' if isinstance(server, Sshd) else f'a stub of ssh ({server})'}, {args.cache} cache")
        bin_ = programs(Path(folder)) if isinstance(server, str) else server.bin
        os.environ["PATH"] = f"{bin_}{os.pathsep}{os.environ['PATH']}"
        windows = [
            Live(engine, args.model, args.cache, TOKENS) for engine in ("process", f"ssh://rack{bin_}/kvloupe-engine")
        ]
        for live in windows:
            live.run()
            live.until(lambda live=live: live.shell.controller.is_idle, 30.0)  # type: ignore[misc]
        print(header("process", "ssh"), flush=True)
        for name, waits in (("step", steps), ("look back", scrubs), ("choose a head", selects)):
            print(
                pairs([waits(live) for live in windows], SHORT if args.short else ANSWERS).row(name, "ms"), flush=True
            )
        for live in windows:
            live.client.close(10.0)
    os._exit(0)


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
