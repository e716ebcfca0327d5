"""Arguments that several sub-commands share: the model, the prompt, the number of steps, the cache mode; and the types
of their values, which refuse a text in one line that says what would be one."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from engine.errors import InputError
from engine.files.text import MIB, read_text
from engine.spec.cache import LAYOUTS, NAMES, PRESETS, CacheSpec, LayoutRow, cache_named, parameters_of, tuned
from engine.spec.codec import CODECS, ROW_OF_NAME, CodecRow, parse_codec
from engine.spec.model import AUTO_DEVICE, BUNDLED, PAGED_ATTENTION, RUNNERS, WEIGHTS, Dtype, ModelSpec, with_adapters
from engine.spec.parameter import Parameter
from engine.spec.retention import RULES, RuleRow, parse_budget
from engine.spec.sampling import MAX_TEMPLATE_CHARS, Chat, Prompt, SamplingParams, Turn, chat_of_json

MAX_PROMPT_FILE_BYTES, MAX_CHAT_FILE_BYTES = 64 * MIB, 16 * MIB


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the model and how it computes."""
    parser.add_argument("--model", default=BUNDLED, help="bundled, a folder, a hub name, or shape:CONFIG.json")
    add_adapter_argument(parser)
    parser.add_argument("--weights", default="stored", help=f"{', '.join(WEIGHTS)}; coded ones change the logits")
    add_compute_arguments(parser)


def add_adapter_argument(parser: argparse.ArgumentParser) -> None:
    what = "a LoRA adapter that is put on the model: the folder that peft saved"
    parser.add_argument("--adapter", action="append", default=[], metavar="DIR", help=what)


def add_compute_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for dtype, device, threads and runner."""
    parser.add_argument("--dtype", default="auto", help=", ".join(get_args(Dtype)))
    parser.add_argument(
        "--device", default=AUTO_DEVICE, help="auto, cpu, cuda, cuda:1, mps, or split: over all GPUs (see `devices`)"
    )
    parser.add_argument("--threads", type=int, help="threads for the forward (default: all cores but one)")
    names = ", ".join(f"{row.name} ({row.label})" for row in RUNNERS.values())
    parser.add_argument("--runner", default="auto", help=f"what computes the forwards: {names}")
    ways = ", ".join(f"{row.name} ({row.label})" for row in PAGED_ATTENTION.values())
    parser.add_argument("--paged-attention", default="auto", help=f"how attention reads pages: {ways}")
    parser.add_argument("--allow-download", action="store_true", help="fetch a hub model that is not here")


def add_prompt_arguments(parser: argparse.ArgumentParser, several: bool = False, required: bool = True) -> Any:
    """Add the alternative ways to give a prompt, and the number of steps; returns the group of alternatives."""
    source = parser.add_mutually_exclusive_group(required=required)
    if several:
        source.add_argument("--prompt", metavar="TEXT", action="append", help="repeat it for several sequences")
    else:
        source.add_argument("--prompt", metavar="TEXT")
    source.add_argument("--prompt-file", type=Path, metavar="FILE")
    source.add_argument("--token-ids", type=token_ids, metavar="1,2,3", help="taken as they are")
    _add_chat_arguments(parser, source, several)
    parser.add_argument("--steps", type=whole(), default=32, metavar="N", help="tokens to generate")
    return source


def add_caches_argument(parser: argparse.ArgumentParser, default: str = "all") -> None:
    parser.add_argument(
        "--caches",
        default=default,
        help=f"all, or names separated by commas ({default}); one that is named and cannot run is told, and exits 1",
    )


def announce_compiling(work: Callable[[], None]) -> None:
    """Run `work`, which compiles for minutes, after a note on standard error."""
    print("compiling, which may take minutes …", file=sys.stderr, flush=True)
    work()


def model_spec(args: argparse.Namespace) -> ModelSpec:
    """The model that the arguments ask for."""
    return ModelSpec(
        with_adapters(args.model, args.adapter),
        args.dtype,
        args.device,
        args.allow_download,
        args.threads,
        args.runner,
        args.weights,
        args.paged_attention,
    )


def _add_chat_arguments(parser: argparse.ArgumentParser, source: Any, several: bool) -> None:
    """Add the options for conversations to the alternatives in `source`, and those for templates."""
    source.add_argument("--chat", type=Path, metavar="FILE.json", help='a list of {"role": …, "content": …}')
    again = "; repeat it: each is said when the one before was answered" if several else ""
    source.add_argument("--user", action="append", metavar="TEXT", help=f"what the user says, as a conversation{again}")
    parser.add_argument("--system", metavar="TEXT", help="the system's turn before the first --user")
    parser.add_argument(
        "--chat-template", metavar="NAME|FILE", help="one of the model's own templates, or a file (x.jinja, ./x)"
    )


def prompts_of(args: argparse.Namespace, sampling: SamplingParams) -> list[Prompt]:
    """The prompts: one, or one for each `--prompt`; empty if none is given."""
    if (chat := _chat_of(args)) is not None:
        return [Prompt(chat=chat, sampling=sampling)]
    if args.prompt_file is not None:
        return [Prompt(text=read_text(args.prompt_file, MAX_PROMPT_FILE_BYTES, "prompt file"), sampling=sampling)]
    if args.token_ids is not None:
        return [Prompt(token_ids=args.token_ids, sampling=sampling)]
    texts = [args.prompt] if isinstance(args.prompt, str) else args.prompt or []
    return [Prompt(text=text, sampling=sampling) for text in texts]


def _chat_of(args: argparse.Namespace) -> Chat | None:
    """The conversation up to the user's first turn; None if none is given."""
    if args.user is None and args.system is not None:
        raise InputError("A --system turn stands before a --user turn: give that as well, or write both in a --chat.")
    if args.chat is not None:
        turns = chat_of_json(read_text(args.chat, MAX_CHAT_FILE_BYTES, "conversation")).turns
    elif args.user:
        system = () if args.system is None else (Turn("system", args.system),)
        turns = (*system, Turn("user", args.user[0]))
    else:
        if args.chat_template is not None:
            raise InputError("A chat template renders a conversation: give --chat or --user.")
        return None
    given = args.chat_template or ""
    if _is_template_file(given):
        return Chat(turns, Path(given).name, read_text(Path(given), 4 * MAX_TEMPLATE_CHARS, "chat template"))
    return Chat(turns, given)


def _is_template_file(given: str) -> bool:
    """Whether a --chat-template is a file: it contains a folder, or has a suffix and exists. A plain name is that of
    one of the model's templates, whatever files are in the working directory."""
    path = Path(given)
    return path.name != given or bool(path.suffix and path.is_file())


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
        type=refusing(parse_codec),
        metavar="NAME[/NAME][@LAYER=NAME]",
        help=f"how K (and V, and single layers) are written in a growing or a paged cache: {', '.join(ROW_OF_NAME)}",
    )


def _type_of(parameter: Parameter) -> Callable[[str], Any]:
    if parameter.name == "budget":
        return refusing(parse_budget)
    return {"number": whole(0), "share": number(), "size": number()}.get(parameter.kind, str)


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


# ---- types of values --------------------------------------------------------------------------------------------

SIZE_LIMIT = 2**31 - 1
BYTES_LIMIT = 2**63 - 1


def refusing(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same parser, which refuses as argparse expects it."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def whole(least: int = 1, most: int = SIZE_LIMIT) -> Callable[[str], int]:
    """Whole numbers from `least`, 0 or more, to `most`."""

    def parse(text: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) <= 20 and least <= int(text) <= most:
            return int(text)
        raise InputError(f"'{text[:40]}' is no whole number from {least} to {most:,}.")

    return refusing(parse)


def number(above: float = -math.inf, most: float = math.inf) -> Callable[[str], float]:
    """Finite numbers above `above`, and up to `most`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value) and above < value <= most:
            return value
        limits = [f"above {above:g}"] * (above > -math.inf) + [f"up to {most:,g}"] * (most < math.inf)
        raise InputError(f"'{text[:40]}' is no number {' and '.join(limits)}".rstrip() + ".")

    return refusing(parse)


def parse_counts(text: str) -> tuple[int, ...]:
    """Numbers of 1 or more, separated by commas, without duplicates."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdecimal() and len(part) < 10 and int(part) for part in parts):
        raise InputError(f"'{text[:60]}' is no list of counts: write numbers of 1 or more, like 128,512.")
    return tuple(dict.fromkeys(map(int, parts)))


def parse_token_ids(text: str) -> tuple[int, ...]:
    """Token ids like `1,2,3`."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(f"'{text[:60]}' is not a list of token ids: write numbers like 1,2,3.") from None


counts, token_ids = refusing(parse_counts), refusing(parse_token_ids)
