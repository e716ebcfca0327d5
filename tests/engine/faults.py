"""Let the k-th function call inside a block fail, for every k: no site of failure is forgotten."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import transformers

T = TypeVar("T")

ENGINE = str(Path(__file__).resolve().parents[2] / "engine")
MODELS = str(Path(transformers.__file__).parent / "models")
CACHES = str(Path(transformers.__file__).parent / "cache_utils.py")
PLACES = (ENGINE, MODELS, CACHES)
# what undoes a failure is not asked to fail as well, and an assignment or a comparison cannot
SPARED = {"_undo", "release_undo", "switch", "recomputes", "<genexpr>", "<listcomp>", "<dictcomp>", "<lambda>"}
SPARED |= {"_free_all", "_free_one", "entry", "push"}  # a page going free: counts and flags, set after every check


class Injected(MemoryError):
    """The failure that a test asked for."""


class CallCounter:
    """Counts calls of the engine's and the model's own functions, and fails the one it is told to."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.fail_at = fail_at
        self.seen = 0
        self.failed_in = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PLACES) or code.co_name in SPARED:
            return
        self.seen += 1
        if self.seen == self.fail_at:
            self.failed_in = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"
            sys.setprofile(None)
            raise Injected(self.failed_in)


def failing_at(number: int, work: Callable[[], T]) -> T | Injected:
    """What `work` gives, or the failure of its call `number`."""
    try:
        with counting(fail_at=number):
            return work()
    except Injected as failure:
        return failure


@contextmanager
def counting(fail_at: int | None = None) -> Iterator[CallCounter]:
    counter = CallCounter(fail_at)
    sys.setprofile(counter)
    try:
        yield counter
    finally:
        sys.setprofile(None)
