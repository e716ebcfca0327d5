"""Steps are recorded on the card of the model, and the thread is on the stream it was on, whatever a recording does.

There is no card here: these are the calls that `CudaGraphRecorder` makes, on cards that keep only which one is current.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from engine.model.runners import compiler
from engine.model.runners.compiler import at_once
from engine.model.runners.launch import CompileRecorder, CudaGraphRecorder


class Cards:
    """`current` is the card of the calls, `streams` the current stream of each."""

    def __init__(self) -> None:
        self.current = torch.device("cuda", 0)
        self.streams: dict[torch.device, FakeStream] = {}
        self.captured: list[tuple[torch.device, object]] = []
        self.replayed: list[torch.device] = []
        self.is_empty = False

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device
        try:
            yield
        finally:
            self.current = before

    def current_stream(self) -> FakeStream:
        return self.streams.setdefault(self.current, FakeStream(self))

    def set_stream(self, stream: FakeStream) -> None:
        self.streams[stream.device] = stream

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before = self.current_stream()
        self.set_stream(stream)
        yield
        self.set_stream(before)

    @contextmanager
    def graph(self, graph: object, pool: object, stream: FakeStream) -> Iterator[None]:
        """Without `finally`, as torch's own: an error leaves the stream of the capture."""
        assert pool == ("pool", stream.device)
        with self.stream(stream):
            self.captured.append((self.current, stream))
            yield
            if self.is_empty:
                warnings.warn("The CUDA Graph is empty. This usually means that", stacklevel=2)


class FakeStream:
    def __init__(self, cards: Cards) -> None:
        self.device = cards.current

    def wait_stream(self, other: FakeStream) -> None:
        assert self.device == other.device


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    made = Cards()

    class Graph:
        def replay(self) -> None:
            made.replayed.append(made.current)

    for name in ("device", "current_stream", "set_stream", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: FakeStream(made))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: ("pool", made.current))
    return made


class Output:
    def __init__(self, device: torch.device) -> None:
        self.device = device


SECOND = torch.device("cuda", 1)


def step_on(cards: Cards, seen: list[Any]) -> list[Any]:
    seen.append((cards.current, cards.current_stream()))
    return [Output(SECOND)]


def test_a_step_is_recorded_and_replayed_on_the_card_of_the_model(cards: Cards) -> None:
    seen: list[Any] = []
    recorder = CudaGraphRecorder(SECOND)
    with cards.device(SECOND):
        caller = cards.current_stream()
    _, replay = recorder.record(lambda: step_on(cards, seen))
    assert [device for device, _ in seen] == [SECOND] * 3, "two to warm up, and the one that is recorded"
    assert len({stream for _, stream in seen} - {caller}) == 1
    assert cards.captured == [seen[-1]]
    assert cards.streams[SECOND] is caller
    replay()
    assert cards.replayed == [SECOND]
    assert cards.current == torch.device("cuda", 0)


def test_a_step_that_fails_while_it_is_recorded_leaves_the_thread_on_its_own_stream(cards: Cards) -> None:
    recorder = CudaGraphRecorder(SECOND)
    with cards.device(SECOND):
        caller = cards.current_stream()

    def step() -> list[Any]:
        if cards.captured:
            raise RuntimeError("operation not permitted when stream is capturing")
        return [Output(SECOND)]

    with pytest.raises(RuntimeError, match="not permitted"):
        recorder.record(step)
    assert cards.streams[SECOND] is caller


def test_a_recording_without_a_kernel_is_refused(cards: Cards) -> None:
    """Its replay would leave the outputs of the first step for ever."""
    cards.is_empty = True
    with pytest.raises(RuntimeError, match="nothing of the step is computed on the stream"):
        CudaGraphRecorder(SECOND).record(lambda: [Output(SECOND)])  # type: ignore[list-item]


def test_it_is_refused_where_a_person_hides_warnings(cards: Cards) -> None:
    cards.is_empty = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="nothing of the step is computed on the stream"):
            CudaGraphRecorder(SECOND).record(lambda: [Output(SECOND)])  # type: ignore[list-item]


def test_a_step_of_another_card_is_refused(cards: Cards) -> None:
    """Its recording would be empty, and its outputs those of one step for ever."""
    recorder = CudaGraphRecorder(SECOND)
    with pytest.raises(RuntimeError, match="another device than cuda:1"):
        recorder.record(lambda: [Output(torch.device("cuda", 0))])  # type: ignore[list-item]


def test_more_steps_are_compiled_than_torch_allows_of_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every recording of a step is the same function to torch, which beyond its limit would compile none."""
    compiled = []

    def backend(graph: Any, inputs: object) -> Any:
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(compiler, "BACKEND", backend)

    def step_of(count: int) -> Any:
        return lambda: [torch.ones(count).cumsum(0)]

    with torch._dynamo.config.patch(recompile_limit=8):  # a monkeypatch would leave torch without a limit
        for count in range(2, 14):
            outputs, replay = CompileRecorder(at_once).record(step_of(count))
            replay()
            assert outputs[0][-1] == count
    assert len(compiled) == 12
