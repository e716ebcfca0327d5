"""Loads models and makes their sessions, and finds models and devices."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import InputError, clear_frames, first_line, is_out_of_memory
from engine.loop.activity import Activity
from engine.loop.background import BackgroundWork, Tokenising
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
    """Load a model with progress; raises `Cancelled` if that is cancelled. `is_first`: no model was loaded before."""
    with reporter.loading():
        model = _loaded(spec, reporter, is_first=is_first)
    model.heartbeat, model.runners.announce = activity.mark, reporter.meanwhile
    model.runners.compiling = BackgroundWork(inbox, reporter)
    model.tokenising = Tokenising(inbox, reporter)
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
        clear_frames(error)
        why_not = first_line(error)
    if why_not:  # outside the handler: the error may hold tensors of the partly loaded model
        from engine.model.forecast import out_of_memory_text

        raise InputError(out_of_memory_text(spec, has_present=not is_first))
    return model


def _import_libraries() -> None:
    """Import torch and transformers without garbage collection, and exclude their objects from it afterwards. These are
    some 350,000 and stay for good: collections during the import take a seventh of its time, and a later full
    collection that visits them all would delay a step by 0.2 s."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        import engine.model.loader  # noqa: F401

        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def found_models() -> tuple[LocalModel, ...]:
    """The models found on this computer."""
    from engine.model.hub import models_here

    return models_here()


def found_devices() -> DevicesFound:
    """The devices that a model can be loaded to."""
    from engine.model.device import devices_here, formats_here, why_no_split

    return DevicesFound(devices_here(), formats_here(), why_no_split())


def forecast_of(command: ForecastLoad, held: HeldModel | None) -> LoadForecast:
    """The memory that a model and its cache would take; `held` is the loaded model that it would replace."""
    from engine.model.forecast import forecast

    return forecast(command, 0 if held is None else held.num_bytes)


class HeldModel(NamedTuple):
    """The loaded model, and the bytes of all its caches."""

    info: ModelInfo
    cache_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.info.weight_bytes + self.cache_bytes


def session_of(model: LoadedModel, cache: CacheSpec) -> Session:
    """A new, empty session of a model."""
    from engine.session.session import Session
    from engine.snapshot.patching import rows_of_file

    session = Session(model, cache)
    session.open_rows = rows_of_file
    return session
