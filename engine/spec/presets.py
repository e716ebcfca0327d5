"""Names of cache modes: presets, which are common combinations of layout, codec and retention rule, and the names,
labels and summaries of all other combinations."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from engine.errors import InputError, check_known
from engine.spec.cache import CacheSpec, Quantizer
from engine.spec.codec import (
    CodecSpec,
    codec_label,
    codec_name,
    codec_summary,
    get_codec_names,
    is_codec_name,
    parse_codec,
    uniform,
)
from engine.spec.layouts import LAYOUTS, LayoutRow
from engine.spec.parameter import Parameter
from engine.spec.retention import RetentionSpec
from engine.spec.rules import RULES, RuleRow
from engine.spec.tuning import value_of

Family = Literal["lossless", "quantised", "evicting"]
FAMILIES: tuple[tuple[Family, str], ...] = (
    ("lossless", "Lossless"),
    ("quantised", "Quantised: every row, fewer bits"),
    ("evicting", "Evicting: fewer rows, the rest exact"),
)


class Preset(Struct, frozen=True):
    """A named cache mode. Its label and summary come from the rows of its layout, rule and codec."""

    name: str
    spec: CacheSpec
    label: str
    summary: str

    @property
    def lossless(self) -> bool:
        return self.spec.is_exact

    @property
    def family(self) -> Family:
        return family_of(self.spec)

    @property
    def needs(self) -> tuple[str, ...]:
        rule = self.spec.retention.row
        return (*self.spec.row.needs, *(rule.needs if rule else ()), *self.spec.codec.keys.row.needs)

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in parameters_of(self.spec))


def family_of(spec: CacheSpec) -> Family:
    """Which family a mode belongs to: it keeps rows exact, quantises them, or evicts some."""
    if not spec.retention.keeps_all:
        return "evicting"
    return "lossless" if spec.codec.is_exact and spec.quantizer is None else "quantised"


def parameters_of(spec: CacheSpec) -> tuple[Parameter, ...]:
    """Every parameter of a mode: those of its layout, of its rule, and of the codecs of K and V."""
    rule = spec.retention.row
    return (*spec.row.parameters, *(rule.parameters if rule else ()), *_codec_parameters(spec, ()))


def _codec_parameters(spec: CacheSpec, without: tuple[str, ...] = ("bits",)) -> tuple[Parameter, ...]:
    """The parameters of the codecs of K and V, each once; the bits are left out by default, since names of codecs show
    them."""
    both = (p for coding in (spec.codec.keys, spec.codec.values) for p in coding.row.parameters)
    return tuple(dict.fromkeys(p for p in both if p.name not in without))


# ---- the presets -------------------------------------------------------------------------------------------------


def rule_spec(row: RuleRow) -> RetentionSpec:
    """The retention spec of a rule with the parameters of its preset."""
    given: dict[str, Any] = {p.name: p.default for p in row.parameters if p.name != "layout" and p.default is not None}
    return RetentionSpec(row.spec_name, schedule=row.schedule, **given)  # type: ignore[arg-type]


def _of_layout(row: LayoutRow) -> Preset:
    host_gib: Any = next((p.default for p in row.parameters if p.name == "host_gib"), None)
    quantizer = Quantizer() if row.name == "quantized" else None
    return Preset(row.preset, CacheSpec(row.name, host_gib=host_gib, quantizer=quantizer), row.label, row.summary)


def _of_rule(row: RuleRow) -> Preset:
    return Preset(row.name, CacheSpec(retention=rule_spec(row)), row.label, row.summary)


def _of_codec(name: str) -> Preset:
    codec = uniform(name)
    return Preset(name, CacheSpec(codec=codec), codec_label(codec), codec_summary(codec))


def _of_pages(name: str, coding: str) -> Preset:
    codec = uniform(coding)
    words = f"{codec_summary(codec).rstrip('.')}, in pages: shared as exact pages are."
    return Preset(f"paged-{name}", CacheSpec("paged", codec=codec), f"Paged {name.upper()}", words)


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        *(_of_layout(row) for row in LAYOUTS.values() if row.name != "quantized" and not row.is_opt_in),
        *(_of_rule(row) for row in RULES.values()),
        _of_codec("fp8"),
        _of_codec("int8"),
        _of_pages("fp8", "fp8-token-head"),
        _of_pages("int8", "int8"),
        _of_codec("kivi-4"),
        _of_codec("kivi-2"),
        _of_layout(LAYOUTS["quantized"]),
    )
}
# Modes that need a CUDA GPU or take minutes to begin: runs over all modes leave them out.
OPT_IN_PRESETS: dict[str, Preset] = {row.preset: _of_layout(row) for row in LAYOUTS.values() if row.is_opt_in}
ALL_PRESETS: dict[str, Preset] = {**PRESETS, **OPT_IN_PRESETS}
NAMES = (  # the names that `cache_named` accepts, for the help of the command lines
    f"{', '.join(ALL_PRESETS)}; or a layout, a rule and a codec joined by + (int8/kivi-4 for K and V, h2o+int8, "
    "paged+tova; exact@0-3=int8 writes some layers otherwise)"
)


def cache_preset(name: str) -> Preset:
    """The preset `name`; raises `InputError`, which lists the presets, if there is none."""
    check_known("cache", name, ALL_PRESETS)
    return ALL_PRESETS[name]


def preset_of(spec: CacheSpec) -> Preset:
    """The preset that a spec is nearest to, whatever its parameters: by its retention rule, else its codec, else its
    layout."""
    rule = spec.retention.row
    if rule is not None:
        return PRESETS[rule.name]
    if spec.codec.is_exact:
        return ALL_PRESETS[spec.row.preset]
    coding = next(coding for coding in spec.codec.codings if not coding.is_exact)
    prefix = "paged-" if spec.is_paged else ""
    if prefix + coding.name in PRESETS:
        return PRESETS[prefix + coding.name]
    family = coding.name.split("-")[0]
    return next(preset for name, preset in PRESETS.items() if name.startswith(prefix + family))


# ---- names and words of any mode ---------------------------------------------------------------------------------


def _words(spec: CacheSpec) -> tuple[tuple[str, str, str], ...]:
    """Name, label and summary of a mode: those of its preset, or, if no preset matches, one entry each for its layout,
    rule and codec."""
    preset, rule = preset_of(spec), spec.retention.row
    is_its_codec = spec.codec.is_exact or codec_name(spec.codec) == codec_name(preset.spec.codec)
    if spec.layout == preset.spec.layout and is_its_codec:
        return ((preset.name, preset.label, preset.summary),)
    codec = (codec_name(spec.codec), codec_label(spec.codec), codec_summary(spec.codec))
    return (
        *(() if spec.layout == "growing" else ((spec.row.preset, spec.row.label, spec.row.summary),)),
        *(() if rule is None else ((rule.name, rule.label, spec.retention.summary),)),
        *(() if spec.codec.is_exact else (codec,)),
    )


def cache_name(spec: CacheSpec) -> str:
    """The name of a cache mode on the command line: `int8/kivi-4` for K and V, `h2o+int8`, `paged+h2o`."""
    return "+".join(name for name, _, _ in _words(spec))


def cache_label(spec: CacheSpec) -> str:
    """The name as people read it: `K INT8 · V KIVI-4`, `H2O · INT8`, `Paged · H2O`."""
    return " · ".join(label for _, label, _ in _words(spec))


def cache_summary(spec: CacheSpec) -> str:
    """One sentence each for layout, rule and codec."""
    return " ".join(summary for _, _, summary in _words(spec))


def cache_named(name: str) -> CacheSpec:
    """The cache mode of a name that `cache_name` writes: a preset, or a layout, a rule and a codec joined by +, in any
    order. Raises `InputError`."""
    if name in ALL_PRESETS:
        return ALL_PRESETS[name].spec
    chosen: dict[str, Any] = {}
    for number, part in enumerate(name.split("+")):
        axis, value = _part(part, is_first=number == 0)
        if axis in chosen:
            raise InputError(f"'{name[:60]}' names two values for one choice: name a layout, a rule and a codec once.")
        chosen[axis] = value
    base: CacheSpec = chosen.pop("layout", CacheSpec())
    return replace(base, **chosen)


def _part(part: str, is_first: bool) -> tuple[str, CacheSpec | RetentionSpec | CodecSpec]:
    if part in RULES:
        return "retention", rule_spec(RULES[part])
    if is_codec_name(part):
        return "codec", parse_codec(part)
    if part in (row.preset for row in LAYOUTS.values()):
        return "layout", ALL_PRESETS[part].spec
    if is_first:
        cache_preset(part)  # raises an error that lists the presets
    raise InputError(f"Unknown rule or codec '{part[:60]}': choose one of {', '.join((*RULES, *get_codec_names()))}.")


def size_words(spec: CacheSpec) -> tuple[str, ...]:
    """The parameters of a mode that determine its size: `budget 256`, `sinks 4`, `2 bits`, `group 32`."""
    return (*row_words(spec), *bit_words(spec), *_words_of(spec, _codec_parameters(spec)))


def row_words(spec: CacheSpec) -> tuple[str, ...]:
    """The parameters that determine the number of rows: all of the rule, and those of the layout that are not the
    default."""
    rule = spec.retention.row
    layout = tuple(p for p in spec.row.parameters if p.kind == "choice" or value_of(spec, p.name) != p.default)
    return _words_of(spec, (*(rule.parameters if rule else ()), *layout))


def bit_words(spec: CacheSpec) -> tuple[str, ...]:
    """The bits of a stored number; empty if numbers are exact or layers differ."""
    if spec.codec.is_exact or spec.codec.layers:
        return ()
    widths = dict.fromkeys(str(coding.bits or "exact") for coding in (spec.codec.keys, spec.codec.values))
    return (f"{' and '.join(widths)} bits",)


def _words_of(spec: CacheSpec, parameters: tuple[Parameter, ...]) -> tuple[str, ...]:
    found = ((p, value_of(spec, p.name)) for p in parameters if p.name != "layout")
    return tuple(parameter.words(value) for parameter, value in found if value)


def mode_words(spec: CacheSpec) -> str:
    """What a mode does to rows, in a few words: `budget 120 · INT8`, `KIVI-2 · group 32 · residual 128`."""
    codec = () if spec.codec.is_exact else (codec_label(spec.codec),)
    return " · ".join((*row_words(spec), *codec, *_words_of(spec, _codec_parameters(spec)))) or "as it is"


def mode_detail(spec: CacheSpec) -> str:
    """What is shown beside the name of a mode: `exact · lossless`, `lossy · budget 256`, `lossy · 2 bits · group 32`.
    What matters most comes first: where room is scarce the end is left out."""
    by_layer = ("by layer",) if spec.codec.layers else ()
    kind = "exact · lossless" if spec.is_exact else "lossy"
    sizes = _words_of(spec, _codec_parameters(spec))
    return " · ".join((kind, *row_words(spec), *bit_words(spec), *by_layer, *sizes))
