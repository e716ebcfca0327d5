"""Branches in the window on the real engine: one begun in the past in one click, back again exactly, two tips side by
side, a deletion, and a restart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication

from app.draw.axis import UNJUDGED, WITHIN
from app.draw.format import byte_size, token_label
from app.kit.chart import SelectedLine
from app.kit.view import GO_THERE
from app.kit.words import branch_name
from app.models.timeline import origin_of
from app.panels.compare.steps import compare_chart, points
from app.panels.compare.view import departure_words, verdict
from engine.spec.cache import PRESETS
from engine.spec.model import ModelSpec
from engine.wire.commands import BeginBranch, DeleteBranch, EndComparison, GoTo, SetKeptLimit
from engine.wire.comparison import OtherStep
from engine.wire.records import TokensForced
from tests.app.driver import Driver

STEPS = 6  # the last step of the first branch
TIP = 9  # that of the second one, which begins after step 3


@pytest.fixture(scope="module", params=["growing", "paged"])
def window(request: pytest.FixtureRequest, qapp: QApplication) -> Iterator[Driver]:
    driver = Driver(qapp, PRESETS[request.param].spec)
    yield driver
    driver.close()


@pytest.fixture
def fresh(window: Driver) -> Driver:
    """One branch, of the steps 0 to 6."""
    if (window.models.history.live, [*window.models.history.tips]) != (STEPS, [STEPS]):
        begin(window)
    return window


@pytest.fixture
def driver(window: Driver) -> Driver:
    """Two branches that part after step 3: the steps up to 6, and 7 to 9, which are live. Others may be there too."""
    history = window.models.history
    if not {STEPS, TIP} <= set(history.tips) or history.branch_of(TIP).parent != 3:
        begin(window)
        branch(window)
    elif history.live != TIP:
        go(window, TIP)
    window.window.arrange("inspect")
    window.look_at(None)
    return window


def begin(driver: Driver) -> None:
    history = driver.models.history
    if len(history):  # sequences are numbered on until a model is loaded
        driver.intents.on_model_chosen(ModelSpec(num_threads=1))
        driver.wait_until_idle(lambda: not len(history))
    driver.send("Once upon a time")
    step(driver, STEPS)


def branch(driver: Driver) -> int:
    """Begin the second branch with the second candidate of step 3, and take two more steps; returns that token."""
    driver.look_at(3)
    other = driver.models.timeline.part(0, 3).candidates[1].token_id  # type: ignore[union-attr]
    driver.window.next_token.wants.emit(BeginBranch(0, None, (other,)))
    driver.wait_until_idle(lambda: driver.models.history.live == STEPS + 1)
    step(driver, 2)
    return other


def type_branch(driver: Driver) -> None:
    """Begin a third branch after step 2, with a typed text, and compute it."""
    driver.look_at(2)
    driver.window.next_token.continuation.edit.setText(" dragon")
    driver.window.next_token.continuation.edit.returnPressed.emit()
    driver.wait_until_idle(lambda: (driver.models.history.live or 0) > TIP)


def go(driver: Driver, step: int) -> None:
    driver.window.branches.wants.emit(GoTo(step))
    driver.wait_until_idle(lambda: driver.models.history.live == step)


def step(driver: Driver, count: int) -> None:
    for _ in range(count):
        before = len(driver.models.timeline)
        driver.intents.on_step()
        driver.wait_until_idle(lambda before=before: len(driver.models.timeline) > before)


def text(driver: Driver) -> str:
    return "".join(token.text for token in driver.models.timeline.tokens(0))


def rows(driver: Driver) -> bytes:
    """The wall as it is on the screen."""
    wall = driver.models.pictures.wall
    assert wall is not None
    return wall.low.tobytes()


def test_another_branch_is_begun_in_one_click_and_left_again_exactly(fresh: Driver) -> None:
    """In this order: the click while looking back, steps on the branch, back to the branch that was left, and
    forward."""
    driver, models = fresh, fresh.models
    first_text, first_rows = text(driver), rows(driver)
    other = branch(driver)
    assert models.selection.now.step is None
    assert [record.step for record in models.timeline] == [0, 1, 2, 3, 7, 8, 9]
    assert [branch.first for branch in models.history.branches()] == [0, 7]
    assert models.timeline.tokens(0)[-3].token_id == other
    branch_text, branch_rows = text(driver), rows(driver)

    go(driver, STEPS)
    assert (text(driver), rows(driver)) == (first_text, first_rows)
    kept = models.status.now.kept  # type: ignore[union-attr]
    assert [held.step for held in kept] == [9]
    status = models.status.now
    assert status is not None
    assert 0 < status.kept_bytes <= sum(held.private for held in kept)
    told = f" · kept {byte_size(status.kept_bytes)} of 1.0 GiB"
    driver.wait_until_idle(lambda: driver.window.branches.detail.text().endswith(told))

    go(driver, 9)
    assert (text(driver), rows(driver)) == (branch_text, branch_rows)


def test_a_moment_of_another_branch_is_drawn_and_named_without_going_there(driver: Driver) -> None:
    models, window = driver.models, driver.window
    live, live_rows = models.history.live, rows(driver)
    assert live == 9
    driver.look_at(STEPS)
    driver.wait_until_idle(lambda: models.pictures.wall is not None and models.pictures.head is not None)
    there, head = rows(driver), models.pictures.head
    assert head is not None
    assert (head.provenance, head.request.num_tokens) == ("kept", models.timeline.num_tokens(0, STEPS))
    name = branch_name(models, 0)
    for view in (window.wall, window.head, window.attention):
        driver.wait_until_idle(lambda view=view: view.provenance_label.text.endswith(name))
    driver.look_at(STEPS - 1)
    driver.wait_until_idle(lambda: models.pictures.wall.request.num_tokens == head.request.num_tokens - 1)  # type: ignore[union-attr]
    assert models.history.live == live
    driver.look_at(None)
    driver.wait_until_idle(lambda: models.pictures.wall is not None)
    assert rows(driver) == live_rows
    go(driver, STEPS)
    assert rows(driver) == there
    go(driver, 9)


def test_a_moment_whose_rows_are_not_kept_offers_to_go_there(driver: Driver) -> None:
    models, window = driver.models, driver.window
    driver.loop.send(SetKeptLimit(0))
    driver.wait_until_idle(lambda: not models.status.now.kept)  # type: ignore[union-attr]
    driver.look_at(STEPS)
    why = f"Step {STEPS} is on another branch, and its K and V are not kept: going there computes them again."
    for view in (window.wall, window.head):
        driver.wait_until_idle(lambda view=view: view.empty.text() == why)
        assert view.remedies[GO_THERE].isVisibleTo(view)
    driver.wait_until_idle(lambda: models.pictures.attention is not None and models.pictures.attention.weights.size)
    window.head.remedies[GO_THERE].click()
    driver.wait_until_idle(lambda: models.history.live == STEPS and models.pictures.wall is not None)
    assert models.pictures.wall.low.size  # type: ignore[union-attr]
    driver.loop.send(SetKeptLimit(1 << 30))
    go(driver, 9)


def test_a_typed_text_and_a_token_by_its_id_begin_branches(driver: Driver) -> None:
    models = driver.models
    type_branch(driver)
    (typed,) = [one for one in models.history.changes(models.history.live or 0) if isinstance(one, TokensForced)]
    panel = driver.window.next_token
    said = []
    for _ in typed.token_ids:
        driver.wait_until_idle()
        said.append(panel.state.brief.partition(" to come")[0] if panel.state is not None else "")
        step(driver, 1)
    assert said[:2] == [f"{len(typed.token_ids) - 1} typed tokens", "1 typed token"]
    assert "typed" not in said[-1]
    assert " dragon" in text(driver)
    first = models.history.branch_of(models.history.live or 0)
    assert first.parent == 2
    driver.look_at(2)
    driver.window.next_token.continuation.edit.setText("#300")
    driver.window.next_token.continuation.edit.returnPressed.emit()
    driver.wait_until_idle(lambda: models.history.branch_of(models.history.live or 0) != first)
    driver.wait_until_idle(lambda: models.timeline.tokens(0)[-1].token_id == 300)
    assert models.history.branch_of(models.history.live or 0).parent == 2


def test_the_tip_of_another_branch_is_compared_with_the_live_one(driver: Driver) -> None:
    models = driver.models
    driver.window.branches.compared.emit(OtherStep(STEPS))
    driver.until(lambda: models.comparison.now is not None)
    compared = models.comparison.now
    assert compared is not None
    assert compared.against == OtherStep(STEPS)
    assert compared.b.name == f"step {STEPS} of another branch"
    panel = driver.window.compare()
    one, other = (branch_name(models, models.history.branch_of(step).first) for step in (9, STEPS))
    assert panel.opponents.currentText() == f"{other} · step {STEPS}", "named, though it was not chosen there"
    mode = f"{compared.a.cache} · float32"
    assert panel.sides.text() == f"A: {one} · now · {mode}     B: {other} · step {STEPS} · {mode}"
    driver.window.branches.named.emit(models.history.branch_of(STEPS).first, "a dragon")
    driver.wait_until_idle()
    assert panel.opponents.currentText() == f"a dragon · step {STEPS}"
    assert panel.sides.text().endswith(f"B: a dragon · step {STEPS} · {mode}")
    driver.window.branches.named.emit(models.history.branch_of(STEPS).first, "")
    shared = models.timeline.num_tokens(0, 3)
    steps = models.comparison.steps
    assert [one.num_tokens for one in steps if one.divergence is None][-1] == shared
    assert all(one.kl == 0 for one in steps if one.divergence is None)
    assert [one.num_tokens for one in steps if one.divergence is not None] == [shared + 1, shared + 2, shared + 3]
    assert verdict(models, compared) == ("The same until step 3; behind it other tokens came", "text")
    told = departure_words(models, compared, None, shared)
    assert told.startswith(f"Rows of the {shared} tokens that both share")
    a, b = (token_label(text) for text in steps[-1].divergence.texts)  # type: ignore[union-attr]
    assert a == token_label(models.timeline.tokens(0)[shared].text) != b
    assert told.endswith(f"A was given “{a}”, B “{b}”: rows behind that are compared by position alone")
    kinds = points(steps, compared, "kl").kinds
    assert [*kinds][-4:] == [WITHIN, UNJUDGED, UNJUDGED, UNJUDGED]
    assert SelectedLine(5, "muted") in compare_chart(steps, compared, "kl", None).marks, "between steps 3 and 7"
    driver.window.branches.wants.emit(GoTo(STEPS))
    driver.wait_until_idle(lambda: models.comparison.now is None)
    ended = f"The comparison ended: the branch with step {STEPS} is the live one now."
    assert models.comparison.refusal == ended, "a moment compared with itself"
    assert panel.opponents.currentText() == "Dynamic", "what was chosen before"
    go(driver, 9)


def test_an_earlier_step_of_the_live_branch_is_no_other_branch(driver: Driver) -> None:
    """Although the tree names what is before step 3 by another text than what is behind it."""
    models, panel = driver.models, driver.window.compare()
    panel.compare_with(OtherStep(2))
    driver.wait_until_idle(lambda: models.comparison.now is not None)
    assert models.history.branch_of(2) != models.history.branch_of(TIP)
    assert panel.opponents.currentText() == "step 2"
    assert panel.sides.text().startswith("A: now · ")
    driver.intents.send(EndComparison())
    driver.wait_until_idle(lambda: models.comparison.now is None)


def test_two_moments_are_compared_of_which_neither_is_live(driver: Driver) -> None:
    """6 and 9 part after 3; the branch of the typed text stays live, and the panel names both compared moments."""
    models, window = driver.models, driver.window
    type_branch(driver)
    live = models.history.live
    window.show_panel("branches")
    driver.until(lambda: window.branches.state is not None)
    tree = window.branches.tree
    tree.marked = (STEPS, 9)
    tree.picked.emit()
    window.branches.actions_["compare"].trigger()
    driver.until(lambda: models.comparison.now is not None)
    compared = models.comparison.now
    assert compared is not None
    assert compared.against == OtherStep(9, STEPS)
    assert (compared.a.name, compared.b.name) == (f"step {STEPS} of another branch", "step 9 of another branch")
    one, other = (branch_name(models, models.history.branch_of(step).first) for step in (STEPS, 9))
    assert window.compare().sides.text().startswith(f"A: {one} · step {STEPS} · ")
    assert window.compare().opponents.currentText() == f"{other} · step 9"
    assert models.history.live == live
    shared = models.timeline.num_tokens(0, 2) + 1
    counts = [(one.num_tokens, one.divergence is not None) for one in models.comparison.steps]
    assert counts[-4:] == [(shared, False), (shared + 1, True), (shared + 2, True), (shared + 3, True)]
    assert verdict(models, compared) == ("The same until step 3; behind it other tokens came", "text")
    driver.intents.send(EndComparison())
    driver.wait_until_idle(lambda: models.comparison.now is None)
    window.arrange("inspect")
    go(driver, 9)
    driver.look_at(None)


def test_two_branches_run_on_together_and_are_left_again(driver: Driver) -> None:
    """The tip 6 joins the live 9 in one batch, each sequence names its origin, and going back restores 9 as it was."""
    models, window = driver.models, driver.window
    before = text(driver), rows(driver)
    window.show_panel("branches")
    driver.until(lambda: window.branches.state is not None)
    window.branches.tree.chosen.emit(STEPS)
    window.branches.actions_["join"].trigger()
    driver.wait_until_idle(lambda: len(models.timeline.sequence_ids()) == 2)
    assert models.selection.now.seq_id == 0, "what is viewed stays"
    origin = origin_of(models.timeline, 1)
    assert (origin.parent, origin.step, origin.branch) == (0, STEPS, 0)  # type: ignore[union-attr]
    step(driver, 2)
    live = models.history.live
    assert [part.seq_id for part in models.timeline.latest.sequences] == [0, 1]  # type: ignore[union-attr]
    window.show_panel("sequences")
    driver.until(lambda: window.sequences.state is not None)
    name = branch_name(models, 0)
    assert [row.origin for row in window.sequences.state.rows] == ["", f"branch {name} · step 6"]
    models.selection.update(seq_id=1)
    driver.wait_until_idle()
    assert window.tokens.detail.text().endswith(f" · forked from branch {name} · step 6")
    models.selection.update(seq_id=0)
    driver.wait_until_idle()
    go(driver, 9)
    assert (text(driver), rows(driver)) == before
    assert models.timeline.sequence_ids() == (0,)
    go(driver, live)
    assert origin_of(models.timeline, 1) == origin, "also after going back to it"
    go(driver, 9)
    window.branches.wants.emit(DeleteBranch(models.history.children_of(9)[0]))
    driver.wait_until_idle(lambda: live not in models.history)


def test_a_branch_is_deleted_while_it_is_looked_at_and_the_live_one_is_not(driver: Driver) -> None:
    models = driver.models
    models.selection.update(step=5)
    driver.wait_until_idle()
    driver.window.branches.wants.emit(DeleteBranch(6))
    driver.wait_until_idle(lambda: 6 not in models.history)
    assert (models.selection.now.step, models.timeline.tip) == (5, 5)
    driver.window.branches.wants.emit(DeleteBranch(4))
    driver.wait_until_idle(lambda: 4 not in models.history)
    assert (models.selection.now.step, models.timeline.tip) == (None, 9)
    assert [node for node in (4, 5, 6) if node in models.history] == []
    assert models.history.live == 9
    driver.window.branches.wants.emit(DeleteBranch(7))
    driver.until(lambda: models.status.failure, may_fail=True)
    assert 7 in models.history
    models.status.fail("")
