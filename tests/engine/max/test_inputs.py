"""The symbolic inputs of a graph."""

from __future__ import annotations

from engine.max.buffers import DeviceRef
from engine.max.params import KVCacheQuantizationConfig
from tests.engine.max.parameters import FP8, deepseek, gpus, llama


def test_symbolic_inputs_go_replica_by_replica() -> None:
    inputs = llama(4, 4).get_symbolic_inputs("draft_")
    assert [(entry.replica, entry.device) for entry in inputs] == list(enumerate(gpus(4)))
    tensors = {tensor.name: tensor for tensor in inputs[2].tensors}
    assert tensors["kv_blocks"].shape == ("draft_replica_2_total_num_pages", 2, 32, 128, 8, 128)
    assert tensors["kv_blocks"].dtype == "bfloat16"
    assert tensors["lookup_table"].shape == ("draft_replica_2_batch_size", "draft_replica_2_max_num_pages")
    assert (tensors["max_lengths"].shape[1], tensors["max_lengths"].device) == (2, DeviceRef.CPU())
    assert (tensors["attention_dispatch_metadata"].shape, tensors["attention_dispatch_metadata"].device) == (
        (4,),
        DeviceRef.CPU(),
    )
    assert set(tensors) == {
        "kv_blocks", "cache_lengths", "lookup_table", "max_lengths", "attention_dispatch_metadata"
    }  # fmt: skip


def test_symbolic_inputs_under_tensor_parallelism_share_the_replica() -> None:
    assert [entry.replica for entry in llama(4).get_symbolic_inputs()] == [0, 0, 0, 0]


def test_symbolic_inputs_of_mla_scales_and_drafts() -> None:
    scaled = llama(**FP8, kvcache_quant_config=KVCacheQuantizationConfig())
    assert {t.name: t.shape for t in scaled.get_symbolic_inputs()[0].tensors}["kv_scales"] == (
        "replica_0_total_num_pages", 2, 32, 128, 8, 1
    )  # fmt: skip
    speculating = deepseek(speculative_method="eagle", num_draft_tokens=2)
    own = {t.name: t for t in speculating.get_symbolic_inputs()[0].tensors}
    assert own["attention_dispatch_metadata"].shape == (3,)
    assert own["attention_dispatch_metadata"].device == DeviceRef.GPU(0)
    assert own["mla_num_partitions"].shape == (1,)
    assert own["draft_attention_dispatch_metadata"].shape == (3,)
    other = speculating.get_symbolic_inputs(draft_attention_group=llama())[0].tensors
    assert {t.name: t.shape for t in other}["draft_attention_dispatch_metadata"] == (4,)
