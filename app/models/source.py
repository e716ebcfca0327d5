"""How much of a sequence an encoder read."""

from __future__ import annotations

from app.models import Models
from engine.geometry.dimensions import CacheGeometry
from engine.predict import capacity


def geometry_of(models: Models) -> CacheGeometry | None:
    """That of the model that is loaded."""
    status = models.status.now
    return status.model.geometry if status is not None and status.model is not None else None


def num_source(models: Models) -> int:
    """How many tokens of the selected sequence, the first ones, an encoder read; 0 without one."""
    geometry, now = geometry_of(models), models.selection.now
    part = models.timeline.part(now.seq_id, now.step) if geometry is not None and geometry.has_encoder else None
    return 0 if geometry is None or part is None else capacity.num_source(geometry, part.num_prompt_tokens)
