"""Keyboard navigation through layers, heads, tokens and steps. It writes only the selection."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer

from app.models import Models
from app.models.loaded import geometry_of

LEAP = 8
REPLAY_MS = 120


class Navigator(QObject):
    """Slots for the keys that move the selection, and a replay that shows the recorded steps one after the other."""

    def __init__(self, models: Models, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self._replay = QTimer(self, interval=REPLAY_MS)
        self._replay.timeout.connect(self._on_replay)
        models.timeline.reset.connect(self._replay.stop)

    @property
    def is_replaying(self) -> bool:
        return self._replay.isActive()

    def on_first_step(self) -> None:
        self._replay.stop()
        first = self._models.timeline.first
        if first is not None and len(self._models.timeline) > 1:
            self._models.selection.update(step=first.step)

    def on_live(self) -> None:
        self._replay.stop()
        self._models.selection.update(step=None)

    def on_play_or_stop(self) -> None:
        """Start or stop the replay of the recorded steps, from the step shown; from the first when the live one is."""
        if self._replay.isActive():
            self._replay.stop()
            return
        if self._models.selection.now.step is None:
            self.on_first_step()
        if self._models.selection.now.step is not None:
            self._replay.start()

    def show_lens(self, name: str) -> None:
        """Look at the rows through another lens."""
        self._models.selection.update(lens=name, change=False)

    def toggle_change(self) -> None:
        """Switch between the whole tensor and what the step changed in it."""
        self._models.selection.update(change=not self._models.selection.now.change)

    def walk_layers(self, by: int) -> None:
        """Select the layer `by` further down (negative: up), among those with K and V of their own."""
        geometry = geometry_of(self._models)
        if geometry is None or not geometry.attention_layers:
            return
        layers = geometry.attention_layers
        indices = [layer.index for layer in layers]
        now = self._models.selection.now
        here = indices.index(now.layer) if now.layer in indices else 0
        layer = layers[min(max(here + by, 0), len(layers) - 1)]
        self._models.selection.update(layer=layer.index, kv_head=min(now.kv_head, layer.num_kv_heads - 1))

    def walk_heads(self, by: int) -> None:
        """Select the kv head `by` further right (negative: left)."""
        geometry, now = geometry_of(self._models), self._models.selection.now
        if geometry is None or now.layer >= geometry.num_layers:
            return
        num_heads = geometry.layers[now.layer].num_kv_heads
        if num_heads:
            self._models.selection.update(kv_head=min(max(now.kv_head + by, 0), num_heads - 1))

    def walk_tokens(self, by: int) -> None:
        """Select the token `by` further right (negative: left)."""
        now = self._models.selection.now
        num_tokens = self._models.timeline.num_tokens(now.seq_id, now.step)
        if not num_tokens:
            return
        last = num_tokens - 1
        here = last if now.position is None else min(now.position + by, last)
        self._models.selection.update(position=max(here, 0))

    def _on_replay(self) -> None:
        step = self._models.timeline.neighbour(self._models.selection.now.step, +1)
        self._models.selection.update(step=step)
        if step == self._models.timeline.tip:
            self._replay.stop()
