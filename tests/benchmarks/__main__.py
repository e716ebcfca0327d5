"""All benchmarks that fit this machine, one after the other, as one table of ratios.

    python -m tests.benchmarks --json FILE [--short] [--only observe_cost,decode_speed]
    python -m tests.benchmarks --page FILE         # write that table into the manual, with machine and versions

Each script runs in a process of its own and prints its own table meanwhile. Those of the window need PySide6; without
it they are left out, and the file says so. Nothing else should run beside them: the spread says how far to trust a
number.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "resources" / "manual" / "speed.md"
BEGIN, END = "<!-- benchmarks -->", "<!-- end of benchmarks -->"
ROWS_VARIABLE = "KVLOUPE_BENCHMARK_ROWS"  # a file that `protocol.note_ratios` adds lines to


@dataclass(frozen=True)
class Script:
    """A script that measures B over A: both names, the target, and its arguments for a full and for a short run."""

    name: str
    a: str
    b: str
    target: str
    full: str = ""
    short: str = "--short"
    needs_window: bool = False
    rows: tuple[str, ...] = ("",)  # parts of names: the target applies to these rows, the others are only printed
    limit_s: float = 3600.0


SCRIPTS = (
    Script("decode_speed", "generate", "ours", "≥ 1.0 / 1.3 / 1.5 at 16 / 4k / 8k",
           "--contexts 16,4096,8192 --caches growing,paged", "--short --contexts 16,512"),
    Script("run_speed", "generate", "ours", "≥ 10 over dynamic, ≥ 1.5 over static and compiled, on a GPU",
           "", "--short --tokens 24"),
    Script("batch_speed", "one sequence", "eight", "≥ 2.5", "", "--short --contexts 32"),
    Script("prefill_speed", "generate", "ours", "≤ 1.0", "", "--short --contexts 512"),
    Script("observe_cost", "at 256 tokens", "at the most tokens", "≤ 1.15; ≤ 1.05 for the newest attention row",
           rows=("observing", "rows over statistics")),
    Script("observe_memory", "limit", "looking", "≤ 1.0"),
    Script("history_cost", "a prefill", "ours", "≤ 0.1 for a change, ≤ 0.2 for the way back"),
    Script("comparison_cost", "two runs", "comparison", "≤ 1.1", "", "--short --steps 12 --against h2o"),
    Script("large_shape", "limit", "process", "≤ 1.0", "", "--short"),
    Script("page_pool", "a small pool", "a large pool", "≤ 1.2", "", "--large 65536 --samples 31"),
    Script("snapshot_open", "10 MB", "larger file", "≤ 1.2"),
    Script("snapshot_write", "write and fsync", "snapshot", "≤ 1.25", "", "--short --megabytes 64"),
    Script("start", "bare", "ours", "≤ 1.5 to a window, ≤ 1.3 to a token", needs_window=True),
    Script("heatmap_frame", "fewer tokens", "128k tokens", "≤ 1.15", "", "--pairs 3 --frames 4", needs_window=True),
    Script("live_window", "headless", "window", "≥ 0.95", "", "--short --models bundled --engines process",
           needs_window=True, rows=("decoding",)),
    Script("ssh_line", "process", "ssh", "≤ 1.5 from a key to its picture", needs_window=True),
)  # fmt: skip


def about() -> dict[str, Any]:
    """The date, the commit, the machine and the versions of libraries, for the table."""
    import psutil
    import torch
    import transformers

    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": git.stdout.strip(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "load_before": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def processor() -> str:
    """The name of the processor, from the system."""
    path = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", path.read_text("utf-8")) if path.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def run(script: Script, is_short: bool) -> tuple[list[dict[str, Any]], str]:
    """The ratios that a script noted, and the reason if it did not finish."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        arguments = (script.short if is_short else script.full).split()
        command = [sys.executable, str(HERE / f"{script.name}.py"), *arguments]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env={**os.environ, ROWS_VARIABLE: str(rows)}, timeout=script.limit_s, check=False
            )
            why = f"it ended with {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            why = f"it took more than {script.limit_s:,.0f} s"
        found = [json.loads(line) for line in rows.read_text("utf-8").splitlines()] if rows.exists() else []
    return [as_row(script, each) for each in found if any(part in each["name"] for part in script.rows)], why


def as_row(script: Script, noted: dict[str, Any]) -> dict[str, Any]:
    """Medians of both sides and of their ratios, with the spread of the ratios: the smallest and the largest, or the
    quartiles where there are many pairs."""
    sides = noted.get("sides") or (script.a, script.b)
    ratios = [b / a for a, b in zip(noted["a"], noted["b"], strict=True) if a]
    low, high = (min(ratios), max(ratios)) if len(ratios) < 20 else statistics.quantiles(ratios, n=4)[::2]
    return {
        "script": script.name,
        "name": noted["name"],
        "unit": noted["unit"],
        "a": sides[0],
        "b": sides[1],
        "a_median": statistics.median(noted["a"]),
        "b_median": statistics.median(noted["b"]),
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "pairs": len(ratios),
        "target": script.target,
    }


def table(found: dict[str, Any]) -> str:
    """The ratios as Markdown, with what they were measured on."""
    on = found["about"]
    card = f", {on['gpu']}" if on["gpu"] else ", no GPU"
    short = "a short run, " if found["short"] else ""
    lines = [
        f"Measured {on['date']} at {on['commit']} ({short}{on['processor']}, {on['cores']} cores, "
        f"{on['memory_gib']} GiB{card}; torch {on['torch']}, transformers {on['transformers']}, "
        f"load {on['load_before']} before it):",
        "",
        "| question | A | B | A | B | B over A | spread | pairs | target |",
        "|---|---|---|--:|--:|--:|---|--:|---|",
    ]
    for row in found["rows"]:
        lines.append(
            f"| {row['script']}: {row['name']} | {row['a']} | {row['b']} | {row['a_median']:.2f} {row['unit']} "
            f"| {row['b_median']:.2f} {row['unit']} | {row['ratio']:.2f} | {row['low']:.2f} … {row['high']:.2f} "
            f"| {row['pairs']} | {row['target']} |"
        )
    lines += [f"\n{name} was left out: {why}." for name, why in found["left_out"].items()]
    return "\n".join(lines)


def put_into_page(text: str) -> None:
    """Replace what stands in the manual between the two marks."""
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"The page has no place for a table: put '{BEGIN}' and '{END}' there.")
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", "utf-8")


def chosen(names: str) -> list[Script]:
    wanted = [name for name in names.split(",") if name]
    unknown = set(wanted) - {script.name for script in SCRIPTS}
    if unknown:
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}: choose of {', '.join(s.name for s in SCRIPTS)}.")
    return [script for script in SCRIPTS if not wanted or script.name in wanted]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="run them and write the ratios")
    parser.add_argument("--short", action="store_true", help="fewer pairs and shorter contexts")
    parser.add_argument("--only", default="", metavar="NAMES", help="of these scripts, separated by commas")
    parser.add_argument("--page", type=Path, metavar="FILE", help="put the table of such a file into the manual")
    args = parser.parse_args()
    if args.page is not None:
        put_into_page(table(json.loads(args.page.read_text("utf-8"))))
        return
    if args.json is None:
        parser.error("give --json FILE or --page FILE")
    found: dict[str, Any] = {"about": about(), "short": args.short, "rows": [], "left_out": {}}
    for script in chosen(args.only):
        if script.needs_window and find_spec("PySide6") is None:
            found["left_out"][script.name] = "there is no PySide6 here"
            continue
        print(f"── {script.name}", file=sys.stderr, flush=True)
        rows, why = run(script, args.short)
        found["rows"] += rows
        if why or not rows:
            found["left_out"][script.name] = why or "it noted nothing"
        args.json.write_text(
            json.dumps(found, indent=1), "utf-8"
        )  # written after each script: a later failure loses nothing
    print(table(found))


if __name__ == "__main__":
    main()
