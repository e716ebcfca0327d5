"""Codecs that quantise every row independently of the others: fp8 (e4m3) and int8, packed in one byte a number. KIVI,
whose keys share scales in groups, is in `kivi`.

Shapes: rows `[B, H, T, D]`; codes have one byte a number; scales have the same axes, with the axis along which they are
shared reduced. Infinities become NaN before quantisation, so that clamping never hides them. Error bounds, with s the
stored scale: int8 |x - x'| <= s/2; e4m3 |x - x'| <= max(|x| 2^-4, s 2^-10).
"""

from __future__ import annotations

import torch

from engine.spec.codec import Coding

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
# mask of the float16 bits that e4m3 also has: sign, four bits of the exponent, three of the fraction
E4M3_BITS_IN_HALF = 0xBF80 - 0x10000
INT8_MAX = 127.0
TINY_HALF = 2.0**-14  # the smallest normal float16: below it a scale loses its own precision
TINY_SINGLE = 2.0**-126
E8M0_BIAS = 127
E8M0_NAN = 255

Codes = tuple[torch.Tensor, ...]


class RowCodec:
    """Encodes rows independently of each other: `decode(encode(rows))` is what attention reads. This one keeps them as
    they are. `shared` is the scale that all rows share; None before it is fixed, and where each row has its own.
    `names` are those of its tensors as they are stored, and `group` the number of rows that are decoded together."""

    shared: torch.Tensor | None = None
    names: tuple[str, ...] = ("codes", "scales")
    group = 1

    def counts(self, num_rows: int) -> tuple[int, int, int]:
        """The number of rows that each of its tensors has for so many rows."""
        return num_rows, num_rows, num_rows

    def encode(self, rows: torch.Tensor) -> Codes:
        """Rows `[B, H, T, D]` as tensors `[B, H, T, …]`: the codes, and scales if each row has its own."""
        return (rows,)

    def decode(self, codes: Codes, dtype: torch.dtype) -> torch.Tensor:
        """The rows `[B, H, T, D]` from their codes. They are multiplied by their scales in place after widening,
        because a second tensor of all rows would double the time. No decoded copy is kept: it would take the memory
        that quantising saves."""
        return codes[0]

    def freeze(self, rows: torch.Tensor) -> RowCodec:
        """This codec with the scale that all rows share fixed, computed from the rows of a whole prompt."""
        return self


class Fp8Frozen(RowCodec):
    """e4m3 with one float32 scale for the tensor, or one for each head: amax / 448 of the prompt, fixed from then on.

    Later numbers beyond the prompt's amax saturate, as in transformers' fp8 quantiser.
    """

    def __init__(self, per_head: bool, scale: torch.Tensor | None = None) -> None:
        self._per_head, self.shared = per_head, scale

    def freeze(self, rows: torch.Tensor) -> Fp8Frozen:
        amax = rows.abs().float()
        amax = amax.amax((0, 2, 3), keepdim=True) if self._per_head else amax.amax().view(1, 1, 1, 1)
        return Fp8Frozen(self._per_head, (amax / E4M3_MAX).clamp(min=TINY_SINGLE))

    def encode(self, rows: torch.Tensor) -> Codes:
        assert self.shared is not None, "the scale is frozen when the prompt ends"
        return (to_e4m3(rows.float() / self.shared),)

    def decode(self, codes: Codes, dtype: torch.dtype) -> torch.Tensor:
        assert self.shared is not None, "the scale is frozen when the prompt ends"
        return from_e4m3(codes[0]).mul_(self.shared).to(dtype)


class Fp8Grouped(RowCodec):
    """e4m3 with a scale per token, head and group of `group` numbers along D (None: all of D), in float32 or e8m0.

    An e8m0 scale is rounded up to a power of two from amax / 448, so that nothing saturates.
    """

    def __init__(self, group: int | None, powers_of_two: bool = False) -> None:
        self._group, self._powers_of_two = group, powers_of_two

    def encode(self, rows: torch.Tensor) -> Codes:
        grouped = split(rows.float(), self._group or rows.shape[3])
        least = (no_infinities(grouped).abs().amax(-1) / E4M3_MAX).clamp(min=TINY_SINGLE)
        scales = to_e8m0(least) if self._powers_of_two else least
        codes = to_e4m3(grouped / self._factors(scales)[..., None])
        return codes.flatten(3), scales

    def decode(self, codes: Codes, dtype: torch.dtype) -> torch.Tensor:
        numbers, scales = codes
        grouped = split(from_e4m3(numbers), self._group or numbers.shape[3])
        return grouped.mul_(self._factors(scales)[..., None]).flatten(3).to(dtype)

    def _factors(self, scales: torch.Tensor) -> torch.Tensor:
        return from_e8m0(scales) if self._powers_of_two else scales


class Int8(RowCodec):
    """Symmetric int8 with a float16 scale amax / 127 per token and head."""

    def encode(self, rows: torch.Tensor) -> Codes:
        exact = no_infinities(rows.float())
        scales = (exact.abs().amax(-1, keepdim=True) / INT8_MAX).clamp(min=TINY_HALF).half()
        codes = (exact / scales.float()).round().clamp(-INT8_MAX, INT8_MAX)
        return codes.nan_to_num(0.0).to(torch.int8), scales  # NaN is kept by the row's scale

    def decode(self, codes: Codes, dtype: torch.dtype) -> torch.Tensor:
        numbers, scales = codes
        return numbers.float().mul_(scales.float()).to(dtype)


def row_codec(coding: Coding, shared: torch.Tensor | None = None) -> RowCodec:
    """The codec of a coding that quantises rows independently; `shared` is the scale of all rows, if it is fixed
    already."""
    assert not coding.is_kivi, "its keys share scales"
    if coding.is_frozen:
        return Fp8Frozen(coding.name == "fp8-head", shared)
    if coding.name.startswith("fp8"):
        return Fp8Grouped(coding.group_size if coding.has_groups else None, coding.name == "fp8-max-e8m0")
    return Int8() if coding.name == "int8" else RowCodec()


# ---- numbers -----------------------------------------------------------------------------------------------------


def no_infinities(numbers: torch.Tensor) -> torch.Tensor:
    """The numbers with infinities replaced by NaN."""
    return numbers.masked_fill(numbers.isinf(), torch.nan)


def to_e4m3(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers as e4m3 bytes in uint8, which every kernel supports. Clamped first: casting out of range gives NaN in
    some builds."""
    return no_infinities(numbers).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3).view(torch.uint8)


def from_e4m3(codes: torch.Tensor) -> torch.Tensor:
    """e4m3 bytes as a new float32 tensor. On a CPU torch casts e4m3 one by one, but float16 vectorised; so the bits are
    moved to their places in a float16, and the product with 256 corrects the exponent, whose bias is larger by 8.
    e4m3's NaN becomes a finite float16 above 448, and is set to NaN afterwards."""
    if codes.device.type != "cpu":
        return codes.view(E4M3).float()
    halves = codes.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(E4M3_BITS_IN_HALF)
    numbers = halves.view(torch.float16).float().mul_(256.0)
    return numbers.masked_fill_(numbers.abs() > E4M3_MAX, torch.nan)


def to_e8m0(scales: torch.Tensor) -> torch.Tensor:
    """Scales rounded up to a power of two, as exponent bytes; 255 is NaN."""
    exponents = scales.log2().ceil() + E8M0_BIAS
    return exponents.clamp(0, E8M0_NAN - 1).nan_to_num(E8M0_NAN).to(torch.uint8)


def from_e8m0(exponents: torch.Tensor) -> torch.Tensor:
    """Scales from their exponent bytes, in float32."""
    powers = torch.exp2(exponents.float() - E8M0_BIAS)
    return powers.masked_fill(exponents == E8M0_NAN, torch.nan)


def split(rows: torch.Tensor, group: int) -> torch.Tensor:
    """`[…, D]` -> `[…, D / group, group]`."""
    return rows.reshape(*rows.shape[:-1], rows.shape[-1] // group, group)
