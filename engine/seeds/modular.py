"""Modular's pages: GPT-2's cache, which is allocated and never used, and MAX's parameters for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from functools import partial
from typing import Any

from engine.analysis.bench import as_kind
from engine.device import MemoryUse
from engine.geometry.dimensions import CacheGeometry, dtype_bytes
from engine.max import ArchConfigWithAttentionKVCache, DeviceRef, params_values, require_manager_page_size
from engine.predict.bytes import CacheFormula
from engine.seeds import published
from engine.seeds.models import CountingModel, SeedModels
from engine.seeds.published import FieldValue, SeedLine, Sheet
from engine.session.driver import Driver
from engine.session.ledger import cache_bytes
from engine.spec.cache import PRESETS

CONFIG = "the config alone"
# Heads of columns whose figures no page prints.
BY_DEFINITION, BY_DIMENSIONS, DESCRIBED = "by the page's definition", "by the dimensions", "as the page describes"


def allocated_lines(models: SeedModels) -> Iterator[SeedLine]:
    """The four dimensions, and how the cache is used in three steps: tokens computed, bytes reserved, rows written,
    bytes stored."""
    sheet = Sheet(published.GPT2_PAGE, "allocated", CONFIG)
    arch = ArchConfigWithAttentionKVCache(dtype="float32", huggingface_config=published.GPT2_CONFIG)
    for name, shown in published.GPT2_DIMENSIONS.items():
        yield sheet.must(name, shown, getattr(arch, name))
    llama = CacheGeometry.from_config(published.LLAMA31_8B_CONFIG)
    yield sheet.must("LLaMA 3.1 8B: query heads", 32, llama.num_heads)
    yield sheet.must("LLaMA 3.1 8B: KV heads", 8, llama.layers[0].num_kv_heads)
    model = models.gpt2
    sheet, counting = replace(sheet, on=model.words), as_kind(CountingModel, model.loaded)
    driver = Driver.in_mode(counting, PRESETS["allocated"].spec, 10)
    computed: list[float] = []
    ids = [1] * 10
    for _ in range(3):
        counting.num_computed = 0
        ids = [int(driver.compute(ids).argmax())]
        computed.append(float(counting.num_computed))
    info, dtype = model.loaded.info, model.loaded.info.dtype
    formula = CacheFormula(driver.cache.spec, info.geometry, dtype)
    held = cache_bytes(info, formula, [driver.cache], None, 0, MemoryUse(0))
    layers, dims = len(held.layers), published.GPT2_DIMENSIONS
    room = 2 * layers * dims["num_key_value_heads"] * dims["model_max_seq_len"] * dims["head_dim"] * dtype_bytes(dtype)
    yield sheet.must("tokens computed in three steps", published.GPT2_COMPUTED, tuple(computed), "tokens")
    item = f"room: K and V, {layers} layers, heads, positions, head_dim, {dtype}"
    yield sheet.must(item, room, held.reserved, "bytes", heading=BY_DIMENSIONS)
    idle = driver.cache.num_idle_rows_written
    yield sheet.must("rows ever written to it", 0, idle, "rows", heading=DESCRIBED)
    yield sheet.must("bytes that hold a token after a step", 0, held.stored, "bytes", heading=DESCRIBED)


def max_lines(models: SeedModels) -> Iterator[SeedLine]:
    """Defaults as documented, the parameters derived from the four dimensions of the example (the page names the
    properties without values), and the results of the methods whose effect the pages describe."""
    architecture, parameters = (Sheet(page, "max", CONFIG) for page in (published.ARCH_PAGE, published.PARAMS_PAGE))

    def example(dtype: str, longest: int | None = None) -> ArchConfigWithAttentionKVCache:
        return ArchConfigWithAttentionKVCache(
            dtype=dtype, user_provided_max_length=longest, huggingface_config=published.GPT2_CONFIG
        )

    params = example("bfloat16").get_kv_params()
    for sheet, kind, defaults in (
        (parameters, type(params), published.PARAMS_DEFAULTS),
        (architecture, ArchConfigWithAttentionKVCache, published.ARCH_DEFAULTS),
    ):
        known = {field.name: field.default for field in fields(kind)}
        for name, shown in defaults.items():
            found = known.get(name, MISSING)
            yield sheet.must(f"{kind.__name__}({name}=)", shown, "missing" if found is MISSING else found)
    for wanted, length in ((None, 1024), (512, 512), (1025, "ValueError")):
        item = f"get_max_seq_len() with user_provided_max_length={wanted}"
        found_length = result_of(example("float32", wanted).get_max_seq_len)
        yield architecture.must(item, length, found_length, heading=DESCRIBED)
    found = params_values(params)
    for name, shown in by_definition(params.page_size).items():
        measured = str(found[name]) if isinstance(found[name], list) else found[name]
        yield parameters.must(name, shown, measured, note="for the example in bfloat16", heading=BY_DEFINITION)
    two = replace(params, devices=tuple(DeviceRef.GPU(number) for number in range(2)), data_parallel_degree=2)
    alone, longest = two.copy_as_dp_1(1), max(params.graph_capture_probe_cache_lengths(1024))
    for item, shown, result in (
        ("copy_as_dp_1(1) of two replicas: devices", "gpu:1", ", ".join(map(str, alone.devices))),
        ("copy_as_dp_1(1) of two replicas: data_parallel_degree", 1, alone.data_parallel_degree),
        ("resolve_attn_key(0, 1, 512): partitions", 1, params.resolve_attn_key(0, 1, 512).num_partitions),
        ("graph_capture_probe_cache_lengths(1024): the longest", 1024, longest),
    ):
        yield parameters.must(item, shown, result, heading=DESCRIBED)
    for page_size, is_allowed in ((128, True), (64, False)):
        measured = result_of(partial(require_manager_page_size, page_size)) != "ValueError"
        yield parameters.must(f"a page of {page_size} tokens is allowed", is_allowed, measured, heading=DESCRIBED)


def by_definition(page_size: int) -> dict[str, FieldValue]:
    """What the page's definitions give for the example."""
    dims = published.GPT2_DIMENSIONS
    layers, heads, head_dim = (dims[name] for name in ("num_layers", "num_key_value_heads", "head_dim"))
    return {
        "n_kv_heads": heads,
        "head_dim": head_dim,
        "num_layers": layers,
        "n_devices": 1,
        "tensor_parallel_degree": 1,
        "n_kv_heads_per_device": heads,
        "dtype_shorthand": "bf16",
        "is_fp8_kv_dtype": False,
        "quantized_kv_cache": False,
        "replicates_kv_across_tp": False,
        "shape_per_block": str([2, layers, page_size, heads, head_dim]),
        "bytes_per_block": 2 * layers * page_size * heads * head_dim * 2,
    }


def result_of(call: Callable[[], Any]) -> Any:
    """What a call gives, or "ValueError" where it raises one."""
    try:
        return call()
    except ValueError:
        return "ValueError"
