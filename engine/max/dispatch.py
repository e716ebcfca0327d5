"""Predicts which decode kernel variant MAX picks: attention keys, and the number of partitions of the cached tokens.

The keys are exact; the number of partitions is *approximate*: it follows one published revision of the kernels for
NVIDIA devices (2026), which change often. On a CPU, and for an empty batch, it is always one, which is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
