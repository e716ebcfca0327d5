"""What is in memory: of this process as the system tells it, and in the records of steps, by whom."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from engine import device
from engine.device import MemoryMeter, free_and_total, free_bytes, new_buffer, release_memory, used_bytes
from engine.errors import is_out_of_memory
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids

CPU = torch.device("cpu")
GPUS = [torch.device("cuda", index) for index in range(2)]
MIB = 1 << 20


def test_a_cpu_has_free_memory_and_this_program_uses_some() -> None:
    free, total = free_and_total(CPU)
    assert 0 < free < total
    assert abs(free_bytes(CPU) - free) < total / 4
    assert 0 < used_bytes(CPU) < total
    release_memory(CPU)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak, and begins it anew")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to the limit of its addresses")
def test_what_is_free_is_no_more_than_this_process_may_map() -> None:
    import resource

    before, cpu = resource.getrlimit(resource.RLIMIT_AS), torch.device("cpu")
    try:
        resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 2**26, before[1]))
        assert 0 <= free_bytes(cpu) <= 2**26
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert free_bytes(cpu) > 2**26


def test_a_buffer_that_no_memory_can_hold_is_refused_as_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError) as refused:
        new_buffer(torch.empty(0, dtype=torch.uint8), (1 << 60,))
    assert is_out_of_memory(refused.value)


def test_a_peak_is_told_once_and_then_begun_anew() -> None:
    meter = MemoryMeter([CPU])
    before = meter.read(reset_peak=True)
    brief = torch.ones(256 * MIB // 4)
    del brief
    held = meter.read(reset_peak=True)
    assert held.peak is not None
    assert held.peak - before.process > 200 * MIB
    after = meter.read()
    assert after.peak is not None
    assert after.peak - after.process < 100 * MIB
    assert (held.allocator, held.device) == (None, None)


def test_a_record_says_who_is_in_memory() -> None:
    model = model_of("llama")
    session = Session(model, CacheSpec())
    session.submit(Prompt(token_ids=prompt_ids(9)))
    session.step()
    session.step()
    before = session.bytes()
    session.go_to(0)
    assert session.bytes().kept > before.kept == 0
    record = session.step()
    held = record.num_bytes
    assert held.weights == model.info.weight_bytes > 0
    assert 0 < held.kept <= held.looking
    assert held.weights + held.reserved + held.looking < held.process
    assert held.peak is None or held.peak >= held.process - 32 * MIB
    assert all(layer.device == "" for layer in held.layers)


class NVMLError(Exception):
    pass


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two cards that are not here: `begun` are those whose peak was begun anew, `is_broken` is of NVML."""
    made = SimpleNamespace(begun=[], emptied=0, is_broken=False)

    def empty() -> None:
        made.emptied += 1

    def of(*numbers: int) -> Callable[[Any], int]:
        return lambda device: numbers[device if isinstance(device, int) else device.index]

    def handle(uuid: str) -> int:
        if made.is_broken:
            raise NVMLError("Driver/library version mismatch")
        return {"GPU-a": 0, "GPU-b": 1}[uuid]

    nvml = ModuleType("pynvml")
    for name, value in {
        "NVMLError": NVMLError, "nvmlInit": lambda: None, "nvmlDeviceGetHandleByUUID": handle,
        "nvmlDeviceGetMemoryInfo": lambda index: SimpleNamespace(free=(4000, 1000)[index], total=8000),
    }.items():  # fmt: skip
        setattr(nvml, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(device, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.version, "hip", None)
    for name, found in {
        "device_count": lambda: 2, "memory_reserved": of(300, 500), "memory_allocated": of(100, 50),
        "max_memory_allocated": of(150, 70), "reset_peak_memory_stats": made.begun.append, "empty_cache": empty,
        "mem_get_info": lambda device: (7000 + device.index, 9000),
        "get_device_properties": lambda device: SimpleNamespace(uuid="ab"[device.index]),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, found)
    return made


def test_a_gpu_is_asked_of_nvml_and_else_of_torch(gpus: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [free_and_total(gpu) for gpu in GPUS] == [(4000, 8000), (1000, 8000)]
    assert [free_bytes(gpu) for gpu in GPUS] == [4000 + 200, 1000 + 450], "and what torch keeps"
    assert used_bytes(GPUS[1]) == 800
    release_memory(GPUS[0])
    release_memory(CPU)
    assert gpus.emptied == 1
    gpus.is_broken = True
    assert [free_and_total(gpu) for gpu in GPUS] == [(7000, 9000), (7001, 9000)]
    gpus.is_broken = False
    with monkeypatch.context() as patched:
        patched.setattr(device, "find_spec", lambda name: None)
        assert free_and_total(GPUS[0]) == (7000, 9000)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert free_and_total(GPUS[0]) == (7000, 9000), "AMD's cards are not NVML's"


def test_what_is_held_on_gpus_is_that_of_all_of_them(gpus: SimpleNamespace) -> None:
    held = MemoryMeter([CPU, *GPUS]).read()
    assert (held.allocator, held.peak, held.device) == (150, 220, 4000 + 7000)
    assert held.process > MIB
    assert not gpus.begun
    meter = MemoryMeter(GPUS)
    meter.read(reset_peak=True)
    assert gpus.begun == GPUS
    gpus.is_broken = True
    assert meter.read().device is None, "one that cannot be asked any more"
    assert MemoryMeter(GPUS[:1]).read()[1:] == (100, 150, None)
