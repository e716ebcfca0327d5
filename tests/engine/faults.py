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

import torch
import transformers

T = TypeVar("T")

ENGINE = str(Path(__file__).resolve().parents[2] / "engine")
MODELS = str(Path(transformers.__file__).parent / "models")
CACHES = str(Path(transformers.__file__).parent / "cache_utils.py")
PLACES = (ENGINE, MODELS, CACHES)
LOOKS = ("size", "dim", "stride", "numel", "nelement", "data_ptr", "element_size", "is_contiguous", "storage_offset")
FIRST_CALL = 8  # of a generator: the instruction that it stands at, at most


class Injected(MemoryError):
    """The failure that a test asked for."""


Site = tuple[str, str, int]  # of a call: file and name of what is called, and the line that calls it


class CallCounter:
    """Counts calls of the engine's and the model's own functions, in all and by site, and fails the one it is told to:
    the `fail_at`th of all, or of those at a site. `of_torch`: what they call of torch, each a room for numbers that may
    not be had, counts as well."""

    def __init__(self, fail_at: int | None = None, site: Site | None = None, *, of_torch: bool = False) -> None:
        self.fail_at, self._site, self._of_torch = fail_at, site, of_torch
        self.seen = 0
        self.sites: Counter[Site] = Counter()
        self.failed_in = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_call"):
            return
        code, site = frame.f_code, self._site
        if site is not None:  # what cannot be it is told by its names: numbers of lines have to be worked out
            if code.co_filename != site[0] or site[1] != (
                code.co_name if event == "call" else f"torch {argument.__name__}"
            ):
                return
        elif not code.co_filename.startswith(PLACES):
            return
        if event == "c_call" and self._of_torch and is_of_torch(argument):
            self._count((code.co_filename, f"torch {argument.__name__}", frame.f_lineno))
        elif event == "call" and not (code.co_flags & CO_GENERATOR and frame.f_lasti > FIRST_CALL):
            # one that goes on, or is closed, loses what is raised then
            self._count((code.co_filename, code.co_name, frame.f_back.f_lineno if frame.f_back else 0))

    def _count(self, site: Site) -> None:
        self.seen += 1
        self.sites[site] += 1
        if self.fail_at == (self.seen if self._site is None else self.sites[self._site] if site == self._site else 0):
            self.failed_in = f"{Path(site[0]).name}:{site[1]}"
            sys.setprofile(None)
            raise Injected(self.failed_in)


def is_of_torch(function: Any) -> bool:
    """Whether a built-in function belongs to tensors or to torch, and is not a mere look at a tensor's form."""
    owner = getattr(function, "__self__", None)
    is_its = isinstance(owner, torch.Tensor) or (getattr(function, "__module__", None) or "").startswith("torch")
    is_its = is_its or (getattr(type(owner), "__module__", None) or "").startswith("torch")
    return is_its and function.__name__ not in LOOKS


def failing_at(number: int, work: Callable[[], T], site: Site | None = None, *, of_torch: bool = False) -> T | Injected:
    """What `work` gives, or the failure of its call `number`, of all or of those at a site."""
    return attempt(work, CallCounter(number, site, of_torch=of_torch))


def attempt(work: Callable[[], T], counter: CallCounter) -> T | Injected:
    """What `work` gives, or the failure that `counter` makes. Where `work` could go on after that, its `failed_in` is
    set all the same."""
    try:
        with counting_by(counter):
            return work()
    except Injected as failure:
        return failure


@contextmanager
def counting(fail_at: int | None = None, site: Site | None = None, *, of_torch: bool = False) -> Iterator[CallCounter]:
    with counting_by(CallCounter(fail_at, site, of_torch=of_torch)) as counter:
        yield counter


@contextmanager
def counting_by(counter: CallCounter) -> Iterator[CallCounter]:
    sys.setprofile(counter)
    try:
        yield counter
    finally:
        sys.setprofile(None)
