"""Dequantises codes in NumPy to the rows that attention reads, exact to the last bit. No torch.

The arithmetic is that of `engine.cache.compressed.codecs` and `kivi`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.snapshot.format import DTYPE_NAMES, TRANSFORMERS_FP8, LayerEntry, PartEntry, coding_of
from engine.spec.codec import Part

Array = np.ndarray[Any, Any]
ReadArray = Callable[..., Array]

WORD_BITS = 32
E8M0_BIAS, E8M0_NAN = 127, 255


def numbers_of(array: Array, dtype: str) -> Array:
    """Numbers of a safetensors dtype as float32; float64 stays float64."""
    match dtype:
        case "BF16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        case "F8_E4M3":
            return E4M3[array]
        case "F64":
            return array
    return array.astype(np.float32, copy=False)


def decoded(read: ReadArray, entry: LayerEntry, tensor: Part, head: int, rows: range) -> Array:
    """Rows `[T, D]` of K or V of the head at index `head` in the file, as float32. `read(name, *index, rows=…)` reads
    arrays."""
    part, name = entry.part(tensor), entry.name(tensor)
    exact = next(code for code, dtype in DTYPE_NAMES.items() if dtype == entry.dtype)
    if not part.num_coded:
        return numbers_of(read(name, 0, head, rows=rows), exact)
    found = []
    coded = range(rows.start, min(rows.stop, part.num_coded))
    if len(coded):
        with np.errstate(invalid="ignore", over="ignore"):  # scales in a damaged file may be any numbers
            found.append(_rounded(_coded_rows(read, name, part, tensor, head, coded), exact))
    if rows.stop > part.num_coded:
        behind = range(max(0, rows.start - part.num_coded), rows.stop - part.num_coded)
        found.append(numbers_of(read(f"{name}.exact", 0, head, rows=behind), exact))
    if len(found) == 1:
        return found[0]
    return np.concatenate(found or [np.zeros((0, entry.dim(tensor)), np.float32)])


def _coded_rows(read: ReadArray, name: str, part: PartEntry, tensor: Part, head: int, rows: range) -> Array:
    if part.codec == TRANSFORMERS_FP8:
        return E4M3[read(f"{name}.codes", 0, head, rows=rows)] * np.float32(read(f"{name}.scale")[0])
    coding = coding_of(part)
    if coding.is_kivi:
        kivi = _kivi_keys if tensor == "keys" else _kivi_values
        return kivi(read, name, coding.bits or 8, coding.group_size, head, rows)
    codes = read(f"{name}.codes", 0, head, rows=rows)
    if coding.name in ("fp8", "fp8-head"):
        scale = read(f"{name}.scale")
        return E4M3[codes] * np.float32(scale[0, min(head, scale.shape[1] - 1), 0, 0])
    scales = read(f"{name}.scales", 0, head, rows=rows)
    if coding.name == "int8":
        return codes.astype(np.float32) * scales.astype(np.float32)
    factors = _powers(scales) if coding.name == "fp8-max-e8m0" else scales
    grouped = E4M3[codes].reshape(*factors.shape, -1)
    return (grouped * factors[..., None]).reshape(codes.shape)


def _rounded(numbers: Array, dtype: str) -> Array:
    """Round float32 numbers to the dtype of the rows, to nearest, ties to even; the result is float32."""
    if dtype == "F16":
        return numbers.astype(np.float16).astype(np.float32)
    if dtype != "BF16":
        return numbers
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(numbers), numbers, nearest.view(np.float32))


# ---- e4m3 and e8m0 -----------------------------------------------------------------------------------------------


def _e4m3_table() -> Array:
    """The numbers of the 256 codes of e4m3 (1 sign, 4 exponent and 3 fraction bits; no infinity; NaN in both signs)."""
    codes = np.arange(256)
    exponent, fraction = (codes >> 3) & 15, codes & 7
    size = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    numbers = np.where(codes & 128, -size, size).astype(np.float32)
    numbers[[127, 255]] = np.nan
    return numbers


E4M3 = _e4m3_table()


def _powers(exponents: Array) -> Array:
    """Powers of two from e8m0 exponents; 255 is NaN."""
    powers = np.exp2(exponents.astype(np.float32) - E8M0_BIAS, dtype=np.float32)
    return np.where(exponents == E8M0_NAN, np.float32(np.nan), powers)


# ---- KIVI --------------------------------------------------------------------------------------------------------


def _kivi_keys(read: ReadArray, name: str, bits: int, group: int, head: int, rows: range) -> Array:
    """Dequantise KIVI's keys. Words are packed along the tokens; a group of tokens shares a scale and an offset per
    channel."""
    first, stop = rows.start // group * group, -(-rows.stop // group) * group
    per_word = WORD_BITS // bits
    words = read(f"{name}.words", 0, head, rows=range(first // per_word, stop // per_word))
    shared = range(first // group, stop // group)
    scales, offsets = (
        read(f"{name}.{what}", 0, head, rows=shared).astype(np.float32) for what in ("scales", "offsets")
    )
    codes = _unpacked(words.T, bits).T.reshape(len(shared), group, -1)
    numbers = codes * scales[:, None] + offsets[:, None]
    return numbers.reshape(stop - first, -1)[rows.start - first : rows.stop - first]


def _kivi_values(read: ReadArray, name: str, bits: int, group: int, head: int, rows: range) -> Array:
    """Dequantise KIVI's values. Words are packed along the channels; a group of channels of a token shares a scale and
    an offset."""
    words, scales, offsets = (read(f"{name}.{what}", 0, head, rows=rows) for what in ("words", "scales", "offsets"))
    codes = _unpacked(words, bits).reshape(len(rows), -1, group)
    numbers = codes * scales.astype(np.float32)[..., None] + offsets.astype(np.float32)[..., None]
    return numbers.reshape(len(rows), -1)


def _unpacked(words: Array, bits: int) -> Array:
    """Unpack words `[…, N b / 32]` to codes `[…, N]` as float32; the first code is in the lowest bits."""
    shifts = np.arange(0, WORD_BITS, bits, dtype=np.uint32)
    codes = (np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts) & np.uint32(2**bits - 1)
    return codes.reshape(*words.shape[:-1], -1).astype(np.float32)
