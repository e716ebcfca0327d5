"""Predicts which decode kernel variant MAX picks: attention keys, and the number of partitions of the cached tokens.

The keys are exact; the partition heuristics are *approximate*. Each follows one published revision of a vendor's
kernels, which change often; therefore they are pluggable and have a version. On a CPU, and for an empty batch, the
result is always one partition, which is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True)
class MHAAttnKey:
    """The dispatch key of a decode step under multi-head or grouped-query attention."""

    batch_size: int
    max_prompt_length: int
    num_partitions: int

    def pack(self, max_cache_valid_length: int) -> tuple[int, int, int, int]:
        """The int64 metadata row. It contains the cache length, which is not part of the key."""
        return (self.batch_size, self.max_prompt_length, self.num_partitions, max_cache_valid_length)


@dataclass(frozen=True)
class MLAAttnKey:
    """The dispatch key of a decode step under multi-head latent attention."""

    batch_size: int
    max_prompt_length: int
    num_partitions: int

    def pack(self) -> tuple[int, int, int]:
        """The int64 metadata row."""
        return (self.batch_size, self.max_prompt_length, self.num_partitions)


AttnKey = MHAAttnKey | MLAAttnKey
MultiAttnKey = tuple[tuple[str, AttnKey], ...]


@dataclass(frozen=True)
class DecodeShape:
    """One decode batch on one device; ``num_heads`` are KV heads of that device, or query heads under MLA."""

    batch_size: int
    max_prompt_length: int
    max_cache_valid_length: int
    num_heads: int
    is_mla: bool = False
    is_fp8: bool = False


class PartitionHeuristic(Protocol):
    """Chooses the number of partitions into which the cached tokens of a decode step are split."""

    @property
    def version(self) -> str:
        """The published rule that this heuristic follows; shown beside its results."""
        ...

    def num_partitions(self, shape: DecodeShape) -> int:
        """The number of partitions, at least 1."""
        ...


@dataclass(frozen=True)
class SinglePartition:
    """No splitting: CPU and Metal."""

    version: str = "single partition (exact on CPU)"

    def num_partitions(self, shape: DecodeShape) -> int:
        """Always 1."""
        return 1


@dataclass(frozen=True)
class NvidiaHeuristic:
    """The heuristic for NVIDIA devices with ``sm_count`` multiprocessors; ``half`` limits the MLA split."""

    sm_count: int = 132
    half: int = 74
    version: str = "NVIDIA, 2026 (approximate)"

    def num_partitions(self, shape: DecodeShape) -> int:
        """Split so that every multiprocessor has work, in the sizes that the kernels are compiled for."""
        return self._latent(shape) if shape.is_mla else self._plain(shape)

    def _plain(self, shape: DecodeShape) -> int:
        keys = shape.max_cache_valid_length
        if keys <= 512:
            return 1
        wanted = min(self.sm_count // (shape.batch_size * shape.num_heads), keys // 512)
        return min(_next_power_of_two(wanted), 32)

    def _latent(self, shape: DecodeShape) -> int:
        length = shape.max_cache_valid_length + shape.max_prompt_length
        page = 64 if length <= 512 and shape.batch_size >= 32 else 128
        num_pages = math.ceil(length / page)
        blocks = math.ceil(shape.num_heads / 64) * shape.max_prompt_length * shape.batch_size
        wanted, least = (
            self._few_heads(shape, length, num_pages, blocks)
            if shape.num_heads <= 64
            else self._many_heads(shape, length, num_pages, blocks)
        )
        most = max(1, min(self.half, num_pages))
        ladder = sorted({1, 2, 4, 8, 9, 16, 18, 20, 32, 37, 64, 72, self.half})
        return _bucket(min(max(wanted, least), most), ladder)

    def _fill(self, blocks: int, share: float) -> int:
        """The number of partitions that occupy at least that share of the device, rounded down if that suffices."""
        whole = self.sm_count // blocks
        is_enough = whole >= 1 and whole * blocks >= share * self.sm_count
        return min(whole if is_enough else math.ceil(self.sm_count / blocks), self.half)

    def _few_heads(self, shape: DecodeShape, length: int, num_pages: int, blocks: int) -> tuple[int, int]:
        wanted = max(self._fill(blocks, 0.85), math.ceil(num_pages / 36))
        is_short = length <= (512 if shape.is_fp8 else 256) and shape.batch_size >= 64
        if is_short or blocks >= 0.8 * self.sm_count:
            return wanted, 1
        return wanted, 2 if num_pages >= 2 else 1

    def _many_heads(self, shape: DecodeShape, length: int, num_pages: int, blocks: int) -> tuple[int, int]:
        batch = shape.batch_size
        target, least = self._fill(blocks, 0.9), 2 if num_pages >= 2 else 1
        is_crowded = batch >= 64 and length <= 2176
        if is_crowded:
            target, least = 1, 1
        if blocks >= self.sm_count:
            return 1, 1
        wave = min(self.sm_count // math.gcd(blocks, self.sm_count), self.half)
        if batch >= 16 or 4 <= batch <= 8:
            wave = min(wave, target)
        work = math.ceil(num_pages / 32)
        limit = num_pages // self._pages_per_part(shape)
        return max(target, min(max(1, math.ceil(work / wave)) * wave, limit)), least

    def _pages_per_part(self, shape: DecodeShape) -> int:
        if shape.batch_size >= 64:
            least = 16 if shape.is_fp8 else 8
        else:
            least = 8 if shape.is_fp8 and shape.batch_size > 8 else 4
        groups = math.ceil(shape.num_heads / 64)
        return max(1, least * 2 // groups * 2)


_AMD_LADDER: Final = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True)
class AmdHeuristic:
    """The heuristic for AMD devices with ``sm_count`` compute units, the same for plain and latent attention."""

    sm_count: int = 256
    version: str = "AMD, mid-2026 (approximate)"

    def num_partitions(self, shape: DecodeShape) -> int:
        """Split so that one to two rounds of blocks fill the device."""
        keys, batch, heads = shape.max_cache_valid_length, shape.batch_size, shape.num_heads
        if keys <= 256:
            return 1
        if heads < 32 and batch * heads >= self.sm_count:
            return _bucket(min(math.ceil(keys / (256 * max(1, batch * heads // 64))), 64), _AMD_LADDER)
        blocks = max(1, math.ceil(heads / 32) * batch)
        num_pages = math.ceil(keys / 256)
        one, two = max(1, self.sm_count // blocks), max(1, 2 * self.sm_count // blocks)
        target = max(one, min(math.ceil(num_pages / 5), two))
        return _bucket(min(target, num_pages, 256), _AMD_LADDER)


def _next_power_of_two(number: int) -> int:
    return 1 if number <= 1 else 1 << (number - 1).bit_length()


def _bucket(number: int, ladder: Sequence[int]) -> int:
    """The smallest step of the ladder that is not below the number, or the highest if all are."""
    return next((rung for rung in ladder if rung >= number), ladder[-1])
