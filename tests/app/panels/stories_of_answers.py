"""What a person does in panels that measure and compare: steps of a story, each with its name and what is done."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from PySide6.QtGui import QGuiApplication

from app.models import Models
from app.panels.compare.view import FILE, MODEL, STEP, CompareView, cache_choice
from app.panels.damage import DamageView
from app.panels.evicted import EvictedView
from app.panels.what_if import WhatIfView
from engine.spec.cache import CacheSpec
from engine.wire.comparison import ComparisonStarted, OtherStep, TokenDivergence
from engine.wire.records import Eviction, Survivors
from engine.wire.status import OpenedFile
from tests.app import samples
from tests.app.mouse import point_at
from tests.app.panels.stories_of_runs import Steps
from tests.app.rich import eviction, record
from tests.app.rich_compared import COMPARED


def what_if(view: WhatIfView, models: Models, folder: Path) -> Steps:
    knobs = view.knobs

    def knob(name: str, value: float) -> Callable[[], object]:
        return lambda: knobs.knobs[name].field.setValue(value)

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
    def step(number: int, *evictions: Eviction, **changes: Any) -> None:
        found = replace(record(number, number, models.history.live), evictions=evictions, **changes)
        models.timeline.append([found])
        models.timeline.announce()

    def later(layer: int, kv_head: int | None, position: int, **changes: Any) -> Eviction:
        positions = np.array([1, position], np.int64)
        scores = np.array([1.5, 0.5], np.float32)
        return replace(eviction(layer, 0), kv_head=kv_head, positions=positions, scores=scores, **changes)

    def without_model() -> None:
        models.status.set(replace(models.status.now, model=None))

    select = models.selection.update
    yield "a row that went from this head", lambda: select(layer=1, kv_head=2, position=7)
    yield "a score is pointed at", lambda: point_at(view.plot, 0)
    yield "none is", lambda: point_at(view.plot, None)
    alone = later(3, 1, 6, lowest_kept=None, survivors=Survivors(0, 5))
    yield "more rows go", lambda: step(12, later(0, None, 8), alone)
    yield "one that went before", lambda: select(layer=3, kv_head=2, position=7)
    yield "one that went now, where only protected rows stay", lambda: select(layer=3, kv_head=1, position=6)
    yield "from all heads of a layer", lambda: select(layer=0, kv_head=3, position=8)
    yield "one that every head holds", lambda: select(position=12)
    yield "none is selected", lambda: select(position=None)
    yield "before any of them", lambda: select(step=8)
    yield "after the first", lambda: select(step=10)
    yield "the model goes", lambda: (select(step=None), without_model())
    yield "one head of one layer alone", lambda: step(13, later(2, 0, 9))
    yield "of a rule that keeps all", lambda: step(14, later(2, 0, 9, rule="by hand"), cache=CacheSpec())
    yield "what went in the mode before is not told", lambda: select(position=7)
    yield "a fork", lambda: select(seq_id=1, position=3)
    yield "back", lambda: select(seq_id=0, position=9, layer=2, kv_head=0)
    yield "the removals", view.measure
    yield "another rule", lambda: (view.measured_rule.choose("tova"), view.page_size.choose(4))
    yield "measured", view.measure
    yield "a dot is pointed at", lambda: point_at(view.effects, 3)
    yield "a dot is clicked", lambda: view.effects.picked.emit(3)
    yield "none is pointed at", lambda: point_at(view.effects, None)


def damage(view: DamageView, models: Models, folder: Path) -> Steps:
    for codec, values in (("int8", ""), ("kivi", ""), ("fp8", "kivi"), ("exact", "exact")):
        yield f"{codec} {values}", lambda codec=codec, values=values: view.controls.choose(codec, 2, values)  # type: ignore[misc]
    yield "measured", view.measure
    yield "the plan", lambda: (view.controls.choose("int8"), view.choose("plan"))
    yield "a budget in KiB", lambda: view.plan.kib.setValue(10.0)
    yield "a budget beyond all", lambda: view.plan.kib.setValue(1e6)
    yield "half", lambda: view.plan.share.field.setValue(50)
    yield "suggested", view.ask_plan
    yield "its name", lambda: (view.plan.copy_name(), view.message.emit(QGuiApplication.clipboard().text()))
    yield "applied", lambda: view.plan.applied.emit()
    yield "a layer", lambda: view.plan.table.clicked.emit(view.plan.table.model().index(4, 0))


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
    yield "what is in it", lambda: view.message.emit(_page(folder / "edits.json"))
    yield "the first departure", view.place.click
    yield "zoomed to it", view.zoom_to_selection
    yield "all of it", view.reset_view
    yield "its list", lambda: (view.choose_opponent(), view.opponents.hidePopup())
    for what, (pair, change, scanned) in VERDICTS.items():
        yield what, lambda pair=pair, change=change, scanned=scanned: _start(models, pair, change, scanned)  # type: ignore[misc]
    yield "in a file", lambda: status(opened=OpenedFile(Path("old"), 1_000, "Tales", 8, "", "", "", ""))
    for kind in (STEP, MODEL, FILE, cache_choice("int8")):
        yield f"in a file against {kind}", lambda kind=kind: (view.opponents.choose(kind), view.compare())  # type: ignore[misc]


LEFT = replace(COMPARED, against=OtherStep(5))
OTHER_MODEL = replace(
    COMPARED, b=replace(COMPARED.b, model="Other", name="another model"), a=replace(COMPARED.a, moves=False)
)
EXACT = replace(
    COMPARED, a=replace(COMPARED.a, is_lossy=False, edited_from=None), b=replace(COMPARED.b, is_lossy=False)
)  # fmt: skip
EDITED = replace(EXACT, b=replace(EXACT.b, edited_from=4))
# What is compared with what, what each step says, and how many tokens' rows were scanned.
VERDICTS: dict[str, tuple[ComparisonStarted, dict[str, Any], int | None]] = {
    "nothing is judged": (COMPARED, {"is_beyond_rounding": None}, None),
    "rows alone": (COMPARED, {"is_beyond_rounding": None}, 11),
    "within rounding": (OTHER_MODEL, {"is_beyond_rounding": False}, 11),
    "a branch that parts": (LEFT, {"is_beyond_rounding": False}, None),
    "given other tokens behind the third": (
        LEFT,
        {"is_beyond_rounding": False, "divergence": TokenDivergence(5, ("a", "b"))},
        None,
    ),
    "behind what no step computed": (
        LEFT,
        {"is_beyond_rounding": False, "divergence": TokenDivergence(1, ("a", "b"))},
        None,
    ),
    "exact, and departs": (EXACT, {"is_beyond_rounding": True}, 11),
    "exact, and edited by hand": (EDITED, {"is_beyond_rounding": True}, 11),
    "edited behind the fourth token": (
        replace(EDITED, b=replace(EDITED.b, edited_from=3)),
        {"is_beyond_rounding": True},
        11,
    ),
    "no rows": (replace(COMPARED, no_rows="Rows are gone."), {"is_beyond_rounding": True}, None),
}


def _start(models: Models, pair: ComparisonStarted, change: dict[str, Any], num_scanned: int | None) -> None:
    """Four steps are compared."""
    steps = models.comparison.steps or tuple(map(samples.compared_step, range(4)))
    models.comparison.start(replace(pair, steps=tuple(replace(step, **change) for step in steps[:4])))
    if num_scanned is not None:
        models.comparison.scan(num_scanned, None)


def _page(path: Path) -> str:
    """The report without its pictures, and without what is installed."""
    text = re.sub(r"base64,[^\"]*", "…", path.read_text("utf-8"))
    return re.sub(r"<dt>Versions</dt><dd>.*?</dd>", "", text)
