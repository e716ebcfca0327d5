"""`replay`: repeats a saved session and compares it, token by token and layer by layer."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.cli.arguments import add_compute_arguments
from engine.cli.output import add_command, print_json, printable_line
from engine.counted import counted
from engine.errors import InputError
from engine.opened.session import why_not_repeatable
from engine.saved.document import read_session
from engine.saved.session import SavedSession
from engine.spec.model import BUNDLED, ModelSpec

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.session.replay import Replay, ReplayDifference

MOST_PRINTED = 20  # differences, on a terminal


def add_replay(parser: argparse.ArgumentParser) -> None:
    parser.description = "Exit 0: every token and every checksum is as it was. 1: one is not. 2: not usable."
    parser.add_argument("session", type=Path, metavar="SESSION.json", help="what *Save session…* or a journal has")
    parser.add_argument("--model", help="where its model is, unless that is the bundled one")
    parser.add_argument(
        "--allow-file",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="a snapshot that edits of the session may read; others that it names are not opened",
    )
    add_compute_arguments(parser)
    add_command(parser, replay_command, "JSON lines, one a step and one for all")


def replay_command(args: argparse.Namespace) -> int:
    """Repeat the session and print each node with its differences; returns the exit code."""
    found = read_session(args.session)
    saved = found.session
    if why_not := why_not_repeatable(saved):
        raise InputError(f"'{args.session}' cannot be done once more: {why_not}.")
    model = model_of(saved, args)
    began = time.perf_counter()
    from engine.session.replay import Replay, only_rows_of
    from engine.session.session import Session
    from engine.snapshot.resume import rows_of_file

    session = Session(model, saved.first_cache)
    session.open_rows = only_rows_of(args.allow_file, rows_of_file)
    replay = Replay(session, saved.nodes)
    for node, _, differences in replay.steps():
        if args.json:
            print_json({"event": "step", "step": node.step, "differences": [as_json(each) for each in differences]})
    replay.finish(saved.live, saved.pending)
    print_summary(replay, time.perf_counter() - began, found.problem, args)
    return 1 if replay.differences or found.problem else 0


def model_of(saved: SavedSession, args: argparse.Namespace) -> LoadedModel:
    """Load the session's model in its dtype and threads. A folder that the file names is opened only if `--model` names
    it."""
    assert saved.model is not None
    was = saved.spec
    if args.model is None and was.source != BUNDLED:
        raise InputError(f"It ran {saved.model.name} from '{was.source}': say where that is with --model.")
    dtype = was.dtype if args.dtype == "auto" else args.dtype
    source, threads = args.model or was.source, args.threads or was.num_threads
    how = args.runner, was.weights, args.paged_attention
    spec = ModelSpec(source, dtype, args.device, args.allow_download, threads, *how)
    from engine.model.loader import load

    model = load(spec)
    if model.info.fingerprint != saved.model.fingerprint:
        raise InputError(
            f"{model.info.name} is another model than the session's {saved.model.name} (its weights are others, or its "
            "config): give that one with --model."
        )
    return model


def print_summary(replay: Replay, seconds: float, problem: str, args: argparse.Namespace) -> None:
    """Print the differences and how much was compared."""
    differences, compared, num_steps = replay.differences, replay.compared, replay.num_done
    if args.json:
        line = {"event": "done", "steps": num_steps, "differences": len(differences), "seconds": round(seconds, 3)}
        counts = {"tokens_compared": compared.num_tokens, "checksums_compared": compared.num_checksums}
        line |= {**counts, "rows_not_compared": dict(compared.rows_not_compared)}
        print_json({**line, "problem": problem, "same": not differences and not problem})
        return
    for each in differences[:MOST_PRINTED]:
        print(each.describe())
    if len(differences) > MOST_PRINTED:
        print(f"… and {len(differences) - MOST_PRINTED:,} more")
    if problem:
        print(f"the file: {printable_line(problem)}")
    print(compared.describe())
    verdict = "as it was" if not differences else f"{counted(len(differences), 'difference')}"
    print(f"{counted(num_steps, 'step')} done once more in {seconds:.1f} s: {verdict}")


def as_json(difference: ReplayDifference) -> Any:
    return {**msgspec.to_builtins(difference), "words": difference.describe()}
