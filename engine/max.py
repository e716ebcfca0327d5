"""MAX's KV cache parameters, with MAX's names and rules: a calculator that allocates nothing. No torch.

Names, defaults, derived quantities and errors are those of ``max.nn.kv_cache.KVCacheParams`` as documented by Modular
(https://docs.modular.com/max/), at the revision in which one class holds connectors and dispatch. Every error of MAX is
a ``ValueError`` here, with the numbers in it; sizes below 1, which MAX accepts, are refused as well. Memory is in
bytes; host swap is in GiB per replica in spite of its name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, get_args

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, dtype_bytes


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


# What is told of parameters, by MAX's names: what was set, and what follows from it.
_SET: Final = (
    "dtype", "n_kv_heads", "head_dim", "num_layers", "devices", "page_size", "data_parallel_degree",
    "enable_prefix_caching", "kv_connector", "host_kvcache_swap_space_gb", "is_mla", "num_q_heads",
    "kvcache_quant_config", "speculative_method", "num_draft_tokens",
)  # fmt: skip
_DERIVED: Final = (
    "n_devices", "tensor_parallel_degree", "n_kv_heads_per_device", "num_q_heads_per_device",
    "replicates_kv_across_tp", "dtype_shorthand", "is_fp8_kv_dtype", "quantized_kv_cache", "shape_per_block",
    "shape_per_scale_block", "bytes_per_block", "num_draft_tokens_per_step",
)  # fmt: skip


def params_values(params: KVCacheParams) -> dict[str, Any]:
    """The fields that were set, then the derived properties."""
    quantization = params.kvcache_quant_config
    words = {
        "devices": [str(device) for device in params.devices],
        "kvcache_quant_config": None if quantization is None else asdict(quantization),
    }
    return {name: getattr(params, name) for name in _SET} | words | derived_values(params)


def derived_values(params: KVCacheParams) -> dict[str, Any]:
    """The derived properties by their names; no shape of scales where there are none."""
    has_scales = params.quantized_kv_cache
    return {n: getattr(params, n) if has_scales or n != "shape_per_scale_block" else None for n in _DERIVED}


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
    (:func:`require_manager_page_size`). ``host_kvcache_swap_space_gb`` is in GiB per replica in
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


# ---- what a speculative method changes: the same parameters with it and without it -----------------------------------

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


# ---- the kernel of a decode step -------------------------------------------------------------------------------------

# Which variant MAX picks: the attention key, and the number of partitions of the cached tokens. The keys are exact; the
# number of partitions is *approximate*: it follows one published revision of the kernels for NVIDIA devices (2026),
# which change often. On a CPU, and for an empty batch, it is always one, which is exact.


@dataclass(frozen=True)
class AttnKey:
    """The dispatch key of a decode step."""

    batch_size: int
    max_prompt_length: int
    num_partitions: int


@dataclass(frozen=True)
class DecodeShape:
    """One decode batch on one device; ``num_heads`` are KV heads of that device, or query heads under MLA."""

    batch_size: int
    max_prompt_length: int
    max_cache_valid_length: int
    num_heads: int
    is_mla: bool = False
    is_fp8: bool = False


SM_COUNT, HALF = 132, 74  # multiprocessors of the device; the largest split under MLA


def num_partitions(shape: DecodeShape) -> int:
    """The number of partitions into which the cached tokens of a decode step are split, at least 1: every
    multiprocessor gets work, in the sizes that the kernels are compiled for."""
    return _latent(shape) if shape.is_mla else _plain(shape)


def _plain(shape: DecodeShape) -> int:
    keys = shape.max_cache_valid_length
    if keys <= 512:
        return 1
    wanted = min(SM_COUNT // (shape.batch_size * shape.num_heads), keys // 512)
    return min(_next_power_of_two(wanted), 32)


def _latent(shape: DecodeShape) -> int:
    length = shape.max_cache_valid_length + shape.max_prompt_length
    page = 64 if length <= 512 and shape.batch_size >= 32 else 128
    num_pages = math.ceil(length / page)
    blocks = math.ceil(shape.num_heads / 64) * shape.max_prompt_length * shape.batch_size
    wanted, least = (
        _few_heads(shape, length, num_pages, blocks)
        if shape.num_heads <= 64
        else _many_heads(shape, length, num_pages, blocks)
    )
    most = max(1, min(HALF, num_pages))
    ladder = sorted({1, 2, 4, 8, 9, 16, 18, 20, 32, 37, 64, 72, HALF})
    return _bucket(min(max(wanted, least), most), ladder)


def _fill(blocks: int, share: float) -> int:
    """The number of partitions that occupy at least that share of the device, rounded down if that suffices."""
    whole = SM_COUNT // blocks
    is_enough = whole >= 1 and whole * blocks >= share * SM_COUNT
    return min(whole if is_enough else math.ceil(SM_COUNT / blocks), HALF)


def _few_heads(shape: DecodeShape, length: int, num_pages: int, blocks: int) -> tuple[int, int]:
    wanted = max(_fill(blocks, 0.85), math.ceil(num_pages / 36))
    is_short = length <= (512 if shape.is_fp8 else 256) and shape.batch_size >= 64
    if is_short or blocks >= 0.8 * SM_COUNT:
        return wanted, 1
    return wanted, 2 if num_pages >= 2 else 1


def _many_heads(shape: DecodeShape, length: int, num_pages: int, blocks: int) -> tuple[int, int]:
    batch = shape.batch_size
    target, least = _fill(blocks, 0.9), 2 if num_pages >= 2 else 1
    is_crowded = batch >= 64 and length <= 2176
    if is_crowded:
        target, least = 1, 1
    if blocks >= SM_COUNT:
        return 1, 1
    wave = min(SM_COUNT // math.gcd(blocks, SM_COUNT), HALF)
    if batch >= 16 or 4 <= batch <= 8:
        wave = min(wave, target)
    work = math.ceil(num_pages / 32)
    limit = num_pages // _pages_per_part(shape)
    return max(target, min(max(1, math.ceil(work / wave)) * wave, limit)), least


def _pages_per_part(shape: DecodeShape) -> int:
    least = 8 if shape.batch_size >= 64 else 4
    if shape.is_fp8 and shape.batch_size > 8:
        least *= 2
    groups = math.ceil(shape.num_heads / 64)
    return max(1, least * 2 // groups * 2)


def _next_power_of_two(number: int) -> int:
    return 1 if number <= 1 else 1 << (number - 1).bit_length()


def _bucket(number: int, ladder: Sequence[int]) -> int:
    """The smallest step of the ladder that is not below the number, or the highest if all are."""
    return next((rung for rung in ladder if rung >= number), ladder[-1])


# ---- how many pages fit in memory, and the rules of the manager and of connectors ------------------------------------

GIB: Final = 1024**3

_MANAGER_PAGE_MULTIPLE: Final = 128


class InsufficientMemoryError(RuntimeError):
    """The given memory is too small for a single page; a ``RuntimeError``, as in MAX."""


def require_manager_page_size(page_size: int) -> None:
    """Raise ValueError unless the page size is 128, 256, 384, …: a rule of the cache manager, not of the parameters."""
    if page_size < _MANAGER_PAGE_MULTIPLE or page_size % _MANAGER_PAGE_MULTIPLE:
        raise ValueError(
            f"The KV cache manager needs a page_size of at least {_MANAGER_PAGE_MULTIPLE} that is a multiple of "
            f"{_MANAGER_PAGE_MULTIPLE}, not {page_size}."
        )


def compute_num_device_blocks(params: KVCacheParams, available_cache_memory: int) -> int:
    """How many pages fit in one replica's share of the memory."""
    if available_cache_memory < 0:
        raise ValueError(f"Available memory must be 0 bytes or more, not {available_cache_memory}.")
    per_replica = available_cache_memory // params.data_parallel_degree
    fitting = per_replica // params.bytes_per_block
    if fitting == 0:
        raise InsufficientMemoryError(
            f"{per_replica} bytes per replica hold no KV cache page of {params.bytes_per_block} bytes; "
            f"give at least {params.bytes_per_block * params.data_parallel_degree} bytes."
        )
    return fitting


def compute_max_seq_len_fitting_in_cache(params: KVCacheParams, available_cache_memory: int) -> int:
    """The length of the longest single request that fits in the memory, in tokens."""
    return compute_num_device_blocks(params, available_cache_memory) * params.page_size


def host_bytes_per_block(params: KVCacheParams) -> int:
    """Bytes of one page in host memory. K and V that every device holds identically are stored there once."""
    repeats = params.tensor_parallel_degree if params.replicates_kv_across_tp else 1
    return params.bytes_per_block // repeats


def compute_num_host_blocks(params: KVCacheParams) -> int:
    """Number of host pages of one replica; 0 if its connector has no host tier."""
    if params.kv_connector not in ("local", "tiered") or params.host_kvcache_swap_space_gb is None:
        return 0
    per_block = host_bytes_per_block(params)
    num_blocks = int(params.host_kvcache_swap_space_gb * GIB) // per_block
    if num_blocks == 0:
        raise InsufficientMemoryError(
            f"host_kvcache_swap_space_gb of {params.host_kvcache_swap_space_gb} GiB holds no KV cache page of "
            f"{per_block} bytes; give at least {per_block / GIB:.4f} GiB."
        )
    return num_blocks


def tiers_of(params: KVCacheParams) -> tuple[str, ...]:
    """Where the pages of the connector can be, from the device down; raises ValueError if a setting is missing."""
    kind = params.kv_connector or "null"
    settings = params.kv_connector_config or KVConnectorConfig()
    if kind == "null":
        return ("device",)
    if kind == "dkv":
        _check_endpoint(settings.block_store_endpoint)
        return ("device", "block store")
    compute_num_host_blocks(params)  # raises if the host tier holds no page
    if kind == "local":
        return ("device", "host")
    if not settings.disk_offload_dir:
        raise ValueError("The tiered KV connector requires a folder on disk; disk_offload_dir is None.")
    return ("device", "host", "disk")


def _check_endpoint(endpoint: str | None) -> None:
    if not endpoint:
        raise ValueError("The dkv KV connector requires a block store; block_store_endpoint is None.")
    if not endpoint.startswith(("ipc://", "tcp://")):
        raise ValueError(f"block_store_endpoint must start with ipc:// or tcp://, not {endpoint!r}.")


# ---- the parameters from the config of any Hugging Face model --------------------------------------------------------


@dataclass(frozen=True)
class KVCacheConfig:
    """The cache settings of a user. A connector without settings of its own gets the default ones."""

    kv_cache_page_size: int = 128
    enable_prefix_caching: bool = True
    kv_connector: KVConnectorType | None = None
    kv_connector_config: KVConnectorConfig | None = None

    def __post_init__(self) -> None:
        if self.kv_connector is not None and self.kv_connector_config is None:
            object.__setattr__(self, "kv_connector_config", KVConnectorConfig())

    @property
    def host_kvcache_swap_space_gb(self) -> float | None:
        """GiB of host memory per replica; None without connector settings."""
        return None if self.kv_connector_config is None else self.kv_connector_config.host_kvcache_swap_space_gb


@dataclass
class ArchConfigWithAttentionKVCache:
    """The dimensions of any Hugging Face decoder whose attention layers all keep the same shape.

    Layers without K and V are not counted. Windows are ignored: MAX reserves every page of every attention layer.
    Under MLA one head holds the latent and the rotary key together.
    """

    dtype: str
    devices: list[DeviceRef] = field(default_factory=lambda: [DeviceRef.CPU()])  # callers pass accelerators
    cache_dtype: str | None = None
    kv_cache: KVCacheConfig = field(default_factory=KVCacheConfig)
    data_parallel_degree: int = 1
    user_provided_max_length: int | None = None
    huggingface_config: Any = None
    kvcache_quant_config: KVCacheQuantizationConfig | None = None

    @property
    def geometry(self) -> CacheGeometry:
        """The cache dimensions layer by layer; of a model that is loaded, they are given in place of its config."""
        if isinstance(self.huggingface_config, CacheGeometry):
            return self.huggingface_config
        if self.huggingface_config is None:
            raise InputError("There is no Hugging Face config to read the cache dimensions from; pass one.")
        return CacheGeometry.from_config(self.huggingface_config)

    @property
    def num_key_value_heads(self) -> int:
        """KV heads of every attention layer; 1 under MLA."""
        return self._one_shape()[0]

    @property
    def head_dim(self) -> int:
        """Numbers in one cached head; latent and rotary key together under MLA."""
        return self._one_shape()[1]

    @property
    def num_layers(self) -> int:
        """Number of layers that keep K and V of their own."""
        return len(self.geometry.attention_layers)

    @property
    def model_max_seq_len(self) -> int:
        """Context length of the model; if it has no limit, that given by the user."""
        geometry = self.geometry
        longest = self.user_provided_max_length if geometry.max_length is None else geometry.max_length
        if longest is None:
            raise InputError(f"A {geometry.model_type} model states no maximum length; give one.")
        return longest

    def _one_shape(self) -> tuple[int, int]:
        geometry = self.geometry
        shapes = {(layer.num_kv_heads, layer.key_dim, layer.value_dim) for layer in geometry.attention_layers}
        if not shapes:
            raise InputError(f"A {geometry.model_type} model keeps no K and V, so it has no KV cache parameters.")
        if len(shapes) > 1:
            raise InputError(
                f"The layers of this {geometry.model_type} model keep {len(shapes)} different shapes; "
                f"one set of KV cache parameters describes only one."
            )
        num_kv_heads, key_dim, value_dim = shapes.pop()
        return num_kv_heads, key_dim + value_dim if geometry.is_latent else key_dim

    def get_max_seq_len(self) -> int:
        """The user's maximum if there is one, else the model's; raises ValueError if it exceeds the model's."""
        wanted = self.user_provided_max_length
        if wanted is None:
            return self.model_max_seq_len
        if not 0 <= wanted <= self.model_max_seq_len:
            raise ValueError(
                f"max_length of {wanted} is outside what the model was built for: 0 to {self.model_max_seq_len}."
            )
        return wanted

    def get_kv_params(self) -> KVCacheParams:
        """The cache parameters."""
        geometry = self.geometry
        return KVCacheParams(
            dtype=self.cache_dtype or self.dtype,
            n_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            num_layers=self.num_layers,
            devices=tuple(self.devices),
            enable_prefix_caching=self.kv_cache.enable_prefix_caching,
            kv_connector=self.kv_cache.kv_connector,
            kv_connector_config=self.kv_cache.kv_connector_config,
            host_kvcache_swap_space_gb=self.kv_cache.host_kvcache_swap_space_gb,
            page_size=self.kv_cache.kv_cache_page_size,
            is_mla=geometry.is_latent,
            num_q_heads=geometry.num_heads if geometry.is_latent else None,
            data_parallel_degree=self.data_parallel_degree,
            kvcache_quant_config=self.kvcache_quant_config,
        )
