"""The names of codecs as they are typed and printed, and their labels and summaries. No torch.

`int8` writes K and V; `int8/kivi-4` writes K in int8 and V in kivi-4; `kivi-4:16:64` has a group of 16 and a residual
of 64; `exact@0=int8@3-5=kivi-2/fp8` writes layers 0 and 3 to 5 differently from the others.
"""

from __future__ import annotations

from engine.errors import InputError
from engine.spec.codec import CodecSpec, Coding, LayerCoding
from engine.spec.codecs import ROW_OF_NAME

BY_LAYER = "codec by layer"
MOST_LAYERS = 4096
_MOST_RUNS = 4  # ranges of layers that a sentence names

# ---- from a name -------------------------------------------------------------------------------------------------


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


def get_codec_names() -> tuple[str, ...]:
    """Every codec by its full name."""
    return tuple(ROW_OF_NAME)


# ---- to a name and to words --------------------------------------------------------------------------------------


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
        return f"{spec.keys.bits} bits: {words[0].lower()}{words[1:]}" if spec.keys.is_kivi else words
    return f"Keys: {spec.keys.row.summary} Values: {spec.values.row.summary}"
