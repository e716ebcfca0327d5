"""Records decode steps, once for each bucket of lengths, and replays them with new inputs at the same addresses."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch

from engine.cache.attention_probe import Probe
from engine.cache.contract import Pair
from engine.cache.fixed import FixedRows, Layout, PagedBuffers, fixed_rows
from engine.device import free_bytes, to_device
from engine.errors import Memory, first_line, is_of_device, is_out_of_memory, needed_and_free, remedies
from engine.look.measures import PackedLayout, PackedMeasures, WantedMeasures, measured_step
from engine.model.attention import Attend, explicit_weights, weighted_values
from engine.model.batch import Batch, Result
from engine.model.runners.compiler import Compiler, Compiling
from engine.model.runners.decoder import FusedDecoder
from engine.model.runners.pages import PAGES, Kernel

StepFunction = Callable[[], Sequence[torch.Tensor]]
ReplayFunction = Callable[[], None]

OF_EMPTY_GRAPH = "CUDA Graph is empty"  # in torch's warning at the end of a capture
OVERWRITTEN = 0xA5  # written instead of NaN to outputs of integer dtypes
WARM_UPS = 2  # runs before recording, for allocations and kernel choices that happen only once


class CudaGraphRecorder:
    """Records all kernels of a step as one CUDA graph. As of every recorder, `name` is the runner that uses it, `doing`
    the word shown while it records, and `takes_measures` whether measurements of a step can be recorded with it.

    What the kernels read and write must stay at its address. All recordings share one memory pool, so the replay of one
    may overwrite the outputs of another. torch frees a pool with its last recording.
    """

    name, doing, takes_measures = "graph", "Recording", True

    def __init__(self, device: torch.device) -> None:
        self._device = device  # of the model, which need not be the current one
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()  # recordings that still exist

    def record(self, step: StepFunction) -> tuple[Sequence[torch.Tensor], ReplayFunction]:
        """Run and record a step; returns its outputs, at fixed addresses, and a function that computes them again.
        Raises `RuntimeError` where the step cannot be recorded."""
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

    name, doing, takes_measures = "graph", "Recording", True

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

    name, doing, takes_measures = "compile", "Compiling", False

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


GraphRecorder = CudaGraphRecorder | RerunRecorder | CompileRecorder


def recorder_of(name: str, device: torch.device, compiling: Compiling) -> GraphRecorder:
    """The recorder for a runner on a device."""
    if name == "compile":
        return CompileRecorder(compiling)
    return CudaGraphRecorder(device) if device.type == "cuda" else RerunRecorder()


SMALLEST_BUCKET = 64
OF_CAPTURE = "captur"  # in CUDA's messages that a step cannot be recorded, after which the device still works
REPLAYS_COMPARED = 2
MOST_LAUNCHES = 12  # kept for one cache: that many buckets reach from 64 tokens to 3,072

# attention module, query, keys that it reads -> weights [B, H, 1, bucket], which are also kept where they are recorded
WeightsOf = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
Announce = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class LaunchKey:
    """Everything that is constant in a recorded step: a step with another key needs another recording."""

    recorder: str
    weights: tuple[int, ...]  # addresses
    dtype: torch.dtype
    device: torch.device
    batch: int
    bucket: int
    layout: Layout  # kind, capacity and addresses of the cache
    shows_weights: bool  # whether attention weights are an output
    kernel: Kernel | None = None  # reads pages in place
    wanted: WantedMeasures | None = None  # measurements that are recorded with the step


def bucket_of(num_tokens: int, room: int | None) -> int:
    """How many rows a step reads for sequences of `num_tokens` tokens, the step's own included: the next of 64, 96,
    128, 192, 256 … but at most `room`."""
    size = SMALLEST_BUCKET
    while size < num_tokens:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size if room is None else min(size, room)


class Launch:
    """One recorded step. Its inputs (token ids `[B, 1]`, positions `[B, 1]` and page table) are overwritten in place.
    Its outputs (logits `[B, 1, V]`, `weights` `[B, H, bucket]` by layer, and what was `measured`) are valid until the
    next replay."""

    def __init__(
        self, decoder: FusedDecoder, rows: FixedRows, key: LaunchKey, recorder: GraphRecorder, ids: torch.Tensor
    ) -> None:
        self._bucket, self._shows, self._kernel = key.bucket, key.shows_weights, key.kernel
        self._ids, self._positions = torch.zeros_like(ids), torch.zeros_like(ids)
        host = rows.tables(key.bucket)
        self._table = None if host is None else host.to(ids.device)
        self._host_table = host
        self._wanted = key.wanted
        self._layers: list[int] = []
        self._layout: PackedLayout | None = None
        self._num_unproven = REPLAYS_COMPARED
        self._decoder, self._recorder = decoder, recorder
        self._buffers = rows.buffers  # not the rows, which would keep the cache alive

    def record(self) -> None:
        """Record the step with the inputs of a real one. This runs it, and writes the rows that its replay will write
        again."""
        self._outputs, self._replay = self._recorder.record(self._computed)

    def fill(self, ids: torch.Tensor, lengths: Sequence[int], rows: FixedRows) -> None:
        """Set the inputs of the next replay."""
        self._ids.copy_(ids)
        self._positions.copy_(to_device(torch.tensor(lengths)[:, None], ids.device))
        table = rows.tables(self._bucket)
        if table is not None and self._table is not None and not torch.equal(table, self._host_table):  # type: ignore[arg-type]
            self._table.copy_(to_device(table, ids.device))
            self._host_table = table

    def replay(self) -> torch.Tensor:
        """Run the step and return its logits. The first replays are compared with the same step computed directly: the
        second one has other inputs than the recording, and so reveals inputs that were recorded as constants. Raises
        `RuntimeError` if results differ."""
        if self._num_unproven == 0:
            self._replay()
            return self._outputs[0]
        expected = self._computed()  # writes the same rows that the replay writes
        self._replay()
        pairs = zip(self._outputs, expected, strict=True)
        if not all(is_near(*pair) for pair in pairs if pair[0].is_floating_point()) or not self._measures_correctly():
            raise RuntimeError("a recorded step gives other numbers than the same step computed at once")
        self._num_unproven -= 1
        return self._outputs[0]

    @property
    def weights(self) -> dict[int, torch.Tensor]:
        return dict(zip(self._layers, self._outputs[1], strict=True)) if self._shows else {}

    @property
    def measured(self) -> PackedMeasures | None:
        """What was measured of the step; the next replay overwrites it."""
        return None if self._layout is None else PackedMeasures(self._layout, *self._outputs[-2:])

    def _measures_correctly(self) -> bool:
        """Whether the latest replay's measurements are those of its outputs and of the rows that the cache holds
        now."""
        if self._wanted is None or (measured := self.measured) is None:
            return True
        rows = self._buffers.newest(self._positions, self._table)
        weights = self._outputs[1] if self._shows else None
        logits = self._outputs[0][:, -1]
        return measured.agrees(measured_step(self._wanted, logits, rows, weights, self._positions))

    def _computed(self) -> list[torch.Tensor]:
        columns = torch.arange(self._bucket, device=self._ids.device)
        kept = (columns <= self._positions)[:, None, None]  # [B, 1, 1, bucket]
        seen: dict[int, torch.Tensor] = {}
        rows: dict[int, Pair] = {}

        def weights_of(attn: Any, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
            weights = explicit_weights(query, keys, kept, attn.scaling, None, None)
            if self._shows:
                seen[attn.layer_idx] = weights[:, :, 0]
            return weights

        read = self._gathering(weights_of) if self._kernel is None else self._in_place(self._kernel, weights_of)

        def attend(attn: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            rows[attn.layer_idx] = keys, values
            return read(attn, query, keys, values)

        hidden = self._decoder.embedded(self._ids)
        hidden = self._decoder.run_layers(hidden, self._decoder.rotation(hidden, self._positions), attend)
        outputs = [self._decoder.head(hidden)]
        self._layers = list(seen)
        if self._shows:
            outputs.append(torch.stack(list(seen.values())))  # [L, B, H, bucket]
        if self._wanted is not None:
            weights = outputs[1] if self._shows else None
            found = measured_step(self._wanted, outputs[0][:, -1], rows, weights, self._positions)
            self._layout = found.layout
            outputs += [found.packed, found.logprobs]
        return outputs

    def _gathering(self, weights_of: WeightsOf) -> Attend:
        """An `Attend` that reads the first rows of a buffer, or pages gathered into one tensor."""
        append = self._buffers.appending(self._positions, self._table, self._bucket)

        def attend(attn: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            held_keys, held_values = append(attn.layer_idx, keys, values)
            return weighted_values(weights_of(attn, query, held_keys), held_values)

        return attend

    def _in_place(self, kernel: Kernel, weights_of: WeightsOf) -> Attend:
        """An `Attend` that reads the pool's pages in place; only for weights that are recorded, the keys are
        gathered."""
        buffers, table = self._buffers, self._table
        assert isinstance(buffers, PagedBuffers)
        assert table is not None
        write, blocks = buffers.writing(self._positions, table), buffers.blocks(self._positions, table)
        gather = buffers.gathering(self._positions, table, self._bucket)

        def attend(attn: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            held_keys, held_values = write(attn.layer_idx, keys, values)
            if self._shows:
                weights_of(attn, query, gather(held_keys))
            return kernel(query, held_keys, held_values, blocks, attn.scaling).transpose(1, 2)

        return attend


class Launches:
    """Records steps when they first occur, and replays them. If a step could not be recorded, `refused` gives the
    reason, and none is recorded any more. If memory ran out for a step, its key is in `too_large_text`, and others are
    recorded again."""

    def __init__(self, decoder: FusedDecoder, recorder: GraphRecorder, announce: Announce) -> None:
        self._decoder, self._recorder, self._telling = decoder, recorder, announce
        self._of: WeakKeyDictionary[object, OrderedDict[LaunchKey, Launch]] = WeakKeyDictionary()
        self.refused, self.too_large_text = "", dict[LaunchKey, str]()

    def run(self, batch: Batch) -> Result | None:
        """The result of one more token for each sequence, `[B, 1]`. None, and nothing is done, where the rows of this
        cache have no fixed addresses, or the step cannot be recorded. What is wanted is measured if the recorder
        supports it."""
        rows = None if self.refused else fixed_rows(batch.cache, batch.lengths)
        if rows is None:
            return None
        if batch.check is not None:
            batch.check()
        decoder, ids, probe, had = self._decoder, batch.ids, batch.probe, batch.starts
        # torch.compile takes minutes, so it compiles once for the whole capacity instead of for each bucket
        is_whole = rows.capacity is not None and self._recorder.name == "compile"
        bucket = rows.capacity if is_whole and rows.capacity else bucket_of(max(had) + 1, rows.capacity)
        numbers, kernel = (decoder.addresses, decoder.dtype, ids.device), batch.pages.kernel if batch.pages else None
        wanted = batch.wanted if self._recorder.takes_measures else None
        key = LaunchKey(self._recorder.name, *numbers, len(ids), bucket, rows.layout, probe is not None, kernel, wanted)
        if key in self.too_large_text:
            return None
        try:
            launch = self._launch(key, rows, ids, had)
            logits = launch.replay()
        except RuntimeError as error:
            if is_of_device(error) and OF_CAPTURE not in str(error):
                raise
            self._note_failure(key, error)
            return None
        rows.count_row()
        if probe is not None:
            record_weights(probe, launch.weights, had, is_batch=batch.lengths is not None)
        name = self._recorder.name
        measured = None if launch.measured is None else launch.measured.clone()
        return Result(logits, (name,) if kernel is None else (name, PAGES), measured)

    @property
    def note(self) -> str:
        """Which steps could not be recorded, and why; empty where all could."""
        if self.refused:
            return f"({self.refused})"
        return next(reversed(self.too_large_text.values()), "")

    def try_again(self) -> None:
        """Allow recording again, after a failure."""
        self.refused = ""
        self.too_large_text.clear()

    def forget(self, cache: Any) -> None:
        """Drop the recordings of one cache."""
        if layers := getattr(cache, "layers", None):
            self._of.pop(layers[0], None)

    def _note_failure(self, key: LaunchKey, error: RuntimeError) -> None:
        """Note that a step could not be recorded. If memory ran out, all recordings are dropped."""
        shortage = shortage_in(error)
        if shortage is None:
            self.refused = first_line(error)
            return
        self._of.clear()
        memory = needed_and_free(shortage, Memory(str(key.device), free_bytes(key.device)))
        why = f"memory ran out, {memory}; to have them {remedies('a decode step')}"
        self.too_large_text[key] = f"of up to {key.bucket:,} tokens ({why})"

    def _launch(self, key: LaunchKey, rows: FixedRows, ids: torch.Tensor, had: Sequence[int]) -> Launch:
        """The recording for a key with its inputs set; recorded now if there is none."""
        mine = self._of.setdefault(rows.owner, OrderedDict())
        for old in [old for old in mine if old.layout != key.layout]:
            del mine[old]  # it keeps buffers alive that the cache no longer uses
        if (launch := mine.get(key)) is not None:
            mine.move_to_end(key)
            launch.fill(ids, had, rows)
            return launch
        rows.clear_from(min(had))
        launch = Launch(self._decoder, rows, key, self._recorder, ids)
        launch.fill(ids, had, rows)
        with self._telling(f"{self._recorder.doing} a step of up to {key.bucket:,} tokens"):
            launch.record()
        mine[key] = launch
        if len(mine) > MOST_LAUNCHES:
            mine.popitem(last=False)
        return launch


def is_near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two outputs differ by rounding at most, and have NaN or infinity at the same places."""
    near = torch.finfo(found.dtype).eps ** 0.75  # of the norm: 6e-6 in float32, 3 % in bfloat16
    found, expected = found.float(), expected.float()
    if not torch.equal(found.isfinite(), expected.isfinite()):
        return False
    found, expected = found.nan_to_num(0.0, 0.0, 0.0), expected.nan_to_num(0.0, 0.0, 0.0)
    return bool((found - expected).norm() <= near * expected.norm())


def shortage_in(error: BaseException) -> BaseException | None:
    """The out-of-memory error behind this one, if any: a recording that fails for it may end with another error."""
    seen: BaseException | None = error
    while seen is not None and not is_out_of_memory(seen):
        seen = seen.__context__
    return seen


def record_weights(probe: Probe, weights: dict[int, torch.Tensor], had: Sequence[int], *, is_batch: bool) -> None:
    """Record weights `[B, H, bucket]` of a step in a probe, without the columns beyond the end of each sequence."""
    probe.is_borrowed = True
    if not is_batch:
        probe.weights.update((layer, each[:, :, : had[0] + 1]) for layer, each in weights.items())
        return
    for number, part in enumerate(probe.split(len(had))):
        own = slice(number, number + 1)
        part.weights.update((layer, each[own, :, : had[number] + 1]) for layer, each in weights.items())
