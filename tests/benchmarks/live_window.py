"""A window that watches a running engine: what it costs the decoding, and how live it is.

Paired with the same engine without a window, for the engine in a process of its own and in a thread of the window's,
with one thread to compute: tokens per second from the records' own times, the ratio of the two, pictures a second that
were painted and showed something new (wall, head, newest row), how often words were told, and the window's share of a
core. What a picture costs the window's process in processor time means something on a busy machine too. Headless,
events are taken every 33 ms. The window is 1600 x 1000 with wall, head, newest row, pages and timings. The tokens are
forced, so that all runs do the same work.

Then once for each engine how the window answers: how late a precise timer of 4 ms comes while the engine runs and
exports, how long its thread works between two looks for events, and from a key or a click to the painted picture, for a
step (its forward included), for looking back a step, and for choosing a head. What measures that costs the window a
part of its time, and is in no other run.

    python tests/benchmarks/live_window.py [--short] [--cache paged] [--engines process,thread] [--models bundled,shape]

Nothing else should run beside it; the spread of the pairs says how far to trust a number.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.live_meters import WARM_UP, Meter, Painted, Stretches

if TYPE_CHECKING:
    from engine.client import Client

PROMPT_TOKENS = 24
PANELS = ("wall", "head", "attention", "pages", "timings")
TOKENS = {"bundled": (400, 200), "shape": (200, 90)}  # in all, in a short run
HEARTBEAT_MS, ANSWERS = 4, 20


def opened(engine: str) -> Client:
    """An engine of that kind, or at that address, to which nothing has been sent yet."""
    from engine.client import open_client

    return open_client(engine)


def ask(client: Client, model: str, cache: str, tokens: int, prompt_tokens: int) -> None:
    """Send all commands of a run at once."""
    from engine.spec.cache import cache_preset
    from engine.spec.model import ModelSpec
    from engine.spec.sampling import Prompt
    from engine.wire.commands import Force, LoadModel, Run, SubmitPrompt

    client.send(LoadModel(ModelSpec(model, num_threads=1), cache_preset(cache).spec))
    client.send(SubmitPrompt(Prompt(token_ids=tuple(5 + n % 200 for n in range(prompt_tokens)))))
    client.send(Force(0, tuple(5 + n % 200 for n in range(tokens + WARM_UP + 2 * ANSWERS))))
    client.send(Run(tokens + WARM_UP + 1))


def headless(engine: str, model: str, cache: str, tokens: int, folder: str) -> dict[str, float]:
    client = opened(engine)
    meter = Meter(tokens, client)
    ask(client, model, cache, tokens, PROMPT_TOKENS)
    while not meter.take(client.drain()):
        time.sleep(0.033)
    return meter.result()


class Live:
    """A window on an engine that runs."""

    def __init__(self, engine: str, model: str, cache: str, tokens: int, prompt_tokens: int = PROMPT_TOKENS) -> None:
        from PySide6.QtWidgets import QApplication

        import app.kit.graphics  # noqa: F401  # as the program does before the first picture
        from app.control.controller import FrameClock, GarbageTimer
        from app.kit.theme import load_fonts
        from app.shell import Shell
        from app.start.settings import Settings

        self.application = QApplication.instance() or QApplication([])
        gc.freeze()  # as the program does once its libraries are imported
        self._garbage = GarbageTimer()
        self._garbage.start()
        load_fonts()
        self.client = opened(engine)
        self.meter = Meter(tokens, self.client)
        self.shell = Shell(self.application, Settings(), self.client.send, self._drain)
        self.painted = Painted(self.shell)
        self._clock = FrameClock(self.shell.controller)
        self.client.listen(self._clock.ring)
        self._began: dict[str, float] = {}
        self._counted: dict[str, float] = {}
        self.is_over = False
        window = self.shell.window
        window.resize(1600, 1000)
        window.show()
        window.activateWindow()
        self.application.processEvents()
        for name in PANELS:
            window.docks.docks[name].show()  # not every one is on the screen at first
            window.docks.docks[name].raise_()
            assert window.panels[name].isVisible(), f"{name} is not on the screen"
        ask(self.client, model, cache, tokens, prompt_tokens)

    def _drain(self) -> list[Any]:
        events = self.client.drain()
        is_over = self.meter.take(events)
        if self.meter.is_warm and not self._began:
            self._began = {**self.painted.counts, "time": time.monotonic(), "cpu": time.process_time()}
        if is_over and not self.is_over:
            self.is_over = True
            elapsed = time.monotonic() - self._began["time"]
            self._counted = {name: (n - self._began[name]) / elapsed for name, n in self.painted.counts.items()}
            spent = time.process_time() - self._began["cpu"]
            self._counted["picture cost"] = spent * 1e3 / max(1, self.painted.counts["wall"] - self._began["wall"])
            self.application.exit()  # quitting would close the window
        return events

    def run(self) -> None:
        self._clock.start()
        if path := os.environ.get("WINDOW_PROFILE"):  # of the window's thread alone
            import cProfile

            profile = cProfile.Profile()
            profile.runcall(self.application.exec)
            profile.dump_stats(path)
        else:
            self.application.exec()

    def result(self) -> dict[str, float]:
        return self.meter.result() | self._counted

    def until(self, done: Callable[[], object], limit_s: float = 5.0) -> None:
        end = time.monotonic() + limit_s
        while not done() and time.monotonic() < end:
            self.application.processEvents()
            time.sleep(0.0005)


def window(engine: str, model: str, cache: str, tokens: int, folder: str) -> dict[str, float]:
    live = Live(engine, model, cache, tokens)
    live.run()
    return live.result()


def answering(engine: str, model: str, cache: str, tokens: int, folder: str) -> dict[str, float]:
    """How late the window's timer comes while the engine runs and exports, and how soon keys and clicks are painted."""
    from PySide6.QtCore import Qt, QTimer

    from app.dialogs.export import whole_session

    live = Live(engine, model, cache, tokens)
    stretches = Stretches(lambda: live.meter.is_warm and not live.is_over)
    beats: list[float] = []
    heart = QTimer()
    heart.setTimerType(Qt.TimerType.PreciseTimer)
    heart.timeout.connect(lambda: beats.append(time.perf_counter()) if live.meter.is_warm else None)
    heart.start(HEARTBEAT_MS)

    def export() -> None:
        if not live.meter.is_warm:
            QTimer.singleShot(100, export)
        else:
            live.shell.intents.send(whole_session(live.shell.models, Path(folder) / "live.kvsnap"))

    export()
    live.run()
    heart.stop()
    late = sorted(max(0.0, (b - a) * 1e3 - HEARTBEAT_MS) for a, b in pairwise(beats))
    found = {"late p99": quantile(late, 0.99), "late max": late[-1]}
    millis = sorted(stretches.millis)
    found |= {"at a time p99": quantile(millis, 0.99), "at a time max": millis[-1]}
    live.until(lambda: live.shell.controller.is_idle)
    for name, waits in (("step", steps(live)), ("scrub", scrubs(live)), ("select", selects(live))):
        found[name] = quantile(sorted(waits), 0.95)
    return found


def quantile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def awaited(live: Live, act: Callable[[], None], shown: Callable[[Any], bool]) -> float:
    """Milliseconds from an action to the first painted head picture for which `shown` holds."""
    times: list[float] = []
    head = live.shell.window.head

    def on_painted(name: str) -> None:
        if name == "head" and not times and shown(head.picture.request):
            times.append(time.perf_counter())

    live.painted.heard = on_painted
    began = time.perf_counter()
    act()
    live.until(lambda: times)
    live.painted.heard = None
    live.until(lambda: live.shell.controller.is_idle)
    return (times[0] - began) * 1e3 if times else float("inf")


def steps(live: Live) -> Iterator[float]:
    for _ in range(ANSWERS):
        count = live.shell.models.timeline.num_tokens(0)
        yield awaited(
            live,
            live.shell.actions["run.step"].trigger,  # what its key triggers
            lambda request, wanted=count + 1: request.num_tokens == wanted,  # type: ignore[misc]
        )


def scrubs(live: Live) -> Iterator[float]:
    for back in range(1, ANSWERS + 1):
        count = live.shell.models.timeline.num_tokens(0) - back
        yield awaited(
            live,
            live.shell.actions["run.back"].trigger,
            lambda request, wanted=count: request.num_tokens == wanted,  # type: ignore[misc]
        )
    live.shell.navigator.on_live()
    live.until(lambda: live.shell.controller.is_idle)


def selects(live: Live) -> Iterator[float]:
    from PySide6.QtCore import QPoint, Qt
    from PySide6.QtTest import QTest

    canvas = live.shell.window.wall.canvas
    tiles = canvas.layout_now.pictures if canvas.layout_now is not None else ()
    for number in range(1, ANSWERS + 1):
        tile = tiles[number * 7 % len(tiles)]
        point = QPoint(tile.x + tile.width // 2, tile.y + tile.height // 2)
        place = tile.layer, tile.kv_head
        yield awaited(
            live,
            lambda point=point: QTest.mouseClick(canvas, Qt.MouseButton.LeftButton, pos=point),  # type: ignore[misc]
            lambda request, place=place: (request.layer, request.kv_head) == place,  # type: ignore[misc]
        )


KINDS: dict[str, Callable[[str, str, str, int, str], dict[str, float]]] = {
    "headless": headless,
    "window": window,
    "answering": answering,
}


def child(kind: str, engine: str, model: str, cache: str, tokens: int, folder: str) -> dict[str, float]:
    """One run in a process of its own."""
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    platform = {} if has_display else {"QT_QPA_PLATFORM": os.environ.get("QT_QPA_PLATFORM", "offscreen")}
    done = subprocess.run(
        [sys.executable, __file__, "--child", kind, engine, model, cache, str(tokens), folder],
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
        kind, engine, model, cache, count, folder = sys.argv[2:]
        print(json.dumps(KINDS[kind](engine, model, cache, int(count), folder)), flush=True)
        os._exit(0)
    from tests.benchmarks.protocol import SMOLLM2_135M, header

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--cache", default="paged")
    parser.add_argument("--engines", default="process,thread")
    parser.add_argument("--models", default="bundled,shape")
    args = parser.parse_args()
    print(f"a window that watches: {args.cache} cache, one thread to compute, 1600 x 1000, {os.cpu_count()} cores")
    print(header("headless", "window"))
    with tempfile.TemporaryDirectory() as folder:
        shape = Path(folder) / "config.json"
        shape.write_text(json.dumps(SMOLLM2_135M), "utf-8")
        for name in args.models.split(","):
            for engine in args.engines.split(","):
                model = f"shape:{shape}" if name == "shape" else name
                label = f"{'SmolLM2' if name == 'shape' else name}, {engine}"
                compare(
                    label,
                    engine,
                    model,
                    args.cache,
                    TOKENS["shape" if name == "shape" else "bundled"],
                    args.short,
                    folder,
                )


def compare(
    label: str, engine: str, model: str, cache: str, tokens: tuple[int, int], is_short: bool, folder: str
) -> None:
    """Print what one engine does with one model."""
    from tests.benchmarks.protocol import Paired, progress

    runs: dict[str, list[dict[str, float]]] = {"headless": [], "window": []}
    count = tokens[1] if is_short else tokens[0]
    for pair in range(3 if is_short else 7):
        for kind in ("headless", "window") if pair % 2 == 0 else ("window", "headless"):
            progress(f"{label}, pair {pair + 1}, {kind} …")
            runs[kind].append(child(kind, engine, model, cache, count, folder))
    for key, unit, what in (
        ("speed", "tok/s", "decoding"),
        ("cpu", "ms", "all processor per token"),
        ("window", "%", "window's thread of a core"),
    ):
        values = {kind: tuple(run[key] for run in done) for kind, done in runs.items()}
        print(Paired(values["headless"], values["window"]).row(f"{label}, {what}", unit), flush=True)
    for key, what in (("wall", "walls"), ("head", "heads"), ("row", "newest rows"), ("words", "words")):
        found = [run[key] for run in runs["window"]]
        middle = statistics.median(found)
        print(f"{label}, {what:<28} {middle:>9.1f} a second   ({min(found):.1f} … {max(found):.1f})", flush=True)
    found = [run["picture cost"] for run in runs["window"]]
    what, middle = "window's process, a picture", statistics.median(found)
    print(f"{label}, {what:<28} {middle:>9.1f} ms   ({min(found):.1f} … {max(found):.1f})", flush=True)
    progress(f"{label}, answering …")
    answers = child("answering", engine, model, cache, count, folder)
    words = " · ".join(f"{name} {value:.0f} ms" for name, value in answers.items())
    print(f"{label}, timer late, processor time at a time, key or click to paint (p95): {words}", flush=True)


if __name__ == "__main__":
    main()
