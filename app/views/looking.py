"""What a picture shows, in words: which record, which step a slice belongs to, where its numbers come from."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from app.draw.format import token_label
from app.models import Models
from engine.records import SequenceStep, StepRecord

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


def source_text(models: Models, provenance: str, dtype: str, step: int | None) -> str:
    """`live cache · f32 · step 96`, and what is really asked for where that is another step."""
    parts = [provenance]
    if dtype:
        parts.append(SHORT_DTYPES.get(dtype, dtype))
    parts.append(_tr("step {0}").format(step) if step is not None else _tr("of an undone step"))
    asked = models.selection.now.step
    if asked is not None and asked != step:
        parts.append(_tr("step {0} is on its way").format(asked))
    if models.status.now is not None and models.status.now.model and models.status.now.model.random_weights:
        parts.append(_tr("random weights"))
    return " · ".join(parts)


def source_kind(models: Models, provenance: str, step: int | None) -> str:
    """The colour of the dot: another step than the one asked for never looks live."""
    asked = models.selection.now.step
    return "predicted" if asked is not None and asked != step else provenance


def token_name(models: Models, seq_id: int, position: int, max_chars: int = 12) -> str:
    """A token's text for an axis, or its position where it has none."""
    tokens = models.timeline.tokens(seq_id)
    if 0 <= position < len(tokens):
        return token_label(tokens[position].text, max_chars)
    return str(position)
