"""Two sequences, every panel: what each tells is of the selected sequence, step and token, and of no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.draw.format import percent
from app.models import Models
from app.panels.bytes import BytesView
from app.panels.inspector import InspectorView
from app.panels.next_token import NextTokenView
from app.panels.sequences import SequencesView
from app.panels.timeline import TimelineBar
from app.panels.timings import TimingsView
from app.panels.tokens import TokensPanel
from app.window.status_line import StatusLine
from engine.wire.pictures import AttentionRequest, RowRequest, WallRequest
from engine.wire.records import SequenceStep, StepRecord
from engine.wire.status import SequenceInfo
from tests.app import samples

STEPS = 6
LONG = 9  # tokens in the prompt of the second sequence; the first has samples.PROMPT


def computed(step: int) -> StepRecord:
    """A step that computed two sequences, which differ in length, tokens and candidates."""
    record, other = samples.step_record(step), samples.step_record(step + 50, LONG, seq_id=1).sequences[0]
    first = 0 if step == 0 else LONG + step - 1
    new = range(first, LONG + step)
    other = replace(
        other,
        phase=record.phase,
        token_ids=tuple(700 + position for position in new),
        texts=tuple(f" other{position}" for position in new),
        surprisal=tuple(0.5 for _ in new),
        first_position=first,
        num_tokens=LONG + step,
        rows=samples.row_stats(len(new), 90 + step),
        sampled_text=f" other{LONG + step}",
    )
    return replace(record, sequences=(*record.sequences, other))


@pytest.fixture
def models(qapp: QApplication) -> Models:
    found = Models()
    infos = (
        SequenceInfo(0, "decode", samples.PROMPT + STEPS, samples.PROMPT, 3, None),
        SequenceInfo(1, "finished", LONG + STEPS, LONG, 5, "stopped"),
    )
    found.status.set(replace(samples.status(STEPS), sequences=infos))
    found.timeline.append([computed(step) for step in range(STEPS + 1)])
    found.timeline.announce()
    return found


def part(models: Models) -> SequenceStep:
    """What the shown step did to the selected sequence."""
    now = models.selection.now
    found = models.timeline.part(now.seq_id, now.step)
    assert found is not None
    return found


def shown_step(models: Models) -> int:
    step = models.selection.now.step
    return STEPS if step is None else step


def facts(view: InspectorView) -> dict[str, str]:
    """The lines of the inspector, each number at its label."""
    assert view.state is not None
    return {fact.label: fact.text for fact in view.state.facts}


Told = Callable[[Any], object]
Expected = Callable[[Models], object]

# Each panel: what it tells, and what it must tell of the selection.
PANELS: dict[str, tuple[Callable[[Models], Any], Told, Expected]] = {
    "tokens": (
        lambda models: TokensPanel(models),
        lambda view: ([token.text for token in view.state.tokens], view.state.pending, view.state.selected),
        lambda models: (
            [t.text for t in models.timeline.tokens(models.selection.now.seq_id, models.selection.now.step)],
            part(models).sampled_text,
            models.selection.now.position,
        ),
    ),
    "next token": (
        lambda models: NextTokenView(models),
        lambda view: [(row.key, row.bars[0].number) for row in view.state.rows],
        lambda models: [(c.token_id, percent(c.prob)) for c in part(models).candidates],
    ),
    "inspector": (
        lambda models: InspectorView(models),
        lambda view: (view.state.token.text, view.state.step, facts(view)["position · id"]),
        lambda models: (
            (token := models.timeline.tokens(models.selection.now.seq_id)[selected_position(models)]).text,
            shown_step(models),
            f"{token.position} · {token.token_id}",
        ),
    ),
    "bytes": (
        lambda models: BytesView(models),
        lambda view: {line.label: line.text for line in view.state.lines}["stored in tensors"],
        lambda models: f"{models.timeline.records[shown_step(models)].num_bytes.stored:,}",
    ),
    "step time": (
        lambda models: TimingsView(models),
        lambda view: (view.state.selected, view.state.described.step),
        lambda models: (models.selection.now.step, shown_step(models)),
    ),
    "sequences": (
        lambda models: SequencesView(models),
        lambda view: (view.state.seq_id, view.state.can_stop, view.provenance_label.text),
        lambda models: (
            models.selection.now.seq_id,
            models.selection.now.seq_id == 0,
            "engine state" if models.selection.now.step is None else "engine state · now",
        ),
    ),
    "timeline": (
        TimelineBar,
        lambda bar: (bar.accessibleDescription(), bar.state.is_live),
        lambda models: (f"step {shown_step(models)}", models.selection.now.step is None),
    ),
    "status line": (
        lambda models: StatusLine(models, QAction(), QAction()),
        lambda line: line.state.num_bytes.startswith("KV "),
        lambda models: True,
    ),
}


def selected_position(models: Models) -> int:
    now = models.selection.now
    return part(models).num_tokens - 1 if now.position is None else now.position


MOVES: dict[str, dict[str, Any]] = {
    "another token": {"position": 2},
    "another sequence": {"seq_id": 1},
    "another token of another sequence": {"seq_id": 1, "position": 7},
    "an earlier step": {"step": 2},
    "an earlier step of another sequence": {"step": 3, "seq_id": 1},
    "another layer and head": {"layer": 4, "kv_head": 2},
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("panel", PANELS)
def test_the_selection_moves_and_every_panel_follows(qtbot: QtBot, models: Models, panel: str, move: str) -> None:
    build, told, expected = PANELS[panel]
    view = build(models)
    qtbot.addWidget(view)
    view.show()
    assert told(view) == expected(models)
    models.selection.update(**MOVES[move])
    assert told(view) == expected(models)
    models.selection.update(step=None, seq_id=0, position=None, layer=0, kv_head=0)
    assert told(view) == expected(models)


def test_every_panel_tells_something_else_of_another_sequence_or_step(models: Models) -> None:
    """The table above would be true of panels that show nothing: what it expects differs with what it is of."""
    for panel in ("tokens", "next token", "inspector"):
        expected = PANELS[panel][2]
        found = []
        for seq_id, step in ((0, None), (1, None), (0, 2), (1, 2)):
            models.selection.update(seq_id=seq_id, step=step)
            found.append(repr(expected(models)))
        assert len(set(found)) == 4, panel


@pytest.fixture
def inspector(qtbot: QtBot, models: Models) -> InspectorView:
    models.selection.update(seq_id=1, position=5, layer=2, kv_head=3)
    view = InspectorView(models)
    qtbot.addWidget(view)
    view.show()
    return view


def test_rows_of_the_selected_token_are_facts_and_no_others(inspector: InspectorView, models: Models) -> None:
    label = "K[2, 3, 5]"
    for seq_id, position in ((0, 5), (1, 4)):
        models.pictures.put(samples.row_picture(RowRequest(seq_id, LONG + STEPS, position)))
        assert not [name for name in facts(inspector) if name.startswith(("K[", "V["))], "of another token"
    piece = samples.row_picture(RowRequest(1, LONG + STEPS, 5))
    models.pictures.put(piece)
    row = piece.keys[2][3]
    least, most = (float(text) for text in facts(inspector)[label].split(" … "))
    assert least == pytest.approx(float(row.min()), rel=0.01)
    assert most == pytest.approx(float(row.max()), rel=0.01)
    models.selection.update(position=6)
    assert label not in facts(inspector)


def test_attention_of_the_shown_step_and_sequence_is_a_fact_and_no_other(
    inspector: InspectorView, models: Models
) -> None:
    label = "attention L2"
    for seq_id, step in ((0, STEPS), (1, STEPS - 1)):
        models.pictures.put(samples.attention_picture(AttentionRequest(seq_id, step, 2, 512), LONG + STEPS))
        assert label not in facts(inspector), "of another sequence or step"
    piece = samples.attention_picture(AttentionRequest(1, STEPS, 2, 512), LONG + STEPS)
    models.pictures.put(piece)
    assert facts(inspector)[label] == f"mean {percent(float(piece.weights[:, 5].mean()))}"
    models.selection.update(step=3)
    assert label not in facts(inspector)


def test_who_holds_the_tokens_of_another_sequence_is_told_of_none(qtbot: QtBot, models: Models) -> None:
    view = TokensPanel(models)
    qtbot.addWidget(view)
    view.show()

    def bring(seq_id: int, num_tokens: int) -> None:
        piece = samples.wall_picture(WallRequest(seq_id, num_tokens, num_tokens, "keys", False, 64, 8))
        held = np.full(num_tokens, samples.LAYERS * samples.KV_HEADS)
        held[3] = 5
        models.pictures.put(replace(piece, holders=np.stack([held, np.full(num_tokens, samples.LAYERS)])))

    bring(1, LONG + STEPS)
    assert view.state is not None
    assert view.state.holders is None
    assert view.detail.text() == "surprisal"
    bring(0, samples.PROMPT + STEPS)
    assert view.state.holders is not None
    assert view.state.holders.words(3) == "held by 5 of 24 heads, in 6 of 6 layers"
    assert view.detail.text() == "hatched: evicted"
    models.selection.update(seq_id=1)
    assert view.state.holders is None
    assert view.detail.text() == "surprisal"
