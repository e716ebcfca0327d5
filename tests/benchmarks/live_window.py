"""What an open window costs the decoding: tokens per second with the window at work over the same engine without.

Both are the same engine in the same client, computing with one thread; headless, its events are taken every 33 ms,
more often than the window takes them. The window is 1600 x 1000 with wall, head, newest row, pages and timings on it.
Tokens per second come from the records' own times. Processor milliseconds per token, of the engine's threads and of
all, say what the window adds where the machine has other work; the share of a core is what its own thread takes (a
headless one only drains).

    python tests/benchmarks/live_window.py [--short] [--cache paged] [--engine process] [--models bundled,shape]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from engine.client import Client

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

PROMPT_TOKENS, WARM_UP = 24, 32
PANELS = ("wall", "head", "attention", "pages", "timings")


class Meter:
    """Sees every record that is taken and knows when the run is over."""

    def __init__(self, tokens: int, client: Client) -> None:
        self._tokens = tokens
        self._child = psutil.Process(pid) if (pid := getattr(client, "process_id", None)) is not None else None
        self._times: list[float] = []
        self._cpu: list[float] = []
        self._own: list[float] = []

    def take(self, events: Sequence[object]) -> bool:
        """Whether all of them are there."""
        from engine.wire.records import Failed, StepRecord

        for event in events:
            if isinstance(event, Failed):
                raise SystemExit(event.message)
            if isinstance(event, StepRecord) and event.phase == "decode":
                self._times.append(event.wall_time)
                self._cpu.append(time.process_time() + self._child_time())
                self._own.append(time.thread_time())
        return len(self._times) >= self._tokens + WARM_UP

    def _child_time(self) -> float:
        """Processor seconds of an engine in a process of its own."""
        if self._child is None:
            return 0.0
        times = self._child.cpu_times()
        return times.user + times.system

    def result(self) -> dict[str, float]:
        times, cpu = self._times[WARM_UP:], self._cpu[WARM_UP:]
        return {
            "speed": (len(times) - 1) / (times[-1] - times[0]),
            "window": 100 * (self._own[-1] - self._own[WARM_UP]) / (times[-1] - times[0]),
            "engine": (cpu[-1] - cpu[0] - self._own[-1] + self._own[WARM_UP]) * 1e3 / (len(times) - 1),
            "cpu": (cpu[-1] - cpu[0]) * 1e3 / (len(times) - 1),
        }


def opened(engine: str) -> Client:
    """An engine of that kind, which has been asked for nothing yet."""
    from engine.client import open_client

    return open_client("process" if engine == "process" else "thread")


def ask(client: Client, model: str, cache: str, tokens: int) -> None:
    """All of its work at once."""
    from engine.spec.model import ModelSpec
    from engine.spec.presets import cache_preset
    from engine.spec.sampling import Prompt
    from engine.wire.commands import LoadModel, Run, SubmitPrompt

    client.send(LoadModel(ModelSpec(model, num_threads=1), cache_preset(cache).spec))
    client.send(SubmitPrompt(Prompt(token_ids=tuple(range(5, 5 + PROMPT_TOKENS)))))
    client.send(Run(tokens + WARM_UP + 1))


def headless(engine: str, model: str, cache: str, tokens: int) -> dict[str, float]:
    client = opened(engine)
    meter = Meter(tokens, client)
    ask(client, model, cache, tokens)
    while not meter.take(client.drain()):
        time.sleep(0.033)
    return meter.result()


def window(engine: str, model: str, cache: str, tokens: int) -> dict[str, float]:
    from PySide6.QtCore import QTimer
    from PySide6.QtWidgets import QApplication

    import app.kit.heatmap_image  # noqa: F401  # as the program does before the first picture
    from app.control.clock import Clock
    from app.kit.theme import load_fonts
    from app.shell import Shell
    from app.start.settings import Settings

    application = QApplication([])
    load_fonts()
    client = opened(engine)
    meter = Meter(tokens, client)

    def drain() -> list[object]:
        events = client.drain()
        if meter.take(events):
            QTimer.singleShot(0, application.quit)
        return list(events)

    shell = Shell(application, Settings(), client.send, drain)  # type: ignore[arg-type]
    clock = Clock(shell.controller)
    shell.window.resize(1600, 1000)
    shell.window.show()
    application.processEvents()
    for name in PANELS:
        shell.window.docks.docks[name].raise_()
        assert shell.window.panels[name].isVisible(), f"{name} is not on the screen"
    ask(client, model, cache, tokens)
    clock.start()
    if path := os.environ.get("WINDOW_PROFILE"):  # of the window's thread alone
        import cProfile

        profile = cProfile.Profile()
        profile.runcall(application.exec)
        profile.dump_stats(path)
    else:
        application.exec()
    return meter.result()


def child(kind: str, engine: str, model: str, cache: str, tokens: int) -> dict[str, float]:
    """One run in a process of its own."""
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    platform = {} if has_display else {"QT_QPA_PLATFORM": os.environ.get("QT_QPA_PLATFORM", "offscreen")}
    done = subprocess.run(
        [sys.executable, __file__, "--child", kind, engine, model, cache, str(tokens)],
        env={**os.environ, **platform, "USE_HUB_KERNELS": "0", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode or not done.stdout.strip():
        raise SystemExit(f"a run ended early:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        kind, engine, model, cache, tokens = sys.argv[2:]
        result = (headless if kind == "headless" else window)(engine, model, cache, int(tokens))
        print(json.dumps(result), flush=True)
        os._exit(0)
    from tests.benchmarks.protocol import SMOLLM2_135M, Paired, header, progress

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--cache", default="paged")
    parser.add_argument("--engine", choices=("thread", "process"), default="process")
    parser.add_argument("--models", default="bundled,shape")
    args = parser.parse_args()
    pairs, tokens = (3, 100) if args.short else (7, 200)
    print(f"the window's tax: {tokens} tokens, {args.cache} cache, engine in a {args.engine}, 1600 x 1000")
    print(header("headless", "window"))
    with tempfile.TemporaryDirectory() as folder:
        shape = Path(folder) / "config.json"
        shape.write_text(json.dumps(SMOLLM2_135M), "utf-8")
        for name in args.models.split(","):
            model = f"shape:{shape}" if name == "shape" else name
            runs: dict[str, list[dict[str, float]]] = {"headless": [], "window": []}
            for pair in range(pairs):
                for kind in ("headless", "window") if pair % 2 == 0 else ("window", "headless"):
                    progress(f"{name}, pair {pair + 1}, {kind} …")
                    runs[kind].append(child(kind, args.engine, model, args.cache, tokens))
            rows = (
                ("speed", "tok/s", "decoding"),
                ("engine", "ms", "engine's processor per token"),
                ("cpu", "ms", "all processor per token"),
                ("window", "%", "window's thread of a core"),
            )
            for key, unit, what in rows:
                values = {kind: tuple(run[key] for run in done) for kind, done in runs.items()}
                label = "SmolLM2's shape" if name == "shape" else name
                print(Paired(values["headless"], values["window"]).row(f"{label}, {what}", unit), flush=True)


if __name__ == "__main__":
    main()
