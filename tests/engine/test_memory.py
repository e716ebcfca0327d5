"""What is in memory: of this process as the system tells it, and in the records of steps, by whom."""

from __future__ import annotations

import sys

import pytest
import torch

from engine.memory import MemoryMeter, free_and_total, free_bytes, give_back, used_bytes
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids

CPU = torch.device("cpu")
MIB = 1 << 20


def test_a_cpu_has_free_memory_and_this_program_uses_some() -> None:
    free, total = free_and_total(CPU)
    assert 0 < free < total
    assert abs(free_bytes(CPU) - free) < total / 4
    assert 0 < used_bytes(CPU) < total
    give_back(CPU)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak, and begins it anew")
def test_a_peak_is_told_once_and_then_begun_anew() -> None:
    meter = MemoryMeter([CPU])
    before = meter.read(begin_anew=True)
    brief = torch.ones(256 * MIB // 4)
    del brief
    held = meter.read(begin_anew=True)
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
