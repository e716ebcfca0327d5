"""`run` and `verify`: a session from the command line, as JSON lines or as plain text."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from engine.cli.cache_options import add_cache_arguments, spec_of, specs_of
from engine.cli.export_options import add_export_arguments, export_of, write_export
from engine.errors import InputError
from engine.files.atomic import writable_target, write_text
from engine.files.text import MIB, read_text
from engine.predict.capacity import static_capacity
from engine.spec.cache import CacheSpec
from engine.spec.model import BUNDLED, ModelSpec
from engine.spec.presets import NAMES, cache_label, cache_name
from engine.spec.sampling import Prompt, SamplingParams
from engine.spec.tuning import fitted
from engine.wire.page_events import Tier, to_vllm_events

if TYPE_CHECKING:
    from engine.analysis.reference import Parity
    from engine.model.loader import LoadedModel
    from engine.session.session import Session
    from engine.wire.events import ModelInfo
    from engine.wire.page_events import PageEvent
    from engine.wire.records import SequenceStep, StepRecord

MAX_PROMPT_FILE_BYTES = 64 * MIB


def add_parsers(commands: Any) -> None:
    run = commands.add_parser("run", help="generate, one line a step")
    add_model_arguments(run)
    add_prompt_arguments(run, several=True)
    run.add_argument(
        "--cache",
        default="growing",
        metavar="NAME",
        help=f"one of {NAMES}",
    )
    add_cache_arguments(run)
    run.add_argument("--events", type=Path, metavar="FILE", help="write the page events in vLLM's shape, JSON lines")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--temperature", type=float, help="without it the choice is greedy")
    run.add_argument("--top-k", type=int)
    run.add_argument("--top-p", type=float)
    run.add_argument("--min-p", type=float)
    add_export_arguments(run)
    run.add_argument("--json", action="store_true", help="JSON lines")
    run.set_defaults(func=run_command)

    verify = commands.add_parser("verify", help="every cache mode against the uncached forward")
    add_model_arguments(verify)
    add_prompt_arguments(verify)
    add_cache_arguments(verify)
    add_caches_argument(verify)
    verify.add_argument("--prefill-chunk", type=int, default=128, metavar="TOKENS")
    verify.add_argument("--json", action="store_true", help="JSON lines")
    verify.set_defaults(func=verify_command)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=BUNDLED, help="bundled, a folder, a hub name, or shape:CONFIG.json")
    add_compute_arguments(parser)


def add_compute_arguments(parser: argparse.ArgumentParser) -> None:
    """In which numbers, where and how a model computes."""
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, help="threads for the forward (default: all cores but one)")
    parser.add_argument("--allow-download", action="store_true", help="fetch a hub model that is not here")


def add_prompt_arguments(parser: argparse.ArgumentParser, several: bool = False, required: bool = True) -> None:
    source = parser.add_mutually_exclusive_group(required=required)
    if several:
        source.add_argument("--prompt", metavar="TEXT", action="append", help="repeat it for several sequences")
    else:
        source.add_argument("--prompt", metavar="TEXT")
    source.add_argument("--prompt-file", type=Path, metavar="FILE")
    source.add_argument("--token-ids", metavar="1,2,3", help="taken as they are")
    parser.add_argument("--steps", type=int, default=32, metavar="N", help="tokens to generate")


def add_caches_argument(parser: argparse.ArgumentParser, default: str = "all") -> None:
    parser.add_argument(
        "--caches",
        default=default,
        help=f"all, or names separated by commas ({default}); one that is named and cannot run is told, and exits 1",
    )


# ---- what the arguments mean -------------------------------------------------------------------------------------


def load_model(args: argparse.Namespace) -> LoadedModel:
    spec = ModelSpec(args.model, args.dtype, args.device, args.allow_download, args.threads)
    from engine.model.loader import load  # torch takes seconds: bad arguments are told before it is imported

    return load(spec)


def prompts_of(args: argparse.Namespace, sampling: SamplingParams) -> list[Prompt]:
    """What to start from: one prompt, or one for each `--prompt`."""
    if args.prompt_file is not None:
        return [Prompt(text=read_text(args.prompt_file, MAX_PROMPT_FILE_BYTES, "prompt file"), sampling=sampling)]
    if args.token_ids is not None:
        try:
            ids = tuple(int(part) for part in args.token_ids.split(",") if part.strip())
        except ValueError:
            raise InputError(f"'{args.token_ids[:60]}' is not a list of token ids: write numbers like 1,2,3.") from None
        return [Prompt(token_ids=ids, sampling=sampling)]
    texts = [args.prompt] if isinstance(args.prompt, str) else args.prompt
    return [Prompt(text=text, sampling=sampling) for text in texts]


def checked_steps(args: argparse.Namespace) -> int:
    if args.steps < 1:
        raise InputError(f"{args.steps} steps is nothing to do: give 1 or more.")
    return int(args.steps)


# ---- run ---------------------------------------------------------------------------------------------------------


def run_command(args: argparse.Namespace) -> int:
    steps = checked_steps(args)
    spec = spec_of(args.cache, args)
    sampling = SamplingParams(args.temperature or 0.0, args.top_k, args.top_p, args.min_p, args.seed)
    prompts = prompts_of(args, sampling)
    wanted = export_of(args)
    for target in (args.export, args.events):
        if target is not None:
            writable_target(target)  # refused before minutes are spent on what it should hold
    model = load_model(args)
    from engine.session.session import Session

    session = Session(model, for_work(model, spec, prompts, steps))
    generated: dict[int, list[int]] = {session.submit(prompt): [] for prompt in prompts}
    began = time.perf_counter()
    records: list[StepRecord] | None = None if wanted is None else []
    events = list(generate(session, generated, steps, args.json, records))
    seconds = time.perf_counter() - began
    first = next(iter(generated))
    if wanted is not None:
        write_export(session, structs.replace(wanted, seq_id=first, records=tuple(records or ())))
    if args.events is not None:
        write_events(events, spec, args.events)
    tell_done(session, generated, seconds, args.json)
    return 0


def for_work(model: LoadedModel, spec: CacheSpec, prompts: list[Prompt], steps: int) -> CacheSpec:
    """A static cache that was given no length reserves more than it would where prompt and steps need it."""
    if spec.layout != "static" or spec.max_length is not None:
        return spec
    from engine.session.prompt import encode

    num_tokens = min(max(len(encode(model, prompt)) for prompt in prompts) + steps, model.max_length)
    return spec if num_tokens <= static_capacity(spec, model.max_length) else fitted(spec, num_tokens)


def generate(
    session: Session,
    generated: dict[int, list[int]],
    steps: int,
    as_json: bool,
    records: list[StepRecord] | None = None,
) -> Iterator[PageEvent]:
    """Step until every sequence has so many tokens or has stopped; tells each step, and adds it to `records`; yields
    what happened to pages."""
    while session.has_work:
        record = session.step()
        late = session.history.surprisal
        if records is not None or as_json:
            for _ in late.rest():
                pass
            record = late.filled(record)
        if records is not None:
            records.append(record)
        for part in record.sequences:
            if part.sampled is not None:
                # in place: a sequence that was preempted is prefilled again, and chooses its last token once more
                generated[part.seq_id][part.num_tokens - part.num_prompt_tokens :] = [part.sampled]
            if as_json:
                say(step_line(record, part))
            elif len(generated) == 1:
                print(printable(part.sampled_text), end="", flush=True)
            if len(generated[part.seq_id]) >= steps:
                session.halt(part.seq_id)
        yield from record.page_events


def step_line(record: StepRecord, part: SequenceStep) -> dict[str, Any]:
    return {
        "event": "step",
        "step": record.step,
        "phase": record.phase,
        "seq_id": part.seq_id,
        "token_id": part.sampled,
        "text": part.sampled_text,
        "num_tokens": part.num_tokens,
        "kv_bytes": record.num_bytes.stored,
        "surprisal": [round(nats, 4) if nats is not None and isfinite(nats) else None for nats in part.surprisal],
        "ms": round(record.timings.total_ms, 3),
        **({"hit_tokens": part.hit_tokens} if part.hit_tokens else {}),
        **({"preempted": list(record.preempted)} if record.preempted else {}),
    }


def tell_done(session: Session, generated: dict[int, list[int]], seconds: float, as_json: bool) -> None:
    tokenizer, info = session.model.tokenizer, session.model.info
    texts = {i: tokenizer.decode(ids, skip_special_tokens=True) if tokenizer else "" for i, ids in generated.items()}
    first = next(iter(generated))
    count = sum(map(len, generated.values()))
    rate = round(count / seconds, 2) if seconds else 0.0
    kv_bytes = session.bytes().stored
    if as_json:
        sequences = [
            {"seq_id": i, "token_ids": ids, "text": texts[i], "stop": session.sequence(i).stop}
            for i, ids in generated.items()
        ]
        say(
            {
                "event": "done",
                "token_ids": generated[first],
                "text": texts[first],
                "cache": cache_name(session.cache),
                "kv_bytes": kv_bytes,
                "tok_per_s": rate,
                "sequences": sequences,
                "model": info.name,
                "random_weights": info.random_weights,
                "note": info.note,
            }
        )
        return
    if len(generated) > 1:
        for seq_id, text in texts.items():
            print(f"[{seq_id}] {printable(text)}")
    stored = f"{kv_bytes:,} bytes of {kept_words(info)}"
    print(f"\n\n{count} tokens · {rate} tok/s · {cache_label(session.cache)} · {stored}")
    for seq_id in generated:
        sequence = session.sequence(seq_id)
        if sequence.stop in ("context full", "cache full"):
            print(f"{sequence.stop}: sequence {seq_id} ended after {sequence.num_tokens:,} tokens")
    if info.note:
        print(f"note: {info.note}")


def kept_words(info: ModelInfo) -> str:
    """What the bytes of this model's cache are."""
    has_state = any(layer.kind == "linear" or layer.state_elements for layer in info.geometry.layers)
    if not info.geometry.attention_layers:
        return "recurrent state"
    return "K, V and recurrent state" if has_state else "K and V"


def write_events(events: list[PageEvent], spec: CacheSpec, path: Path) -> None:
    """vLLM's KV events, one a line, whole or not at all."""
    tiers = frozenset({Tier.DEVICE, Tier.HOST} if spec.layout == "host" else {Tier.DEVICE})
    write_text(path, "".join(json.dumps(line) + "\n" for line in to_vllm_events(events, spec.page_size, tiers)))


def printable(text: str) -> str:
    """Text from a model may hold terminal escapes: only line ends and tabs pass as they are."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


# ---- verify ------------------------------------------------------------------------------------------------------


def verify_command(args: argparse.Namespace) -> int:
    steps = checked_steps(args)
    specs = specs_of(args.caches, args)
    if args.prefill_chunk < 1:
        raise InputError(f"A prefill chunk of {args.prefill_chunk} tokens never ends: give 1 or more.")
    (prompt,) = prompts_of(args, SamplingParams())
    model = load_model(args)
    from engine.analysis.reference import parity, reference
    from engine.session.prompt import encode

    truth = reference(model, tuple(encode(model, prompt)), steps)
    passed = True
    for name, spec in specs.items():
        try:
            result = parity(model, name, spec, truth, args.prefill_chunk)
        except InputError as error:
            tell_unavailable(name, str(error), args.json)
            passed &= args.caches == "all"
            continue
        passed &= result.passes
        if args.json:
            say({**dataclasses.asdict(result), "passes": result.passes})
        else:
            print(
                f"{result.cache:<22} max |Δlogit| {result.max_abs_logit_diff:.2e}   KL {result.mean_kl:.2e}   "
                f"top-1 {round(result.top1_agreement * result.steps)} of {result.steps} steps   {verdict(result)}"
            )
    if not args.json and model.info.note:
        print(f"note: {model.info.note}")
    return 0 if passed else 1


def verdict(result: Parity) -> str:
    if not result.lossless:
        return "lossy, measured"
    if result.passes:
        return f"ok, within {result.tolerance:g}"
    row = result.wrong_row
    where = f", first in {row.tensor} of layer {row.layer} at position {row.position}" if row else ""
    return f"DIFFERS by more than {result.tolerance:g}{where}" if result.is_beyond else f"DIFFERS{where}"


def tell_unavailable(name: str, reason: str, as_json: bool) -> None:
    """A mode that cannot run says why, and the others go on."""
    if as_json:
        say({"cache": name, "unavailable": reason})
    else:
        print(f"{name:<22} refused: {reason}", flush=True)


def say(line: dict[str, Any]) -> None:
    json.dump(line, sys.stdout, ensure_ascii=True)
    sys.stdout.write("\n")
    sys.stdout.flush()
