"""A prompt that was sent while a model is being loaded."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject

from app.models import Models


class DeferredSend(QObject):
    """Calls `send` once the model that is being loaded is there. After a load that fails, is cancelled, or repeats the
    steps from before, it reports that nothing was sent."""

    def __init__(self, models: Models, send: Callable[[], None], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self._send = send
        self._is_wanted = self._has_begun = False
        models.timeline.reset.connect(self._on_reset)
        models.status.changed.connect(self._on_status)

    def wish(self) -> None:
        """Have the prompt sent when the load has ended: once, even if this is called several times."""
        self._is_wanted, self._has_begun = True, False
        self._models.status.notify("The prompt is sent as soon as the model is loaded")

    def _on_reset(self) -> None:
        """A new model begins with no steps; one whose load was cancelled keeps them."""
        self._has_begun = not len(self._models.timeline)

    def _on_status(self) -> None:
        status = self._models.status
        if not self._is_wanted or status.now is None or status.is_loading:
            return
        self._is_wanted = False
        if status.model is not None and self._has_begun:
            self._send()
        else:
            self._models.status.notify("The prompt was not sent: no new model came of it. Send it again")
