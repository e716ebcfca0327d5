"""The strip of a step in phases: its picture and words at each phase, as approved (`approved/phases.txt`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QHelpEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QToolTip
from pytestqt.qtbot import QtBot

from app.shell import Shell
from app.window.phase_bar import PhaseBar
from engine.wire.status import (
    Chosen,
    ChosenToken,
    LayerDone,
    NewRow,
    PhaseReached,
    Scheduled,
    ScheduledSequence,
    StepPhase,
    SuspendedStep,
    Written,
    WrittenRows,
)
from tests.app.on_screen import assert_repainted
from tests.app.rich import candidates, rich_models
from tests.app.shown import plain, shown
from tests.approve import approve, changes

APPROVED = Path(__file__).parent / "approved"
LAYERS = 6


def norms(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


PHASES: dict[str, StepPhase] = {
    "two sequences are computed, another gave its pages": Scheduled(
        (
            ScheduledSequence(0, "decode", 11, (7,), (" cat",), (4,)),
            ScheduledSequence(1, "prefill", 4, (5, 6, 7), ("a", "b", "c"), (), 4),
        ),
        (2, 3),
    ),
    "a layer of four heads": LayerDone(
        0, (NewRow(0, norms(1, 2, 3, 4), norms(0.5, 0.25, 0.75, 1), 12.5, 2, 0.41), NewRow(1, norms(9), norms(8)))
    ),
    "one of many heads that looked at itself": LayerDone(
        1, (NewRow(1), NewRow(0, norms(3, 1, 2, 5, 4), norms(1, 2, 3, 4, 5), None, 11, 0.995))
    ),
    "one without rows": LayerDone(5, (NewRow(0, output_norm=3.25),)),
    "drawn": Chosen(
        (
            ChosenToken(0, 103, " sat", candidates(3, 5), 1.5, 12, 7),
            ChosenToken(1, 1, "?", (), 0.5, 12, None),
            ChosenToken(2, 1, "!", (), 0.5, 12, None),
        )
    ),
    "the most probable": Chosen(
        (ChosenToken(0, candidates(3, 5)[0].token_id, " sat", candidates(3, 5), 1.5, 12, None),)
    ),
    "written": Written((WrittenRows(0, 6, 0, 0, 0, 6, 1),)),
    "much changed": Written((WrittenRows(0, 6, 96, 12, 2, 6, 1), WrittenRows(1, 1, 1, 1, 1, 1))),
}


@pytest.mark.usefixtures("dark_theme")
def test_each_phase_is_shown_and_said_as_approved(qtbot: QtBot, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    models = rich_models()
    bar = PhaseBar(models, shell.actions)
    qtbot.addWidget(bar)
    bar.resize(900, 25)
    models.phases.take(PhaseReached(11, LAYERS, PHASES["two sequences are computed, another gave its pages"]))
    bar.show()
    lines: list[str] = []
    monkeypatch.setattr(QToolTip, "showText", lambda _at, text, *_: lines.append(f"tip {plain(text)!r}"))
    seen: list[str] = []
    known: set[str] = set()

    def look(moment: str) -> None:
        nonlocal seen
        QApplication.processEvents()
        if bar.isVisible():
            assert_repainted(bar, moment)
        found = shown(bar) if bar.isVisible() else ["hidden"]
        lines.extend(("", f"== {moment}", *(changes(seen, found, known) if seen else found)))
        seen = found

    for moment, phase in PHASES.items():
        models.phases.take(PhaseReached(11, LAYERS, phase))
        look(moment)
    models.phases.take(PhaseReached(11, LAYERS, PHASES["two sequences are computed, another gave its pages"]))
    models.phases.take(PhaseReached(11, LAYERS, PHASES["a layer of four heads"]))
    models.phases.take(PhaseReached(11, LAYERS, PHASES["one of many heads that looked at itself"]))
    for number, cell in enumerate(bar.track.cells()):
        QTest.mouseClick(bar.track, Qt.MouseButton.LeftButton, pos=cell.center().toPoint())
        look(f"cell {number} is clicked")
        at = cell.center().toPoint()
        QApplication.sendEvent(bar.track, QHelpEvent(QEvent.Type.ToolTip, at, bar.track.mapToGlobal(at)))
    models.selection.update(seq_id=1)
    look("the other sequence")
    for wide in (520, 380):
        bar.resize(wide, 25)
        look(f"{wide} pixels")
    models.phases.take(PhaseReached(12, 60, PHASES["two sequences are computed, another gave its pages"]))
    look("a model of many layers")
    models.phases.follow(SuspendedStep(12, 60, (0,), (12,)), 11)
    look("it waits")
    models.phases.follow(None, 11)
    look("it was given up")
    approve(APPROVED / "phases.txt", lines[1:])
