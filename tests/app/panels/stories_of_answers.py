"""What a person does in panels that measure and compare: steps of a story, each with its name and what is done."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from PySide6.QtGui import QGuiApplication

from app.models import Models
from app.panels.compare.opponents import FILE, MODEL, STEP, cache_choice
from app.panels.compare.view import CompareView
from app.panels.damage.view import DamageView
from app.panels.evicted.view import EvictedView
from app.panels.what_if.view import WhatIfView
from engine.wire.status import OpenedFile
from tests.app.panels.stories_of_runs import Steps


def what_if(view: WhatIfView, models: Models, folder: Path) -> Steps:
    knobs = view.knobs

    def knob(name: str, value: float) -> Callable[[], object]:
        def move_it() -> None:
            knobs.knobs[name].set_value(value)
            knobs.knobs[name].moved.emit()

        return move_it

    for rule in ("h2o", "snapkv", "tova", "keydiff", "sliding", "streamingllm", "pyramid", "all"):
        if knobs.rule.findData(rule) >= 0:
            yield f"rule {rule}", lambda rule=rule: knobs.choose(rule, "exact")  # type: ignore[misc]
    yield "a rule with a ratio", lambda: knobs.choose("h2o", "exact")
    yield "by its ratio", lambda: knobs.knobs["budget"].renamed.emit()
    yield "another ratio", knob("ratio", 0.25)
    yield "by its budget", lambda: knobs.knobs["ratio"].renamed.emit()
    yield "a budget of its own", knob("budget", 3)
    yield "a window of its own", knob("window", 2)
    yield "more rows", lambda: knobs.set_num_rows(30)
    yield "another rule with a size of its own", lambda: knobs.choose("streamingllm", "exact")
    yield "KIVI", lambda: knobs.choose("streamingllm", "kivi")
    yield "a rule again", lambda: knobs.choose("tova", "kivi")
    yield "two codecs", lambda: knobs.choose("all", "int8", "fp8")
    yield "only V", lambda: knobs.choose("all", "exact", "int8")
    yield "bits", lambda: (knobs.choose("all", "kivi"), knob("bits", 2)(), knob("group", 8)(), knob("residual", 16)())
    yield "nothing", lambda: knobs.choose("all", "exact")


def evicted(view: EvictedView, models: Models, folder: Path) -> Steps:
    yield "the removals", view.measure
    yield "another rule", lambda: view.regret.choose("tova", 4)
    yield "measured", view.ask
    yield "a dot is pointed at", lambda: view.regret._on_pointed(3)
    yield "a dot is clicked", lambda: view.regret._on_picked(3)
    yield "none is pointed at", lambda: view.regret._on_pointed(None)


def damage(view: DamageView, models: Models, folder: Path) -> Steps:
    for codec, values in (("int8", ""), ("kivi", ""), ("fp8", "kivi"), ("exact", "exact")):
        yield f"{codec} {values}", lambda codec=codec, values=values: view.controls.choose(codec, 2, values)  # type: ignore[misc]
    yield "measured", view.ask
    yield "the plan", lambda: (view.controls.choose("kivi", 4), view.choose("plan"))
    yield "a budget in KiB", lambda: view.plan._kib.setValue(10.0)
    yield "a budget beyond all", lambda: view.plan._kib.setValue(1e6)
    yield "half", lambda: view.plan.set_share(0.5)
    yield "suggested", view.ask_plan
    yield "its name", lambda: (view.plan.copy_name(), view.told.emit(QGuiApplication.clipboard().text()))
    yield "applied", lambda: view.plan.applied.emit()
    yield "a layer", lambda: view.plan._table.clicked.emit(view.plan._table.model().index(4, 0))


def compare(view: CompareView, models: Models, folder: Path) -> Steps:
    def status(**changes: Any) -> None:
        now = models.status.now
        assert now is not None
        models.status.set(replace(now, **changes))

    dtypes = (f"dtype {name}" for name in ("float32", "bfloat16"))
    for kind in (STEP, MODEL, FILE, cache_choice("h2o"), cache_choice("int8"), *dtypes):
        yield f"against {kind}", lambda kind=kind: (view.opponents.choose(kind), view.compare())  # type: ignore[misc]
    yield "against an earlier step", lambda: (
        models.selection.update(step=6), view.opponents.choose(STEP), view.compare(),
    )  # fmt: skip
    yield "reported", lambda: (models.selection.update(step=None), view.save_report())
    yield "what is in it", lambda: view.told.emit(_page(folder / "edits.json"))
    yield "the first departure", view.place.click
    yield "zoomed to it", view.zoom_to_selection
    yield "all of it", view.reset_view
    yield "its list", lambda: (view.choose_opponent(), view.opponents.hidePopup())
    yield "in a file", lambda: status(opened=OpenedFile(Path("old"), 1_000, "Tales", 8, "", "", "", ""))
    for kind in (STEP, MODEL, FILE, cache_choice("int8")):
        yield f"in a file against {kind}", lambda kind=kind: (view.opponents.choose(kind), view.compare())  # type: ignore[misc]


def _page(path: Path) -> str:
    """The report without its pictures, and without what is installed."""
    text = re.sub(r"base64,[^\"]*", "…", path.read_text("utf-8"))
    return re.sub(r"<dt>Versions</dt><dd>.*?</dd>", "", text)
