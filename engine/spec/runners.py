"""Runners: the ways to compute a forward pass of the loaded model, one row each."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from engine.errors import InputError

RunnerName = Literal["auto", "transformers", "fused", "graph", "compile"]
PagedAttentionName = Literal["auto", "gather", "pages"]


class RunnerRow(NamedTuple):
    """One runner: its name, its label and summary, and what it needs."""

    name: RunnerName
    label: str
    summary: str
    needs: str = ""


class PagedAttentionRow(NamedTuple):
    """A way in which attention reads the rows of a paged cache."""

    name: PagedAttentionName
    label: str
    summary: str


# fmt: off
RUNNERS = {
    row.name: row
    for row in (
        RunnerRow("auto", "the fastest", "On a GPU recorded steps, once they were compared with the same steps "
                  "computed at once; else the fused decoder where the model has one, else transformers"),
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
PAGED_ATTENTION = {
    row.name: row
    for row in (
        PagedAttentionRow("auto", "pages as it suits", "In place on a GPU, where the model can; gathered on a CPU"),
        PagedAttentionRow("gather", "pages gathered", "The rows of a sequence are copied together, then read"),
        PagedAttentionRow("pages", "pages in place", "Rows are read where they lie, page after page: another rounding"),
    )
}
# fmt: on


def runner_words(names: str) -> str:
    """The labels of runners and of the way pages are read, whose names are joined by + in `names`."""
    labels: dict[str, str] = {row.name: row.label for row in PAGED_ATTENTION.values()}
    labels |= {row.name: row.label for row in RUNNERS.values()}
    return " + ".join(labels.get(name, name) for name in names.split("+"))


def reads_in_place(names: str) -> bool:
    """Whether a step with these runners read pages in place, without gathering them."""
    return "pages" in names.split("+")


def check_runner(name: str) -> None:
    """Raise `InputError` if there is no runner of that name."""
    if name not in get_args(RunnerName):
        raise InputError(f"Unknown runner '{name}': choose one of {', '.join(get_args(RunnerName))}.")


def check_paged_attention(name: str) -> None:
    """Raise `InputError` if there is no such way of reading pages."""
    if name not in PAGED_ATTENTION:
        raise InputError(f"Unknown paged attention '{name}': choose one of {', '.join(PAGED_ATTENTION)}.")
