"""`lenses` and `lens`: the lenses that there are, and what one of them shows of a run, number by number."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine.cli.arguments import (
    add_cache_arguments,
    add_model_arguments,
    add_prompt_arguments,
    model_spec,
    prompts_of,
    spec_of,
    whole,
)
from engine.cli.output import add_command, print_json
from engine.client.inline import InlineClient
from engine.errors import InputError
from engine.spec.cache import NAMES
from engine.spec.lenses import LENSES, TABLE, Lens
from engine.spec.sampling import SamplingParams
from engine.wire.commands import Run

if TYPE_CHECKING:
    from engine.look.source import Source
    from engine.session.session import Session

SHOWN = ("name", "label", "formula", "values", "exact")


def add_lenses(parser: argparse.ArgumentParser) -> None:
    add_command(parser, print_table)


def add_lens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lens", metavar="NAME", help=f"one of {', '.join(LENSES)}")
    add_model_arguments(parser)
    add_prompt_arguments(parser)
    parser.add_argument("--cache", metavar="NAME", default="growing", help=f"one of {NAMES}")
    add_cache_arguments(parser)
    parser.add_argument("--layer", type=int, metavar="L", help="this layer alone")
    parser.add_argument(
        "--head", type=int, metavar="H", help="this head alone: a query head where the lens shows these"
    )
    parser.add_argument("--latest", type=whole(), metavar="N", help="of the attention of the latest N queries alone")
    add_command(parser, print_lens)


def print_table(args: argparse.Namespace) -> int:
    for lens in TABLE:
        if args.json:
            print_json({name: getattr(lens, name) for name in SHOWN})
        else:
            print(f"{lens.name:<22} {lens.words}: {lens.formula}")
    return 0


def print_lens(args: argparse.Namespace) -> int:
    lens = LENSES.get(args.lens)
    if lens is None:
        raise InputError(f"There is no lens '{args.lens}': choose one of {', '.join(LENSES)}.")
    spec = spec_of(args.cache, args)
    (prompt,) = prompts_of(args, SamplingParams())
    from engine.cli.run import begin

    client = InlineClient()
    for _ in begin(client, model_spec(args), spec, [prompt], args.steps):
        pass
    client.do(Run(args.steps))  # as `run`: the last token is chosen and not computed
    for line in lines(client.session, lens, args.layer, args.head, args.latest):
        if args.json:
            print_json(line)
        else:
            print(f"layer {line['layer']} head {line['head']}")
            for position, value in zip(line["positions"], line["values"], strict=True):
                print(f"  {position:>6} {value if isinstance(value, float) else ' '.join(f'{x:.6g}' for x in value)}")
    return 0


def lines(
    session: Session, lens: Lens, layer: int | None, head: int | None, latest: int | None
) -> Iterator[dict[str, Any]]:
    """What a lens shows of each layer and head of the first sequence; raises `InputError` where it cannot be."""
    from engine.look.lenses import held_of, why_not
    from engine.look.source import of_latest

    geometry, seq_id = session.model.info.geometry, session.sequences[0].seq_id
    if layer is not None and not 0 <= layer < len(geometry.layers):
        raise InputError(f"There is no layer {layer}: this model has layers 0 … {len(geometry.layers) - 1}.")
    count = session.sequence(seq_id).num_tokens
    source = of_latest(session.rows_at(seq_id, count), count if latest is None else latest)
    if why := why_not(source, lens):
        raise InputError(why)
    layers = [each.index for each in geometry.attention_layers] if layer is None else [layer]
    for index in layers:
        held = held_of(source, lens, index)
        if held is None:
            if layer is not None:
                raise InputError(f"Layer {layer} has nothing to show through '{lens.name}'.")
            continue
        if head is not None and not 0 <= head < held.num_heads:
            raise InputError(f"There is no head {head}: layer {index} has heads 0 … {held.num_heads - 1} here.")
        for number in range(held.num_heads) if head is None else (head,):
            yield line_of(source, lens, index, number)


def line_of(source: Source, lens: Lens, layer: int, head: int) -> dict[str, Any]:
    """One layer and head: positions of tokens, or of queries, and a number or a list for each."""
    import torch

    from engine.look.lenses import read
    from engine.look.source import NO_POSITION

    with torch.inference_mode():
        rows = read(source, lens, layer, head=head)
    assert rows is not None, "a layer that has something to show"
    pairs = zip(rows.places[0].tolist(), rows.numbers[0].float().tolist(), strict=True)
    held = [(position, numbers) for position, numbers in pairs if position < min(source.num_tokens, NO_POSITION)]
    line: dict[str, Any] = {
        "lens": lens.name,
        "layer": layer,
        "head": head,
        "positions": [position for position, _ in held],
        "values": [finite(numbers[0]) if lens.values == 1 else [finite(x) for x in numbers] for _, numbers in held],
    }
    if lens.reads == "queries" and source.queries is not None:
        line["queries"] = source.num_queries - source.queries.first(source.num_queries)
    return line


def finite(number: float) -> float | None:
    """A number as JSON can have it: None for NaN and infinities."""
    return number if abs(number) < float("inf") else None
