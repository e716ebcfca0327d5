"""A branch, and the branch that a sequence came from, in words."""

from __future__ import annotations

from app.draw.format import shortened, thousands, visible
from app.models import Models
from app.models.branches import branch_text, origin_of


def branch_name(models: Models, first: int) -> str:
    """The name that was given to a branch, else the beginning of its text."""
    return models.history.name(first) or f"“{text_line(models, first, 24)}”"


def text_line(models: Models, first: int, max_chars: int) -> str:
    """The beginning of a branch's text, on one line."""
    text = branch_text(models.history, first, models.selection.now.seq_id, max_chars + 1)
    return shortened(" ".join(map(visible, text.split(" "))).lstrip(), max_chars)


def origin_words(models: Models, seq_id: int) -> str:
    """`branch “a dragon” · step 6`: where a sequence was forked from; empty where it was not."""
    origin = origin_of(models.timeline, seq_id)
    if origin is None:
        return ""
    where = f"sequence {origin.parent}" if origin.branch is None else f"branch {branch_name(models, origin.branch)}"
    return f"{where} · step {thousands(origin.step)}"
