"""Modular's pages: GPT-2's cache, which is allocated and never used, and MAX's parameters for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

from engine.analysis.bench import as_kind
from engine.geometry.dimensions import CacheGeometry, dtype_bytes
from engine.max.arch import ArchConfigWithAttentionKVCache
from engine.max.capacity import require_manager_page_size
from engine.max.params import DeviceRef, KVCacheParams, params_values
from engine.seeds import published
from engine.seeds.lengths import CountingModel
from engine.seeds.line import FieldValue, SeedLine, TableKind, checked
from engine.seeds.models import SeedModels
from engine.session.driver import ModeDriver
from engine.spec.presets import PRESETS

CONFIG = "the config alone"


def allocated_lines(models: SeedModels) -> Iterator[SeedLine]:
    """The four dimensions, and how the cache is used in three steps: tokens fed, bytes reserved, rows written, bytes
    stored."""
    arch = ArchConfigWithAttentionKVCache(dtype="float32", huggingface_config=published.GPT2_CONFIG)
    for name, shown in published.GPT2_DIMENSIONS.items():
        yield line_of("allocated", name, shown, getattr(arch, name), published.GPT2_PAGE)
    llama = CacheGeometry.from_config(published.LLAMA31_8B_CONFIG)
    yield line_of("allocated", "LLaMA 3.1 8B: query heads", 32, llama.num_heads, published.GPT2_PAGE)
    yield line_of("allocated", "LLaMA 3.1 8B: KV heads", 8, llama.layers[0].num_kv_heads, published.GPT2_PAGE)
    yield from step_lines(models)


def step_lines(models: SeedModels) -> Iterator[SeedLine]:
    """What three decode steps feed, reserve, write and store."""
    model = models.gpt2
    counting = as_kind(CountingModel, model.loaded)
    driver = ModeDriver(counting, PRESETS["allocated"].spec, 10)
    fed: list[float] = []
    ids = [1] * 10
    for _ in range(3):
        counting.num_fed = 0
        chosen = int(driver.feed(ids).argmax())
        fed.append(float(counting.num_fed))
        ids = [chosen]
    held, dtype = driver.bytes(), model.loaded.info.dtype
    layers, dims = len(held.layers), published.GPT2_DIMENSIONS
    room = 2 * layers * dims["num_key_value_heads"] * dims["model_max_seq_len"] * dims["head_dim"] * dtype_bytes(dtype)
    for name, shown, measured, unit in (
        ("tokens fed in three steps", published.GPT2_FEEDS, tuple(fed), "tokens"),
        (f"room: K and V, {layers} layers, heads, positions, head_dim, {dtype}", room, held.reserved, "bytes"),
        ("rows ever written to it", 0, driver.cache.num_idle_rows_written, "rows"),
        ("bytes that hold a token after a step", 0, held.stored, "bytes"),
    ):
        yield line_of("allocated", name, shown, measured, published.GPT2_PAGE, unit, model.words)


# ---- MAX's parameters --------------------------------------------------------------------------------------------


def max_lines(models: SeedModels) -> Iterator[SeedLine]:
    """Defaults as documented, and the parameters derived from the four dimensions of the example."""
    for kind, defaults, page in (
        (KVCacheParams, published.PARAMS_DEFAULTS, published.PARAMS_PAGE),
        (ArchConfigWithAttentionKVCache, published.ARCH_DEFAULTS, published.ARCH_PAGE),
    ):
        known = {field.name: field.default for field in fields(kind)}
        for name, shown in defaults.items():
            found = known.get(name, MISSING)
            measured = "missing" if found is MISSING else found
            yield line_of("max", f"{kind.__name__}({name}=)", shown, measured, page)
    yield from length_limit_lines()
    yield from example_lines()


def length_limit_lines() -> Iterator[SeedLine]:
    """`get_max_seq_len`: the user's maximum, else the model's; a larger one is a ValueError."""
    for wanted, shown in ((None, 1024), (512, 512), (1025, "ValueError")):
        arch = ArchConfigWithAttentionKVCache(
            dtype="float32", user_provided_max_length=wanted, huggingface_config=published.GPT2_CONFIG
        )
        measured: FieldValue
        try:
            measured = arch.get_max_seq_len()
        except ValueError:
            measured = "ValueError"
        item = f"get_max_seq_len() with user_provided_max_length={wanted}"
        yield line_of("max", item, shown, measured, published.ARCH_PAGE)


def example_lines() -> Iterator[SeedLine]:
    """The result of `get_kv_params()` for the example; the page names the properties without values."""
    params = ArchConfigWithAttentionKVCache(dtype="bfloat16", huggingface_config=published.GPT2_CONFIG).get_kv_params()
    d = published.GPT2_DIMENSIONS
    shape = [2, d["num_layers"], params.page_size, d["num_key_value_heads"], d["head_dim"]]
    by_definition: dict[str, Any] = {
        "n_kv_heads": d["num_key_value_heads"],
        "head_dim": d["head_dim"],
        "num_layers": d["num_layers"],
        "n_devices": 1,
        "tensor_parallel_degree": 1,
        "n_kv_heads_per_device": d["num_key_value_heads"],
        "dtype_shorthand": "bf16",
        "is_fp8_kv_dtype": False,
        "quantized_kv_cache": False,
        "replicates_kv_across_tp": False,
        "shape_per_block": str(shape),
        "bytes_per_block": 2 * d["num_layers"] * params.page_size * d["num_key_value_heads"] * d["head_dim"] * 2,
    }
    found = params_values(params)
    for name, shown in by_definition.items():
        measured = str(found[name]) if isinstance(found[name], list) else found[name]
        note = "by the page's definition, for the example in bfloat16"
        yield line_of("max", name, shown, measured, published.PARAMS_PAGE, note=note)
    yield from method_lines(params)
    for page_size, shown in ((128, True), (64, False)):
        yield line_of(
            "max", f"a page of {page_size} tokens is allowed", shown, allowed(page_size), published.PARAMS_PAGE
        )


def method_lines(params: KVCacheParams) -> Iterator[SeedLine]:
    """The results of the methods whose effect the page describes: one replica, kernels, graphs."""
    two = replace(params, devices=tuple(DeviceRef.GPU(number) for number in range(2)), data_parallel_degree=2)
    alone, longest = two.copy_as_dp_1(1), max(params.graph_capture_probe_cache_lengths(1024))
    for item, shown, measured in (
        ("copy_as_dp_1(1) of two replicas: devices", "gpu:1", ", ".join(map(str, alone.devices))),
        ("copy_as_dp_1(1) of two replicas: data_parallel_degree", 1, alone.data_parallel_degree),
        ("resolve_attn_key(0, 1, 512): partitions", 1, params.resolve_attn_key(0, 1, 512).num_partitions),
        ("graph_capture_probe_cache_lengths(1024): the longest", 1024, longest),
    ):
        yield line_of("max", item, shown, measured, published.PARAMS_PAGE)


def allowed(page_size: int) -> bool:
    """Whether MAX's cache manager accepts the page size."""
    try:
        require_manager_page_size(page_size)
    except ValueError:
        return False
    return True


def line_of(
    table: TableKind,
    item: str,
    shown: FieldValue,
    measured: FieldValue,
    document: str,
    unit: str = "",
    on: str = CONFIG,
    note: str = "",
) -> SeedLine:
    return checked(SeedLine(document, table, item, shown, measured, unit, note=note, on=on))
