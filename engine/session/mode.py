"""A cache mode on one model: makes the caches of its sequences, and says what fits into them."""

from __future__ import annotations

from functools import cached_property

import torch

from engine.cache.compressed.cache import CompressedCache
from engine.cache.paged.cache import PagedCache
from engine.cache.paged.store import PageStore
from engine.cache.rotation import KeyRotation, key_rotation_of
from engine.cache.sequence_cache import SequenceCache
from engine.counted import counted
from engine.device import check_reserved
from engine.errors import InputError
from engine.history.state import SequenceState
from engine.look.candidates import Sample
from engine.model.loader import LoadedModel
from engine.predict.capacity import check_layout, is_endless, num_source
from engine.session.sampler import SampledToken, ends_in
from engine.spec.cache import CacheSpec
from engine.wire.records import StopReason


class CacheMode:
    """A cache spec on one model, with what the caches of all its sequences share: the page store and the rotation of
    sink keys.

    Raises `InputError` where the model cannot have this spec, or the pages would not fit into memory.
    """

    def __init__(self, model: LoadedModel, spec: CacheSpec) -> None:
        self.model, self.spec = model, spec
        check_layout(spec, model.info.geometry)
        self._check_device()
        self._rotation = self._new_rotation()
        self.store = self._new_store()

    def _new_store(self) -> PageStore | None:
        """The page store of a paged layout, else None; impossible sizes are refused before anything is allocated."""
        if not self.spec.is_paged:
            return None
        info = self.model.info
        if info.layer_devices:
            raise InputError(
                "A pool of pages lies on one device, and this model's layers stand on several: take the growing cache."
            )
        return PageStore(self.spec, info.geometry, self.model.max_length, getattr(torch, info.dtype), self.model.device)

    def _new_rotation(self) -> KeyRotation | None:
        """What re-rotates the keys of sinks, if the spec asks for it; models without rotary keys are refused."""
        if not self.spec.retention.rerotate:
            return None
        if not (self.model.takes_positions and self.model.info.captures_attention):
            raise InputError(
                "Re-rotation needs a model that takes positions and runs our attention: keep the positions."
            )
        return key_rotation_of(self.model.model)

    @cached_property
    def computes_whole_prompts(self) -> bool:
        """Whether a prompt must be computed in one forward: in a recomputing layout; in transformers' quantised cache,
        whose first forward fixes the scales; with an encoder; and with a recurrent state, which not every architecture
        can continue from chunk to chunk."""
        is_linear = any(layer.kind == "linear" for layer in self.model.info.geometry.layers)
        has_encoder = self.model.info.geometry.has_encoder
        return is_linear or has_encoder or self.spec.recomputes or self.spec.layout == "quantized"

    def new_cache(self, seq_id: int, num_prompt_tokens: int) -> SequenceCache:
        """An empty cache for a sequence. An encoder, if the model has one, reads all tokens of the prompt but the last.
        Raises `InputError` where the model cannot have the mode, or the reserved memory is not there."""
        spec, geometry = self.spec, self.model.info.geometry
        config, limit = self.model.model.config, self.model.max_length
        check_reserved(spec, geometry, self.model.info.dtype, self.model.device)
        if spec.is_compressed:
            spec.codec.check(geometry)
            spec.retention.check(geometry, self.model.info.captures_attention)
        source = num_source(geometry, num_prompt_tokens)
        if self.store is not None:
            return PagedCache(self.store, config, limit, seq_id, source)
        if spec.is_compressed:
            return CompressedCache(spec, config, limit, seq_id, self._rotation, source)
        return SequenceCache(spec, config, limit, source)

    def _check_device(self) -> None:
        """Refuse modes that copy rows to and from a CUDA GPU where the model is not on one."""
        if self.spec.row.needs_cuda and self.model.device.type != "cuda":
            raise InputError(
                f"The {self.spec.row.label} cache copies rows between main memory and a CUDA GPU, and this model is on "
                f"{self.model.info.device}: take the {'static' if self.spec.form == 'static' else 'growing'} cache."
            )

    def check(self) -> None:
        """Raise `InputError` at once where the model cannot have this mode, before any sequence needs a cache."""
        self.new_cache(-1, 0).close()

    # ---- room ----------------------------------------------------------------------------------------------------

    @property
    def is_endless(self) -> bool:
        """Whether a sequence may grow beyond the model's context, since the cache keeps only a window (and sinks)."""
        return is_endless(self.spec, self.model.info)

    def full_at(self, num_tokens: int, cache: SequenceCache) -> StopReason | None:
        """Why no token can follow the first `num_tokens`; None where one can. Of an encoder-decoder only the decoder's
        tokens count."""
        num_tokens -= cache.num_source
        if num_tokens >= self.model.max_length and not self.is_endless:
            return "context full"
        return "cache full" if cache.capacity is not None and num_tokens >= cache.capacity else None

    def stop_after(
        self, sequence: SequenceState, choice: Sample | SampledToken, cache: SequenceCache
    ) -> StopReason | None:
        """Why a sequence ends with the token chosen to follow its newest one; None where it continues."""
        token_id = choice.token_id
        if not choice.is_finite:
            return "non-finite logits"
        if token_id in self.model.end_ids:
            return "end of text"
        stops, computed = sequence.sampling.stop, sequence.token_ids
        if stops and ends_in(
            stops, computed, len(computed) - sequence.num_prompt_tokens, token_id, self.model.tokenizer
        ):
            return "stop string"
        most = sequence.sampling.max_new_tokens
        if most is not None and len(computed) - sequence.num_prompt_tokens + 1 >= most:
            return "length"
        return self.full_at(len(computed), cache)

    def stop_of(self, sequence: SequenceState, cache: SequenceCache) -> StopReason | None:
        """The stop reason of a sequence after it got this cache: whether a cache is full may differ between two."""
        if sequence.is_prefilling or sequence.stop not in (None, "cache full", "context full"):
            return sequence.stop
        return self.full_at(sequence.num_tokens, cache)

    def check_fits(self, num_tokens: int, cache: SequenceCache) -> None:
        """Raise `InputError` for a prompt that is too long for a cache, the model's context or its encoder."""
        count, most = cache.num_source, self.model.info.geometry.max_source_length or self.model.max_length
        if count > most:
            raise InputError(
                f"The prompt has {counted(count, 'token')} and the model's encoder reads {most:,}: shorten the prompt."
            )
        num_tokens -= cache.num_source
        limit = self.model.max_length if cache.capacity is None else min(cache.capacity, self.model.max_length)
        if num_tokens > limit:
            mine = "the page pool" if self.spec.is_paged else "the static cache"
            what = mine if cache.capacity == limit else "the model's context"
            raise InputError(
                f"The prompt has {counted(num_tokens, 'token')} and {what} holds {limit:,}: shorten the prompt."
            )

    def check_holds(self, seq_id: int, sequence: SequenceState, cache: SequenceCache, remedy: str = "") -> None:
        """Raise `InputError` where a cache has no room for all tokens of a sequence, also those not computed yet.
        `remedy` is the advice in the message."""
        count, context = len(sequence.token_ids) - cache.num_source, self.model.max_length
        if cache.capacity is not None and count > cache.capacity:
            mine = "page pool" if self.spec.is_paged else "static cache"
            raise InputError(
                f"Sequence {seq_id} has {counted(count, 'token')} and this {mine} holds {cache.capacity:,}: "
                f"{remedy or 'make it larger, or go back first'}."
            )
        if count > context and not self.is_endless:
            raise InputError(
                f"Sequence {seq_id} has {counted(count, 'token')} and the model's context holds {context:,}: only a "
                f"cache that keeps a window goes beyond; {remedy or 'or go back first'}."
            )
