"""How stored numbers are written: codes, the scales they share, and what stays exact. Frozen, checked, no torch.

Published definitions: e4m3 with an amax scale (Micikevicius et al., 2022); keys per channel over groups of tokens and
values per token over groups of channels, with exact residuals (KIVI, Liu et al., 2024); scales per token, head and
group along D, float32 or e8m0, as MAX's KV cache parameters name them.
"""

from __future__ import annotations

from math import ceil
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry

CodingName = Literal[
    "exact", "fp8", "fp8-head", "fp8-token-head", "fp8-max", "fp8-max-e8m0", "int8", "kivi-8", "kivi-4", "kivi-2"
]
Part = Literal["keys", "values"]

DEFAULT_GROUP = 32
DEFAULT_RESIDUAL = 128
MAX_GROUP = 4096
MAX_RESIDUAL = 1 << 16
WORD_BITS = 32
KIVI_SCALE_BYTES = 4  # a float16 scale and a float16 offset for every group


class CodedBytes(Struct, frozen=True):
    """Bytes of one tensor of one layer: the codes, the scales and offsets, and the rows that stay exact."""

    codes: int = 0
    scales: int = 0
    exact: int = 0

    @property
    def total(self) -> int:
        return self.codes + self.scales + self.exact

    def __add__(self, other: CodedBytes) -> CodedBytes:
        return CodedBytes(self.codes + other.codes, self.scales + other.scales, self.exact + other.exact)


class Coding(Struct, frozen=True):
    """How one tensor, K or V, is written.

    `fp8` has one scale for the tensor and `fp8-head` one per head, both frozen when the prompt ends; `fp8-token-head`
    and `int8` one per token and head; `fp8-max` one per `group` numbers along D. `kivi-b` keeps `residual` tokens
    exact: keys leave them a whole residual at a time and share scales over `group` tokens, values leave singly and
    share scales over `group` channels.
    """

    name: CodingName = "exact"
    group: int | None = None
    residual: int | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(CodingName):
            raise InputError(f"Unknown codec '{self.name}': choose one of {', '.join(get_args(CodingName))}.")
        if self.group is not None and not self.has_groups:
            raise InputError(f"Groups belong to the KIVI and MAX codecs; {self.name} has none.")
        if self.residual is not None and not self.is_kivi:
            raise InputError(f"An exact residual belongs to the KIVI codecs; {self.name} has none.")
        if self.group is not None and not 1 <= self.group <= MAX_GROUP:
            raise InputError(f"A group of {self.group} numbers cannot share a scale: give 1 to {MAX_GROUP:,}.")
        if self.residual is not None and not 1 <= self.residual <= MAX_RESIDUAL:
            raise InputError(f"A residual of {self.residual} tokens is impossible: give 1 to {MAX_RESIDUAL:,}.")
        if self.is_kivi:
            self._check_kivi()

    def _check_kivi(self) -> None:
        group, residual = self.group_size, self.residual_size
        if group % self.codes_per_word:
            raise InputError(
                f"{self.codes_per_word} codes of {self.bits} bits fill a word: a group of {group} must be a multiple."
            )
        if residual % group:
            raise InputError(
                f"Keys leave the residual of {residual} tokens as whole groups of {group}: "
                f"give a residual that is a multiple of the group."
            )

    @property
    def is_exact(self) -> bool:
        return self.name == "exact"

    @property
    def is_kivi(self) -> bool:
        return self.name.startswith("kivi-")

    @property
    def has_groups(self) -> bool:
        return self.is_kivi or self.name.startswith("fp8-max")

    @property
    def waits_for_prompt(self) -> bool:
        """Whether rows stay exact until the prompt ends: a frozen scale and KIVI's prefill are made from all of it."""
        return self.is_kivi or self.is_frozen

    @property
    def is_frozen(self) -> bool:
        """Whether the scales of a whole prompt serve all rows."""
        return self.name in ("fp8", "fp8-head")

    @property
    def codes_rows_alone(self) -> bool:
        """Whether a row can be dropped without touching another row's code."""
        return not self.is_kivi

    @property
    def bits(self) -> int | None:
        """Bits of a code; None: the number itself."""
        if self.is_exact:
            return None
        return int(self.name.removeprefix("kivi-")) if self.is_kivi else 8

    @property
    def group_size(self) -> int:
        return self.group or DEFAULT_GROUP

    @property
    def residual_size(self) -> int:
        return (self.residual or DEFAULT_RESIDUAL) if self.is_kivi else 0

    @property
    def codes_per_word(self) -> int:
        return WORD_BITS // (self.bits or 8)

    def num_coded(self, num_tokens: int, part: Part) -> int:
        """How many of the first tokens are coded once the prompt has ended."""
        if self.is_exact or not self.residual_size:
            return 0 if self.is_exact else num_tokens
        residual = self.residual_size
        return num_tokens // residual * residual if part == "keys" else max(0, num_tokens - residual)

    def bytes_of(self, num_tokens: int, heads: int, dim: int, width: int, part: Part) -> CodedBytes:
        """Bytes of `[heads, num_tokens, dim]` by formula; `width` is the bytes of an exact number."""
        coded = self.num_coded(num_tokens, part)
        codes = heads * coded * ceil(dim * (self.bits or 0) / 8)
        return CodedBytes(codes, self._scale_bytes(coded, heads, dim), heads * (num_tokens - coded) * dim * width)

    def _scale_bytes(self, coded: int, heads: int, dim: int) -> int:
        match self.name:
            case "exact":
                return 0
            case "fp8":
                return 4 if coded else 0
            case "fp8-head":
                return 4 * heads if coded else 0
            case "fp8-token-head":
                return 4 * heads * coded
            case "int8":
                return 2 * heads * coded
            case "fp8-max":
                return 4 * heads * coded * (dim // self.group_size)
            case "fp8-max-e8m0":
                return heads * coded * (dim // self.group_size)
            case _:
                return KIVI_SCALE_BYTES * heads * coded * dim // self.group_size

    def row_bytes(self, dim: int) -> int:
        """Bytes of one coded row of one head, with the scales that it brings; of KIVI's keys in the long run."""
        scales = 0 if self.is_frozen else self._scale_bytes(1, 1, dim)
        return ceil(dim * (self.bits or 0) / 8) + scales

    def shared_bytes(self, heads: int) -> int:
        """Bytes of the scales that all rows share."""
        return self._scale_bytes(1, heads, 0) if self.is_frozen else 0

    def check(self, layer: LayerGeometry, part: Part) -> None:
        """Refuse a layer whose rows this cannot write."""
        if self.is_exact:
            return
        if not layer.stores_kv:
            raise InputError(f"Layer {layer.index} is {layer.kind} and keeps no K and V: there is nothing to quantise.")
        dim = layer.key_dim if part == "keys" else layer.value_dim
        groups_along_dim = self.has_groups and not (self.is_kivi and part == "keys")
        if groups_along_dim and dim % self.group_size:
            raise InputError(
                f"Groups of {self.group_size} do not divide the {dim} channels of the {part} of layer {layer.index}: "
                "give a group that does."
            )


EXACT_CODING = Coding()


class LayerCoding(Struct, frozen=True):
    """What one layer does differently."""

    layer: int
    keys: Coding = EXACT_CODING
    values: Coding = EXACT_CODING


class CodecSpec(Struct, frozen=True):
    """How K and V are written, the same in every layer but those in `layers`."""

    keys: Coding = EXACT_CODING
    values: Coding = EXACT_CODING
    layers: tuple[LayerCoding, ...] = ()

    def __post_init__(self) -> None:
        indices = [plan.layer for plan in self.layers]
        if len(set(indices)) < len(indices):
            raise InputError("A layer is named twice in the codec's plan: name it once.")

    @property
    def is_exact(self) -> bool:
        return all(coding.is_exact for coding in self.codings)

    @property
    def is_uniform(self) -> bool:
        """Whether K and V of all layers are written by one codec."""
        return len({coding.name for coding in self.codings}) == 1

    @property
    def codings(self) -> tuple[Coding, ...]:
        """Every coding in use."""
        return (self.keys, self.values, *(c for plan in self.layers for c in (plan.keys, plan.values)))

    def at(self, layer: int) -> tuple[Coding, Coding]:
        """The codings of K and of V in a layer."""
        return next(((plan.keys, plan.values) for plan in self.layers if plan.layer == layer), (self.keys, self.values))

    def check(self, geometry: CacheGeometry) -> None:
        """Refuse a model whose rows this cannot write, with the reason."""
        if self.is_exact:
            return
        if not geometry.attention_layers:
            raise InputError("This architecture keeps a recurrent state and no K and V: there is nothing to quantise.")
        for plan in self.layers:
            if not 0 <= plan.layer < len(geometry.layers):
                raise InputError(
                    f"The codec's plan names layer {plan.layer}: the model has 0 … {len(geometry.layers) - 1}."
                )
            plan.keys.check(geometry.layers[plan.layer], "keys")
            plan.values.check(geometry.layers[plan.layer], "values")
        for layer in geometry.attention_layers:
            keys, values = self.at(layer.index)
            keys.check(layer, "keys")
            values.check(layer, "values")

    def bytes_of(self, layer: LayerGeometry, num_tokens: int, width: int) -> CodedBytes:
        """Bytes of one layer's K and V of so many tokens, by formula."""
        keys, values = self.at(layer.index)
        return keys.bytes_of(num_tokens, layer.num_kv_heads, layer.key_dim, width, "keys") + values.bytes_of(
            num_tokens, layer.num_kv_heads, layer.value_dim, width, "values"
        )


def uniform(name: CodingName, group: int | None = None, residual: int | None = None) -> CodecSpec:
    """K and V written the same way in every layer."""
    coding = Coding(name, group, residual)
    return CodecSpec(coding, coding)


def recoded(spec: CodecSpec, bits: int | None, group: int | None, residual: int | None) -> CodecSpec:
    """The same codec with other numbers, each for the part, K or V, that has it; refused where neither has."""
    pair = (spec.keys, spec.values)
    any_kivi, any_groups = any(c.is_kivi for c in pair), any(c.has_groups for c in pair)
    keys, values = (
        _recoded(
            coding,
            bits if coding.is_kivi or not any_kivi else None,
            group if coding.has_groups or not any_groups else None,
            residual if coding.is_kivi or not any_kivi else None,
        )
        for coding in pair
    )
    return replace(spec, keys=keys, values=values)


def _recoded(coding: Coding, bits: int | None, group: int | None, residual: int | None) -> Coding:
    name = coding.name
    if bits is not None:
        if not coding.is_kivi:
            raise InputError(f"The bits of {coding.name} are fixed: only the KIVI codecs have 2, 4 or 8 of them.")
        if bits not in (2, 4, 8):
            raise InputError(f"KIVI codes of {bits} bits cannot be packed: give 2, 4 or 8.")
        name = {2: "kivi-2", 4: "kivi-4", 8: "kivi-8"}[bits]  # type: ignore[assignment]
    return Coding(name, coding.group if group is None else group, coding.residual if residual is None else residual)


def parse_codec(text: str) -> CodecSpec:
    """`NAME`, or `NAME/NAME` for keys and values."""
    names = text.split("/")
    if len(names) > 2:
        raise InputError(f"'{text}' names more than a codec for keys and one for values: write NAME or NAME/NAME.")
    keys, values = Coding(names[0]), Coding(names[-1])  # type: ignore[arg-type]
    return CodecSpec(keys, values)


def codec_words(spec: CodecSpec) -> str:
    """A codec as people name it: `exact`, `int8`, `int8/kivi-4` for K and V, `codec by layer` where layers differ."""
    if spec.layers:
        return "codec by layer"
    return spec.keys.name if spec.keys.name == spec.values.name else f"{spec.keys.name}/{spec.values.name}"


def get_codec_names() -> tuple[str, ...]:
    """Every codec by name."""
    return get_args(CodingName)
