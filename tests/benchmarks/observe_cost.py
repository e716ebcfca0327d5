"""What observing a step costs: at a long context over a short one, and at each capture level over the one below.

    python tests/benchmarks/observe_cost.py [--short] [--threads 1] [--cache growing] [--device cuda]

The first line is the cost of observing (statistics, candidates, attention rows, record) at 8,192 tokens over the cost
at 256: it should not grow with what exists. Target: at most 1.15. The others are whole steps of one session that stands
at one place: of two sessions the one whose K and V the processor's caches happen to hold is faster by up to a tenth.
Target of the newest attention row, all heads, over a step of statistics: at most 1.05.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.device import device_now
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.model import CAPTURES, CaptureLevel
from tests.benchmarks.decode_speed import filled_session
from tests.benchmarks.protocol import add_places, header, paired, places_of, seconds_since


def observe_ms(session: Session, steps: int) -> float:
    """Median milliseconds of observing, from the records."""
    return statistics.median(session.step().timings.observe_ms for _ in range(steps))


def step_ms(session: Session, level: CaptureLevel) -> float:
    """Milliseconds of one step at that capture level."""
    session.captured.set(level, by_layer=False)
    began = device_now(session.model.device)
    session.step()
    return seconds_since(began, session.model.device) * 1e3


def standing_at(model: LoadedModel, spec: CacheSpec, context: int) -> Session:
    session = filled_session(model, spec, context)
    session.step()
    return session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--cache", default="growing")
    add_places(parser, max(1, (os.cpu_count() or 2) - 1))
    args = parser.parse_args()
    pairs, steps, near, far = (3, 8, 256, 4096) if args.short else (9, 16, 256, 8192)
    spec = cache_preset(args.cache).spec
    for place in places_of(args):
        model = place.model()
        print(f"{place.words()}, cache {args.cache}; milliseconds per step")
        close, distant = standing_at(model, spec, near), standing_at(model, spec, far)
        print(header(f"{near:,}", f"{far:,}"))
        found = paired(partial(observe_ms, close, steps), partial(observe_ms, distant, steps), pairs)
        print(found.row(place.named("observing"), "ms"))
        print(header("below", "level"))
        for context, session in ((near, close), (far, distant)):
            for below, level in pairwise(CAPTURES):
                a, b = partial(step_ms, session, below), partial(step_ms, session, level)
                name = place.named(f"a step at {context:,}: {level} over {below}")
                print(paired(a, b, 2 * steps).row(name, "ms", (below, level)), flush=True)


if __name__ == "__main__":
    main()
