"""How a stored number is written: one row for each codec, the only place that describes it. No torch.

Published definitions: e4m3 with an amax scale (Micikevicius et al., 2022); keys per channel over groups of tokens and
values per token over groups of channels, with exact residuals (KIVI, Liu et al., 2024); scales per token, head and
group along D, float32 or e8m0, as MAX's KV cache parameters name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from engine.spec.parameter import TOKENS, Parameter

SharedBy = Literal["nothing", "tensor", "head", "row", "group"]

DEFAULT_GROUP = 32
DEFAULT_RESIDUAL = 128
BITS = Parameter(
    "bits",
    "Bits of a code",
    "Bits of a KIVI code: 8, 4 or 2",
    default=4,
    unit="bits",
    most=8,
    choices=((8, "8 bits"), (4, "4 bits"), (2, "2 bits")),
    also="bit width, precision, number of bits",
)
GROUP = Parameter(
    "group",
    "Numbers that share a scale",
    "Numbers that share a scale: must divide head_dim",
    default=DEFAULT_GROUP,
    most=4096,
    also="group size, quantisation group, quantization group",
)
RESIDUAL = Parameter(
    "residual",
    "Latest rows exact",
    "Keys are coded a whole residual at a time; of values the latest so many stay exact",
    default=DEFAULT_RESIDUAL,
    unit=TOKENS,
    most=1 << 16,
    also="residual length, recent tokens exact",
)


class CodecRow(Struct, frozen=True):
    """A codec. Each number is written in `bits` bits (None: as it is, or as the parameter `bits` says). A scale, with
    its offset, takes `scale_bytes` and is shared by the numbers of a tensor, of a head, of one row of a head, or of a
    group.

    The scales of a tensor and of a head are computed when the prompt ends and stay fixed from then on. A coded row of
    one head of dimension D takes D * bits / 8 bytes, and beside them `scale_bytes` per row, or D / group times
    `scale_bytes`.
    """

    name: str
    label: str
    summary: str
    formula: str
    paper: str
    bits: int | None = None
    scale_bytes: int = 0
    shared_by: SharedBy = "nothing"
    parameters: tuple[Parameter, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def full_names(self) -> tuple[str, ...]:
        """The names used in specs: `kivi-8`, `kivi-4`, `kivi-2` if the number of bits is a parameter, else the one
        name."""
        return tuple(f"{self.name}-{bits}" for bits in BITS.values) if BITS in self.parameters else (self.name,)


_E4M3 = "Micikevicius et al., 2022"
_DIVIDES = ("a group that divides head_dim",)

CODECS: Mapping[str, CodecRow] = {
    row.name: row
    for row in (
        CodecRow("exact", "exact", "The numbers as they are.", "x", ""),
        CodecRow(
            "fp8",
            "FP8",
            "e4m3 with one scale a tensor, frozen when the prompt ends.",
            "e4m3(x / s) · s, s = amax / 448 of the tensor",
            _E4M3,
            8,
            4,
            "tensor",
        ),
        CodecRow(
            "fp8-head",
            "FP8 per head",
            "e4m3 with one scale a head, frozen when the prompt ends.",
            "e4m3(x / s) · s, s = amax / 448 of the head",
            _E4M3,
            8,
            4,
            "head",
        ),
        CodecRow(
            "fp8-token-head",
            "FP8 per token",
            "e4m3 codes with one scale per token and head.",
            "e4m3(x / s) · s, s = amax / 448 of the row",
            _E4M3,
            8,
            4,
            "row",
        ),
        CodecRow(
            "fp8-max",
            "FP8 of MAX, float32",
            "e4m3 with one float32 scale per group of channels, as MAX has it.",
            "e4m3(x / s) · s, s = amax / 448 of the group",
            "MAX's KVCacheQuantizationConfig",
            8,
            4,
            "group",
            (GROUP,),
            _DIVIDES,
        ),
        CodecRow(
            "fp8-max-e8m0",
            "FP8 of MAX, e8m0",
            "e4m3 with one power of two per group of channels, as MAX has it.",
            "e4m3(x / s) · s, s = the power of two from amax / 448 of the group up",
            "MAX's KVCacheQuantizationConfig",
            8,
            1,
            "group",
            (GROUP,),
            _DIVIDES,
        ),
        CodecRow(
            "int8",
            "INT8",
            "int8 with one scale per token and head.",
            "round(x / s) · s, s = amax / 127 of the row",
            "symmetric quantisation",
            8,
            2,
            "row",
        ),
        CodecRow(
            "kivi",
            "KIVI",
            "Keys per channel over groups of tokens, values per token, the latest exact.",
            "round((x − z) / s) · s + z, z = min, s = (max − min) / (2ᵇ − 1) of the group",
            "Liu et al., 2024",
            None,
            4,  # a float16 scale and a float16 offset
            "group",
            (BITS, GROUP, RESIDUAL),
            _DIVIDES,
        ),
    )
}
ROW_OF_NAME: Mapping[str, CodecRow] = {name: row for row in CODECS.values() for name in row.full_names}


# `int8` writes K and V; `int8/kivi-4` writes K in int8 and V in kivi-4; `kivi-4:16:64` has a group of 16 and a residual
# of 64; `exact@0=int8@3-5=kivi-2/fp8` writes layers 0 and 3 to 5 differently from the others.


# ---- from a name -------------------------------------------------------------------------------------------------


# ---- to a name and to words --------------------------------------------------------------------------------------
