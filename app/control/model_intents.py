"""Intents about models and about how they are loaded and run."""

from __future__ import annotations

from app.control.intent_sender import IntentSender
from engine.spec.cache import CacheSpec
from engine.spec.capture import CaptureLevel
from engine.spec.model import ModelSpec
from engine.spec.runners import PagedAttentionName, RunnerName
from engine.wire import commands
from engine.wire.status import CaptureState


class ModelIntents(IntentSender):
    """Choose model, device, cache mode, runner and capture level."""

    def on_models_wanted(self) -> None:
        self._sender.post(commands.FindModels())
        self._waiting.wake()

    def on_model_chosen(self, model: ModelSpec) -> None:
        """Load a model with the chosen device, dtype, threads and weights."""
        model = model.loaded_as(self._requests.loading.chosen)
        self._send(commands.LoadModel(model, self._models.status.cache))

    def on_loading_chosen(self, model: ModelSpec) -> None:
        """Load this model with this device, dtype, threads and weights, and later models with the same."""
        self._requests.loading.chosen = model
        self.on_model_chosen(model)

    def on_devices_wanted(self) -> None:
        self._requests.loading.look()
        self._waiting.wake()

    def on_forecast_wanted(self, model: ModelSpec, context: int) -> None:
        """Ask how much memory a model would take with `context` tokens (0: its own longest context)."""
        self._requests.loading.ask(model, self._models.status.cache, context or None)
        self._waiting.wake()

    def on_unloaded(self) -> None:
        """Unload the model."""
        self._models.selection.update(step=None)
        self._requests.loading.unload()
        self._waiting.wake()

    def on_cache_chosen(self, cache: CacheSpec) -> None:
        self._send(commands.SetCache(cache))

    def on_runner_chosen(self, runner: RunnerName) -> None:
        self._send(commands.ChooseRunner(runner))

    def on_paged_attention_chosen(self, way: PagedAttentionName) -> None:
        self._send(commands.ChoosePagedAttention(way))

    def on_capture_chosen(self, level: CaptureLevel) -> None:
        self._send(commands.SetCapture(level, self._capture_now().by_layer))

    def on_time_by_layer_switched(self) -> None:
        now = self._capture_now()
        self._send(commands.SetCapture(now.level, not now.by_layer))

    def _capture_now(self) -> CaptureState:
        status = self._models.status.now
        return CaptureState() if status is None else status.capture
