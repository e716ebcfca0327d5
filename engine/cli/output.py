"""Printing: the option for JSON, JSON lines, texts that may come from a model, and rows for cache modes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import structs

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.wire.measurements import BenchRefused, BenchRow, SweepRow, Unavailable


def add_command(
    parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int], json_help: str = "JSON lines"
) -> None:
    """Add `--json`, and the function that the sub-command calls."""
    parser.add_argument("--json", action="store_true", help=json_help)
    parser.set_defaults(func=command)


def printable(text: str) -> str:
    """Escape all control characters except line ends and tabs, since a model's text may contain terminal escapes."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def printable_line(error: object) -> str:
    """A message on one line with all control characters escaped, since it may quote a file of unknown origin."""
    return printable(str(error)).replace("\n", "\\x0a").replace("\t", "\\x09")


def print_json(line: dict[str, Any]) -> None:
    """Print one JSON line."""
    json.dump(line, sys.stdout, ensure_ascii=True)
    sys.stdout.write("\n")
    sys.stdout.flush()


def print_rows(
    rows: Iterable[SweepRow | BenchRow | Unavailable | BenchRefused],
    model: LoadedModel,
    args: argparse.Namespace,
) -> int:
    """Print every row as it comes; returns 1 if a mode that was named explicitly could not run, else 0."""
    num_refused = 0
    for row in rows:
        values = structs.asdict(row)
        num_refused += "unavailable" in values
        print_row(values, args.json)
    print_model_note(model, args.json)
    return 1 if num_refused and args.caches != "all" else 0


def print_row(values: dict[str, Any], as_json: bool) -> None:
    """Print one row, as JSON or as text; a row with `unavailable` is printed as refused."""
    if as_json:
        print_json(values)
        return
    name, refused = values.pop("cache"), values.pop("unavailable", None)
    if refused is not None:
        where = f" at {values['context']:,} tokens × {values['batch']}" if "context" in values else ""
        where += f" on {printable(values['text'])}" if values.get("text") else ""
        print(f"{name:<22} refused{where}: {refused}", flush=True)
        return
    values = {key: value for key, value in values.items() if value is not None}
    print(f"{name:<22} " + "  ".join(f"{key} {shown(value)}" for key, value in values.items()), flush=True)


def print_facts(facts: Mapping[str, Any], as_json: bool) -> None:
    """Print facts by their names: as one JSON object, or each on a line, and each row on one where a fact is rows."""
    if as_json:
        print_json(dict(facts))
        return
    for name, value in facts.items():
        is_rows = isinstance(value, list) and value and isinstance(value[0], Mapping)
        print(f"{name}:" if is_rows else f"{name}: {shown(value)}")
        for row in value if is_rows else ():
            print("  " + "  ".join(f"{key} {shown(cell)}" for key, cell in row.items()))


def shown(value: object) -> str:
    """A value in words: numbers with separators, floats with four digits or more, and `-` for none."""
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shown(cell)}" for key, cell in value.items())
    if isinstance(value, list):
        if all(type(each) is int for each in value):
            return str(value)
        return ", ".join(" ".join(map(shown, each)) if isinstance(each, list) else shown(each) for each in value)
    return printable(str(value))


def print_model_note(model: LoadedModel, as_json: bool) -> None:
    """Print the note of the loaded model, if there is one."""
    if model.info.note and not as_json:
        print(f"note: {model.info.note}")
