"""Windows on the real engine and the bundled model, with the panels that measure in sight."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from app.panels.damage import DamageView
from app.panels.evicted import EvictedView
from app.panels.parity import ParityView
from app.panels.sweep import SweepView
from app.panels.what_if import WhatIfView
from engine.spec.cache import CacheSpec
from engine.spec.sampling import SamplingParams
from engine.wire.commands import SetCache
from engine.wire.measurements import WhatIfAnswer
from tests.app.driver import Driver

TEXT = "Once upon a time there was a little girl who lived in a village near the forest, and one day she"
PROMPT = "Once upon a time there was a little girl named Lily. She loved to play with her red ball in the park, and"


class Desk(Driver):
    """The window with its measuring panels, and runs of one text."""

    def __init__(self, app: QApplication) -> None:
        super().__init__(app)
        self.window.arrange("truth")

    def run(self, cache: CacheSpec, steps: int = 6) -> None:
        """A new run of the same text in a cache."""
        self.models.selection.update(step=None, position=None, layer=0, kv_head=0)
        self.intents.send(SetCache(cache))
        self.until(lambda: self.models.status.now.cache == cache)
        self.intents.on_prompt_submitted(TEXT, SamplingParams())
        self.until(lambda: self.controller.is_idle and self.has_chosen())
        self.intents.on_run_to(steps)
        self.until(lambda: self.controller.is_idle and len(self.models.timeline) == steps + 1)

    @property
    def parity(self) -> ParityView:
        panel = self.window.panels["parity"]
        assert isinstance(panel, ParityView)
        return panel

    @property
    def sweep(self) -> SweepView:
        panel = self.window.panels["sweep"]
        assert isinstance(panel, SweepView)
        return panel

    @property
    def evicted(self) -> EvictedView:
        panel = self.window.panels["evicted"]
        assert isinstance(panel, EvictedView)
        return panel


class PromptedDesk(Driver):
    """A window on the bundled model, a prompt sent and read."""

    def __init__(self, qapp: QApplication) -> None:
        super().__init__(qapp, prompt=PROMPT)
        self.window.arrange("truth")
        self.window.actions_["prompt.send"].trigger()
        self.until(lambda: len(self.models.timeline) > 0 and self.controller.is_idle)
        what_if, damage = self.window.panels["what_if"], self.window.panels["damage"]
        assert isinstance(what_if, WhatIfView)
        assert isinstance(damage, DamageView)
        self.what_if, self.damage = what_if, damage

    def answered(self) -> WhatIfAnswer:
        """The answer to what the knobs say now."""
        wanted = self.what_if.knobs.spec()
        self.until(lambda: (a := self.models.measurements.what_if.answer) is not None and a.request.cache == wanted)
        found = self.models.measurements.what_if.answer
        assert found is not None
        return found


def click(widget: QWidget, x: float, y: float) -> None:
    QTest.mouseClick(widget, Qt.MouseButton.LeftButton, pos=QPoint(round(x), round(y)))
