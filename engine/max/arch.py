"""MAX's architecture configs, which derive the parameters of a cache from the config of any Hugging Face model.

``ArchConfigWithAttentionKVCache`` has MAX's fields, abstract properties and rules, so that a model's config class
written for MAX's interface works here unchanged; therefore the classes are ordinary dataclasses, not frozen ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.max.buffers import DeviceRef
from engine.max.params import KVCacheParams, KVCacheQuantizationConfig, KVConnectorConfig, KVConnectorType


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


def _every_device() -> list[DeviceRef]:
    return [DeviceRef.CPU()]  # listing accelerators would need a framework, so callers pass them


@dataclass
class ArchConfigWithAttentionKVCache(ABC):
    """Base of the architectures that keep K and V; a subclass defines the four cache dimensions."""

    dtype: str
    devices: list[DeviceRef] = field(default_factory=_every_device)
    cache_dtype: str | None = None
    kv_cache: KVCacheConfig = field(default_factory=KVCacheConfig)
    data_parallel_degree: int = 1
    user_provided_max_length: int | None = None
    huggingface_config: Any = None
    _kv_params: KVCacheParams | None = None

    @property
    @abstractmethod
    def num_key_value_heads(self) -> int:
        """KV heads per layer."""

    @property
    @abstractmethod
    def head_dim(self) -> int:
        """Numbers in one cached head."""

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """Number of layers that are cached."""

    @property
    @abstractmethod
    def model_max_seq_len(self) -> int:
        """Context length of the model."""

    def get_kv_params(self) -> KVCacheParams:
        """The cache parameters; every call returns the same object."""
        if self._kv_params is None:
            self._kv_params = self._build_kv_params()
        return self._kv_params

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

    def _build_kv_params(self) -> KVCacheParams:
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
            data_parallel_degree=self.data_parallel_degree,
            **self._attention_settings(),
        )

    def _attention_settings(self) -> dict[str, Any]:
        """Further parameters, which subclasses may add: the base has no MLA and no quantisation."""
        return {}


@dataclass
class HuggingFaceArchConfig(ArchConfigWithAttentionKVCache):
    """The dimensions of any Hugging Face decoder whose attention layers all keep the same shape.

    Layers without K and V are not counted. Windows are ignored: MAX reserves every page of every attention layer.
    Under MLA one head holds the latent and the rotary key together.
    """

    kvcache_quant_config: KVCacheQuantizationConfig | None = None

    @property
    def geometry(self) -> CacheGeometry:
        """The cache dimensions layer by layer."""
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

    def _attention_settings(self) -> dict[str, Any]:
        geometry = self.geometry
        latent = {"is_mla": True, "num_q_heads": geometry.num_heads} if geometry.is_latent else {}
        return {**latent, "kvcache_quant_config": self.kvcache_quant_config}


@dataclass
class GPT2ArchConfig(ArchConfigWithAttentionKVCache):
    """GPT-2 as Modular's tutorial serves it: every token is recomputed, but a cache is reserved nevertheless."""

    @property
    def num_key_value_heads(self) -> int:
        """``n_head``: every query head has its own K and V."""
        return self._dimension("n_head")

    @property
    def head_dim(self) -> int:
        """``n_embd // n_head``."""
        return self._dimension("n_embd") // self._dimension("n_head")

    @property
    def num_layers(self) -> int:
        """``n_layer``."""
        return self._dimension("n_layer")

    @property
    def model_max_seq_len(self) -> int:
        """``n_positions``."""
        return self._dimension("n_positions")

    def _dimension(self, name: str) -> int:
        config = self.huggingface_config
        value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{name} in the GPT-2 config is {value!r}; it must be a whole number of 1 or more.")
        return value
