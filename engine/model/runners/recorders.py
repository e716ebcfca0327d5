"""Recorders of decode steps at fixed addresses: CUDA graphs, torch.compile, or, on a CPU, running the step again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakSet, ref

import torch

from engine.model.runners.compiler import Compiler, Compiling

StepFunction = Callable[[], Sequence[torch.Tensor]]
ReplayFunction = Callable[[], None]

OF_EMPTY_GRAPH = "CUDA Graph is empty"  # in torch's warning at the end of a capture
OVERWRITTEN = 0xA5  # written instead of NaN to outputs of integer dtypes
WARM_UPS = 2  # runs before recording, for allocations and kernel choices that happen only once


class GraphRecorder(Protocol):
    """`name` is the runner that uses the recorder, `doing` the word shown while it records; `takes_strip`: measurements
    of a step can be recorded with it."""

    name: str
    doing: str
    takes_strip: bool

    def record(self, step: StepFunction) -> tuple[Sequence[torch.Tensor], ReplayFunction]:
        """Run and record a step; returns its outputs, at fixed addresses, and a function that computes them again.
        Raises `RuntimeError` where the step cannot be recorded."""
        ...


class CudaGraphRecorder:
    """Records all kernels of a step as one CUDA graph. What they read and write must stay at its address. All
    recordings share one memory pool, so the replay of one may overwrite the outputs of another. torch frees a pool with
    its last recording."""

    name, doing, takes_strip = "graph", "Recording", True

    def __init__(self, device: torch.device) -> None:
        self._device = device  # of the model, which need not be the current one
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()  # recordings that still exist

    def record(self, step: StepFunction) -> tuple[Sequence[torch.Tensor], ReplayFunction]:
        with torch.cuda.device(self._device):
            caller = torch.cuda.current_stream()
            self._stream.wait_stream(caller)
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    step()
            caller.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            if not self._graphs:
                self._pool = torch.cuda.graph_pool_handle()
            try:
                outputs = self._captured(graph, step)
            finally:
                torch.cuda.set_stream(caller)  # a failed capture leaves its own stream as the current one
        self._graphs.add(graph)
        return outputs, lambda: self._replay(graph)

    def _captured(self, graph: torch.cuda.CUDAGraph, step: StepFunction) -> Sequence[torch.Tensor]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                outputs = step()
        for warning in caught:
            if OF_EMPTY_GRAPH in str(warning.message):  # torch only warns, but its replay would do nothing
                raise RuntimeError("nothing of the step is computed on the stream that was recorded")
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        if any(output.device != self._device for output in outputs):
            raise RuntimeError(f"the step computes on another device than {self._device}")
        return outputs

    def _replay(self, graph: torch.cuda.CUDAGraph) -> None:
        with torch.cuda.device(self._device):
            graph.replay()


class RerunRecorder:
    """Stands in for CUDA graphs where there is no CUDA, so that tests find their typical errors: runs the same step
    again into the same outputs. Stale addresses, numbers recorded as constants, and outputs overwritten by another
    recording give wrong results here too."""

    name, doing, takes_strip = "graph", "Recording", True

    def __init__(self) -> None:
        self._recorded: list[list[ref[torch.Tensor]]] = []  # the outputs of every recording

    def record(self, step: StepFunction) -> tuple[Sequence[torch.Tensor], ReplayFunction]:
        outputs, replay = replayed(step, step())
        mine = list(map(ref, outputs))
        self._recorded = [*(each for each in self._recorded if each[0]() is not None), mine]

        def overwriting() -> None:
            for output in (output() for each in self._recorded if each is not mine for output in each):
                if output is not None:
                    output.fill_(torch.nan if output.is_floating_point() else OVERWRITTEN)
            replay()

        return outputs, overwriting


class CompileRecorder:
    """Records a step through torch.compile: fewer and larger kernels. The first step of a length takes minutes. Inside
    a kernel, numbers are not rounded as they are when stored, so measurements are computed after the step from its
    outputs."""

    name, doing, takes_strip = "compile", "Compiling", False

    def __init__(self, compiling: Compiling) -> None:
        self._compiling = compiling

    def record(self, step: StepFunction) -> tuple[Sequence[torch.Tensor], ReplayFunction]:
        compiled = Compiler(step, self._compiling, dynamic=False)
        return replayed(compiled, [output.clone() for output in compiled()])


def replayed(step: StepFunction, outputs: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], ReplayFunction]:
    """The outputs, and a function that runs the step again and copies its results into them."""

    def replay() -> None:
        for output, new in zip(outputs, step(), strict=True):
            output.copy_(new)

    return outputs, replay


def recorder_of(name: str, device: torch.device, compiling: Compiling) -> GraphRecorder:
    """The recorder for a runner on a device."""
    if name == "compile":
        return CompileRecorder(compiling)
    return CudaGraphRecorder(device) if device.type == "cuda" else RerunRecorder()
