"""The symbolic inputs of a graph."""

from __future__ import annotations

from engine.max import DeviceRef, KVCacheQuantizationConfig
from tests.engine.max.parameters import FP8, deepseek, llama


def test_symbolic_inputs_of_the_first_device() -> None:
    tensors = {tensor.name: tensor for tensor in llama(4, 4).symbolic_inputs()}
    assert tensors["kv_blocks"].shape == ("replica_0_total_num_pages", 2, 32, 128, 8, 128)
    assert (tensors["kv_blocks"].dtype, tensors["kv_blocks"].device) == ("bfloat16", DeviceRef.GPU(0))
    assert tensors["lookup_table"].shape == ("replica_0_batch_size", "replica_0_max_num_pages")
    assert (tensors["max_lengths"].shape[1], tensors["max_lengths"].device) == (2, DeviceRef.CPU())
    dispatch = tensors["attention_dispatch_metadata"]
    assert (dispatch.shape, dispatch.device) == ((4,), DeviceRef.CPU())
    assert set(tensors) == {
        "kv_blocks", "cache_lengths", "lookup_table", "max_lengths", "attention_dispatch_metadata"
    }  # fmt: skip


def test_symbolic_inputs_of_mla_scales_and_drafts() -> None:
    scaled = llama(**FP8, kvcache_quant_config=KVCacheQuantizationConfig())
    assert {t.name: t.shape for t in scaled.symbolic_inputs()}["kv_scales"] == (
        "replica_0_total_num_pages", 2, 32, 128, 8, 1
    )  # fmt: skip
    speculating = deepseek(speculative_method="eagle", num_draft_tokens=2)
    own = {t.name: t for t in speculating.symbolic_inputs()}
    assert own["attention_dispatch_metadata"].shape == (3,)
    assert own["attention_dispatch_metadata"].device == DeviceRef.GPU(0)
    assert own["mla_num_partitions"].shape == (1,)
    assert own["draft_attention_dispatch_metadata"].shape == (3,)
