"""`gpu-check`: checks that everything works on the GPU of this computer, and prints a report for an issue.

Exit codes: 0 if everything works, 1 if a check failed, 3 if the time was too short for all checks; the report then says
INCOMPLETE.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from engine.cli.output import add_command, print_json, printable
from engine.errors import InputError


def add_gpu_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 …, or cpu for the same without a card (cuda)")
    parser.add_argument("--short", action="store_true", help="one dtype, one length, a few modes")
    parser.add_argument("--compile", action="store_true", help="compiled steps as well, a minute for each")
    add_command(parser, check_command)


def check_command(args: argparse.Namespace) -> int:
    import torch

    try:
        device = torch.device(args.device)
    except RuntimeError:
        raise InputError(f"'{printable(args.device)[:40]}' is no device: give cuda, cuda:1 … or cpu.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "There is no GPU here that torch can use, so nothing was checked: --device cpu tries the rest."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"There is no {device}: this computer has {torch.cuda.device_count()} GPUs, cuda:0 and on.")
    from engine.analysis.device_check import SHORT, Plan, about, as_json, check_device, exit_code, report

    began, results = time.perf_counter(), []
    if args.json:
        print_json({"event": "about", **about(device)})
    plan = SHORT if args.short else Plan()
    if args.compile:
        plan = replace(plan, compiles=True, limit_s=20 * plan.limit_s)
    for result in check_device(device, plan):
        results.append(result)
        if args.json:
            print_json(as_json(result))
    if not args.json:
        print(printable(report(device, results, time.perf_counter() - began)))
    return exit_code(results)
