"""A model is loaded, and a session of its own is made, which is whole when it is taken over."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import InputError, first_line, is_out_of_memory, let_go_of_frames
from engine.loop.activity import Activity
from engine.loop.beside import Beside
from engine.loop.inbox import Inbox
from engine.loop.reporter import Reporter
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.devices import DevicesFound

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.session.session import Session
    from engine.wire.devices import ForecastLoad, LoadForecast
    from engine.wire.events import LocalModel
    from engine.wire.status import ModelInfo


def load_model(spec: ModelSpec, reporter: Reporter, inbox: Inbox, activity: Activity, *, is_first: bool) -> LoadedModel:
    """A model; raises `Cancelled` where it is wanted no more. `is_first`: nothing was loaded before."""
    with reporter.loading():
        model = _loaded(spec, reporter, is_first=is_first)
    model.mark, model.runners.telling = activity.mark, reporter.meanwhile
    model.runners.compiling = Beside(inbox, reporter)
    return model


def _loaded(spec: ModelSpec, reporter: Reporter, *, is_first: bool) -> LoadedModel:
    reporter.begin("Starting torch and transformers", can_cancel=False)
    if is_first:
        _import_libraries()
    from engine.model.loader import load

    why_not = ""
    try:
        model = load(spec, reporter.progress)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        let_go_of_frames(error)
        why_not = first_line(error)
    if why_not:  # not while the error is there, which may hold tensors of what was loaded so far
        from engine.model.forecast import no_room

        raise InputError(no_room(spec, has_present=not is_first))
    return model


def _import_libraries() -> None:
    """Import torch and transformers. Their own objects, some 350,000, stay for good: collecting among them while they
    are made takes a seventh of the time, and a full collection that visits them all would hold a step up for two tenths
    of a second."""
    gc.disable()
    try:
        import engine.model.loader  # noqa: F401

        gc.freeze()
    finally:
        gc.enable()


def found_models() -> tuple[LocalModel, ...]:
    """The models that are on this computer."""
    from engine.model.hub import models_here

    return models_here()


def found_devices() -> DevicesFound:
    """The devices that a model can be loaded to."""
    from engine.model.device import devices_here, formats_here, why_no_split

    return DevicesFound(devices_here(), formats_here(), why_no_split())


def forecast_of(command: ForecastLoad, held: HeldModel | None) -> LoadForecast:
    """What a model would take; `held` is the one that it would take the place of."""
    from engine.model.forecast import forecast

    return forecast(command, 0 if held is None else held.num_bytes)


class HeldModel(NamedTuple):
    """The model that is there, and what it and all its caches hold."""

    info: ModelInfo
    cache_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.info.weight_bytes + self.cache_bytes


def session_of(model: LoadedModel, cache: CacheSpec) -> Session:
    """A session of a model in which nothing was done yet."""
    from engine.session.session import Session
    from engine.snapshot.patching import rows_of_file

    session = Session(model, cache)
    session.open_rows = rows_of_file
    return session
