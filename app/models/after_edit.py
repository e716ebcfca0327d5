"""What follows on an edited cache: the choices for the next token as they were measured after the newest edit."""

from __future__ import annotations

from msgspec.structs import replace

from app.models import Models
from app.models.sequence_status import selected_info
from engine.wire.records import SequenceStep


def after_edit(models: Models, part: SequenceStep, fed: int) -> tuple[int, SequenceStep] | None:
    """The edit that was made last since the step `fed`, which fed the selected sequence, and what that step says of the
    next token with what is true since in its place. None where nothing was edited since, or not measured."""
    now = models.selection.now
    edits = [made for made in models.edits.on_path(now.step) if made.step > fed and made.edit.seq_id == now.seq_id]
    measured = models.edits.measured(edits[-1].step) if edits else None
    if measured is None or not measured.after:
        return None
    info = selected_info(models)
    sampled = info.sampled if info is not None and now.step is None else measured.after[0].token_id
    texts = {one.token_id: one.text for one in (*part.candidates, *measured.after)}
    text = part.sampled_text if sampled == part.sampled else texts.get(sampled or 0, f"#{sampled}")
    told = replace(part, candidates=measured.after, entropy=measured.entropy, sampled=sampled, sampled_text=text)
    return measured.step, told
