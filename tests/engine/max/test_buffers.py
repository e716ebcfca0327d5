"""What the pools of MAX's cache are made of."""

from __future__ import annotations

from math import prod

from engine.max import KVCacheQuantizationConfig
from tests.engine.max.parameters import FP8, gpus, llama


def test_allocate_buffers_describes_one_pool_per_replica() -> None:
    buffers = llama(4, 4).allocate_buffers(10)
    assert len(buffers) == 4
    assert all(buffer.values[0].shape == (10, 2, 32, 128, 8, 128) for buffer in buffers)
    assert [buffer.values[0].device for buffer in buffers] == list(gpus(4))
    assert all(buffer.scales == () for buffer in buffers)


def test_allocate_buffers_shards_values_and_scales() -> None:
    params = llama(2, **FP8, kvcache_quant_config=KVCacheQuantizationConfig())
    (buffer,) = params.allocate_buffers(3)
    assert [value.shape for value in buffer.values] == [(3, 2, 32, 128, 4, 128)] * 2
    assert [(scale.shape, scale.dtype) for scale in buffer.scales] == [((3, 2, 32, 128, 4, 1), "float32")] * 2
    sizes = {"float8_e4m3fn": 1, "float32": 4}
    num_bytes = sum(prod(each.shape) * sizes[each.dtype] for each in (*buffer.values, *buffer.scales))
    assert num_bytes == 3 * params.bytes_per_block
