"""The options for what `run` exports after its last step, and the export command they make."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from engine.errors import InputError
from engine.spec.numbers import parse_numbers
from engine.wire.exporting import Export, ExportKind

if TYPE_CHECKING:
    from engine.session.session import Session


def add_export_arguments(run: argparse.ArgumentParser) -> None:
    """Add the options for the export."""
    run.add_argument("--export", type=Path, metavar="FILE", help="write the cache after the last step, and all steps")
    run.add_argument("--export-as", choices=get_args(ExportKind), default="snapshot", help="for other programs")
    run.add_argument("--export-form", choices=("stored", "rows"), default="stored", help="codes, or decoded numbers")
    run.add_argument("--export-layers", metavar="0-3,7", default="all", help="some layers only")
    run.add_argument("--export-heads", metavar="0,1", default="all", help="some kv heads only")
    run.add_argument("--export-script", action="store_true", help="with a script beside it, in plain transformers")
    run.add_argument("--notes", default="", help="kept inside the snapshot")


def export_of(args: argparse.Namespace) -> Export | None:
    """The export command, without records; None if nothing is exported. Bad options raise `InputError` here, before the
    run."""
    if args.export is None:
        plain = {"as": "snapshot", "form": "stored", "layers": "all", "heads": "all", "script": False}
        given = [f"--export-{name}" for name, value in plain.items() if getattr(args, f"export_{name}") != value]
        for option in given + ["--notes"] * bool(args.notes):
            raise InputError(f"{option} says how to export, and nothing is exported: give --export with a file.")
        return None
    return Export(
        args.export,
        0,
        notes=args.notes,
        form=args.export_form,
        layers=parse_numbers(args.export_layers, "layers"),
        kv_heads=parse_numbers(args.export_heads, "heads"),
        kind=args.export_as,
        with_script=args.export_script,
    )


def write_export(session: Session, command: Export) -> None:
    from engine.snapshot.export import export

    for _ in export(session, command):
        pass
