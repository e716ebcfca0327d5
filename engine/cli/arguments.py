"""Arguments that several sub-commands share: the model, the prompt, the number of steps."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from engine.cli.conversation import add_chat_arguments, chat_of
from engine.errors import InputError
from engine.files.text import MIB, read_text
from engine.spec.model import AUTO_DEVICE, BUNDLED, WEIGHTS, Dtype, ModelSpec, with_adapters
from engine.spec.runners import PAGED_ATTENTION, RUNNERS
from engine.spec.sampling import Prompt, SamplingParams

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel

MAX_PROMPT_FILE_BYTES = 64 * MIB


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
    source.add_argument("--token-ids", metavar="1,2,3", help="taken as they are")
    add_chat_arguments(parser, source, several)
    parser.add_argument("--steps", type=int, default=32, metavar="N", help="tokens to generate")
    return source


def add_caches_argument(parser: argparse.ArgumentParser, default: str = "all") -> None:
    parser.add_argument(
        "--caches",
        default=default,
        help=f"all, or names separated by commas ({default}); one that is named and cannot run is told, and exits 1",
    )


def load_model(args: argparse.Namespace) -> LoadedModel:
    """Load the model that the arguments ask for."""
    spec = model_spec(args)
    from engine.model.loader import load  # importing torch takes seconds, so bad arguments are reported first

    model = load(spec)
    model.runners.compiling = announce_compiling
    return model


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


def prompts_of(args: argparse.Namespace, sampling: SamplingParams) -> list[Prompt]:
    """The prompts: one, or one for each `--prompt`; empty if none is given."""
    if (chat := chat_of(args)) is not None:
        return [Prompt(chat=chat, sampling=sampling)]
    if args.prompt_file is not None:
        return [Prompt(text=read_text(args.prompt_file, MAX_PROMPT_FILE_BYTES, "prompt file"), sampling=sampling)]
    if args.token_ids is not None:
        return [Prompt(token_ids=token_ids_of(args.token_ids), sampling=sampling)]
    texts = [args.prompt] if isinstance(args.prompt, str) else args.prompt or []
    return [Prompt(text=text, sampling=sampling) for text in texts]


def token_ids_of(text: str) -> tuple[int, ...]:
    """Parse token ids like `1,2,3`."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(f"'{text[:60]}' is not a list of token ids: write numbers like 1,2,3.") from None


def checked_steps(args: argparse.Namespace) -> int:
    """The number of steps; raises `InputError` if it is below 1."""
    if args.steps < 1:
        raise InputError(f"{args.steps} steps is nothing to do: give 1 or more.")
    return int(args.steps)
