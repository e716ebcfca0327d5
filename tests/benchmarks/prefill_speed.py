"""Time to first token against transformers' generate with one new token; same threads, same model, one run.

    python tests/benchmarks/prefill_speed.py [--short] [--contexts 512,4096] [--cache growing] [--device cuda]

Statistics and attention rows are captured, as in the window. The surprisal of a long prompt needs the logits of all
tokens, where generate makes those of the last: it is computed after the first token, when the engine rests, and is told
apart, with the time of its longest slice. Further columns are the longest time between two moments
at which a cancel is noticed, in whatever chunk, and the sizes of the last prompt's chunks. Target: a ratio of at
most 1.0, and 300 ms.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from engine.device import device_now
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_preset
from engine.spec.sampling import Prompt
from tests.benchmarks.protocol import (
    GREEDY,
    Place,
    add_places,
    header,
    native_attention,
    note_ratios,
    paired,
    places_of,
    progress,
    seconds_since,
)

CANCEL_S = 0.3  # the longest time between two checks for a cancel


def prompt(count: int) -> tuple[int, ...]:
    ids: list[int] = torch.randint(3, 49_000, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    return tuple(ids)


class Ours:
    """Our session; `longest_s` is the longest time between two checks for a cancel."""

    def __init__(self, model: LoadedModel, spec: CacheSpec) -> None:
        self._session = Session(model, spec)
        self.longest_s = self._looked = 0.0
        self.chunks: list[int] = []
        self.pictures_s: list[float] = []  # of the surprisal of the last prompt

    def _look(self) -> None:
        now = time.perf_counter()
        self.longest_s, self._looked = max(self.longest_s, now - self._looked), now

    def first_token(self, ids: tuple[int, ...]) -> float:
        """Seconds from a prompt to its first token."""
        session = self._session
        self._looked, began = time.perf_counter(), device_now(session.model.device)
        self.chunks = []
        seq_id = session.submit(Prompt(token_ids=ids))
        while session.sequence(seq_id).is_prefilling:
            record = session.step(self._look)
            self._look()
            self.chunks.append(len(record.sequences[0].token_ids))
        took = seconds_since(began, session.model.device)
        self.pictures_s.clear()
        while session.history.surprisal.is_waiting:
            began = device_now(session.model.device)
            session.history.surprisal.advance()
            self.pictures_s.append(seconds_since(began, session.model.device))
        session.remove(seq_id)
        session.forget_history()
        return took


@torch.inference_mode()
def generate(model: LoadedModel, ids: tuple[int, ...]) -> float:
    """Seconds of transformers' generate, greedy, dynamic cache, its own attention, one new token."""
    with native_attention(model):
        began = device_now(model.device)
        model.model.generate(torch.tensor([ids], device=model.device), max_new_tokens=1, **GREEDY)
        return seconds_since(began, model.device)


def measure(place: Place, model: LoadedModel, cache: str, count: int, pairs: int) -> None:
    """Measure a prompt of so many tokens and return its row."""
    ids, ours = prompt(count), Ours(model, cache_preset(cache).spec)
    found = paired(lambda: generate(model, ids), lambda: ours.first_token(ids), pairs)
    name, cancel = f"{count:,} tokens", f"{count:,} tokens: longest until a cancel is seen"
    note_ratios(place.named(cancel), "s", (CANCEL_S,), (ours.longest_s,), ("limit", "ours"))
    longest = f" longest between looks {ours.longest_s * 1e3:.0f} ms, chunks {ours.chunks}"
    slowest = max(ours.pictures_s, default=0.0) * 1e3
    late = f"; surprisal {sum(ours.pictures_s):.2f} s later, its longest slice {slowest:.0f} ms"
    print(found.row(place.named(name), "s"), longest + late, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--contexts", default="512,4096")
    parser.add_argument("--cache", default="growing")
    add_places(parser)
    args = parser.parse_args()
    for place in places_of(args):
        model = place.model()
        print(f"{place.words()}, cache {args.cache}; seconds to the first token")
        print(header("generate", "ours"))
        for count in map(int, args.contexts.split(",")):
            progress(f"{count} tokens …")
            measure(place, model, args.cache, count, 2 if args.short else 7)


if __name__ == "__main__":
    main()
