"""torch.compile in two phases: compilation takes minutes but computes nothing, so it can be cancelled; the call comes
after it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

import torch

# runs a compilation: in this thread, or in another one while this one waits, and raises, for a cancel
Compiling = Callable[[Callable[[], None]], None]

NOT_COMPILED = "Detected recompile"  # in torch's message for arguments that nothing was compiled for
BACKEND: str | Callable[..., Any] = "inductor"  # of torch.compile
MOST_SHAPES = 64  # for which one function may be compiled

_is_compiling: ContextVar[bool] = ContextVar("is_compiling", default=False)


class OnlyCompiled(BaseException):
    """Raised in place of a computation when a function is called only to compile it."""


class Compiler:
    """A function of tensors compiled by torch, separately for each kind of arguments. `dynamic` is torch.compile's:
    whether sizes may change without compiling again."""

    def __init__(self, function: Callable[..., Any], compiling: Compiling, dynamic: bool | None = None) -> None:
        self._compiling = compiling
        compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=two_phase_backend)
        self._function: Callable[..., Any] = compiled

    def __call__(self, *arguments: Any) -> Any:
        found = self.run(*arguments)
        if found is None:
            self.compile(*arguments)
            found = self._function(*arguments)
        return found

    def run(self, *arguments: Any) -> Any:
        """Call the function if it is compiled for such arguments; else do nothing and return None."""
        try:
            with torch.compiler.set_stance("fail_on_recompile"):
                return self._function(*arguments)
        except RuntimeError as error:
            if NOT_COMPILED not in str(error):
                raise
            return None

    def compile(self, *arguments: Any) -> None:
        """Compile the function for such arguments, without computing anything. Raises whatever torch and its compilers
        raise."""
        allow_shapes()
        self._compiling(in_any_thread(lambda: self._compile(arguments)))

    def _compile(self, arguments: tuple[Any, ...]) -> None:
        token = _is_compiling.set(True)
        try:
            self._function(*arguments)
        except OnlyCompiled:
            pass
        finally:
            _is_compiling.reset(token)


def two_phase_backend(graph: Any, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """The backend for torch.compile: computes with inductor's code, or raises `OnlyCompiled` while compiling. torch
    keeps a backend for ever, so it must not reference a model."""
    compute = torch._dynamo.lookup_backend(BACKEND)(graph, inputs)

    def run(*tensors: Any) -> Any:
        if _is_compiling.get():
            raise OnlyCompiled
        return compute(*tensors)

    return run


def allow_shapes() -> None:
    """Raise torch's limit of compiled shapes. By default it is 8 for a function, and for any later shape torch silently
    runs uncompiled code."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_SHAPES)


def in_any_thread(work: Callable[[], object]) -> Callable[[], None]:
    """The work wrapped so that it runs in another thread as in this one: torch's settings are per thread."""
    num_threads, is_inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    card = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def done() -> None:
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
        if card is not None and torch.cuda.current_device() != card:
            torch.cuda.set_device(card)
        with torch.inference_mode(is_inference):
            work()

    return done


def at_once(work: Callable[[], None]) -> None:
    """Run the work in this thread, where nothing can cancel it."""
    work()


def why_not_compiled(device: torch.device) -> str:
    """The reason why nothing can be compiled here, empty where it can."""
    if device.type == "cpu":
        has_one = any(map(shutil.which, ("g++", "clang++", "cl")))
        return "" if has_one else "no C++ compiler is installed"
    return "" if find_spec("triton") is not None else "Triton is not installed"
