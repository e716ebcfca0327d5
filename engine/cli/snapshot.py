"""`snapshot`: prints the contents of a snapshot, verifies and compares snapshots, and converts them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from engine.cli.output import add_command, print_json, printable, printable_line
from engine.errors import InputError
from engine.snapshot.convert import records_of, write_script
from engine.snapshot.diff import SnapshotDifference, difference
from engine.snapshot.format import index_words
from engine.snapshot.read import SnapshotFile
from engine.snapshot.verify import verified
from engine.spec.edit import parse_numbers
from engine.wire.exporting import Export

TARGETS = {  # file name suffix, and help
    "snapshot": (".part.safetensors", "another snapshot of some layers, heads and steps"),
    "npz": (".npz", "NumPy arrays, rows decoded"),
    "script": (".py", "a script beside it that goes on with torch, transformers and safetensors alone"),
    "table": (".csv", "its steps as CSV, or as Parquet where --out ends in .parquet and pyarrow is installed"),
    "trace": (".trace.json", "timings of its steps, for Perfetto"),
    "session": (".session.py", "a script that repeats its steps with this engine and compares every number"),
}


def add_snapshot(parser: argparse.ArgumentParser) -> None:
    parser.description = "Exit 0: sound, or equal but for rounding. 1: damaged, or different. 2: not usable."
    parts = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, words, function in (
        ("info", "the manifest, shapes and bytes", info_command),
        ("verify", "every limit and every checksum", verify_command),
    ):
        part = parts.add_parser(name, help=words)
        part.add_argument("files", type=Path, nargs="+", metavar="FILE")
        add_command(part, function, "JSON lines, one a file")
    diff = parts.add_parser("diff", help="norms of the difference by layer and head, and the first token that departs")
    diff.add_argument("files", type=Path, nargs=2, metavar="FILE")
    add_command(diff, diff_command, "JSON lines, one a head and one for all")
    export = parts.add_parser("export", help="the same for other programs, or a smaller part of it")
    export.add_argument("file", type=Path, metavar="FILE")
    kinds = "; ".join(f"{name}: {words}" for name, (_, words) in TARGETS.items())
    export.add_argument("--to", choices=list(TARGETS), required=True, help=kinds)
    export.add_argument("--out", type=Path, metavar="FILE", help="where to (beside the snapshot)")
    export.add_argument("--layers", metavar="0-3,7", default="all", help="some layers only, of snapshot and npz")
    export.add_argument("--heads", metavar="0,1", default="all", help="some kv heads only, of snapshot and npz")
    export.add_argument("--steps", metavar="2-9", default="all", help="these, and the cache after the last of them")
    export.add_argument("--form", choices=("stored", "rows"), default="stored", help="codes, or decoded numbers")
    export.set_defaults(func=export_command)
    bring = parts.add_parser(
        "import",
        help="a snapshot of another program's cache: a state file of llama.cpp, or an npz",
        description="An npz has layers.0.keys, layers.0.values and so on. A state file of llama.cpp is what "
        "llama-server writes at POST /slots/0?action=save; quantised ones need pip install 'kvloupe[llama]'.",
    )
    bring.add_argument("file", type=Path, metavar="FILE")
    bring.add_argument("target", type=Path, nargs="?", metavar="FILE.safetensors", help="the same as --out")
    bring.add_argument("-o", "--out", type=Path, metavar="FILE", help="where to")
    of = bring.add_mutually_exclusive_group()
    of.add_argument("--gguf", type=Path, metavar="MODEL.gguf", help="the model of a state file (the one beside it)")
    of.add_argument("--config", type=Path, metavar="config.json", help="its model's config for transformers instead")
    bring.set_defaults(func=import_command)


# ---- info --------------------------------------------------------------------------------------------------------


def info_command(args: argparse.Namespace) -> int:
    """Print what every file contains; a file that cannot be opened is reported and does not stop the others."""
    status = 0
    for path in args.files:
        try:
            with SnapshotFile(path) as file:
                facts = info_of(file)
        except InputError as error:
            status = refuse(path, error, args.json)
            continue
        if args.json:
            print_json(facts)
        else:
            print_info(facts)
    return status


def refuse(path: Path, error: InputError, as_json: bool) -> int:
    """Print why a file is not usable; returns the exit code."""
    if as_json:
        print_json({"file": str(path), "refused": str(error)})
    else:
        print(f"kvloupe-engine: {printable_line(error)}", file=sys.stderr)
    return 2


def info_of(file: SnapshotFile) -> dict[str, Any]:
    """The manifest without checksums and config, and the tensors with their bytes."""
    manifest = file.manifest
    long = ("checksums", "config", "record_fields", "layers")
    facts = {name: value for name, value in structs.asdict(manifest).items() if name not in long}
    return {
        "file": str(file.path),
        "file_bytes": file.file_bytes,
        **{name: as_json(value) for name, value in facts.items()},
        "num_records": len(file.records),
        "layers": [as_json(entry) for entry in manifest.layers],
        "tensors": [
            {"name": e.name, "dtype": e.dtype, "shape": list(e.shape), "num_bytes": e.num_bytes}
            for e in file.entries.values()
        ],
    }


def as_json(value: Any) -> Any:
    """A struct as JSON types."""
    return msgspec.to_builtins(value)


def print_info(facts: dict[str, Any]) -> None:
    lines = {
        "file": f"{facts['file']}, {facts['file_bytes']:,} bytes, version {facts['version']}",
        "model": f"{facts['model']} ({facts['architecture']}, {facts['dtype']})" if facts["model"] else "",
        "cache": f"{facts['cache']}, {facts['provenance']}, {facts['form']}" if facts["cache"] else facts["form"],
        "tokens": f"{facts['num_tokens']:,}" + ("" if facts["step"] is None else f" after step {facts['step']:,}"),
        "records": f"{facts['num_records']:,} steps",
        "layers": index_words(layer["index"] for layer in facts["layers"]),
        "notes": facts["notes"],
        "goes on": f"no: {facts['why_not']}" if facts["why_not"] else "yes, with its model",
        "made": f"{facts['created']} {facts['written_by']}".strip(),
    }
    for name, words in lines.items():
        if words:
            print(f"{name:<8} {printable(words)}")
    for tensor in facts["tensors"]:
        shape = " × ".join(map(str, tensor["shape"]))
        print(f"  {tensor['name']:<28} {tensor['dtype']:<5} {shape:<24} {tensor['num_bytes']:>14,} bytes")


# ---- verify ------------------------------------------------------------------------------------------------------


def verify_command(args: argparse.Namespace) -> int:
    """Print for every file whether it is sound; returns the exit code."""
    worst = 0
    for path in args.files:
        try:
            found = verified(path)
        except InputError as error:
            worst = max(worst, refuse(path, error, args.json))
            continue
        worst = max(worst, 0 if found.is_sound else 1)
        if args.json:
            print_json({"file": str(path), "sound": found.is_sound, "problems": found.problems, "notes": found.notes})
            continue
        print(f"{printable_line(path)}: {'sound' if found.is_sound else 'damaged'}")
        for line in (*found.problems, *found.notes):
            print(f"  {printable_line(line)}")
    return worst


# ---- diff --------------------------------------------------------------------------------------------------------


def diff_command(args: argparse.Namespace) -> int:
    """Print the difference of two files, head by head; returns the exit code."""
    with SnapshotFile(args.files[0]) as a, SnapshotFile(args.files[1]) as b:
        *_, found = difference(a, b)
    assert isinstance(found, SnapshotDifference)
    if args.json:
        for head in found.heads:
            print_json({"event": "head", **structs.asdict(head)})
        summary = {k: v for k, v in structs.asdict(found).items() if k != "heads"}
        print_json({"event": "done", **summary, "first_token": found.first_token, "verdict": found.verdict})
    else:
        print_difference(found)
    return 1 if found.verdict == "different" else 0


def print_difference(found: SnapshotDifference) -> None:
    names = ("‖B−A‖", "of ‖A‖", "max", "worst row")
    print(f"{'layer':>5} {'':<6} {'head':>4} {'rows':>8} {' '.join(f'{name:>11}' for name in names)}  first")
    for head in found.heads:
        first = "" if head.first_departing is None else f"{head.first_departing:,}"
        print(
            f"{head.layer:>5} {head.tensor:<6} {head.kv_head:>4} {head.num_rows:>8,} {head.norm:>11.3e} "
            f"{head.relative:>11.3e} {head.largest:>11.3e} {head.row_error:>11.3e}  {first}"
        )
    if found.num_tokens[0] != found.num_tokens[1]:
        print(f"tokens: {found.num_tokens[0]:,} and {found.num_tokens[1]:,}")
    if found.first_other_id is not None:
        print(f"token ids differ from position {found.first_other_id:,} on")
    if found.only_in_one:
        print(f"layers in one file alone: {index_words(iter(found.only_in_one))}")
    if any(head.num_missing for head in found.heads):
        print(f"rows in one file alone: {sum(head.num_missing for head in found.heads):,}")
    if found.largest_logit is not None:
        print(f"max |Δlogit| {found.largest_logit:.2e}, rounding explains {found.logit_tolerance:g}")
    departs_at = found.first_token
    print(found.verdict + ("" if departs_at is None else f", first at token {departs_at:,}"))


# ---- export and import -------------------------------------------------------------------------------------------


def export_command(args: argparse.Namespace) -> int:
    """Convert a snapshot and print the path of the new file."""
    ending, _ = TARGETS[args.to]
    path = args.out or args.file.with_name(args.file.name.removesuffix(".safetensors") + ending)
    if path.resolve() == args.file.resolve():
        raise InputError(f"'{path}' is the snapshot itself: give another name with --out.")
    if args.out is None and args.to != "script" and path.exists():
        raise InputError(f"'{path}' is there already: name the file to be replaced with --out, or another one.")
    with SnapshotFile(args.file) as file:
        if args.to == "script":
            write_script(file.path, path)
        else:
            from engine.snapshot.export import export

            for _ in export(file, export_of(file, path, args)):
                pass
    print(path)
    return 0


def export_of(file: SnapshotFile, path: Path, args: argparse.Namespace) -> Export:
    """The export command for a file: the named steps, and the cache after the last of them."""
    steps = parse_numbers(args.steps, "steps")
    records = list(file.records) if steps is None else [each for each in records_of(file) if each.step in steps]
    num_tokens = None
    if steps is not None:
        if missing := sorted(set(steps) - {record.step for record in records}):
            raise InputError(f"'{file.path}' has no step {missing[0]}: its table, --to table, says which it has.")
        last = records[-1].of(file.manifest.sequence.seq_id)
        num_tokens = last.num_tokens if last is not None else None
    return Export(
        path,
        file.manifest.sequence.seq_id,
        num_tokens,
        form=args.form,
        layers=parse_numbers(args.layers, "layers"),
        kv_heads=parse_numbers(args.heads, "heads"),
        records=tuple(records),
        view=file.manifest.view,
        kind=args.to,
        bookmarks=file.manifest.bookmarks,
    )


def import_command(args: argparse.Namespace) -> int:
    """Convert another program's file to a snapshot and print its path."""
    from engine.snapshot.foreign import snapshot_of_file
    from engine.snapshot.write import write_snapshot

    out, model = args.out or args.target, args.gguf or args.config
    if out is None:
        raise InputError("The snapshot needs a name: give -o FILE.safetensors.")
    for _ in write_snapshot(snapshot_of_file(args.file, model), out):
        pass
    print(out)
    return 0
