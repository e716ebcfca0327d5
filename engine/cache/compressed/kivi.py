"""KIVI's arithmetic: asymmetric codes of b bits, packed 32 / b to a word, low bits first (Liu et al., 2024).

Keys share a float16 scale and offset per channel over groups of consecutive tokens, values per token over groups of
channels. Offsets are rounded down and scales up in float16, so that |x - x'| <= scale / 2 holds for the stored scale.
"""

from __future__ import annotations

import torch

from engine.cache.compressed.codecs import TINY_HALF, Codes, RowCodec
from engine.spec.codec import WORD_BITS, Part


class Kivi(RowCodec):
    """K or V `[B, H, T, D]` as words, scales and offsets. Of keys, T is a multiple of G: words `[B, H, T b / 32, D]`,
    scales and offsets `[B, H, T / G, D]`; of values, words `[B, H, T, D b / 32]`, scales and offsets `[B, H, T, D /
    G]`."""

    names = ("words", "scales", "offsets")

    def __init__(self, bits: int, group: int, part: Part) -> None:
        self._bits, self.group, self._axis = bits, group, 2 if part == "keys" else 3

    def encode(self, rows: torch.Tensor) -> Codes:
        axis = self._axis
        codes, scales, offsets = quantised(grouped(rows.float(), axis, self.group), axis + 1, self._bits)
        codes = codes.flatten(axis, axis + 1)
        words = packed(codes, self._bits) if axis == 3 else packed(codes.mT, self._bits).mT.contiguous()
        return words, scales.squeeze(axis + 1), offsets.squeeze(axis + 1)

    def decode(self, codes: Codes, dtype: torch.dtype) -> torch.Tensor:
        (words, scales, offsets), axis = codes, self._axis
        if axis == 3:
            found = unpacked(words, self._bits)
        else:
            shifts = torch.arange(0, WORD_BITS, self._bits, device=words.device, dtype=torch.int32)[:, None]
            found = (words.unsqueeze(3) >> shifts).bitwise_and_(2**self._bits - 1).flatten(2, 3).float()
        scales, offsets = (each.float().unsqueeze(axis + 1) for each in (scales, offsets))
        return grouped(found, axis, self.group).mul_(scales).add_(offsets).flatten(axis, axis + 1).to(dtype)

    def counts(self, num_rows: int) -> tuple[int, int, int]:
        if self._axis == 3:
            return num_rows, num_rows, num_rows
        groups = num_rows // self.group
        return num_rows * self._bits // WORD_BITS, groups, groups


def quantised(groups: torch.Tensor, axis: int, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes 0 … 2^b - 1 as float32, with the float16 scale and offset of each group along `axis`.

    A group with a NaN or an infinity gets a NaN scale, so that all of it is decoded to NaN and never to other numbers.
    """
    low, high = groups.amin(axis, keepdim=True), groups.amax(axis, keepdim=True)
    top = 2**bits - 1
    offsets = rounded_down(low)
    scales = rounded_up((high - offsets.float()) / top).masked_fill(~(low.isfinite() & high.isfinite()), torch.nan)
    codes = ((groups - offsets.float()) / scales.float()).round().clamp(0, top)
    return codes.nan_to_num(0.0), scales, offsets


def grouped(numbers: torch.Tensor, axis: int, group: int) -> torch.Tensor:
    """The axis split into two: groups, and `group` numbers in each."""
    shape = numbers.shape
    return numbers.reshape(*shape[:axis], shape[axis] // group, group, *shape[axis + 1 :])


def rounded_down(numbers: torch.Tensor) -> torch.Tensor:
    """The largest float16 that is at most each number, or one step lower; beyond float16's range it is infinite, which
    makes the group NaN."""
    half = numbers.half()
    lower = (half.float() - half.float().abs() * 2.0**-10 - TINY_HALF * 2.0**-10).half()
    return torch.where(half.float() > numbers, lower, half)


def rounded_up(numbers: torch.Tensor) -> torch.Tensor:
    """float16 at or above each number, at least the smallest normal one."""
    half = numbers.clamp(min=TINY_HALF).half()
    upper = (half.float() * (1 + 2.0**-10)).half()
    return torch.where(half.float() < numbers, upper, half)


def packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes `[…, N]` as int32 words `[…, N b / 32]`, the first code in the lowest bits."""
    per_word = WORD_BITS // bits
    shifts = torch.arange(per_word, device=codes.device) * bits
    words = (grouped(codes.long(), codes.dim() - 1, per_word) << shifts).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes `[…, N]` as float32 from words `[…, N b / 32]`, byte by byte, the lowest first as they are in memory."""
    held = words.contiguous().view(torch.uint8)
    codes = [(held >> shift).bitwise_and_(2**bits - 1) for shift in range(0, 8, bits)]
    return torch.stack(codes, -1).flatten(-2).float()
