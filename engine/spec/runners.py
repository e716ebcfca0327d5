"""Runners: the ways to compute a forward of the loaded model, one row each."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from engine.errors import InputError

RunnerName = Literal["auto", "transformers", "fused", "graph", "compile"]


class RunnerRow(NamedTuple):
    """One runner: its name, what people read of it, and what it needs."""

    name: RunnerName
    label: str
    summary: str
    needs: str = ""


# fmt: off
RUNNERS = {
    row.name: row
    for row in (
        RunnerRow("auto", "the fastest", "The fused decoder where the model has one, else transformers"),
        RunnerRow("transformers", "transformers", "The model's own forward: any architecture, any cache"),
        RunnerRow("fused", "fused decoder", "The same bits from a third of the operations",
                  "a decoder of Llama's structure with full attention, which was tried when it was loaded"),
        RunnerRow("graph", "recorded steps",
                  "The fused decoder, a step recorded for each length as a CUDA graph and replayed; on a CPU it is run "
                  "again at the same addresses, no faster", "the fused decoder"),
        RunnerRow("compile", "compiled steps",
                  "The fused decoder through torch.compile: the first step of each length takes minutes",
                  "the fused decoder, and a compiler"),
    )
}
# fmt: on


def runner_words(names: str) -> str:
    """The labels of runners whose names are joined by +."""
    return " + ".join(row.label if (row := RUNNERS.get(name)) else name for name in names.split("+"))  # type: ignore[call-overload]


def check_runner(name: str) -> None:
    """Raises `InputError` where there is no runner of that name."""
    if name not in get_args(RunnerName):
        raise InputError(f"Unknown runner '{name}': choose one of {', '.join(get_args(RunnerName))}.")
