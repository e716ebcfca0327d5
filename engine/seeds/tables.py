"""All tables of the documents by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from engine.seeds.lengths import length_lines
from engine.seeds.line import SeedLine, TableKind
from engine.seeds.memory import memory_lines
from engine.seeds.models import SeedModels
from engine.seeds.serving import allocated_lines, max_lines
from engine.seeds.shapes import logit_lines, shape_lines
from engine.seeds.speed import speed_lines


@dataclass(frozen=True)
class Reproduction:
    """A table: its title, and the function that measures it."""

    title: str
    lines: Callable[[SeedModels], Iterator[SeedLine]]


TABLES: Mapping[TableKind, Reproduction] = {
    "memory": Reproduction("Memory of three models at three lengths", memory_lines),
    "max": Reproduction("MAX's parameters, of the example with four dimensions", max_lines),
    "allocated": Reproduction("GPT-2's cache, allocated and never used", allocated_lines),
    "shapes": Reproduction("Shapes of input and cache, step by step", shape_lines),
    "logits": Reproduction("From logits to the next token, by hand", logit_lines),
    "lengths": Reproduction("With a cache and without, as texts grow", length_lines),
    "speed": Reproduction("200 tokens without a cache, with a dynamic one, with a static one", speed_lines),
}


def seed_lines(models: SeedModels, tables: tuple[TableKind, ...]) -> Iterator[SeedLine]:
    """The lines of these tables, each as soon as it is measured."""
    for name in tables:
        yield from TABLES[name].lines(models)
