"""`caches`: lists every cache mode with its needs and parameters."""

from __future__ import annotations

import argparse

from engine.cli.output import print_json
from engine.spec.cache import ALL_PRESETS, CUDA_GPU


def add_caches(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="JSON lines")
    how.add_argument("--markdown", action="store_true", help="the table of the manual")
    parser.set_defaults(func=caches_command)


def caches_command(args: argparse.Namespace) -> int:
    if args.markdown:
        print(markdown_table())
        return 0
    for preset in ALL_PRESETS.values():
        if args.json:
            print_json(
                {
                    "name": preset.name,
                    "label": preset.label,
                    "lossless": preset.lossless,
                    "needs": list(preset.needs),
                    "parameters": list(preset.parameters),
                    "summary": preset.summary,
                }
            )
        else:
            needs = f" Needs {CUDA_GPU}." if preset.spec.row.needs_cuda else ""
            print(f"{preset.name:<30} {preset.summary}{needs}")
    return 0


def markdown_table() -> str:
    """A Markdown table with one row for every preset."""
    rows = (
        (
            f"`{p.name}`",
            p.summary.rstrip(".") + (f"; needs {CUDA_GPU}" if p.spec.row.needs_cuda else ""),
            "yes" if p.lossless else "",
            ", ".join(f"`{n}`" for n in p.parameters),
        )
        for p in ALL_PRESETS.values()
    )
    head = ("name", "what it is", "lossless", "parameters")
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * 4, *rows))
