"""The texts of a sweep: the table's headings and cells, what was measured, and a mode in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.draw.format import brief, byte_size, counted, decimal, percent
from app.kit.cells import ColumnHead, TableCell, with_arrow
from app.panels.sweep.draw import SweepOutcome, key_of
from engine.spec.cache import CacheSpec
from engine.spec.grid import SweepMode
from engine.spec.presets import cache_label, cache_summary, size_words
from engine.spec.texts import TextKind
from engine.wire.measurements import SweepRow, Swept
from engine.wire.measuring import Sweep
from engine.wire.sweep_front import LEAST_KL

MEANING = (
    "Every mode is fed the same tokens: those the exact model chooses greedily, the last ones of the text itself, or "
    "a fact that was planted in it. KL and top-1 compare each step with the model without a cache. Perplexity is of "
    "those very tokens, so that of greedy ones it says how sure a mode is of what the exact model says, not of a text "
    "that people wrote. Told: the part of the fact's tokens that come out."
)
PPL: Mapping[TextKind, str] = {
    "greedy": "ppl is of the tokens that the exact model chose, not of a text that people wrote",
    "given": "ppl is of the text's own last tokens",
    "recall": "a fact was planted and asked for: told is the part that comes out",
}


def heads(sort: tuple[int, bool], has_texts: bool) -> list[ColumnHead]:
    """The columns; the one that sorts has an arrow. `has_texts` adds those that distinguish several texts."""
    found = [
        ColumnHead("cache", is_words=True, most=150),
        ColumnHead("KV", "Bytes of K and V stored at the end"),
        ColumnHead("tok/s", "Decode steps a second, nothing observed"),
        ColumnHead("mean KL", "Nats, against the model without a cache, mean of all steps"),
        ColumnHead("top-1", "Steps whose most probable token is the same"),
        ColumnHead("ppl", MEANING),
        ColumnHead("exact", "Whether it hands attention exactly what was computed"),
    ]
    if has_texts:
        found += [
            ColumnHead("told", "The part of a planted fact that comes out"),
            ColumnHead("text", is_words=True, most=90),
        ]
    return with_arrow(found, *sort)


def label_of(mode: SweepMode) -> str:
    """The name of a mode, with its size if a grid has several."""
    _, at, size = mode.name.rpartition("@")
    is_size = at and "=" not in size  # with "=" it is a layer of a codec's plan
    return cache_label(mode.cache) + (f" @{size}" if is_size else "")


def cells(
    row: SweepOutcome, label: str, spec: CacheSpec, swept: Sequence[Swept], marked: str, has_texts: bool
) -> list[TableCell]:
    """The cells of a mode, or why it could not be measured; the `marked` one is highlighted."""
    tip = "\n".join(part for part in (cache_summary(spec), ", ".join(size_words(spec))) if part)
    if not isinstance(row, SweepRow):
        reason = TableCell(row.unavailable, "muted", row.unavailable, is_wide=True)
        return [TableCell(label, "muted", tip), reason, *[TableCell("")] * (7 if has_texts else 5)]
    is_marked = key_of(row) == marked
    bytes_tip = counted(row.kv_bytes, "byte") if row.kv_bytes else "It keeps nothing."
    found = [
        TableCell(label, "selected" if is_marked else "text", tip, is_marked),
        TableCell(byte_size(row.kv_bytes) if row.kv_bytes else "–", tip=bytes_tip),
        TableCell(decimal(row.tok_per_s, 0)),
        TableCell(_kl(row), tip=brief(row.mean_kl)),
        TableCell(_share(row.top1_agreement)),
        TableCell(_perplexity(row.perplexity)),
        TableCell("✓", "good", "lossless") if row.lossless else _loss(row, swept),
    ]
    if has_texts:
        found += [TableCell("–" if row.recall is None else _share(row.recall)), TableCell(row.text, "muted", row.text)]
    return found


def _perplexity(value: float) -> str:
    return brief(value, 2) if value >= 1e5 else decimal(value, 2 if value < 1e3 else 0)


def _share(share: float) -> str:
    return percent(share).replace(".0 %", " %")


def waiting_cells(request: Sweep, done: Sequence[SweepOutcome], has_texts: bool) -> list[list[TableCell]]:
    """The rows of modes that were not measured yet, with their descriptions."""
    names = {key_of(row) for row in done}
    missing = [(m, t.name) for t in request.texts for m in request.modes if f"{m.name} on {t.name}" not in names]
    return [
        [
            TableCell(label_of(mode), "muted"),
            TableCell(waits if not has_texts else f"{text}: {waits}", "muted", waits, is_wide=True),
            *[TableCell("")] * (7 if has_texts else 5),
        ]
        for mode, text in missing
        for waits in (cache_summary(mode.cache),)
    ]


def _kl(row: SweepRow) -> str:
    return "0" if row.mean_kl < LEAST_KL else brief(row.mean_kl, 2)


def _loss(row: SweepRow, swept: Sequence[Swept]) -> TableCell:
    """A dash for a lossy mode, or (✓) if it lost nothing because its budget or residual holds every token."""
    rows = (s.row for s in swept if isinstance(s.row, SweepRow) and s.row.text == row.text)
    exact = next((other for other in rows if other.cache == "growing"), None)
    is_idle = exact is not None and row.kv_bytes == exact.kv_bytes and row.mean_kl < LEAST_KL
    if is_idle:
        return TableCell("(✓)", "muted", "lossy, but nothing is lost yet: it holds every token exactly")
    return TableCell("–", "muted", "lossy")


def point_words(row: SweepOutcome, label: str) -> str:
    """A point of the plot in one line."""
    if not isinstance(row, SweepRow):
        return ""
    told = "" if row.recall is None else f" · told {_share(row.recall)}"
    ppl = f" · ppl {decimal(row.perplexity)}" if row.kind == "given" else ""
    return f"{label} · {byte_size(row.kv_bytes)} · KL {_kl(row)} · top-1 {percent(row.top1_agreement)}{told}{ppl}"


def source_words(swept: Sequence[Swept], is_waiting: bool) -> str:
    """What was measured, and whether the sweep was stopped before its end."""
    if not swept:
        return ""
    request = swept[0].request
    is_partial = not swept[-1].is_last and not is_waiting
    stopped = f" · stopped after {len(swept)} of {request.num_rows}" if is_partial else ""
    return f"measured · {rests_on(swept)}{stopped}"


def rests_on(swept: Sequence[Swept], text: str | None = None) -> str:
    """How much was measured, of one text or of all: the best mode after a few tokens may not be the best after many."""
    rows = [s.row for s in swept if isinstance(s.row, SweepRow) and text in (None, s.row.text)]
    if not rows:
        return ""
    if text is None and len({row.text for row in rows}) > 1:
        return counted(len(swept[0].request.texts), "text")
    row = rows[0]
    return f"{counted(row.num_steps, 'step')} after {counted(row.num_prompt_tokens, 'token')}"


def ppl_words(swept: Sequence[Swept]) -> str:
    """Which tokens the perplexity is about."""
    kinds: tuple[TextKind, ...] = tuple(text.kind for text in swept[0].request.texts) if swept else ("greedy",)
    return "; ".join(dict.fromkeys(PPL[kind] for kind in kinds))
