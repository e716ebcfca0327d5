"""The options that choose a cache mode and its parameters, the same in every command: one for each parameter of any
mode."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from engine.errors import InputError
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, get_codec_names, parse_codec
from engine.spec.codecs import CODECS, CodecRow
from engine.spec.layouts import LAYOUTS, LayoutRow
from engine.spec.presets import NAMES, PRESETS, cache_named, parameters_of
from engine.spec.retention import LayerBudgets, parse_budget
from engine.spec.rules import RULES, RuleRow
from engine.spec.terms import Parameter
from engine.spec.tuning import tuned

MOST = 2**31 - 1
_OPTIONS = {"num_pages": "--pool-pages"}  # options that have another name than their parameter
_BUDGETS = "; N,N,... one for each layer, pyramid:N falls from the first to the last"


def all_parameters() -> dict[str, Parameter]:
    """Every parameter of every layout, rule and codec, each once. KIVI's parameters also stand for those of
    transformers' quantiser, which have the same names."""
    rows: tuple[CodecRow | RuleRow | LayoutRow, ...] = (*CODECS.values(), *RULES.values(), *LAYOUTS.values())
    found: dict[str, Parameter] = {}
    for parameter in (parameter for row in rows for parameter in row.parameters):
        found.setdefault(parameter.name, parameter)
    return found


def add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an option for every parameter, and `--codec`."""
    group = parser.add_argument_group(
        "the parameters of the cache", "each applies to the caches that have it (see caches --json)"
    )
    for parameter in all_parameters().values():
        option = _OPTIONS.get(parameter.name, "--" + parameter.name.replace("_", "-"))
        words = parameter.tip + (_BUDGETS if parameter.name == "budget" else "")
        if parameter.kind == "switch":
            group.add_argument(option, dest=parameter.name, action="store_true", default=None, help=words)
        elif parameter.name == "layout":
            group.add_argument(option, choices=parameter.values, help=words)
        else:
            group.add_argument(
                option, dest=parameter.name, type=_type_of(parameter), metavar=parameter.name[0].upper(), help=words
            )
    group.add_argument(
        "--codec",
        type=_codec,
        metavar="NAME[/NAME][@LAYER=NAME]",
        help="how K (and V, and single layers) are written in a growing or a paged cache: "
        f"{', '.join(get_codec_names())}",
    )


def _type_of(parameter: Parameter) -> Callable[[str], Any]:
    if parameter.name == "budget":
        return _budget
    return {"number": _whole, "share": _number, "size": _number}.get(parameter.kind, str)


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= MOST):
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is no whole number from 0 to {MOST:,}")
    return int(text)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is no number")
    return number


def _budget(text: str) -> int | LayerBudgets:
    try:
        return parse_budget(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _codec(text: str) -> CodecSpec:
    try:
        return parse_codec(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The parameters that were typed."""
    values = {name: getattr(args, name) for name in all_parameters()}
    return {name: value for name, value in values.items() if value is not None}


def spec_of(name: str, args: argparse.Namespace) -> CacheSpec:
    """The cache mode of that name with all given options; raises `InputError` for an option that does not apply to
    it."""
    codec = {} if args.codec is None else {"codec": args.codec}
    return tuned(cache_named(name), **codec, **_given(args))


def specs_of(names: str, args: argparse.Namespace) -> dict[str, CacheSpec]:
    """Several cache modes, or `all` presets, each with the options that apply to it; raises `InputError` for an option
    that applies to none."""
    chosen = list(PRESETS) if names == "all" else [name.strip() for name in names.split(",") if name.strip()]
    specs = {name: cache_named(name) for name in chosen}
    if not specs:
        raise InputError(f"No cache is named: give all, or some of {NAMES}.")
    if args.codec is not None:
        raise InputError("--codec makes one cache of its own: name it instead, like --caches h2o+int8,int8/kivi-4.")
    given = _given(args)
    for option in given:
        if not any(option in _applicable(spec) for spec in specs.values()):
            words = _OPTIONS.get(option, "--" + option.replace("_", "-"))
            raise InputError(f"{words} means nothing to {', '.join(chosen)}: leave it out.")
    return {n: tuned(s, **{k: v for k, v in given.items() if k in _applicable(s)}) for n, s in specs.items()}


def _applicable(spec: CacheSpec) -> tuple[str, ...]:
    """The options that are applied to a mode in a list of modes. bits, group and residual are not applied to
    transformers' quantised cache, whose own settings they would change."""
    names = tuple(parameter.name for parameter in parameters_of(spec))
    return names if spec.quantizer is None else tuple(n for n in names if n not in ("bits", "group", "residual"))
