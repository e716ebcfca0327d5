"""How a step at fixed addresses is recorded and replayed: as a CUDA graph, compiled, or, without either, run again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Protocol

import torch

Step = Callable[[], Sequence[torch.Tensor]]
Replay = Callable[[], None]

WARM_UPS = 2  # allocations and choices of kernels that are made once must not be recorded


class Recorder(Protocol):
    """`name` is what the runner is called that records so."""

    name: str

    def record(self, step: Step) -> tuple[Sequence[torch.Tensor], Replay]:
        """The outputs of a step, at addresses that stay, and what computes them anew. Raises `RuntimeError` where the
        step cannot be recorded."""
        ...


class CudaGraphs:
    """All kernels of a step as one launch. What they read and write must be where it was."""

    name = "graph"

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, step: Step) -> tuple[Sequence[torch.Tensor], Replay]:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = step()
        return outputs, graph.replay


class Twin:
    """The same step run again into the same outputs, where there is no CUDA: what a graph would do wrong with stale
    addresses or numbers baked in, this does wrong too."""

    name = "graph"

    def record(self, step: Step) -> tuple[Sequence[torch.Tensor], Replay]:
        return replayed(step, step())


class Compiled:
    """The step through torch.compile: fewer and larger kernels. The first steps of a length take minutes."""

    name = "compile"

    def record(self, step: Step) -> tuple[Sequence[torch.Tensor], Replay]:
        compiled: Step = torch.compile(step, dynamic=False)
        return replayed(compiled, [output.clone() for output in compiled()])


def replayed(step: Step, outputs: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], Replay]:
    """The outputs, and what runs the step into them."""

    def replay() -> None:
        for output, new in zip(outputs, step(), strict=True):
            output.copy_(new)

    return outputs, replay


def recorder_of(name: str, device: torch.device) -> Recorder:
    """What a runner records with on a device."""
    if name == "compile":
        return Compiled()
    return CudaGraphs() if device.type == "cuda" else Twin()


def why_not_compiled(device: torch.device) -> str:
    """Why nothing can be compiled here, empty where it can."""
    if device.type == "cpu":
        has_one = any(map(shutil.which, ("g++", "clang++", "cl")))
        return "" if has_one else "no C++ compiler is installed"
    return "" if find_spec("triton") is not None else "Triton is not installed"
