"""`events`: the KV events of a server that serves now: recorded, described, and why a prompt is not reused there."""

from __future__ import annotations

import argparse
import sys
import time
from itertools import islice
from pathlib import Path

from msgspec import structs

from engine.cli.arguments import number, token_ids, whole
from engine.cli.output import add_command, print_facts, print_json, printable
from engine.counted import counted
from engine.errors import InputError
from engine.files.atomic import writable_target
from engine.serving.events import END_MARK, Recording, packed
from engine.serving.explain import explain
from engine.serving.server import Server, summary
from engine.serving.text import BUNDLED, Tokenizer, numbers

FLUSH_S = 0.2


def add_events(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(required=True, metavar="WHAT")
    record = kinds.add_parser("record", help="write what a server publishes to a file, until Ctrl+C")
    record.add_argument("file", type=Path, metavar="FILE", help="the recording, like run.kvevents")
    record.add_argument(
        "--endpoint", required=True, action="append", metavar="ADDRESS",
        help="where the server publishes, like tcp://HOST:5557; of several ranks tcp://HOST:5557-5560, or given again",
    )  # fmt: skip
    record.add_argument(
        "--replay", action="append", default=[], metavar="ADDRESS",
        help="where it repeats what it still holds, like tcp://HOST:5558; as many as endpoints, in the same order",
    )  # fmt: skip
    record.add_argument("--seconds", type=number(above=0), metavar="N", help="how long; until Ctrl+C unless given")
    add_command(record, record_events, "print one JSON object at the end")
    info = kinds.add_parser("info", help="what a recording holds")
    info.add_argument("file", type=Path, metavar="FILE")
    info.add_argument("--at", type=whole(0), metavar="N", help="after the first N batches; after all unless given")
    add_command(info, print_info, "print one JSON object")
    why = kinds.add_parser("explain", help="how much of a prompt is reused, and why no more")
    why.add_argument("file", type=Path, metavar="FILE")
    prompt = why.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--token-ids", type=token_ids, metavar="IDS", help="the prompt as ids, like 5,17,42")
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt as text")
    why.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="folder of the served model; the bundled one's unless given"
    )
    why.add_argument("--salt", default="", metavar="S", help="the cache salt that the prompt comes with")
    why.add_argument("--lora", default="", metavar="NAME", help="the adapter that it is for")
    why.add_argument(
        "--eagle", action="store_true", help="vLLM drafts with EAGLE or MTP, and computes the last block found again"
    )
    why.add_argument("--rank", type=int, metavar="R", help="of this rank; of the one that has most of it unless given")
    why.add_argument("--at", type=whole(0), metavar="N", help="as the tree stood after the first N batches")
    add_command(why, print_explanation, "print one JSON object")


def record_events(args: argparse.Namespace) -> int:
    from engine.serving.source import Source

    target = writable_target(args.file)
    source = Source(",".join(args.endpoint), ",".join(args.replay))
    until = time.monotonic() + args.seconds if args.seconds else float("inf")
    stream, server, said = None, Server(str(args.file)), ""
    try:
        while True:
            is_over = time.monotonic() >= until
            for message in source.take():
                server.take(message)
                if message.seq != END_MARK:
                    stream = stream or open(target, "wb")  # noqa: SIM115 - only when something came
                    stream.write(packed(message))
            if stream is not None:
                stream.flush()
            if source.state != "connecting" and (words := source.words()) != said:
                said = words
                print(f"kvloupe-engine: {words}", file=sys.stderr, flush=True)
            if is_over:
                break
            time.sleep(min(FLUSH_S, max(0.0, until - time.monotonic())))
    except KeyboardInterrupt:
        pass
    except OSError as error:
        raise InputError(
            f"'{args.file}' could not be written ({error.strerror}): free some space or choose another place."
        ) from None
    finally:
        if stream is not None:
            stream.close()
        source.close()
    if stream is None:
        raise InputError(f"No batch came, and nothing was written. {'' if said else source.words()}".rstrip())
    return _print_summary(server, args.json)


def print_info(args: argparse.Namespace) -> int:
    return _print_summary(_folded(args), args.json)


def print_explanation(args: argparse.Namespace) -> int:
    server = _folded(args)
    tokenizer = Tokenizer(args.tokenizer or BUNDLED) if args.prompt is not None or args.tokenizer else None
    if args.prompt is not None and tokenizer is not None:
        ids = tokenizer.encode(args.prompt)
        largest = max((tree.largest_id() for tree in server.trees.values()), default=0)
        if args.tokenizer is None and largest >= tokenizer.num_tokens:
            raise InputError(
                f"The server's tokens go up to {largest:,}, the bundled tokenizer has {tokenizer.num_tokens:,}: "
                "give --tokenizer with the folder of the served model."
            )
    else:
        ids = args.token_ids
    texts = tokenizer.texts if tokenizer is not None else numbers
    answer = explain(server, ids, salt=args.salt, lora=args.lora, rank=args.rank, eagle=args.eagle, texts=texts)
    if args.json:
        values = structs.asdict(answer)
        del values["reply_to"]
        values["tokens"] = values.pop("num_tokens")
        print_json({**values, "batches": server.counts.batches, "notes": server.notes()})
        return 0
    print(f"{answer.reused:,} of {counted(len(ids), 'token')} reused.\n{printable(answer.why)}")
    return _print_notes(server)


def _folded(args: argparse.Namespace) -> Server:
    """The server as it stood after the batches asked for."""
    recording, server = Recording(args.file), Server(str(args.file))
    count = 0
    for message in islice(recording, args.at):
        server.take(message)
        count += 1
    if args.at is not None and count < args.at:
        raise InputError(f"'{args.file}' has {count:,} batches, not {args.at:,}: give a smaller --at.")
    if recording.cut:
        server.cut_after = count
    return server


def _print_summary(server: Server, as_json: bool) -> int:
    facts = summary(server)
    print_facts(facts if as_json else {name: fact for name, fact in facts.items() if name != "notes"}, as_json)
    return 0 if as_json else _print_notes(server)


def _print_notes(server: Server) -> int:
    for note in server.notes():
        print(f"note: {printable(note)}")
    return 0
