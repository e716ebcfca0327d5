"""Where models are loaded to: what the engine says of devices, what a model would take, and a model let go."""

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
    """Asks, and keeps what a person chose for all models: device, dtype, threads and weights of `chosen`, whose source
    is of no account. News: `found(DevicesFound)`; `told(LoadForecast)`, of the newest that was asked for."""

    found = Signal(object)
    told = Signal(object)

    def __init__(self, models: Models, sender: Sender) -> None:
        super().__init__()
        self._models = models
        self._sender = sender
        self._forecast = 0  # the id of the newest that was asked for
        self.chosen = ModelSpec()

    def look(self) -> None:
        """Ask which devices there are."""
        self._sender.post(FindDevices())

    def ask(self, model: ModelSpec, cache: CacheSpec, context: int | None) -> None:
        """Ask what a model would take."""
        self._forecast = self._sender.post(ForecastLoad(model, cache, context))

    def unload(self) -> None:
        """Let the model go; what was done stays on the screen."""
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
