"""What the pools of MAX's cache are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.max.buffers import BufferDescription, DeviceRef, KVCacheBuffer, KVCacheMemory
from engine.max.params import KVCacheQuantizationConfig
from tests.engine.max.parameters import FP8, deepseek, gpus, llama


def test_allocate_buffers_describes_one_pool_per_replica() -> None:
    buffers = llama(4, 4).allocate_buffers(10)
    assert len(buffers) == 4
    assert all(buffer.values[0].shape == (10, 2, 32, 128, 8, 128) for buffer in buffers)
    assert [buffer.values[0].device for buffer in buffers] == list(gpus(4))
    assert buffers[0].nbytes == 10 * llama().bytes_per_block


def test_allocate_buffers_shards_values_and_scales() -> None:
    params = llama(2, **FP8, kvcache_quant_config=KVCacheQuantizationConfig())
    (buffer,) = params.allocate_buffers(3)
    assert [value.shape for value in buffer.values] == [(3, 2, 32, 128, 4, 128)] * 2
    assert buffer.scales is not None
    assert [(scale.shape, scale.dtype) for scale in buffer.scales] == [((3, 2, 32, 128, 4, 1), "float32")] * 2
    assert buffer.total_num_pages == 3
    assert buffer.nbytes == 3 * params.bytes_per_block
    assert buffer.all_buffers == buffer.values + buffer.scales


def test_replicated_latents_move_as_one_unit() -> None:
    (buffer,) = deepseek(8).allocate_buffers(2)
    assert buffer.replicated
    (unit,) = buffer.to_memory()
    assert unit.root.shape == (2, 8_994_816)
    assert len(unit.peers) == 7
    assert len(llama(8).allocate_buffers(2)[0].to_memory()) == 8


ONE = BufferDescription((4, 2, 1, 16, 8, 64), "bfloat16", DeviceRef.GPU(0))
TWO = replace(ONE, device=DeviceRef.GPU(1))
SCALE = BufferDescription((4, 2, 1, 16, 8, 1), "float32", DeviceRef.GPU(0))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: KVCacheBuffer(()), "at least one"),
        (lambda: KVCacheBuffer((ONE,), replicated=True), "more than one shard"),
        (lambda: KVCacheBuffer((ONE, replace(TWO, dtype="float32"))), "one dtype"),
        (lambda: KVCacheBuffer((ONE, replace(TWO, shape=(5, 2, 1, 16, 8, 64)))), "one shape"),
        (lambda: KVCacheBuffer((ONE, replace(TWO, pinned=True))), "pinned"),
        (lambda: KVCacheBuffer((ONE, TWO), (SCALE,)), "2 value buffers need as many scale buffers; 1"),
        (lambda: KVCacheBuffer((ONE,), (replace(SCALE, shape=(5, 2, 1, 16, 8, 1)),)), "4 pages and scales have 5"),
        (
            lambda: KVCacheBuffer((ONE,), (replace(SCALE, device=DeviceRef.GPU(1)),)),
            "gpu:0 and its scales are on gpu:1",
        ),
        (lambda: KVCacheBuffer((ONE, TWO), (SCALE, replace(SCALE, dtype="bfloat16"))), "one dtype"),
        (lambda: KVCacheMemory(ONE), "uint8"),
        (lambda: KVCacheMemory(ONE.as_pages(), (replace(TWO.as_pages(), dtype="int8"),)), "uint8"),
    ],
)
def test_buffer_invariants(build: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build()
