"""`gpu-check`: a report on a GPU to paste into an issue: what is installed, then `verify` of all cache modes in every
dtype, then `bench`. Recorded steps at every length, pages read in place and late measurements are tests (`tests/gpu`).
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from engine.cli.bench import add_bench
from engine.cli.output import add_command, print_json, printable, printable_line
from engine.cli.verify import add_verify
from engine.errors import InputError, first_line

if TYPE_CHECKING:
    import torch

DRIVER = Path("/sys/module/nvidia/version")
DTYPES = ("float32", "bfloat16", "float16")
SHORT_CACHES = "growing,paged,h2o,int8,none"
# a prompt that ends before the first bucket of recorded steps does, and steps that go beyond it; rules evict half
TEXT = ("--token-ids", ",".join(map(str, range(5, 65))), "--steps", "8", "--prefill-chunk", "16", "--budget", "32")


def add_gpu_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 …, or cpu for the same without a card (cuda)")
    parser.add_argument("--short", action="store_true", help="one dtype, a few modes, no speed")
    parser.add_argument("--compile", action="store_true", help="compiled steps as well, minutes for each dtype")
    add_command(parser, check_command)


def check_command(args: argparse.Namespace) -> int:
    """Print the report; returns 1 if a lossless mode differs, or something failed."""
    device = checked_device(args.device)
    if args.json:
        print_json({"event": "about", **about(device)})
    else:
        print(printable("\n".join(f"{name}: {value}" for name, value in about(device).items())))
    shared = ("--device", str(device), *["--json"] * args.json)
    caches = SHORT_CACHES if args.short else "all"
    status = 0
    for dtype, runner in product(DTYPES[: 1 if args.short else None], ("auto", *["compile"] * args.compile)):
        how = ("--dtype", dtype, "--runner", runner)
        status |= run("verify", add_verify, *TEXT, "--caches", caches, *how, *shared)
    if not args.short:
        status |= run("bench", add_bench, "--contexts", "128,768", *shared)
    return status


def run(name: str, add: Callable[[argparse.ArgumentParser], None], *argv: str) -> int:
    """Run another sub-command under a headline with its options. An error is printed, so that the next one can run."""
    parser = argparse.ArgumentParser(name)
    add(parser)
    args = parser.parse_args(argv)
    options = {key: vars(args)[key] for key in ("dtype", "runner", "caches")}
    print_json({"event": name, **options}) if args.json else print(f"\n{name}: {', '.join(options.values())}")
    try:
        return int(args.func(args))
    except InputError as error:
        why, status = str(error), 0
    except RuntimeError as error:  # of the device or a kernel; finding these is the purpose
        why, status = f"{type(error).__name__}: {first_line(error)}", 1
    word = "failed" if status else "refused"
    print_json({"event": name, word: why}) if args.json else print(printable_line(f"{word}: {why}"))
    return status


def checked_device(name: str) -> torch.device:
    """The device of that name; raises `InputError` where it is none, or not here."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"'{printable(name)[:40]}' is no device: give cuda, cuda:1 … or cpu.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "There is no GPU here that torch can use, so nothing was checked: --device cpu tries the rest."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"There is no {device}: this computer has {torch.cuda.device_count()} GPUs, cuda:0 and on.")
    return device


def about(device: torch.device) -> dict[str, str]:
    """The versions, the device and the driver."""
    import torch
    import transformers

    told = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": str(device),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        told["card"] = f"{properties.name}, {properties.total_memory >> 20:,} MiB"
        told["compute capability"] = f"{properties.major}.{properties.minor}"
        told["driver"] = driver_version()
        told["runtime"] = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return told


def driver_version() -> str:
    """The version of NVIDIA's driver from NVML or from /sys; "unknown" if neither has it."""
    if find_spec("pynvml"):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            return str(pynvml.nvmlSystemGetDriverVersion())
    return DRIVER.read_text("utf-8").strip() if DRIVER.exists() else "unknown"
