"""What there is: `caches`, every cache mode with its needs and parameters; `devices`, those of this computer, and what
a model and its cache would take there."""

from __future__ import annotations

import argparse
from typing import Any

from msgspec import structs

from engine.cli.arguments import add_cache_arguments, add_model_arguments, model_spec, spec_of, whole
from engine.cli.output import add_command, print_json, printable_line
from engine.counted import counted
from engine.errors import InputError
from engine.spec.cache import ALL_PRESETS, CUDA_GPU, NAMES
from engine.wire.devices import Device, DevicesFound, FindDevices, ForecastLoad, LoadForecast

SHOWN = ("name", "label", "lossless", "needs", "parameters", "summary")  # of a preset


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
            print_json({name: getattr(preset, name) for name in SHOWN})
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


def add_devices(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--cache", default="growing", metavar="NAME", help=f"one of {NAMES}")
    add_cache_arguments(parser)
    parser.add_argument(
        "--context", type=whole(), metavar="N", help="tokens to count on (the model's own, at most 4096)"
    )
    add_command(parser, devices_command)


def devices_command(args: argparse.Namespace) -> int:
    spec, cache = model_spec(args), spec_of(args.cache, args)
    from engine.client.inline import InlineClient

    client = InlineClient()
    answers = (*client.do(ForecastLoad(spec, cache, args.context)), *client.do(FindDevices()))
    (found,) = (each for each in answers if isinstance(each, LoadForecast))
    (here,) = (each for each in answers if isinstance(each, DevicesFound))
    if found.problem:
        raise InputError(found.problem)
    if args.json:
        for device in here.devices:
            print_json({"event": "device", **structs.asdict(device)})
        weights = {each.name: each.why_not or True for each in here.weights}
        print_json({"event": "can", "split": here.why_no_split or True, "weights": weights})
        print_json({"event": "forecast", **_as_dict(found)})
        return 0
    for device in here.devices:
        print(printable_line(device_line(device)))
    for line in forecast_lines(found):
        print(printable_line(line))
    return 0


def device_line(device: Device) -> str:
    """A device on one line: `cuda:0 NVIDIA T4 · 14.1 of 15.0 GiB free · no bfloat16`."""
    gib = 2**30
    parts = [device.label, f"{device.free_bytes / gib:,.1f} of {device.total_bytes / gib:,.1f} GiB free"]
    parts += [f"{device.num_threads} threads"] if device.num_threads else []
    parts += [f"no {name}" for name in device.lacks]
    return f"{device.name:<8} {' · '.join(parts)}"


def forecast_lines(found: LoadForecast) -> list[str]:
    """What the model takes, on which device, and whether it fits."""
    why = f" ({found.why_device})" if found.why_device else ""
    return [
        f"weights  {found.weight_bytes:,} bytes in {found.dtype}",
        f"cache    {found.cache_bytes:,} bytes for {counted(found.context, 'token')}",
        f"device   {found.device}{why}",
        f"{'fits' if found.fits else 'too much'}: {found.needed_bytes:,} of {found.free_bytes:,} bytes free",
        *(f"note     {note}" for note in found.notes),
    ]


def _as_dict(found: LoadForecast) -> dict[str, Any]:
    fields = structs.asdict(found)
    left_out = ("model", "reply_to", "problem", "freed_bytes")
    return {**{k: v for k, v in fields.items() if k not in left_out}, "fits": found.fits}
