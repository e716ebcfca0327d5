"""A sweep in words: the table's heads and cells, what was measured, and one mode in a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.draw.format import brief, byte_size, decimal, percent, thousands
from app.kit.cells import Cell, Head
from app.panels.sweep import draw
from app.panels.sweep.draw import Row
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_label, cache_summary, size_words
from engine.wire.measurements import SweepRow, Swept

MEANING = (
    "Every mode is fed the same tokens: those the exact model chooses greedily after the prompt. KL and top-1 "
    "compare each step with the model without a cache. Perplexity is of those very tokens: how sure a mode is "
    "of what the exact model says, not of a text that people wrote."
)
PPL = "ppl is of the tokens that the exact model chose, not of a text that people wrote"


def heads(sort: tuple[int, bool]) -> list[Head]:
    """The columns; the one that sorts has an arrow."""
    found = [
        Head("cache", is_words=True, most=124),
        Head("KV", "Bytes of K and V stored at the end"),
        Head("tok/s", "Decode steps a second, nothing observed"),
        Head("mean KL", "Nats, against the model without a cache, mean of all steps"),
        Head("top-1", "Steps whose most probable token is the same"),
        Head("ppl", MEANING),
        Head("exact", "Whether it hands attention exactly what was computed"),
    ]
    column, is_descending = sort
    if column >= 0:
        head = found[column]
        found[column] = Head(head.text + (" ↓" if is_descending else " ↑"), head.tip, head.is_words, head.most)
    return found


def labels(modes: Mapping[str, CacheSpec]) -> dict[str, str]:
    """What the modes are called."""
    return {name: cache_label(spec) for name, spec in modes.items()}


def cells(row: Row, spec: CacheSpec, swept: Sequence[Swept], marked: str) -> list[Cell]:
    """One mode measured, or why it could not be; the `marked` one stands out."""
    label = cache_label(spec)
    tip = "\n".join(part for part in (cache_summary(spec), ", ".join(size_words(spec))) if part)
    if not isinstance(row, SweepRow):
        reason = Cell(row.unavailable, "muted", row.unavailable, is_wide=True)
        return [Cell(label, "muted", tip), reason, *[Cell("")] * 5]
    is_marked = row.cache == marked
    bytes_tip = f"{thousands(row.kv_bytes)} bytes" if row.kv_bytes else "It keeps nothing."
    return [
        Cell(label, "selected" if is_marked else "text", tip, is_marked),
        Cell(byte_size(row.kv_bytes) if row.kv_bytes else "–", tip=bytes_tip),
        Cell(decimal(row.tok_per_s, 0)),
        Cell(_kl(row), tip=brief(row.mean_kl)),
        Cell(percent(row.top1_agreement).replace(".0 %", " %")),
        Cell(decimal(row.perplexity) if row.perplexity < 1e5 else brief(row.perplexity, 2)),
        Cell("✓", "good", "lossless") if row.lossless else _loss(row, swept),
    ]


def waiting_cells(modes: Mapping[str, CacheSpec], done: Sequence[Row]) -> list[list[Cell]]:
    """The modes that were not measured yet, each with what it is."""
    names = {row.cache for row in done}
    summaries = {name: cache_summary(spec) for name, spec in modes.items() if name not in names}
    return [
        [Cell(cache_label(modes[name]), "muted"), Cell(words, "muted", words, is_wide=True), *[Cell("")] * 5]
        for name, words in summaries.items()
    ]


def _kl(row: SweepRow) -> str:
    return "0" if row.mean_kl < draw.LEAST_KL else brief(row.mean_kl, 2)


def _loss(row: SweepRow, swept: Sequence[Swept]) -> Cell:
    """A lossy mode that had nothing to lose yet says so: its budget or its residual holds every token."""
    exact = next((s.row for s in swept if s.row.cache == "growing" and isinstance(s.row, SweepRow)), None)
    is_idle = isinstance(exact, SweepRow) and row.kv_bytes == exact.kv_bytes and row.mean_kl < draw.LEAST_KL
    if is_idle:
        return Cell("(✓)", "muted", "lossy, but nothing is lost yet: it holds every token exactly")
    return Cell("–", "muted", "lossy")


def point_words(row: Row, spec: CacheSpec) -> str:
    """A mark of the plot in a line."""
    if not isinstance(row, SweepRow):
        return ""
    return f"{cache_label(spec)} · {byte_size(row.kv_bytes)} · KL {_kl(row)} · top-1 {percent(row.top1_agreement)}"


def source_words(swept: Sequence[Swept], is_waiting: bool) -> str:
    """What was measured, and whether all of it."""
    if not swept:
        return ""
    request = swept[0].request
    words = f"measured · {thousands(len(request.prompt.token_ids or ()))} + {thousands(request.num_steps)} tokens"
    is_partial = not swept[-1].is_last and not is_waiting
    return words + (f" · stopped after {len(swept)} of {len(request.caches)}" if is_partial else "")


def rests_on(swept: Sequence[Swept]) -> str:
    """How much was measured: what is best after a few tokens may not be so after many."""
    if not swept:
        return ""
    request = swept[0].request
    return f"{thousands(request.num_steps)} steps after {thousands(len(request.prompt.token_ids or ()))} tokens"
