"""The dialog of MAX's KV cache parameters for the loaded model: the fields, what follows from them, and MAX's
refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

from PySide6.QtWidgets import QWidget

from app.draw.format import byte_size, thousands
from app.kit.dialog import Sheet
from app.kit.facts import Fact, section
from app.kit.fields import check_field, choice_field, count_field, gib_field, line_field
from engine.max import (
    GIB,
    SCALE_DTYPES,
    ArchConfigWithAttentionKVCache,
    DeviceRef,
    InsufficientMemoryError,
    KVCacheConfig,
    KVCacheParams,
    KVCacheQuantizationConfig,
    KVConnectorConfig,
    KVConnectorType,
    SpeculativeMethod,
    compute_max_seq_len_fitting_in_cache,
    compute_num_device_blocks,
    compute_num_host_blocks,
    derived_values,
    params_values,
    require_manager_page_size,
    speculative_changes,
    tiers_of,
)
from engine.wire.status import ModelInfo

Json = dict[str, Any]


def capacity_values(params: KVCacheParams, available: int) -> tuple[Json, list[str]]:
    """Return what fits in a memory and in the tiers below, and all refusals on the way, word for word."""
    found: Json = {}
    refusals: list[str] = []
    asked: list[tuple[str, Callable[[], Any]]] = [
        ("num_device_blocks", lambda: compute_num_device_blocks(params, available)),
        ("max_seq_len_fitting_in_cache", lambda: compute_max_seq_len_fitting_in_cache(params, available)),
        ("num_host_blocks", lambda: compute_num_host_blocks(params)),
        ("tiers", lambda: list(tiers_of(params))),
        ("", lambda: require_manager_page_size(params.page_size)),
    ]
    for name, ask in asked:
        try:
            value = ask()
        except (ValueError, InsufficientMemoryError) as refusal:
            if str(refusal) not in refusals:
                refusals.append(str(refusal))
            continue
        if name:
            found[name] = value
    return found, refusals


def buffer_values(params: KVCacheParams, num_pages: int) -> list[tuple[str, str]]:
    """Return where each buffer for so many pages would be allocated, and its shape and dtype."""
    lines = []
    for replica, buffer in enumerate(params.allocate_buffers(num_pages)):
        for kind, parts in (("values", buffer.values), ("scales", buffer.scales)):
            for part in parts:
                lines.append((f"replica {replica} {kind} {part.device}", f"{list(part.shape)} {part.dtype}"))
    return lines


def input_values(params: KVCacheParams) -> list[tuple[str, str]]:
    """List the graph's inputs on the first device; symbolic dimensions lose their prefix."""
    return [
        (t.name, f"[{', '.join(str(d).removeprefix('replica_0_') for d in t.shape)}] {t.dtype} {t.device}")
        for t in params.symbolic_inputs()
    ]


DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fnuz")
_MAX_BUFFERS = 8


class MaxParams(Sheet):
    """Show the fields of `KVCacheParams` under MAX's names; they can be copied as JSON."""

    copied = "MAX's parameters are copied as JSON"

    def __init__(self, model: ModelInfo, parent: QWidget) -> None:
        super().__init__(f"MAX parameters · {model.name}", parent)
        self._model = model
        self._refusals: tuple[str, ...] = ()
        dtype = model.dtype if model.dtype in DTYPES else "bfloat16"
        self.dtype = self.add(choice_field("dtype", [(name, name) for name in DTYPES], dtype))
        # at least 0, so that MAX's own refusals can be seen
        self.page_size = self.add(count_field("page_size", 128, " tokens", least=0))
        self.devices = self.add(count_field("n_devices", 1, least=0))
        self.devices.setMaximum(4096)
        self.replicas = self.add(count_field("data_parallel_degree", 1, least=0))
        self.prefix = self.add(check_field("enable_prefix_caching", True))
        names = [("", "None"), *((name, name) for name in get_args(KVConnectorType))]
        self.connector = self.add(choice_field("kv_connector", names, ""))
        self.swap = self.add(gib_field("host_kvcache_swap_space_gb", 50.0, automatic="None"))
        self.folder = self.add(line_field("disk_offload_dir", hint="/mnt/kv"))
        self.endpoint = self.add(line_field("block_store_endpoint", hint="tcp://host:port"))
        self.quantized = self.add(check_field("kvcache_quant_config"))
        self.scale_dtype = self.add(choice_field("scale_dtype", [(name, name) for name in SCALE_DTYPES]))
        self.granularity = self.add(count_field("quantization_granularity", 128, least=0))
        methods = [("", "None"), *((name, name) for name in get_args(SpeculativeMethod))]
        self.speculative = self.add(choice_field("speculative_method", methods, ""))
        self.drafts = self.add(count_field("num_draft_tokens", 1, least=0))
        self.memory = self.add(gib_field("memory for the cache", 8.0))
        self._copy.setText("Copy as JSON")
        self.resize(940, 720)
        self.refresh()

    def _adapt(self) -> None:
        kind = self.connector.currentData()
        self.use(self.swap, kind in ("local", "tiered"))
        self.use(self.folder, kind == "tiered")
        self.use(self.endpoint, kind == "dkv")
        for field in (self.scale_dtype, self.granularity):
            self.use(field, self.quantized.isChecked())
        self.use(self.drafts, bool(self.speculative.currentData()))

    def params(self) -> KVCacheParams:
        """Return the parameters as typed; raises what MAX raises."""
        kind: KVConnectorType | None = self.connector.currentData() or None
        folder, endpoint = self.folder.text().strip() or None, self.endpoint.text().strip() or None
        config = KVConnectorConfig(self.swap.value() or None, folder, block_store_endpoint=endpoint)
        quantization = None
        if self.quantized.isChecked():
            quantization = KVCacheQuantizationConfig(self.scale_dtype.currentData(), self.granularity.value())
        architecture = ArchConfigWithAttentionKVCache(
            dtype=self.dtype.currentData(),
            devices=[DeviceRef.GPU(number) for number in range(self.devices.value())],
            kv_cache=KVCacheConfig(
                kv_cache_page_size=self.page_size.value(),
                enable_prefix_caching=self.prefix.isChecked(),
                kv_connector=kind,
                kv_connector_config=config if kind is not None else None,
            ),
            data_parallel_degree=self.replicas.value(),
            huggingface_config=self._model.geometry,
            kvcache_quant_config=quantization,
        )
        params = architecture.get_kv_params()
        method = self.speculative.currentData() or None
        return replace(params, speculative_method=method, num_draft_tokens=self.drafts.value() if method else 0)

    def values(self) -> dict[str, Any]:
        """Return all values under MAX's names, as they are copied."""
        params = self.params()
        return params_values(params) | capacity_values(params, self._available)[0]

    @property
    def _available(self) -> int:
        return int(self.memory.value() * GIB)

    # ---- results -------------------------------------------------------------------------------------------------

    def _facts(self) -> tuple[Fact, ...]:
        params = self.params()
        given = ("n_kv_heads", "num_q_heads", "head_dim", "num_layers", "is_mla")
        set_values = params_values(params)
        facts = [Fact("From the model", is_head=True)]
        facts += [self._fact(name, set_values[name]) for name in given]
        facts += section("Derived")
        facts += [self._fact(name, value) for name, value in derived_values(params).items()]
        facts = [self._query_heads(fact) for fact in facts]
        return (*facts, *self._speculation(params), *self._capacity(params), *self._graph(params))

    def _speculation(self, params: KVCacheParams) -> list[Fact]:
        """What the speculative method changes, each value beside the one without it, and the names of all others."""
        if params.speculative_method is None:
            return []
        changes = speculative_changes(params, 1, self._model.geometry.max_length or params.page_size)
        title = f"Changed by {params.speculative_method}, for one sequence of full length"
        facts = [*section(title)]
        for name, (without, now) in changes.changed.items():
            if isinstance(now, dict):
                facts.append(Fact(name))
                facts += [self._changed(key, without[key], value, indent=1) for key, value in now.items()]
            else:
                facts.append(self._changed(name, without, now))
        facts.append(Fact("not changed:", role="muted"))
        return [*facts, *(Fact(name, indent=1, role="muted") for name in changes.unchanged)]

    def _changed(self, name: str, without: Any, now: Any, indent: int = 0) -> Fact:
        """A value under speculation, and beside it the one without, where that is another."""
        beside = "" if without is None or without == now else f"without: {_text(without)}"
        return Fact(name, _text(now), beside, indent=indent, tip=f"{name}\nwithout: {_text(without)}")

    def _capacity(self, params: KVCacheParams) -> list[Fact]:
        found, refusals = capacity_values(params, self._available)
        title = f"In {byte_size(self._available)} of device memory"
        facts = [*section(title)]
        facts += [self._fact(name, value) for name, value in found.items()]
        num_pages = found.get("num_device_blocks")
        if num_pages is not None:
            lines = buffer_values(params, num_pages)
            facts += [Fact(name, text, indent=1) for name, text in lines[:_MAX_BUFFERS]]
            if len(lines) > _MAX_BUFFERS:
                more = f"and {thousands(len(lines) - _MAX_BUFFERS)} more buffers"
                facts.append(Fact(more, indent=1, role="muted"))
        self._refusals = tuple(refusals)
        return facts

    def _notes(self) -> tuple[str, ...]:
        return self._refusals

    def _graph(self, params: KVCacheParams) -> list[Fact]:
        lines = (Fact(name, text, indent=1) for name, text in input_values(params))
        return [*section("Symbolic inputs of the first device"), *lines]

    def _query_heads(self, fact: Fact) -> Fact:
        """Show the model's query heads, which MAX takes only under latent attention: otherwise its field stays None."""
        if self._model.geometry.is_latent or not fact.label.startswith("num_q_heads"):
            return fact
        count = thousands(self._model.geometry.num_heads) if fact.label == "num_q_heads" else "–"
        return Fact(fact.label, count, "None in MAX: only MLA needs it", role="muted")

    def _fact(self, name: str, value: Any) -> Fact:
        if name == "bytes_per_block":
            return Fact(name, thousands(value), byte_size(value))
        return Fact(name, _text(value), role="muted" if value in (None, False) else "text")

    def copy_text(self) -> str:
        return json.dumps(self.values(), indent=2)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    return thousands(value) if isinstance(value, int) else str(value)
