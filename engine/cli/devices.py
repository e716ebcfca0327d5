"""`devices`: lists the devices, and predicts what a model and its cache would take."""

from __future__ import annotations

import argparse
from typing import Any

from msgspec import structs

from engine.cli.arguments import add_cache_arguments, add_model_arguments, model_spec, spec_of
from engine.cli.output import add_command, print_json, printable_line
from engine.cli.values import whole
from engine.client.inline import InlineClient
from engine.counted import counted
from engine.errors import InputError
from engine.spec.cache import NAMES
from engine.wire.devices import Device, DevicesFound, FindDevices, ForecastLoad, LoadForecast


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
    client = InlineClient()
    told = (*client.do(ForecastLoad(spec, cache, args.context)), *client.do(FindDevices()))
    (found,) = (each for each in told if isinstance(each, LoadForecast))
    (here,) = (each for each in told if isinstance(each, DevicesFound))
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
