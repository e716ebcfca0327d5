"""MAX's architecture config, which derives the parameters of a cache from the config of any Hugging Face model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.max.params import DeviceRef, KVCacheParams, KVCacheQuantizationConfig, KVConnectorConfig, KVConnectorType


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
