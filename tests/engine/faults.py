"""Let the k-th function call inside a block fail, for every k: no site of failure is forgotten."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import transformers

T = TypeVar("T")

ENGINE = str(Path(__file__).resolve().parents[2] / "engine")
MODELS = str(Path(transformers.__file__).parent / "models")
CACHES = str(Path(transformers.__file__).parent / "cache_utils.py")
PLACES = (ENGINE, MODELS, CACHES)
FIRST_CALL = 8  # of a generator: the instruction that it stands at, at most


class Injected(MemoryError):
    """The failure that a test asked for."""


Site = tuple[str, str, int]  # of a call: file and name of what is called, and the line that calls it


class CallCounter:
    """Counts calls of the engine's and the model's own functions, in all and by site, and fails the one it is told to:
    the `fail_at`th of all, or of those at a site."""

    def __init__(self, fail_at: int | None = None, site: Site | None = None) -> None:
        self.fail_at, self._site = fail_at, site
        self.seen = 0
        self.sites: Counter[Site] = Counter()
        self.failed_in = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PLACES):
            return
        if code.co_flags & CO_GENERATOR and frame.f_lasti > FIRST_CALL:
            return  # it goes on, or is closed, and what is raised then is lost
        self.seen += 1
        site = (code.co_filename, code.co_name, frame.f_back.f_lineno if frame.f_back else 0)
        self.sites[site] += 1
        if self.fail_at == (self.seen if self._site is None else self.sites[self._site] if site == self._site else 0):
            self.failed_in = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"
            sys.setprofile(None)
            raise Injected(self.failed_in)


def failing_at(number: int, work: Callable[[], T], site: Site | None = None) -> T | Injected:
    """What `work` gives, or the failure of its call `number`, of all or of those at a site."""
    try:
        with counting(number, site):
            return work()
    except Injected as failure:
        return failure


@contextmanager
def counting(fail_at: int | None = None, site: Site | None = None) -> Iterator[CallCounter]:
    counter = CallCounter(fail_at, site)
    sys.setprofile(counter)
    try:
        yield counter
    finally:
        sys.setprofile(None)
