"""How K and V are written: one row for each codec, the only place that describes it; the codec of a cache, with the
bytes that it takes; and its name. Frozen, checked, no torch.

Published definitions: e4m3 with an amax scale (Micikevicius et al., 2022); keys per channel over groups of tokens and
values per token over groups of channels, with exact residuals (KIVI, Liu et al., 2024); scales per token, head and
group along D, float32 or e8m0, as MAX's KV cache parameters name them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from engine.errors import InputError, check_known
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.spec.parameter import TOKENS, Parameter
from engine.spec.terms import Named, Term

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
CODEC_PARAMETERS = (BITS, GROUP, RESIDUAL)  # all that codecs have
GROUPS = (8, 16, 32, 64, 128)  # usual sizes


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
            CODEC_PARAMETERS,
            _DIVIDES,
        ),
    )
}
ROW_OF_NAME: Mapping[str, CodecRow] = {name: row for row in CODECS.values() for name in row.full_names}


# ---- the codec of a tensor, of a layer, of a cache -------------------------------------------------------------------

Part = Literal["keys", "values"]
PARTS: tuple[Part, Part] = ("keys", "values")

WORD_BITS = 32


class CodedBytes(Struct, frozen=True):
    """Bytes of one tensor of one layer: of the codes, of the scales and offsets, and of the rows that stay exact."""

    codes: int = 0
    scales: int = 0
    exact: int = 0

    @property
    def total(self) -> int:
        """Bytes of codes, scales and exact rows together."""
        return self.codes + self.scales + self.exact

    def __add__(self, other: CodedBytes) -> CodedBytes:
        return CodedBytes(self.codes + other.codes, self.scales + other.scales, self.exact + other.exact)


PART_NAMES: Mapping[Part, Literal["K", "V"]] = {"keys": "K", "values": "V"}


def coded_bytes(terms: Iterable[Term]) -> CodedBytes:
    """The terms added up by what they are of."""
    sums = {"codes": 0, "scales": 0, "exact": 0}
    for term in terms:
        what = "scales" if term.name.startswith("scales") else "codes" if term.name == "codes" else "exact"
        sums[what] += term.num_bytes
    return CodedBytes(**sums)


class Coding(Struct, frozen=True):
    """How one tensor, K or V, is written: a codec by its full name, with its parameters.

    In MAX's codecs `group` numbers along D share a scale. `kivi-b` keeps the latest tokens exact, in a residual of
    `residual` tokens. Keys are coded when the residual is full, all of it at once, and share scales over `group`
    tokens. Values are coded one token at a time, as each becomes older than the residual, and share scales over `group`
    channels.
    """

    name: str = "exact"
    group: int | None = None
    residual: int | None = None

    def __post_init__(self) -> None:
        check_known("codec", self.name, ROW_OF_NAME)
        if self.group is not None and not self.has_groups:
            raise InputError(f"Groups belong to the KIVI and MAX codecs; {self.name} has none.")
        if self.residual is not None and not self.is_kivi:
            raise InputError(f"An exact residual belongs to the KIVI codecs; {self.name} has none.")
        if self.group is not None and not 1 <= self.group <= GROUP.most:
            raise InputError(f"A group of {self.group} numbers cannot share a scale: give 1 to {GROUP.most:,}.")
        if self.residual is not None and not 1 <= self.residual <= RESIDUAL.most:
            raise InputError(f"A residual of {self.residual} tokens is impossible: give 1 to {RESIDUAL.most:,}.")
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
    def row(self) -> CodecRow:
        return ROW_OF_NAME[self.name]

    @property
    def label(self) -> str:
        """The name as people read it: `KIVI-4`."""
        return self.row.label + self.name.removeprefix(self.row.name)

    @property
    def words(self) -> str:
        """The label with the parameters: `KIVI-4 · group 32 · residual 128`."""
        sizes = ((GROUP, self.group_size if self.has_groups else 0), (RESIDUAL, self.residual_size))
        return " · ".join((self.label, *(parameter.words(value) for parameter, value in sizes if value)))

    @property
    def is_exact(self) -> bool:
        return self.name == "exact"

    @property
    def is_kivi(self) -> bool:
        return self.row is CODECS["kivi"]

    @property
    def has_groups(self) -> bool:
        """Whether groups of numbers share a scale."""
        return self.row.shared_by == "group"

    @property
    def waits_for_prompt(self) -> bool:
        """Whether rows stay exact until the prompt ends, because their scales, or KIVI's prefill, need the whole
        prompt."""
        return self.is_kivi or self.is_frozen

    @property
    def is_frozen(self) -> bool:
        """Whether all rows use the scales that were computed from the whole prompt."""
        return self.row.shared_by in ("tensor", "head")

    @property
    def bits(self) -> int | None:
        """Bits of a code; None if the number is stored as it is."""
        return int(self.name.removeprefix("kivi-")) if self.is_kivi else self.row.bits

    @property
    def group_size(self) -> int:
        """Numbers that share a scale: as given, else the default."""
        return self.group or DEFAULT_GROUP

    @property
    def residual_size(self) -> int:
        """Tokens of the exact residual: as given, else the default; 0 without a residual."""
        return (self.residual or DEFAULT_RESIDUAL) if self.is_kivi else 0

    @property
    def codes_per_word(self) -> int:
        """Codes that are packed into one 32-bit word."""
        return WORD_BITS // (self.bits or 8)

    def num_coded(self, num_tokens: int, part: Part) -> int:
        """How many of the first `num_tokens` tokens are coded once the prompt has ended."""
        if self.is_exact or not self.residual_size:
            return 0 if self.is_exact else num_tokens
        residual = self.residual_size
        return num_tokens // residual * residual if part == "keys" else max(0, num_tokens - residual)

    def terms(self, num_tokens: int, heads: int, dim: int, width: int, part: Part) -> tuple[Term, ...]:
        """The formula of the bytes of a tensor `[heads, num_tokens, dim]`: codes, their scales, and the rows that stay
        exact, of `width` bytes a number."""
        coded, name = self.num_coded(num_tokens, part), PART_NAMES[part]
        found = [*self._code_terms(coded, heads, dim, part)] if coded else []
        if num_tokens > coded:
            kept: Named = "exact residual" if self.is_kivi else ""
            found.append(Term(kept, name, heads=heads, dims=dim, rows=num_tokens - coded, width=width))
        return tuple(found)

    def _code_terms(self, coded: int, heads: int, dim: int, part: Part) -> Iterator[Term]:
        bits, name = self.bits or 0, PART_NAMES[part]
        if bits % 8 == 0:
            yield Term("codes", name, heads=heads, dims=dim, rows=coded, width=bits // 8)
        elif dim * bits % 8 == 0:
            yield Term("codes", name, heads=heads, dims=dim, rows=coded, width=bits, per=8)
        else:  # a row ends with a byte that is full in part
            yield Term("codes", name, heads=heads, dims=ceil(dim * bits / 8), rows=coded)
        scales = Term("scales and offsets" if self.is_kivi else "scales", name, width=self.row.scale_bytes)
        match self.row.shared_by:
            case "tensor":
                yield scales
            case "head":
                yield replace(scales, heads=heads)
            case "row":
                yield replace(scales, heads=heads, rows=coded)
            case "group":
                yield replace(scales, heads=heads, dims=dim, rows=coded, per=self.group_size)

    def row_bytes(self, dim: int) -> int:
        """Bytes of one coded row of one head with its own scales. KIVI's keys share scales over tokens: their
        average."""
        coded = coded_bytes(self._code_terms(1, 1, dim, "keys"))
        return coded.codes if self.is_frozen else coded.total

    def shared_bytes(self, heads: int) -> int:
        """Bytes of the scales that all rows of `heads` heads share."""
        return coded_bytes(self._code_terms(1, heads, 1, "keys")).scales if self.is_frozen else 0

    def check(self, layer: LayerGeometry, part: Part) -> None:
        """Raise `InputError` if this coding cannot write the rows of `layer`."""
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
    """The codings of K and V of one layer that differs from the others."""

    layer: int
    keys: Coding = EXACT_CODING
    values: Coding = EXACT_CODING


class CodecSpec(Struct, frozen=True, gc=False):  # part of `CacheSpec`, which is in no reference cycle
    """How K and V are written: the same in every layer except those listed in `layers`."""

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
        """Every coding in use: of K, of V, and those of single layers."""
        return (self.keys, self.values, *(c for plan in self.layers for c in (plan.keys, plan.values)))

    def at(self, layer: int) -> tuple[Coding, Coding]:
        """The codings of K and V in a layer."""
        return next(((plan.keys, plan.values) for plan in self.layers if plan.layer == layer), (self.keys, self.values))

    def check(self, geometry: CacheGeometry) -> None:
        """Raise `InputError`, with the reason, if this codec cannot write the rows of the model."""
        if self.is_exact:
            return
        if not geometry.attention_layers:
            raise InputError("This architecture keeps a recurrent state and no K and V: there is nothing to quantise.")
        for plan in self.layers:
            if not 0 <= plan.layer < len(geometry.layers):
                raise InputError(
                    f"The codec's plan names layer {plan.layer}: the model has 0 … {len(geometry.layers) - 1}."
                )
            if geometry.layers[plan.layer].kind == "cross":
                raise InputError(
                    f"The codec's plan names the cross layer {plan.layer}, whose rows stay exact: leave it out."
                )
            plan.keys.check(geometry.layers[plan.layer], "keys")
            plan.values.check(geometry.layers[plan.layer], "values")
        for layer in geometry.attention_layers:
            keys, values = self.at(layer.index)
            keys.check(layer, "keys")
            values.check(layer, "values")

    def bytes_of(self, layer: LayerGeometry, num_tokens: int, width: int) -> CodedBytes:
        """Bytes of K and V of one layer with `num_tokens` tokens, computed by formula; `width` is the bytes of an exact
        number."""
        return coded_bytes(self.terms(layer, num_tokens, width))

    def terms(self, layer: LayerGeometry, num_tokens: int, width: int) -> tuple[Term, ...]:
        """The formula of those bytes."""
        return terms_of(layer, self.at(layer.index), num_tokens, width)


def terms_of(layer: LayerGeometry, codings: tuple[Coding, Coding], num_tokens: int, width: int) -> tuple[Term, ...]:
    """The terms of K and V of `num_tokens` rows of a layer, in these codings."""
    keys, values, heads = *codings, layer.num_kv_heads
    return (
        *keys.terms(num_tokens, heads, layer.key_dim, width, "keys"),
        *values.terms(num_tokens, heads, layer.value_dim, width, "values"),
    )


def uniform(name: str, group: int | None = None, residual: int | None = None) -> CodecSpec:
    """A codec that writes K and V the same way in every layer."""
    coding = Coding(name, group, residual)
    return CodecSpec(coding, coding)


def coding_of(name: str, bits: int, group: int, residual: int) -> Coding:
    """The coding of the row `name`, with those of the given parameters that this row has."""
    row = CODECS[name]
    full = f"{name}-{bits}" if BITS in row.parameters else name
    return Coding(full, group if GROUP in row.parameters else None, residual if RESIDUAL in row.parameters else None)


def fitting_group(geometry: CacheGeometry) -> int:
    """The largest of the usual group sizes, up to the default, that divides the head_dim of K and V in every layer."""
    dims = {dim for layer in geometry.attention_layers for dim in (layer.key_dim, layer.value_dim)}
    return max((g for g in GROUPS if g <= DEFAULT_GROUP and all(dim % g == 0 for dim in dims)), default=GROUPS[0])


def recoded(spec: CodecSpec, bits: int | None, group: int | None, residual: int | None) -> CodecSpec:
    """The same codec with other parameters, given to K, V or both, whichever have them. Raises `InputError` if neither
    does."""
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
        if bits not in BITS.values:
            raise InputError(f"KIVI codes of {bits} bits cannot be packed: give 2, 4 or 8.")
        name = f"kivi-{bits}"
    return Coding(
        name,
        coding.group if group in (None, coding.group_size) else group,
        coding.residual if residual in (None, coding.residual_size) else residual,
    )


# ---- names -----------------------------------------------------------------------------------------------------------

# `int8` writes K and V; `int8/kivi-4` writes K in int8 and V in kivi-4; `kivi-4:16:64` has a group of 16 and a residual
# of 64; `exact@0=int8@3-5=kivi-2/fp8` writes layers 0 and 3 to 5 differently from the others.

BY_LAYER = "codec by layer"
MOST_LAYERS = 4096
_MOST_RUNS = 4  # ranges of layers that a sentence names


def is_codec_name(text: str) -> bool:
    """Whether a text is meant as the name of a codec, valid or not."""
    return text in ROW_OF_NAME or any(mark in text for mark in "/@:")


def parse_codec(text: str) -> CodecSpec:
    """Read a codec from its name as `codec_name` writes it; raises `InputError` for a text that is no such name."""
    base, *plans = text.split("@")
    keys, values = _pair(base)
    return CodecSpec(keys, values, tuple(layer for plan in plans for layer in _layers(plan)))


def _pair(text: str) -> tuple[Coding, Coding]:
    names = text.split("/")
    if len(names) > 2:
        raise InputError(f"'{text[:60]}' names more than a codec for keys and one for values: write NAME or NAME/NAME.")
    return _coding(names[0]), _coding(names[-1])


def _coding(text: str) -> Coding:
    name, *sizes = text.split(":")
    if len(sizes) > 2:
        raise InputError(f"'{text[:60]}' has more sizes than a group and a residual: write NAME:GROUP:RESIDUAL.")
    group, residual = (_number(size, text) if size else None for size in (*sizes, "", "")[:2])
    return Coding(name, group, residual)


def _number(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise InputError(f"'{text[:20]}' in '{whole[:60]}' is no whole number.")
    return int(text)


def _layers(plan: str) -> list[LayerCoding]:
    """The layers that a part of the name plans: `3=int8` or `0-5=kivi-4/exact`."""
    places, equals, name = plan.partition("=")
    if not equals:
        raise InputError(f"'@{plan[:60]}' names no codec for its layers: write @LAYER=NAME or @FIRST-LAST=NAME.")
    first, _, last = places.partition("-")
    start, stop = _number(first, plan), _number(last or first, plan)
    if not start <= stop < MOST_LAYERS:
        raise InputError(
            f"'@{plan[:60]}' is no range of layers: write the first, then the last, below {MOST_LAYERS:,}."
        )
    keys, values = _pair(name)
    return [LayerCoding(layer, keys, values) for layer in range(start, stop + 1)]


def codec_name(spec: CodecSpec) -> str:
    """The name of a codec, which `parse_codec` reads back.

    If all layers share one codec, the name leaves out group and residual, which are parameters shown beside it. If
    layers differ, the name contains them.
    """
    if not spec.layers:
        return spec.keys.name if spec.keys.name == spec.values.name else f"{spec.keys.name}/{spec.values.name}"
    plans = (f"@{_places(run)}={_pair_name(run[0].keys, run[0].values)}" for run in _runs(spec))
    return _pair_name(spec.keys, spec.values) + "".join(plans)


def _pair_name(keys: Coding, values: Coding) -> str:
    return _full_name(keys) if keys == values else f"{_full_name(keys)}/{_full_name(values)}"


def _full_name(coding: Coding) -> str:
    sizes = "".join(f":{'' if size is None else size}" for size in (coding.group, coding.residual))
    return coding.name + sizes.rstrip(":")


def _runs(spec: CodecSpec) -> list[list[LayerCoding]]:
    """Group neighbouring layers that are written the same way."""
    runs: list[list[LayerCoding]] = []
    for plan in spec.layers:
        last = runs[-1][-1] if runs else None
        if last is not None and plan == LayerCoding(last.layer + 1, last.keys, last.values):
            runs[-1].append(plan)
        else:
            runs.append([plan])
    return runs


def _places(run: list[LayerCoding]) -> str:
    return str(run[0].layer) if len(run) == 1 else f"{run[0].layer}-{run[-1].layer}"


def codec_label(spec: CodecSpec) -> str:
    """The label of a codec: `INT8`, `K INT8 · V KIVI-4`."""
    return BY_LAYER if spec.layers else _pair_label(spec.keys, spec.values)


def _pair_label(keys: Coding, values: Coding) -> str:
    return keys.label if keys.name == values.name else f"K {keys.label} · V {values.label}"


def codec_summary(spec: CodecSpec) -> str:
    """One sentence: what each codec in use does."""
    if spec.layers:
        runs = [f"{_pair_label(run[0].keys, run[0].values)} in {_places(run)}" for run in _runs(spec)]
        shown = ", ".join(runs[:_MOST_RUNS]) + (" and others" if len(runs) > _MOST_RUNS else "")
        return f"Layers are written by codecs of their own: {shown}; the rest {_pair_label(spec.keys, spec.values)}."
    if spec.keys.name == spec.values.name:
        words = spec.keys.row.summary
        return f"{spec.keys.bits} bits, {words[0].lower()}{words[1:]}" if spec.keys.is_kivi else words
    return f"Keys: {spec.keys.row.summary} Values: {spec.values.row.summary}"
