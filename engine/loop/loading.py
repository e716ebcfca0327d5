"""A model is loaded, and a session of its own is made, which is whole when it is taken over."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from engine.loop.activity import Activity
from engine.loop.reporter import Reporter
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.session.session import Session
    from engine.wire.events import LocalModel


def load_model(spec: ModelSpec, reporter: Reporter, activity: Activity, *, is_first: bool) -> LoadedModel:
    """A model; raises `Cancelled` where it is wanted no more. `is_first`: nothing was loaded before."""
    reporter.begin("Starting torch and transformers", can_cancel=False)
    from engine.model.loader import load

    if is_first:
        # The libraries' own objects, some 350,000, stay for good: a full collection that visits them all would hold a
        # step up for two tenths of a second.
        gc.freeze()
    model = load(spec, reporter.progress)
    model.mark = activity.mark
    return model


def found_models() -> tuple[LocalModel, ...]:
    """The models that are on this computer."""
    from engine.model.hub import models_here

    return models_here()


def session_of(model: LoadedModel, cache: CacheSpec) -> Session:
    """A session of a model in which nothing was done yet."""
    from engine.session.session import Session
    from engine.snapshot.patching import rows_of_file

    session = Session(model, cache)
    session.open_rows = rows_of_file
    return session
