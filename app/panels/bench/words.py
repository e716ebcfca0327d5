"""The texts of a bench: the table's headings and cells, what was measured, and a row in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.draw.format import byte_size, counted, decimal, milliseconds, percent, thousands
from app.kit.cells import ColumnHead, TableCell, with_arrow
from app.panels.bench.draw import BenchOutcome, key_of
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_label, cache_summary
from engine.wire.measurements import Benched, BenchRow

MEANING = (
    "Modes take turns, a few decode steps each, the order swapped every round: medians, and the difference of the "
    "quartiles as spread. The ratio is the speed over that of the first mode, turn by turn. Overhead is the "
    "part of a step that is not spent in the model's forward. Nothing is observed meanwhile."
)


def heads(sort: tuple[int, bool]) -> list[ColumnHead]:
    """The columns; the one that sorts has an arrow."""
    found = [
        ColumnHead("cache", is_words=True, most=124),
        ColumnHead("tokens", "Tokens of each sequence before the first step"),
        ColumnHead("batch", "Sequences; in pages they decode together, in other caches one after the other"),
        ColumnHead("tok/s", "Tokens of all sequences a second, the median of the turns"),
        ColumnHead("±", "The difference of the quartiles of the turns, in tokens a second"),
        ColumnHead("ratio", "Speed over that of the first mode that ran to the end, turn by turn"),
        ColumnHead("first", "Time until every sequence has its first token"),
        ColumnHead("KV", "Bytes of K and V stored at the end, of all sequences"),
        ColumnHead("overhead", "Part of a step that is not spent in the model's forward"),
    ]
    return with_arrow(found, *sort)


def cells(row: BenchOutcome, spec: CacheSpec, marked: str) -> list[TableCell]:
    """The cells of a row, or why it was refused; the `marked` row is highlighted."""
    label, is_marked = cache_label(spec), key_of(row) == marked
    place = [TableCell(thousands(row.context)), TableCell(str(row.batch))]
    if not isinstance(row, BenchRow):
        reason = TableCell(row.unavailable, "muted", row.unavailable, is_wide=True)
        return [TableCell(label, "muted", cache_summary(spec)), *place, reason, *[TableCell("")] * 5]
    return [
        TableCell(label, "selected" if is_marked else "text", cache_summary(spec), is_marked),
        *place,
        TableCell(decimal(row.tok_per_s, 1)),
        TableCell(decimal(row.spread, 1), "muted"),
        TableCell(f"{decimal(row.ratio)}×", tip=f"over {row.base}, ± {decimal(row.ratio_spread)}"),
        TableCell(milliseconds(row.ttft_ms)),
        TableCell(
            byte_size(row.kv_bytes) if row.kv_bytes else "–",
            tip=f"{counted(row.kv_bytes, 'byte')}, {thousands(row.reserved_bytes)} reserved",
        ),
        TableCell(percent(row.overhead_ratio)),
    ]


def row_words(row: BenchOutcome, spec: CacheSpec) -> str:
    """A point of the plot in one line."""
    if not isinstance(row, BenchRow):
        return ""
    place = counted(row.context, "token") + (f" × {row.batch}" if row.batch > 1 else "")
    return (
        f"{cache_label(spec)} · {place} · {decimal(row.tok_per_s, 1)} ± {decimal(row.spread, 1)} tok/s · "
        f"{decimal(row.ratio)}× {row.base}"
    )


def source_words(benched: Sequence[Benched], is_waiting: bool) -> str:
    """What was measured, and whether the bench was stopped before its end."""
    if not benched:
        return ""
    request = benched[0].request
    total = len(request.caches) * len(request.contexts) * len(request.batches)
    is_partial = not benched[-1].is_last and not is_waiting
    return f"measured · {rests_on(benched)}" + (f" · stopped after {len(benched)} of {total}" if is_partial else "")


def rests_on(benched: Sequence[Benched]) -> str:
    """How many steps and turns every number is based on, and where it was measured."""
    if not benched:
        return ""
    request = benched[0].request
    row = next((each.row for each in benched if isinstance(each.row, BenchRow)), None)
    where = f", {counted(row.num_turns, 'turn')}, {row.dtype} on {row.device}" if row is not None else ""
    return f"{counted(request.num_steps, 'step')}{where}"


def labels(modes: Mapping[str, CacheSpec]) -> dict[str, str]:
    """The names of the modes."""
    return {name: cache_label(spec) for name, spec in modes.items()}
