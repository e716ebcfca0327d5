"""torch.compile in two parts: what takes minutes is done first and computes nothing, so that it can be given up."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

import torch

# does what takes minutes and computes nothing: at once, or beside whoever looks for a cancel, and then raises
Compiling = Callable[[Callable[[], None]], None]

NOT_COMPILED = "Detected recompile"  # in torch's words for a call that nothing was compiled for
BACKEND = "inductor"  # of torch.compile
MOST_SHAPES = 64  # that are compiled of a function

_is_compiling: ContextVar[bool] = ContextVar("is_compiling", default=False)


class OnlyCompiled(BaseException):
    """What was called is compiled; nothing of it was computed."""


class Compiler:
    """A function of tensors as torch compiles it, for each kind of arguments by itself; `dynamic` is torch.compile's:
    whether sizes that change are compiled in."""

    def __init__(self, function: Callable[..., Any], compiling: Compiling, dynamic: bool | None = None) -> None:
        self._compiling = compiling
        self._function: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=apart)

    def __call__(self, *arguments: Any) -> Any:
        found = self.run(*arguments)
        if found is None:
            self.compile(*arguments)
            found = self._function(*arguments)
        return found

    def run(self, *arguments: Any) -> Any:
        """What the function returns; None, and nothing done, where it is not compiled for such arguments."""
        try:
            with torch.compiler.set_stance("fail_on_recompile"):
                return self._function(*arguments)
        except RuntimeError as error:
            if NOT_COMPILED not in str(error):
                raise
            return None

    def compile(self, *arguments: Any) -> None:
        """For such arguments; nothing is computed. Raises whatever torch and its compilers raise."""
        allow_shapes()
        self._compiling(in_any_thread(lambda: self._compile(arguments)))

    def _compile(self, arguments: tuple[Any, ...]) -> None:
        told = _is_compiling.set(True)
        try:
            self._function(*arguments)
        except OnlyCompiled:
            pass
        finally:
            _is_compiling.reset(told)


def apart(graph: Any, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """The backend that torch.compile is given. torch keeps it for good: it must know nothing of a model."""
    compute = torch._dynamo.lookup_backend(BACKEND)(graph, inputs)

    def run(*tensors: Any) -> Any:
        if _is_compiling.get():
            raise OnlyCompiled
        return compute(*tensors)

    return run


def allow_shapes() -> None:
    """torch compiles 8 shapes of a function and computes every later one as it stands, without a word."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_SHAPES)


def in_any_thread(work: Callable[[], object]) -> Callable[[], None]:
    """The work, to be done in whatever thread as in this one: torch's settings do not go to others by themselves."""
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
    """Where nobody can cancel."""
    work()


def why_not_compiled(device: torch.device) -> str:
    """Why nothing can be compiled here, empty where it can."""
    if device.type == "cpu":
        has_one = any(map(shutil.which, ("g++", "clang++", "cl")))
        return "" if has_one else "no C++ compiler is installed"
    return "" if find_spec("triton") is not None else "Triton is not installed"
