"""`run`, `verify` and `caches`: a session from the command line, as JSON lines or as plain text."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config import (
    BUNDLED,
    PRESETS,
    CacheSpec,
    ModelSpec,
    Preset,
    Prompt,
    SamplingParams,
    cache_preset,
    with_max_length,
)
from engine.errors import InputError

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.session import Session

MAX_PROMPT_FILE_BYTES = 64 << 20


def add_parsers(commands: Any) -> None:
    run = commands.add_parser("run", help="generate, one line a step")
    add_model_arguments(run)
    add_prompt_arguments(run)
    run.add_argument("--cache", default="growing", metavar="NAME", help=f"one of {', '.join(PRESETS)}")
    run.add_argument("--max-length", type=int, help="tokens that a static cache reserves")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--temperature", type=float, help="without it the choice is greedy")
    run.add_argument("--top-k", type=int)
    run.add_argument("--top-p", type=float)
    run.add_argument("--min-p", type=float)
    run.add_argument("--export", type=Path, metavar="FILE", help="write the cache after the last step")
    run.add_argument("--json", action="store_true", help="JSON lines")
    run.set_defaults(func=run_command)

    verify = commands.add_parser("verify", help="every cache mode against the uncached forward")
    add_model_arguments(verify)
    add_prompt_arguments(verify)
    verify.add_argument("--caches", default="all", help="all, or names separated by commas")
    verify.add_argument("--prefill-chunk", type=int, default=128, metavar="TOKENS")
    verify.add_argument("--json", action="store_true", help="JSON lines")
    verify.set_defaults(func=verify_command)

    caches = commands.add_parser("caches", help="list the cache modes")
    caches.add_argument("--json", action="store_true", help="JSON lines")
    caches.set_defaults(func=caches_command)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=BUNDLED, help="bundled, a folder, a hub name, or shape:CONFIG.json")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, help="threads for the forward (default: all cores but one)")
    parser.add_argument("--allow-download", action="store_true", help="fetch a hub model that is not here")


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT")
    source.add_argument("--prompt-file", type=Path, metavar="FILE")
    source.add_argument("--token-ids", metavar="1,2,3", help="taken as they are")
    parser.add_argument("--steps", type=int, default=32, metavar="N", help="tokens to generate")


# ---- what the arguments mean -------------------------------------------------------------------------------------


def load_model(args: argparse.Namespace) -> LoadedModel:
    spec = ModelSpec(args.model, args.dtype, args.device, args.allow_download, args.threads)
    from engine.model.loader import load  # torch takes seconds: bad arguments are told before it is imported

    return load(spec)


def prompt_of(args: argparse.Namespace, sampling: SamplingParams) -> Prompt:
    if args.prompt_file is not None:
        return Prompt(text=read_prompt(args.prompt_file), sampling=sampling)
    if args.token_ids is not None:
        try:
            ids = tuple(int(part) for part in args.token_ids.split(",") if part.strip())
        except ValueError:
            raise InputError(f"'{args.token_ids[:60]}' is not a list of token ids: write numbers like 1,2,3.") from None
        return Prompt(token_ids=ids, sampling=sampling)
    return Prompt(text=args.prompt, sampling=sampling)


def read_prompt(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_PROMPT_FILE_BYTES:
            raise InputError(f"'{path}' is larger than 64 MiB: no context holds that; give a shorter prompt.")
        return path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"The prompt file '{path}' cannot be read ({error.strerror}): check the path.") from None
    except UnicodeDecodeError:
        raise InputError(f"The prompt file '{path}' is not UTF-8 text: convert it first.") from None


def checked_steps(args: argparse.Namespace) -> int:
    if args.steps < 1:
        raise InputError(f"{args.steps} steps is nothing to do: give 1 or more.")
    return int(args.steps)


def check_target(path: Path) -> None:
    """Refuse an export path before minutes are spent on what it should hold."""
    import os

    if path.is_dir():
        raise InputError(f"'{path}' is a folder: give a file name that ends in .safetensors.")
    if not path.parent.is_dir():
        raise InputError(f"The folder '{path.parent}' does not exist: create it or choose another place.")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"The folder '{path.parent}' cannot be written: choose another place.")


# ---- run ---------------------------------------------------------------------------------------------------------


def run_command(args: argparse.Namespace) -> int:
    steps = checked_steps(args)
    preset = cache_preset(args.cache)
    spec = with_max_length(preset.spec, args.max_length) if args.max_length is not None else preset.spec
    sampling = SamplingParams(args.temperature or 0.0, args.top_k, args.top_p, args.min_p, args.seed)
    prompt = prompt_of(args, sampling)
    if args.export is not None:
        check_target(args.export)
    model = load_model(args)
    from engine.session import Session

    session = Session(model, spec, sampling)
    seq_id = session.submit(prompt)
    began = time.perf_counter()
    generated = list(generate(session, seq_id, steps, args.json))
    seconds = time.perf_counter() - began
    if args.export is not None:
        export(session, seq_id, preset, args.export)
    text = model.tokenizer.decode(generated, skip_special_tokens=True) if model.tokenizer else ""
    done = {
        "event": "done",
        "token_ids": generated,
        "text": text,
        "cache": preset.name,
        "kv_bytes": session.bytes().stored,
        "tok_per_s": round(len(generated) / seconds, 2) if seconds else 0.0,
        "stop": session.sequence(seq_id).stop,
        "model": model.info.name,
        "random_weights": model.info.random_weights,
        "note": model.info.note,
    }
    if args.json:
        say(done)
    else:
        print(f"\n\n{len(generated)} tokens · {done['tok_per_s']} tok/s · {preset.label} · {done['kv_bytes']:,} bytes of K and V")
        if model.info.note:
            print(f"note: {model.info.note}")
    return 0


def generate(session: Session, seq_id: int, steps: int, as_json: bool) -> Iterator[int]:
    """Step until so many tokens are generated or the sequence stops; tells each step; yields the generated ids."""
    count = 0
    while count < steps and session.has_work:
        record = session.step()
        part = record.of(seq_id)
        if part is None:
            continue
        if part.sampled is not None:
            count += 1
            yield part.sampled
        if as_json:
            say(
                {
                    "event": "step",
                    "step": record.step,
                    "phase": record.phase,
                    "token_id": part.sampled,
                    "text": part.sampled_text,
                    "num_tokens": part.num_tokens,
                    "kv_bytes": record.num_bytes.stored,
                    "ms": round(record.timings.total_ms, 3),
                    "seq_id": seq_id,
                }
            )
        else:
            print(printable(part.sampled_text), end="", flush=True)


def printable(text: str) -> str:
    """Text from a model may hold terminal escapes: only line ends and tabs pass as they are."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def export(session: Session, seq_id: int, preset: Preset, path: Path) -> None:
    from engine.snapshot.write import write_snapshot

    for _ in write_snapshot(session.snapshot(seq_id, None, preset.name, ""), path):
        pass


# ---- verify, caches ----------------------------------------------------------------------------------------------


def verify_command(args: argparse.Namespace) -> int:
    steps = checked_steps(args)
    names = list(PRESETS) if args.caches == "all" else [name.strip() for name in args.caches.split(",")]
    specs: dict[str, CacheSpec] = {name: cache_preset(name).spec for name in names}
    if args.prefill_chunk < 1:
        raise InputError(f"A prefill chunk of {args.prefill_chunk} tokens never ends: give 1 or more.")
    prompt = prompt_of(args, SamplingParams())
    model = load_model(args)
    from engine.compare import parity, reference
    from engine.session import Session

    ids = tuple(Session(model, CacheSpec("none")).encode(prompt))
    limit = model.max_length
    if len(ids) + steps > limit:
        raise InputError(
            f"{len(ids)} prompt tokens and {steps} steps exceed the model's context of {limit}: shorten one of them."
        )
    yardstick = reference(model, ids, steps)
    passed = True
    for name, spec in specs.items():
        result = parity(model, name, spec, yardstick, args.prefill_chunk)
        passed &= result.passes
        if args.json:
            say(dataclasses.asdict(result))
        else:
            print(
                f"{result.cache:<10} max |Δlogit| {result.max_abs_logit_diff:.2e}   KL {result.mean_kl:.2e}   "
                f"top-1 {result.top1_agreement:.1%}   {'ok' if result.passes else 'DIFFERS'}"
            )
    if not args.json and model.info.note:
        print(f"note: {model.info.note}")
    return 0 if passed else 1


def caches_command(args: argparse.Namespace) -> int:
    for preset in PRESETS.values():
        if args.json:
            say(
                {
                    "name": preset.name,
                    "lossless": preset.lossless,
                    "needs": list(preset.needs),
                    "parameters": list(preset.parameters),
                    "summary": preset.summary,
                }
            )
        else:
            print(f"{preset.name:<10} {preset.summary}")
    return 0


def say(line: dict[str, Any]) -> None:
    json.dump(line, sys.stdout, ensure_ascii=True)
    sys.stdout.write("\n")
    sys.stdout.flush()
