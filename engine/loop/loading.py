"""A model is loaded into a session of its own, which is whole when it is taken over."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from engine.loop.activity import Activity
from engine.loop.reporter import Reporter
from engine.wire.commands import LoadModel

if TYPE_CHECKING:
    from engine.session.session import Session


def load_session(command: LoadModel, reporter: Reporter, activity: Activity, *, is_first: bool) -> Session:
    """The session of a model; raises `Cancelled` where it is wanted no more. `is_first`: nothing was loaded before."""
    reporter.begin("Starting torch and transformers", can_cancel=False)
    from engine.model.loader import load
    from engine.session.session import Session

    if is_first:
        # The libraries' own objects, some 350,000, stay for good: a full collection that visits them all would hold a
        # step up for two tenths of a second.
        gc.freeze()
    model = load(command.model, reporter.progress)
    model.mark = activity.mark
    return Session(model, command.cache)
