"""Cache modes are measured: `verify` against the forward without a cache; `sweep` over modes, budgets, codecs, texts;
`bench` against each other in time; `gpu-check`, a report on a GPU to paste into an issue: what is installed, `verify`
of all modes in every dtype, `bench`. They iterate over the measurements of `engine.analysis` as the engine loop does,
on a model and without a session."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.cli.arguments import (
    MAX_PROMPT_FILE_BYTES,
    add_cache_arguments,
    add_caches_argument,
    add_model_arguments,
    add_prompt_arguments,
    announce_compiling,
    counts,
    model_spec,
    prompts_of,
    refusing,
    specs_of,
    whole,
)
from engine.cli.output import (
    add_command,
    print_json,
    print_model_note,
    print_row,
    print_rows,
    printable,
    printable_line,
)
from engine.errors import InputError, check_known, first_line
from engine.files.atomic import writable_target, write_text
from engine.files.text import JSON_LIMIT, read_text
from engine.spec.cache import CacheSpec
from engine.spec.codec import ROW_OF_NAME, CodecSpec, parse_codec
from engine.spec.grid import SweepMode, SweepText, grid, parse_budgets
from engine.spec.model import RUNNERS
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.measurements import SweepRow, Unavailable, best_by_text

if TYPE_CHECKING:
    import torch

    from engine.analysis.reference import Parity
    from engine.model.loader import LoadedModel


def load_model(args: argparse.Namespace) -> LoadedModel:
    """Load the model that the arguments ask for."""
    spec = model_spec(args)
    from engine.model.loader import load  # importing torch takes seconds, so bad arguments are reported first

    model = load(spec)
    model.runners.compiling = announce_compiling
    return model


# ---- verify -------------------------------------------------------------------------------------------------------


def add_verify(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_prompt_arguments(parser)
    add_cache_arguments(parser)
    add_caches_argument(parser)
    parser.add_argument("--prefill-chunk", type=whole(), default=128, metavar="TOKENS")
    add_command(parser, verify_command)


def verify_command(args: argparse.Namespace) -> int:
    """Print how much each mode differs; returns 1 if a lossless one does, one fails, or a named one cannot run."""
    specs = specs_of(args.caches, args)
    (prompt,) = prompts_of(args, SamplingParams())
    model = load_model(args)
    from engine.analysis.reference import parity, reference
    from engine.cache.paged.pool import PoolCorrupted
    from engine.session.commands import first_ids

    truth = reference(model, tuple(first_ids(model, prompt)), args.steps)
    passed = True
    for name, spec in specs.items():
        try:
            result = parity(model, name, spec, truth, args.prefill_chunk)
        except InputError as error:
            print_row({"cache": name, "unavailable": str(error)}, args.json)
            passed &= args.caches == "all"
            continue
        except RuntimeError as error:  # of a kernel or a device: the other modes are still worth knowing
            what = "corrupted" if isinstance(error, PoolCorrupted) else "failed"
            print_row({"cache": name, what: first_line(error)}, args.json)
            passed = False
            continue
        passed &= result.passes
        if args.json:
            print_json({**dataclasses.asdict(result), "passes": result.passes})
        else:
            print(
                f"{result.cache:<22} max |Δlogit| {result.max_abs_logit_diff:.2e}   KL {result.mean_kl:.2e}   "
                f"top-1 {round(result.top1_agreement * result.steps)} of {result.steps} steps   {verdict(result)}"
            )
    print_model_note(model, args.json)
    return 0 if passed else 1


def verdict(result: Parity) -> str:
    """The result of a mode in words."""
    if not result.lossless:
        return "lossy, measured" if result.is_beyond else f"lossy, within {result.tolerance:g} on these tokens"
    if result.passes:
        return f"ok, within {result.tolerance:g}"
    row = result.wrong_row
    where = f", first in {row.tensor} of layer {row.layer} at position {row.position}" if row else ""
    return f"DIFFERS by more than {result.tolerance:g}{where}" if result.is_beyond else f"DIFFERS{where}"


# ---- sweep --------------------------------------------------------------------------------------------------------

PROMPT = "prompt"


def add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Every mode is given the same tokens. After a prompt they are those that the exact model chooses "
        "greedily, so its perplexity says how sure a mode is of what the exact model says; of a --text they are the "
        "text's own last tokens, so its perplexity is of that text; --recall plants a fact and asks for it at the end. "
        "KL (nats) and top-1 agreement compare each step with the model without a cache."
    )
    add_model_arguments(parser)
    add_prompt_arguments(parser, required=False)
    parser.add_argument(
        "--text",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a text whose own last tokens are told from those before them, as far as the context holds it; repeat",
    )
    parser.add_argument(
        "--recall",
        type=refusing(parse_recall),
        action="append",
        default=[],
        metavar="TOKENS[:DEPTH]",
        help="plant a fact at a depth of 0 to 1 (0.5) in so many tokens of the first text, and ask for it; repeat",
    )
    parser.add_argument(
        "--budgets",
        type=refusing(parse_budgets),
        default=(None,),
        metavar="N,N%,own",
        help="sizes of the modes that evict rows: 64, 25%%, own",
    )
    parser.add_argument(
        "--codecs",
        type=refusing(parse_codecs),
        default=(None,),
        metavar="K[/V],...",
        help=f"how rows are written, K and V apart: {', '.join(ROW_OF_NAME)}",
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep rows in this file, and measure what it lacks")
    add_cache_arguments(parser)
    add_caches_argument(parser)
    add_command(parser, sweep_command)


def sweep_command(args: argparse.Namespace) -> int:
    """Print a row for every mode on every text, and which modes are best for their bytes; returns the exit code."""
    modes, texts = modes_of(args), texts_of(args)
    file = None
    if args.resume is not None:
        file = SweepFile(args.resume)
    model = load_model(args)
    rows: list[SweepRow | Unavailable] = []
    status = print_rows(all_rows(model, texts, modes, args.steps, file, rows), model, args)
    if not args.json:
        print_best(best_by_text(rows))
    return status


def all_rows(
    model: LoadedModel,
    texts: tuple[SweepText, ...],
    modes: tuple[SweepMode, ...],
    steps: int,
    file: SweepFile | None,
    rows: list[SweepRow | Unavailable],
) -> Iterator[SweepRow | Unavailable]:
    """The rows that the file has already, then the others, each written to the file when it is measured. All are
    appended to `rows`."""
    from engine.analysis.sweep import sweep

    if file is not None:
        rows += file.open(model.info.fingerprint, model.info.dtype, texts, modes, steps)
        yield from list(rows)
    done = {(row.cache, row.text) for row in rows}
    for row in sweep(model, texts, modes, steps, done):
        rows.append(row)
        if file is not None:
            file.append(row)
        yield row


def print_best(best: dict[str, tuple[str, ...]]) -> None:
    """Print the modes on the Pareto front of bytes and KL."""
    for text, names in best.items():
        print(f"best for their bytes on {printable(text)}: {', '.join(names)}")


# ---- arguments ---------------------------------------------------------------------------------------------------


def modes_of(args: argparse.Namespace) -> tuple[SweepMode, ...]:
    """The grid of modes; raises `InputError` if no combination is possible."""
    modes = grid(specs_of(args.caches, args), args.budgets, args.codecs)
    if not modes:
        raise InputError("No cache goes together with these budgets and codecs: name others.")
    return modes


def parse_codecs(text: str) -> tuple[CodecSpec, ...]:
    found = tuple(parse_codec(part.strip()) for part in text.split(",") if part.strip())
    if not found:
        raise InputError(f"No codec is named: choose from {', '.join(ROW_OF_NAME)}, K and V apart as int8/kivi-4.")
    return found


def texts_of(args: argparse.Namespace) -> tuple[SweepText, ...]:
    """The prompt, the texts, and the texts with a fact in them, each under a different name."""
    found = [SweepText(PROMPT, prompt) for prompt in prompts_of(args, SamplingParams())]
    for path in args.text:
        prompt = Prompt(text=read_text(path, MAX_PROMPT_FILE_BYTES, "text"))
        found.append(SweepText(name_in(found, path.stem), prompt, "given"))
    if not found:
        raise InputError("There is nothing to read: give a --prompt, a --prompt-file, --token-ids or a --text.")
    source = found[0].prompt
    for tokens, depth in args.recall:
        found.append(SweepText(name_in(found, f"recall {tokens} at {depth:.0%}"), source, "recall", tokens, depth))
    return tuple(found)


def name_in(texts: list[SweepText], name: str) -> str:
    """The name, with a number if another text has the same one."""
    names = {text.name for text in texts}
    return next(each for each in (name, *(f"{name} {n}" for n in range(2, len(names) + 3))) if each not in names)


def parse_recall(given: str) -> tuple[int, float]:
    tokens, _, depth = given.partition(":")
    try:
        where = float(depth) if depth else 0.5
    except ValueError:
        where = -1.0
    if not (tokens.isascii() and tokens.isdecimal() and len(tokens) < 10 and int(tokens)) or not 0 <= where <= 1:
        raise InputError(f"'{given[:40]}' is not a number of tokens and a depth: write 512 or 512:0.25.")
    return int(tokens), where


class SweepFile:
    """JSON lines: a header that identifies the sweep, then its rows. An incomplete last line is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = writable_target(path)  # an error is raised before a model is loaded
        self._text = read_text(path, JSON_LIMIT, "sweep file") if self._path.exists() else ""

    def open(
        self,
        fingerprint: str,
        dtype: str,
        texts: Sequence[SweepText],
        modes: Sequence[SweepMode],
        num_steps: int,
    ) -> list[SweepRow | Unavailable]:
        """The rows that the file has for these modes; raises `InputError` if they are of another model, other texts or
        other steps. Modes may differ from those of earlier runs."""
        header = json.dumps({"sweep": digest_of(fingerprint, dtype, texts, num_steps)})
        lines = self._text.split("\n")[:-1]
        if lines and lines[0] != header:
            raise InputError(
                f"'{self._path}' holds a sweep of another model, other texts or other steps: name another file."
            )
        specs = {mode.name: digest(mode) for mode in modes}
        names = {text.name for text in texts}
        kept = dict.fromkeys(line for line in lines[1:] if self._is_wanted(line, specs, names))
        if not lines or self._text != "\n".join([header, *lines[1:], ""]):
            write_text(self._path, "\n".join([header, *lines[1:], ""]))
        self._specs = specs
        rows = [row_of(json.loads(line)) for line in kept]
        return list({(row.cache, row.text): row for row in rows}.values())  # two programs may have written the same row

    def _is_wanted(self, line: str, specs: dict[str, str], names: set[str]) -> bool:
        try:
            values = json.loads(line)
            return values["text"] in names and specs.get(values["cache"]) == values["mode"] and bool(row_of(values))
        except (ValueError, KeyError, TypeError):
            raise InputError(f"'{self._path}' holds a line that is no row of a sweep: name another file.") from None

    def append(self, row: SweepRow | Unavailable) -> None:
        """Append a row and flush it to disk."""
        values = {"mode": self._specs[row.cache], **msgspec.structs.asdict(row)}
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(values) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"'{self._path}' cannot be written ({reason}): free some space or name another.") from None


def row_of(values: dict[str, object]) -> SweepRow | Unavailable:
    """The row of a line, with every type checked."""
    fields = {name: value for name, value in values.items() if name != "mode"}
    kind: type[SweepRow] | type[Unavailable] = Unavailable if "unavailable" in fields else SweepRow
    ordered = [kind.__name__, *(fields[name] for name in kind.__struct_fields__)]
    return msgspec.convert(ordered, kind)


def digest(value: object) -> str:
    """A hash of a value's content."""
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=8).hexdigest()


def digest_of(fingerprint: str, dtype: str, texts: Sequence[SweepText], num_steps: int) -> str:
    return digest((fingerprint, dtype, tuple(sorted(map(digest, texts))), num_steps))


# ---- bench --------------------------------------------------------------------------------------------------------

DEFAULT_CONTEXTS = (128, 512)


def add_bench(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Cache modes take turns, a few decode steps each, the order swapped every round: medians, and the "
        "difference of the quartiles as spread. ttft_ms: until every sequence has its first token. overhead_ratio: "
        "the part of a step that is not spent in the model's forward. ratio: speed over that of base, turn by turn. "
        "Caches that are not paged run the sequences of a batch one after the other. A runner may follow the name of a "
        "cache: static:compile, paged:fused+pages."
    )
    add_model_arguments(parser)
    add_prompt_arguments(parser, required=False)
    add_cache_arguments(parser)
    parser.add_argument(
        "--contexts",
        type=counts,
        metavar="N,N,...",
        help=f"tokens to start from, without a prompt ({','.join(map(str, DEFAULT_CONTEXTS))})",
    )
    parser.add_argument(
        "--batch", type=counts, default="1", metavar="N,N,...", help="sequences that decode side by side (1)"
    )
    add_caches_argument(parser, "dynamic,static,growing,paged")
    add_command(parser, bench_command)


def bench_command(args: argparse.Namespace) -> int:
    """Print a row for every mode, context and batch; returns the exit code."""
    specs, ways = contenders_of(args)
    prompts = prompts_of(args, SamplingParams())
    if prompts and args.contexts is not None:
        raise InputError("A prompt has a length of its own: give it or --contexts, not both.")
    model = load_model(args)
    from engine.analysis.bench import bench
    from engine.session.commands import first_ids

    ids = tuple(first_ids(model, prompts[0])) if prompts else None
    contexts = (len(ids),) if ids else args.contexts or DEFAULT_CONTEXTS
    pieces = bench(model, specs, contexts, args.steps, args.batch, ids, runners=ways)
    return print_rows((piece for piece in pieces if not isinstance(piece, tuple)), model, args)


def contenders_of(args: argparse.Namespace) -> tuple[dict[str, CacheSpec], dict[str, str]]:
    """The cache specs by the names that were typed, and the runners of those names that have one: `static:compile`."""
    parts = {name: name.partition(":") for each in args.caches.split(",") if (name := each.strip())}
    specs = specs_of(",".join(cache for cache, _, _ in parts.values()), args)
    ways = {name: way for name, (_, colon, way) in parts.items() if colon}
    for name in (name for way in ways.values() for name in way.split("+")):
        if name != "pages":
            check_known("runner", name, RUNNERS)
    return (specs if args.caches == "all" else {name: specs[cache] for name, (cache, _, _) in parts.items()}), ways


# ---- gpu-check ----------------------------------------------------------------------------------------------------

DRIVER = Path("/sys/module/nvidia/version")
DTYPES = ("float32", "bfloat16", "float16")
SHORT_CACHES = "growing,paged,h2o,int8,none"
# a prompt that ends before the first bucket of recorded steps does, and steps that go beyond it; rules evict half
TEXT = ("--token-ids", ",".join(map(str, range(5, 65))), "--steps", "8", "--prefill-chunk", "16", "--budget", "32")


def add_gpu_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 …, or cpu for the same without a card (cuda)")
    parser.add_argument("--short", action="store_true", help="one dtype, a few modes, no speed")
    parser.add_argument("--compile", action="store_true", help="compiled steps as well, minutes for each dtype")
    add_command(parser, check_command)


def check_command(args: argparse.Namespace) -> int:
    """Print the report; returns 1 if a lossless mode differs, or something failed."""
    device = checked_device(args.device)
    if args.json:
        print_json({"event": "about", **about(device)})
    else:
        print(printable("\n".join(f"{name}: {value}" for name, value in about(device).items())))
    shared = ("--device", str(device), *["--json"] * args.json)
    caches = SHORT_CACHES if args.short else "all"
    status = 0
    for dtype, runner in product(DTYPES[: 1 if args.short else None], ("auto", *["compile"] * args.compile)):
        how = ("--dtype", dtype, "--runner", runner)
        status |= run("verify", add_verify, *TEXT, "--caches", caches, *how, *shared)
    if not args.short:
        status |= run("bench", add_bench, "--contexts", "128,768", *shared)
    return status


def run(name: str, add: Callable[[argparse.ArgumentParser], None], *argv: str) -> int:
    """Run another sub-command under a headline with its options. An error is printed, so that the next one can run."""
    parser = argparse.ArgumentParser(name)
    add(parser)
    args = parser.parse_args(argv)
    options = {key: vars(args)[key] for key in ("dtype", "runner", "caches")}
    print_json({"event": name, **options}) if args.json else print(f"\n{name}: {', '.join(options.values())}")
    try:
        return int(args.func(args))
    except InputError as error:
        why, status = str(error), 0
    except RuntimeError as error:  # of the device or a kernel; finding these is the purpose
        why, status = f"{type(error).__name__}: {first_line(error)}", 1
    word = "failed" if status else "refused"
    print_json({"event": name, word: why}) if args.json else print(printable_line(f"{word}: {why}"))
    return status


def checked_device(name: str) -> torch.device:
    """The device of that name; raises `InputError` where it is none, or not here."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"'{printable(name)[:40]}' is no device: give cuda, cuda:1 … or cpu.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "There is no GPU here that torch can use, so nothing was checked: --device cpu tries the rest."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"There is no {device}: this computer has {torch.cuda.device_count()} GPUs, cuda:0 and on.")
    return device


def about(device: torch.device) -> dict[str, str]:
    """The versions, the device and the driver."""
    import torch
    import transformers

    facts = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": str(device),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["card"] = f"{properties.name}, {properties.total_memory >> 20:,} MiB"
        facts["compute capability"] = f"{properties.major}.{properties.minor}"
        facts["driver"] = driver_version()
        facts["runtime"] = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return facts


def driver_version() -> str:
    """The version of NVIDIA's driver from NVML or from /sys; "unknown" if neither has it."""
    if find_spec("pynvml"):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            return str(pynvml.nvmlSystemGetDriverVersion())
    return DRIVER.read_text("utf-8").strip() if DRIVER.exists() else "unknown"
