"""The kinds of export, one row each."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class ExportChoice(Struct, frozen=True):
    """One kind of export. `name` is the engine's; `endings` are the allowed file endings, the usual one first; `suffix`
    is appended to the suggested name. `has_rows`: it contains K and V, and layers and heads can be chosen. `has_steps`:
    a range of steps can be chosen."""

    name: Any
    label: str
    words: str
    endings: tuple[str, ...]
    suffix: str = ""
    has_rows: bool = False
    has_steps: bool = True


PICTURE = ExportChoice(
    "picture",
    "Picture",
    "The window or a panel as it looks now: PNG, or SVG by its name",
    (".png", ".svg"),
    has_steps=False,
)
KINDS = (
    ExportChoice(
        "snapshot",
        "Snapshot",
        "K and V, tokens and steps in one safetensors file that opens anywhere",
        (".safetensors",),
        has_rows=True,
    ),
    ExportChoice("npz", "NumPy arrays", "K and V as numbers, for numpy.load", (".npz",), has_rows=True),
    ExportChoice(
        "table",
        "Table of the steps",
        "A line for each step and sequence: CSV, or Parquet by its name",
        (".csv", ".parquet"),
    ),
    ExportChoice("trace", "Timings as a trace", "What each step spent its time on, for ui.perfetto.dev", (".json",)),
    ExportChoice(
        "session",
        "Session as a Python script",
        "Repeats all steps with the engine alone and compares every number",
        (".py",),
        suffix="-session",  # the script beside a snapshot has the snapshot's name
        has_steps=False,
    ),
    PICTURE,
)
