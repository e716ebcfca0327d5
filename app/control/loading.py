"""Asks the engine about devices and about the memory that a model would take, and unloads the model."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from app.control.sender import Sender
from app.draw.format import byte_size
from app.kit.labels import prose
from app.models import Models
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.wire.devices import FindDevices, ForecastLoad, LoadForecast, Unloaded, UnloadModel


class Loading(QObject):
    """Sends these questions, and keeps the user's choice for all models in `chosen`: device, dtype, threads and weights
    (its `source` is not used). Signals: `found(DevicesFound)`; `told(LoadForecast)`, only for the newest forecast asked
    for."""

    found = Signal(object)
    told = Signal(object)

    def __init__(self, models: Models, sender: Sender) -> None:
        super().__init__()
        self._models = models
        self._sender = sender
        self._forecast = 0  # command id of the newest forecast
        self.chosen = ModelSpec()

    def look(self) -> None:
        """Ask which devices there are; `found` brings the answer."""
        self._sender.post(FindDevices())

    def ask(self, model: ModelSpec, cache: CacheSpec, context: int | None) -> None:
        """Ask how much memory a model and its cache would take; `told` brings the answer."""
        self._forecast = self._sender.post(ForecastLoad(model, cache, context))

    def unload(self) -> None:
        """Unload the model; the recorded steps stay on the screen."""
        self._sender.post(UnloadModel())

    # ---- answers -------------------------------------------------------------------------------------------------

    def take_forecast(self, answer: LoadForecast) -> None:
        if answer.reply_to == self._forecast:
            self.told.emit(answer)

    def take_unloaded(self, answer: Unloaded) -> None:
        held = f"{byte_size(answer.weight_bytes)} of weights and {byte_size(answer.cache_bytes)} of caches"
        self._models.status.notify(
            f"{prose(answer.name)} is unloaded from {answer.device}: it held {held}, "
            f"{byte_size(answer.freed_bytes)} became free"
        )
