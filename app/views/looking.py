"""What a picture shows, in words: which record, which step a slice belongs to, where its numbers come from."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QCoreApplication

from app.draw.format import token_label
from app.models import Models
from app.views.panel import Panel
from engine.records import SequenceStep, StepRecord

NARROW, TINY = 540, 400
SHORT_SOURCES = {"live cache": "live", "recorded": "rec.", "recomputed": "recomp.", "dequantised": "deq."}
SHORT_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}


def _tr(text: str) -> str:
    return QCoreApplication.translate("looking", text)


def shown_record(models: Models) -> StepRecord | None:
    """The record of the selected step, or the newest."""
    return models.timeline.at(models.selection.now.step)


def shown_part(models: Models) -> tuple[StepRecord, SequenceStep] | None:
    """The record and what it says of the selected sequence."""
    record = shown_record(models)
    part = record.of(models.selection.now.seq_id) if record is not None else None
    return (record, part) if record is not None and part is not None else None


def step_of(models: Models, seq_id: int, num_tokens: int) -> int | None:
    """The step after which a sequence had that many tokens: the newest one that added any up to there."""
    latest = models.timeline.latest
    part = latest.of(seq_id) if latest is not None else None
    if latest is not None and part is not None and part.num_tokens == num_tokens:
        return latest.step
    tokens = models.timeline.tokens(seq_id)
    return tokens[num_tokens - 1].step if 0 < num_tokens <= len(tokens) else None


Span = tuple[int, int]


def selected_run(models: Models) -> Span | None:
    """The positions `start … stop` that are selected: one token, or all that the chosen page holds."""
    now, record = models.selection.now, shown_record(models)
    if now.position is None:
        return None
    if now.page is None or record is None or not record.page_maps:
        return now.position, now.position + 1
    stop = now.position + record.page_maps[0].page_size
    return now.position, max(min(stop, models.timeline.num_tokens(now.seq_id, record.step)), now.position + 1)


def span_of_run(columns: Callable[[int], Span | None], run: Span | None) -> Span | None:
    """The columns that show a run of positions, as far as they are in the picture; `columns` tells it for one."""
    if run is None:
        return None
    found = [span for span in (columns(run[0]), columns(run[1] - 1)) if span is not None]
    return (min(first for first, _ in found), max(stop for _, stop in found)) if found else None


def tell_source(panel: Panel, models: Models, provenance: str, dtype: str, step: int | None) -> None:
    """Say in a panel's strip where its numbers come from and of which step they are.

    `live cache · f32 · step 96`, or in a narrow panel `live cache · 96`. A picture of another step than the one asked
    for says so and does not look live.
    """
    asked = models.selection.now.step
    is_other = asked is not None and asked != step
    status = models.status.now
    is_random = status is not None and status.model is not None and status.model.random_weights
    if panel.width() < NARROW and step is not None:
        source = SHORT_SOURCES.get(provenance, provenance) if panel.width() < TINY else provenance
        words = [source, str(step) if not is_other else f"{step} → {asked}"]
    else:
        words = [provenance, *([SHORT_DTYPES.get(dtype, dtype)] if dtype else [])]
        words.append(_tr("step {0}").format(step) if step is not None else _tr("of an undone step"))
        words += [_tr("step {0} is on its way").format(asked)] if is_other else []
    words += [_tr("random weights")] if is_random else []
    panel.set_provenance(" · ".join(words), "predicted" if is_other else "random" if is_random else provenance)


def token_name(models: Models, seq_id: int, position: int, max_chars: int = 12) -> str:
    """A token's text for an axis, or its position where it has none."""
    tokens = models.timeline.tokens(seq_id)
    if 0 <= position < len(tokens):
        return token_label(tokens[position].text, max_chars)
    return str(position)
