"""Cache modes by name: the presets, and the names that combinations of them are printed and typed as."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from engine.errors import InputError
from engine.spec.cache import CacheSpec, Quantizer
from engine.spec.codec import codec_words, get_codec_names, parse_codec, uniform
from engine.spec.retention import RetentionSpec


class Preset(Struct, frozen=True):
    """A named point of the space, as people call it."""

    name: str
    label: str
    spec: CacheSpec
    lossless: bool
    summary: str
    needs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()


FULL = "layers with full attention"
WEIGHTS = (FULL, "attention weights")
KEYS = (FULL, "keys, not a latent")
LAYOUT = ("layout",)  # a rule drops rows in the growing layout, whole pages in the paged one
SCORED = ("budget", "ratio", "sinks", "window", *LAYOUT)


def scored(name: str) -> RetentionSpec:
    """A published rule with the budget that presets have."""
    if name == "pyramidkv":
        return RetentionSpec("snapkv", budget=256, schedule="pyramid")
    return RetentionSpec(name, budget=256)  # type: ignore[arg-type]


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("none", "None", CacheSpec("none"), True, "No cache: every step recomputes K and V of every token."),
        Preset("dynamic", "Dynamic", CacheSpec("dynamic"), True, "transformers' DynamicCache, grown by concatenation."),
        Preset(
            "static",
            "Static",
            CacheSpec("static"),
            True,
            "transformers' StaticCache: all room reserved before the first token.",
            parameters=("max_length",),
        ),
        Preset(
            "growing", "Growing", CacheSpec("growing"), True, "Preallocated room that doubles: a new row costs O(1)."
        ),
        Preset(
            "paged",
            "Paged",
            CacheSpec("paged"),
            True,
            "A pool of pages and page tables: shared prefixes, copy-on-write, preemption.",
            parameters=("page_size", "num_pages", "replace_duplicates"),
        ),
        Preset(
            "offloaded",
            "Offloaded",
            CacheSpec("host", host_gib=1.0),
            True,
            "Paged, with a second-level prefix cache in host memory.",
            parameters=("page_size", "num_pages", "replace_duplicates", "host_gib"),
        ),
        Preset(
            "allocated",
            "Allocated but unused",
            CacheSpec("allocated"),
            True,
            "A cache is reserved and never read: every step recomputes, as MAX's GPT-2 does.",
        ),
        Preset(
            "sliding",
            "Sliding",
            CacheSpec(retention=RetentionSpec("window", window=256)),
            False,
            "Keeps the latest tokens and nothing else.",
            (FULL,),
            ("window", *LAYOUT),
        ),
        Preset(
            "streamingllm",
            "StreamingLLM",
            CacheSpec(retention=RetentionSpec("sinks+window", sinks=4, window=252)),
            False,
            "Keeps the first tokens, on which attention rests, and the latest.",
            (FULL,),
            ("sinks", "window", "rerotate", *LAYOUT),
        ),
        *(
            Preset(name, label, CacheSpec(retention=scored(name)), False, summary, needs, parameters)
            for name, label, summary, needs, parameters in (
                ("h2o", "H2O", "Keeps the tokens that received most attention, and the latest.", WEIGHTS, SCORED),
                ("snapkv", "SnapKV", "When the prompt ends, keeps what its last queries attend to.", WEIGHTS, SCORED),
                (
                    "pyramidkv",
                    "PyramidKV",
                    "SnapKV with more rows for the first layers than for the last.",
                    WEIGHTS,
                    SCORED[:4],
                ),
                ("tova", "TOVA", "Drops what the newest query attends to least.", WEIGHTS, SCORED),
                ("knorm", "Knorm", "Drops the keys of largest norm.", KEYS, SCORED),
                ("keydiff", "KeyDiff", "Drops the keys most like the others.", KEYS, SCORED),
                ("random", "Random", "Drops at random: what any rule must beat.", KEYS[:1], SCORED),
            )
        ),
        Preset(
            "fp8",
            "FP8",
            CacheSpec(codec=uniform("fp8")),
            False,
            "e4m3 with one scale a tensor, frozen when the prompt ends.",
        ),
        Preset("int8", "INT8", CacheSpec(codec=uniform("int8")), False, "int8 with one scale per token and head."),
        Preset(
            "paged-fp8",
            "Paged FP8",
            CacheSpec("paged", codec=uniform("fp8-token-head")),
            False,
            "Pages of e4m3 codes with one scale per token and head: shared as exact pages are.",
            parameters=("page_size", "num_pages", "replace_duplicates"),
        ),
        Preset(
            "paged-int8",
            "Paged INT8",
            CacheSpec("paged", codec=uniform("int8")),
            False,
            "Pages of int8 codes with one scale per token and head: shared as exact pages are.",
            parameters=("page_size", "num_pages", "replace_duplicates"),
        ),
        *(
            Preset(
                f"kivi-{bits}",
                f"KIVI-{bits}",
                CacheSpec(codec=uniform(f"kivi-{bits}")),  # type: ignore[arg-type]
                False,
                f"{bits} bits: keys per channel over groups of tokens, values per token, the latest exact.",
                ("a group that divides head_dim",),
                ("bits", "group", "residual"),
            )
            for bits in (4, 2)
        ),
        Preset(
            "transformers-quantized",
            "Quantized (transformers)",
            CacheSpec("quantized", quantizer=Quantizer()),
            False,
            "transformers' QuantizedCache as it is: fp8, or quanto and hqq where they are installed.",
            ("full attention in every layer",),
            ("backend", "bits", "group", "residual"),
        ),
    )
}


def cache_preset(name: str) -> Preset:
    """The preset of that name; raises `InputError` naming those that exist."""
    if name not in PRESETS:
        raise InputError(f"Unknown cache '{name}': choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]


def preset_of(spec: CacheSpec) -> Preset:
    """The preset a spec belongs to, its parameters aside: named by its retention, else its codec, else its layout."""
    retention = spec.retention
    if retention.schedule == "pyramid" and retention.name == "snapkv":
        return PRESETS["pyramidkv"]
    if not retention.keeps_all:
        return next(p for p in PRESETS.values() if p.spec.retention.name == retention.name)
    if spec.codec.is_exact:
        return next(p for p in PRESETS.values() if p.spec.layout == spec.layout and not p.spec.is_compact)
    coding = next(coding for coding in spec.codec.codings if not coding.is_exact)
    family = {"kivi-8": "kivi-4"}.get(coding.name, coding.name.split("-")[0] if not coding.is_kivi else coding.name)
    return PRESETS[f"paged-{family}" if spec.is_paged else family]


def cache_name(spec: CacheSpec) -> str:
    """A cache by the name that it has on the command line: its preset's, or what its codec is where that is another
    one: `int8/kivi-4` for K and V, `h2o+int8`, `paged+fp8-max`."""
    preset, words = preset_of(spec), codec_words(spec.codec)
    if words == codec_words(preset.spec.codec):
        return preset.name
    if spec.retention.keeps_all and not spec.is_paged:
        return words
    return f"{'paged' if spec.retention.keeps_all else preset.name}+{words}"


def cache_named(name: str) -> CacheSpec:
    """The cache that `cache_name` calls so: a preset, or one with a codec of its own; anything else is refused."""
    base, plus, codec = name.rpartition("+")
    if plus:
        return replace(cache_preset(base).spec, codec=parse_codec(codec))
    if name not in PRESETS and ("/" in name or name in get_codec_names()):
        return CacheSpec(codec=parse_codec(name))
    return cache_preset(name).spec


def cache_label(spec: CacheSpec) -> str:
    """`cache_name` as people read it: `INT8/KIVI-4`, `H2O · INT8`."""
    preset, words = preset_of(spec), codec_words(spec.codec)
    if words == codec_words(preset.spec.codec):
        return preset.label
    for name in ("fp8", "int8", "kivi"):
        words = words.replace(name, name.upper())
    if spec.retention.keeps_all and not spec.is_paged:
        return words
    return f"{'Paged' if spec.retention.keeps_all else preset.label} · {words}"


def cache_summary(spec: CacheSpec) -> str:
    """One sentence: the preset's, with the codec where that is another one."""
    preset, words = preset_of(spec), codec_words(spec.codec)
    if words == codec_words(preset.spec.codec):
        return preset.summary
    kept = "" if spec.retention.keeps_all else f"{preset.summary} "
    parts = " (K/V)" if "/" in words else ""
    return f"{kept}Numbers are written as {words}{parts}."
