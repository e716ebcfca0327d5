"""MAX's KV cache parameters, with MAX's names and rules: a calculator that allocates nothing.

Names, defaults, derived quantities and errors are those of ``max.nn.kv_cache.KVCacheParams`` as documented by Modular
(https://docs.modular.com/max/), at the revision in which one class holds connectors and dispatch. Every error of MAX is
a ``ValueError`` here, with the numbers in it; sizes below 1, which MAX accepts, are refused as well.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args

from engine.geometry.dimensions import dtype_bytes
from engine.max.dispatch import AttnKey, DecodeShape, num_partitions


@dataclass(frozen=True, order=True)
class DeviceRef:
    """One device, by kind and index."""

    device_type: Literal["cpu", "gpu"]
    id: int = 0

    @classmethod
    def CPU(cls, id: int = 0) -> DeviceRef:
        """The host processor."""
        return cls("cpu", id)

    @classmethod
    def GPU(cls, id: int = 0) -> DeviceRef:
        """The accelerator with that index."""
        return cls("gpu", id)

    def is_cpu(self) -> bool:
        """Whether this is the host processor."""
        return self.device_type == "cpu"

    def __str__(self) -> str:
        return f"{self.device_type}:{self.id}"


@dataclass(frozen=True)
class BufferDescription:
    """A buffer that would be allocated."""

    shape: tuple[int, ...]
    dtype: str
    device: DeviceRef


@dataclass(frozen=True)
class KVCacheBuffer:
    """The pool of one data-parallel replica: ``values[i]`` and ``scales[i]`` are on its i-th tensor-parallel shard.

    ``values[i]`` is ``[total_num_pages, *shape_per_block]``. ``scales`` is empty if values have none.
    """

    values: tuple[BufferDescription, ...]
    scales: tuple[BufferDescription, ...] = ()


SCALE_DTYPES = ("float32", "float8_e8m0fnu", "bfloat16", "float16")  # MAX itself takes the first two


def params_values(params: KVCacheParams) -> dict[str, Any]:
    """The fields that were set, then the derived properties."""
    quantization = params.kvcache_quant_config
    return {
        "dtype": params.dtype,
        "n_kv_heads": params.n_kv_heads,
        "head_dim": params.head_dim,
        "num_layers": params.num_layers,
        "devices": [str(device) for device in params.devices],
        "page_size": params.page_size,
        "data_parallel_degree": params.data_parallel_degree,
        "enable_prefix_caching": params.enable_prefix_caching,
        "kv_connector": params.kv_connector,
        "host_kvcache_swap_space_gb": params.host_kvcache_swap_space_gb,
        "is_mla": params.is_mla,
        "num_q_heads": params.num_q_heads,
        "kvcache_quant_config": None
        if quantization is None
        else {
            "scale_dtype": quantization.scale_dtype,
            "quantization_granularity": quantization.quantization_granularity,
        },
        "speculative_method": params.speculative_method,
        "num_draft_tokens": params.num_draft_tokens,
        **derived_values(params),
    }


def derived_values(params: KVCacheParams) -> dict[str, Any]:
    """The derived properties by their names."""
    return {
        "n_devices": params.n_devices,
        "tensor_parallel_degree": params.tensor_parallel_degree,
        "n_kv_heads_per_device": params.n_kv_heads_per_device,
        "num_q_heads_per_device": params.num_q_heads_per_device,
        "replicates_kv_across_tp": params.replicates_kv_across_tp,
        "dtype_shorthand": params.dtype_shorthand,
        "is_fp8_kv_dtype": params.is_fp8_kv_dtype,
        "quantized_kv_cache": params.quantized_kv_cache,
        "shape_per_block": params.shape_per_block,
        "shape_per_scale_block": params.shape_per_scale_block if params.quantized_kv_cache else None,
        "bytes_per_block": params.bytes_per_block,
        "num_draft_tokens_per_step": params.num_draft_tokens_per_step,
    }


@dataclass(frozen=True)
class SymbolicTensor:
    """The description of one graph input; a dimension is a number, or a name if it is known only at run time."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    device: DeviceRef


def dispatch_metadata(name: str, is_mla: bool, device: DeviceRef) -> SymbolicTensor:
    """The packed dispatch key as a graph input: three numbers on the device under MLA, otherwise four on the host."""
    return (
        SymbolicTensor(name, "int64", (3,), device) if is_mla else SymbolicTensor(name, "int64", (4,), DeviceRef.CPU())
    )


KVConnectorType = Literal["null", "local", "tiered", "dkv"]
SpeculativeMethod = Literal["eagle", "mtp", "dflash"]

_SIZE_LIMIT: Final = 2**31 - 1
_FP8_KV_DTYPES: Final = ("float8_e4m3fn", "float8_e4m3fnuz")
_SCALE_DTYPES: Final = ("float32", "float8_e8m0fnu")
_PROBE_STEP_MHA: Final = 256
_PROBE_STEP_MLA: Final = 64


@dataclass(frozen=True)
class KVCacheQuantizationConfig:
    """How an FP8 cache is scaled: one scale for each group of ``quantization_granularity`` channels of a head."""

    scale_dtype: str = "float32"
    quantization_granularity: int = 128

    def __post_init__(self) -> None:
        dtype_bytes(self.scale_dtype)
        _require_size("quantization_granularity", self.quantization_granularity)


@dataclass(frozen=True)
class KVConnectorConfig:
    """Settings of the tiers below device memory; which of them are required depends on the connector."""

    host_kvcache_swap_space_gb: float | None = 50.0
    disk_offload_dir: str | None = None
    block_store_endpoint: str | None = None


@dataclass(frozen=True)
class KVCacheParams:
    """Configuration of a paged KV cache. ``n_kv_heads`` and ``num_q_heads`` count the whole model, not a device.

    ``page_size`` is in tokens and any size is accepted here: the multiple-of-128 rule belongs to the cache manager
    (:func:`engine.max.capacity.require_manager_page_size`). ``host_kvcache_swap_space_gb`` is in GiB per replica in
    spite of its name. The two per-device head counts are computed; values passed for them are overwritten.
    """

    dtype: str
    n_kv_heads: int
    head_dim: int
    num_layers: int
    devices: tuple[DeviceRef, ...]
    enable_prefix_caching: bool = False
    kv_connector: KVConnectorType | None = None
    kv_connector_config: KVConnectorConfig | None = None
    host_kvcache_swap_space_gb: float | None = None
    page_size: int = 128
    is_mla: bool = False
    num_q_heads: int | None = None
    data_parallel_degree: int = 1
    n_kv_heads_per_device: int = 0
    num_q_heads_per_device: int | None = None
    kvcache_quant_config: KVCacheQuantizationConfig | None = None
    speculative_method: SpeculativeMethod | None = None
    num_draft_tokens: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        self._refuse_impossible_sizes()
        if self.is_mla and self.num_q_heads is None:
            raise ValueError("num_q_heads must be given when is_mla is True; it is None.")
        n_kv_heads, num_q_heads = self._heads_per_device()
        object.__setattr__(self, "n_kv_heads_per_device", n_kv_heads)
        object.__setattr__(self, "num_q_heads_per_device", num_q_heads)
        self._check_connector()
        self._check_quantization()

    # --- checks, in MAX's order ---

    def _refuse_impossible_sizes(self) -> None:
        dtype_bytes(self.dtype)
        for name in ("n_kv_heads", "head_dim", "num_layers", "page_size", "data_parallel_degree"):
            _require_size(name, getattr(self, name))
        if not self.devices:
            raise ValueError("A KV cache needs at least one device; n_devices is 0.")
        if self.num_q_heads is not None:
            _require_size("num_q_heads", self.num_q_heads)
        if self.num_draft_tokens < 0:
            raise ValueError(f"num_draft_tokens must be 0 or more, not {self.num_draft_tokens}.")
        if self.kv_connector is not None and self.kv_connector not in get_args(KVConnectorType):
            known = ", ".join(get_args(KVConnectorType))
            raise ValueError(f"kv_connector {self.kv_connector!r} is not known; use one of {known}.")

    def _heads_per_device(self) -> tuple[int, int | None]:
        if self.data_parallel_degree > 1:
            self._check_data_parallel()
            return self.n_kv_heads, self.num_q_heads
        return self._kv_heads_per_shard(), self._q_heads_per_shard()

    def _check_data_parallel(self) -> None:
        degree, n_devices = self.data_parallel_degree, self.n_devices
        if n_devices < degree:
            raise ValueError(f"data_parallel_degree {degree} needs as many devices; n_devices is {n_devices}.")
        if degree < n_devices:
            raise ValueError(
                f"Data parallelism of {degree} over {n_devices} devices would need tensor parallelism inside each "
                f"replica, which is not supported; data_parallel_degree must be 1 or {n_devices}."
            )

    def _kv_heads_per_shard(self) -> int:
        if self.is_mla:
            return 1  # all heads share the latent, so every device keeps all of it
        if self.n_kv_heads % self.n_devices:
            raise ValueError(
                f"n_kv_heads ({self.n_kv_heads}) must be divisible by the number of devices ({self.n_devices})."
            )
        return self.n_kv_heads // self.n_devices

    def _q_heads_per_shard(self) -> int | None:
        if self.num_q_heads is None:
            return None
        if self.num_q_heads % self.n_devices:
            raise ValueError(
                f"num_q_heads ({self.num_q_heads}) must be divisible by the number of devices ({self.n_devices})."
            )
        return self.num_q_heads // self.n_devices

    def _check_connector(self) -> None:
        if self.kv_connector not in ("local", "tiered"):
            return
        if not self.enable_prefix_caching:
            raise ValueError(
                f"The {self.kv_connector} KV connector requires prefix caching; enable_prefix_caching is False."
            )
        if self.host_kvcache_swap_space_gb is None:
            raise ValueError(
                f"The {self.kv_connector} KV connector requires host memory; host_kvcache_swap_space_gb is None."
            )
        if not 0 <= self.host_kvcache_swap_space_gb < math.inf:
            raise ValueError(
                f"host_kvcache_swap_space_gb must be a finite size of 0 or more, not {self.host_kvcache_swap_space_gb}."
            )

    def _check_quantization(self) -> None:
        if not self.quantized_kv_cache:
            return
        granularity = self._scales.quantization_granularity
        if self.head_dim % granularity:
            raise ValueError(
                f"head_dim ({self.head_dim}) must be divisible by quantization_granularity ({granularity})."
            )

    # --- derived properties ---

    @property
    def n_devices(self) -> int:
        """The number of devices."""
        return len(self.devices)

    @property
    def tensor_parallel_degree(self) -> int:
        """Devices that share one replica."""
        return self.n_devices // self.data_parallel_degree

    @property
    def is_fp8_kv_dtype(self) -> bool:
        """Whether the storage dtype is one of the two FP8 kinds, with or without scales."""
        return self.dtype in _FP8_KV_DTYPES

    @property
    def quantized_kv_cache(self) -> bool:
        """Whether FP8 values are stored with scales in a dtype that the kernels support."""
        config = self.kvcache_quant_config
        return self.is_fp8_kv_dtype and config is not None and config.scale_dtype in _SCALE_DTYPES

    @property
    def replicates_kv_across_tp(self) -> bool:
        """Whether every device holds identical K and V: MLA under tensor parallelism."""
        return self.is_mla and self.data_parallel_degree == 1 and self.n_devices > 1

    @property
    def num_draft_tokens_per_step(self) -> int:
        """Draft tokens that one forward pass of the draft model produces: all of them under dflash, else one."""
        return self.num_draft_tokens if self.speculative_method == "dflash" else 1

    @property
    def dtype_shorthand(self) -> str:
        """MAX's abbreviation, including its spelling of e4m3fn and its "f32" for every other dtype."""
        return {"bfloat16": "bf16", "float8_e4m3fn": "f8_m4e3fn"}.get(self.dtype, "f32")

    @property
    def shape_per_block(self) -> list[int]:
        """One page on one device: ``[kv_dim, num_layers, page_size, heads, head_dim]``; kv_dim: 2, or 1 under MLA."""
        kv_dim = 1 if self.is_mla else 2
        return [kv_dim, self.num_layers, self.page_size, self.n_kv_heads_per_device, self.head_dim]

    @property
    def shape_per_scale_block(self) -> list[int]:
        """The scales of one page on one device; raises ValueError without a quantisation config."""
        return [*self.shape_per_block[:-1], math.ceil(self.head_dim / self._scales.quantization_granularity)]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one page, summed over all devices of a tensor-parallel group, scales included."""
        num_bytes = math.prod(self.shape_per_block) * dtype_bytes(self.dtype)
        if self.quantized_kv_cache:
            num_bytes += math.prod(self.shape_per_scale_block) * dtype_bytes(self._scales.scale_dtype)
        return num_bytes * self.tensor_parallel_degree

    @property
    def _scales(self) -> KVCacheQuantizationConfig:
        if self.kvcache_quant_config is None:
            raise ValueError("There are no scales without kvcache_quant_config; it is None.")
        return self.kvcache_quant_config

    # --- replicas, buffers, graph inputs ---

    def replica_devices(self) -> tuple[tuple[DeviceRef, ...], ...]:
        """The devices of each data-parallel replica."""
        size = self.tensor_parallel_degree
        return tuple(self.devices[start : start + size] for start in range(0, self.n_devices, size))

    def copy_as_dp_1(self, replica_idx: int = 0) -> KVCacheParams:
        """The parameters of one replica alone; speculative settings are dropped, as in MAX."""
        return replace(
            self,
            devices=self.replica_devices()[replica_idx],
            data_parallel_degree=1,
            speculative_method=None,
            num_draft_tokens=0,
        )

    def allocate_buffers(self, total_num_pages: int) -> list[KVCacheBuffer]:
        """Descriptions of the pool of every replica; nothing is allocated."""
        _require_size("total_num_pages", total_num_pages)
        parts = [((total_num_pages, *self.shape_per_block), self.dtype)]
        if self.quantized_kv_cache:
            parts.append(((total_num_pages, *self.shape_per_scale_block), self._scales.scale_dtype))
        return [
            KVCacheBuffer(*(tuple(BufferDescription(*part, device) for device in group) for part in parts))
            for group in self.replica_devices()
        ]

    def symbolic_inputs(self) -> tuple[SymbolicTensor, ...]:
        """The graph inputs of the first device."""
        device, dims = self.devices[0], "replica_0_"
        pages, batch = f"{dims}total_num_pages", f"{dims}batch_size"
        tensors = [
            SymbolicTensor("kv_blocks", self.dtype, (pages, *self.shape_per_block), device),
            SymbolicTensor("cache_lengths", "uint32", (batch,), device),
            SymbolicTensor("lookup_table", "uint32", (batch, f"{dims}max_num_pages"), device),
            SymbolicTensor("max_lengths", "uint32", (f"{dims}steps_remaining", 2), DeviceRef.CPU()),
        ]
        if self.quantized_kv_cache:
            scales = self._scales.scale_dtype
            tensors.append(SymbolicTensor("kv_scales", scales, (pages, *self.shape_per_scale_block), device))
        tensors.append(dispatch_metadata("attention_dispatch_metadata", self.is_mla, device))
        if self.speculative_method is not None:
            tensors.append(dispatch_metadata("draft_attention_dispatch_metadata", self.is_mla, device))
        if self.is_mla:
            tensors.append(SymbolicTensor("mla_num_partitions", "int64", (1,), DeviceRef.CPU()))
        return tuple(tensors)

    def resolve_attn_key(self, batch_size: int, max_prompt_length: int, max_cache_valid_length: int) -> AttnKey:
        """The decode dispatch key: exact on a CPU, on a GPU an approximation."""
        if batch_size <= 0 or self.devices[0].is_cpu():
            return AttnKey(batch_size, max_prompt_length, 1)
        heads = self.num_q_heads_per_device if self.is_mla else self.n_kv_heads_per_device
        assert heads is not None
        shape = DecodeShape(
            batch_size, max_prompt_length, max_cache_valid_length, heads, self.is_mla, self.is_fp8_kv_dtype
        )
        return AttnKey(batch_size, max_prompt_length, num_partitions(shape))

    def graph_capture_probe_cache_lengths(self, max_cache_length: int, q_max_seq_len: int = 1) -> list[int]:
        """Cache lengths for the capture of decode graphs; unsorted and with repeats, as in MAX's list."""
        step = _PROBE_STEP_MLA if self.is_mla else _PROBE_STEP_MHA
        lengths = [1, *range(step, max_cache_length, step), max_cache_length]
        if self.is_mla and q_max_seq_len > 1:
            lengths += range(step - 1, max_cache_length, step)
        least = 1 + 2 * self.num_draft_tokens
        return [length for length in lengths if length >= least]


def _require_size(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _SIZE_LIMIT:
        raise ValueError(f"{name} must be a whole number from 1 to {_SIZE_LIMIT:,}, not {value!r}.")


# Found by comparing the same parameters with it and without it.

_SHOWN: Final = 3  # first probe lengths that are listed


@dataclass(frozen=True)
class SpeculativeChanges:
    """`changed`: by MAX's name what the value is without the method and with it; `unchanged`: the names of the values
    that are the same."""

    changed: dict[str, tuple[Any, Any]]
    unchanged: tuple[str, ...]


def query_width(params: KVCacheParams) -> int:
    """Tokens of one sequence in a decode step: 1, and under speculation also the draft tokens that it verifies."""
    return 1 if params.speculative_method is None else 1 + params.num_draft_tokens


def decode_values(params: KVCacheParams, batch: int, length: int) -> dict[str, Any]:
    """The kernel of a decode step, or of a step that verifies drafts, and the lengths at which graphs are captured."""
    width = query_width(params)
    probes = params.graph_capture_probe_cache_lengths(length, width)
    return {
        "resolve_attn_key": asdict(params.resolve_attn_key(batch, width, length)),
        "graph_capture_probe_cache_lengths": {"count": len(probes), "first": probes[:_SHOWN], "last": probes[-1:]},
    }


def speculative_changes(params: KVCacheParams, batch: int, length: int) -> SpeculativeChanges:
    """Compare the parameters with the same ones without a speculative method."""
    plain = replace(params, speculative_method=None, num_draft_tokens=0)
    without, found = _compared(plain, batch, length), _compared(params, batch, length)
    changed = {name: (without.get(name), value) for name, value in found.items() if without.get(name) != value}
    return SpeculativeChanges(changed, tuple(name for name in found if name not in changed))


def _compared(params: KVCacheParams, batch: int, length: int) -> dict[str, Any]:
    return {
        "speculative_method": params.speculative_method,
        "num_draft_tokens": params.num_draft_tokens,
        **decode_values(params, batch, length),
        **derived_values(params),
        **{tensor.name: "a graph input" for tensor in params.symbolic_inputs()},
    }
