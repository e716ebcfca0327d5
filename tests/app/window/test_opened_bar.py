"""A snapshot opened in the window: the strip that names it, disabled actions, opening and closing files."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.kit.words import node_lines
from app.models.saved_view import view_text
from app.models.sequence_status import rates
from app.shell import Shell
from app.start.settings import Settings
from engine.spec.cache import cache_preset
from engine.spec.edit import Rows
from engine.spec.model import ModelSpec
from engine.spec.sampling import SamplingParams
from engine.wire.commands import CloseSnapshot, Continue, LoadModel, OpenSnapshot, Step, SubmitPrompt
from engine.wire.events import EngineLost, Failed, SessionOpened, StateChanged, WentTo
from engine.wire.records import Timings
from engine.wire.status import OpenedFile, Work
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import button, opened_menu, texts_in

REASON = "this is an opened file: go on with its model first, or load another"
NEEDS_MODEL = (
    "run.step", "run.run", "run.to", "prompt.send", "prompt.add", "cache.paged", "cache.tune", "truth.parity",
    "truth.sweep", "truth.bench", "truth.regret", "run.go_on",
)  # fmt: off


def a_file(path: Path, **changes: object) -> OpenedFile:
    found = OpenedFile(path, 2_048, "Tales 5M", 21, "", "a <b>note</b>", "2026-01-02T03:04:05Z", "KV Loupe 1")
    return replace(found, **changes)


def opened(shell: Shell, engine: FakeEngine, path: Path, **changes: object) -> None:
    assert engine.status.model is not None
    engine.status = replace(engine.status, opened=a_file(path, **changes), running=False)
    engine.emit(StateChanged(engine.status))
    turn(shell)


def test_the_strip_says_which_file_it_is_and_leads_on(running: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    strip = running.window.opened
    assert not strip.isVisible()
    opened(running, engine, tmp_path / "a.safetensors")
    assert strip.isVisible()
    assert strip.words.text() == "Opened file: a.safetensors, read-only · Tales 5M · steps 0–20 · 2.0 KiB"
    assert "&lt;b&gt;note" in strip.words.toolTip()
    engine.sent.clear()
    button(strip, "Go on with the model").click()
    assert engine.sent == [Continue(ModelSpec())]
    engine.status = replace(engine.status, opened=None)
    engine.emit(StateChanged(engine.status))
    turn(running)
    assert not strip.isVisible()


def test_steps_asked_for_while_a_file_is_gone_on_with_are_its_own(
    running: Shell, engine: FakeEngine, tmp_path: Path
) -> None:
    running.window.prompt.edit.setFocus()
    opened(running, engine, tmp_path / "a.safetensors")
    QTest.mouseClick(button(running.window.opened, "Go on with the model"), Qt.MouseButton.LeftButton)
    engine.status = replace(engine.status, work=Work("Loading", 3, 9, is_loading=True))
    engine.emit(StateChanged(engine.status))
    turn(running)
    for _ in range(2):
        running.actions["run.step"].trigger()
    assert running.models.status.notice == "As soon as the model is loaded, 2 steps will be taken"
    assert not engine.of(Step)
    engine.status = replace(engine.status, opened=None, work=None)
    engine.emit(StateChanged(engine.status))
    turn(running)
    assert engine.of(Step) == [Step(2)]
    assert not engine.of(SubmitPrompt), "the prompt in the editor is another sequence"
    assert running.window.focusWidget() is running.window.prompt.edit, (
        "the strip is gone, and what had the focus has it"
    )


def test_what_needs_a_forward_is_greyed_with_the_reason(running: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    actions = running.window.actions_
    assert actions["run.step"].isEnabled()
    assert not actions["snapshot.continue"].isEnabled()
    running.window.prompt.refuse(Failed("This model has no tokenizer."))
    assert running.window.prompt.detail.text() == "This model has no tokenizer."
    opened(running, engine, tmp_path / "a.safetensors")
    assert {name: actions.reason(name) for name in NEEDS_MODEL} == dict.fromkeys(NEEDS_MODEL, REASON)
    assert not any(actions[name].isEnabled() for name in NEEDS_MODEL)
    assert actions["view.layer_down"].isEnabled()
    assert actions["export"].isEnabled(), "a part of it needs no model"
    assert actions["snapshot.continue"].isEnabled()
    assert not running.window.top.cache.isEnabled()
    assert REASON in running.window.top.cache.toolTip()
    running.window.prompt.refuse(Failed("This file has no tokenizer."))
    assert "no tokenizer" not in running.window.prompt.detail.text(), "nobody counted the draft"
    engine.status = replace(engine.status, opened=None)
    engine.emit(StateChanged(engine.status))
    turn(running)
    assert running.window.top.cache.isEnabled()
    assert actions["run.step"].isEnabled()


def test_a_file_that_cannot_be_continued_says_why(running: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    opened(running, engine, tmp_path / "a.safetensors", why_not="not all layers were written", num_steps=0)
    strip = running.window.opened
    assert strip.words.text().endswith(
        "no recorded steps · 2.0 KiB · cannot be gone on from: not all layers were written"
    )
    assert not button(strip, "Go on with the model").isEnabled()
    assert running.window.actions_.reason("snapshot.continue") == "not all layers were written"


def of_another_model(engine: FakeEngine, source: str = "elsewhere", fingerprint: str = "another") -> None:
    assert engine.status.model is not None
    model = replace(engine.status.model, source=source, fingerprint=fingerprint)
    engine.status = replace(engine.status, model=model)


def test_no_name_in_a_file_leads_to_a_model(running: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    of_another_model(engine)
    menu = opened_menu(running.window.top.model)
    menu.close()
    for name in ("/evil", "~/evil", "evil/model", "\\\\host\\share/x", "../x", "bundled", ""):
        opened(running, engine, tmp_path / "a.safetensors", model=name)
        engine.sent.clear()
        running.models.status.notify("")
        assert not menu.isVisible()
        button(running.window.opened, "Go on with the model").click()
        assert not engine.of(Continue), name
        assert not engine.of(LoadModel), name
        assert menu.isVisible(), name
        assert "decoding goes on where it fits" in running.models.status.notice, name
        menu.close()


def test_a_model_that_was_loaded_before_is_known_by_its_fingerprint(
    shell: Shell, engine: FakeEngine, tmp_path: Path
) -> None:
    for source, fingerprint in (("/models/a", "aa"), ("/models/b", "bb")):
        of_another_model(engine, source, fingerprint)
        engine.emit(StateChanged(engine.status))
        turn(shell)
    of_another_model(engine, "", "aa")
    opened(shell, engine, tmp_path / "a.safetensors", model="/evil")
    engine.sent.clear()
    shell.intents.on_loading_chosen(ModelSpec("/models/b", "float16", "cpu", num_threads=1, weights="int8"))
    engine.sent.clear()
    shell.intents.on_continued()
    there = ModelSpec("/models/a", "auto", "cpu", num_threads=1, weights="int8")
    assert engine.of(Continue) == [Continue(there)], "on the device that was chosen, in the numbers of the file"


def test_the_bundled_model_is_known_by_its_name(shell: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    of_another_model(engine)
    opened(shell, engine, tmp_path / "a.safetensors", model="Tales 5M")
    shell.intents.on_continued()
    assert engine.of(Continue) == [Continue(ModelSpec())]


def test_a_cache_of_another_program_is_not_called_growing(running: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    top = running.window.top.cache
    assert "lossless" in top.accessibleName()
    opened(running, engine, tmp_path / "a.safetensors", foreign_cache="DynamicCache")
    assert top.accessibleName() == "Cache: DynamicCache, as the file calls it"
    assert "lossless" not in top.toolTip()
    said = running.window.panels["pages"].read()  # type: ignore[attr-defined]
    assert said == "The file does not say whether this cache had pages."
    assert not top.isEnabled()
    engine.status = replace(engine.status, opened=None)
    engine.emit(StateChanged(engine.status))
    turn(running)
    assert "lossless" in top.accessibleName()


def test_facts_that_a_file_lacks_are_called_missing_in_the_file(
    running: Shell, engine: FakeEngine, tmp_path: Path
) -> None:
    opened(running, engine, tmp_path / "a.safetensors")
    record = running.models.timeline.latest
    assert record is not None
    bare = replace(
        record,
        step=record.step + 1,
        timings=Timings(0.0, 0.0, 0.0, 0.0),
        sequences=tuple(replace(part, candidates=(), stop=None) for part in record.sequences),
    )
    engine.emit(bare)
    turn(running)
    panels = running.window.panels
    assert panels["next_token"].read() == "The file does not say what could have followed."  # type: ignore[attr-defined]
    assert panels["timings"].read() == "No times are in this file: nothing of its steps was recorded."  # type: ignore[attr-defined]


def test_the_file_can_be_closed(running: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    assert running.window.actions_.reason("snapshot.close") == "no file is open"
    opened(running, engine, tmp_path / "a.safetensors", why_not="not all layers were written")
    close = button(running.window.opened, "Close file")
    assert close.isEnabled()
    engine.sent.clear()
    close.click()
    assert engine.sent == [CloseSnapshot(ModelSpec())]


def test_what_was_opened_is_remembered_and_offered(shell: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    recent = shell.window.recent
    assert not recent.isEnabled()
    for name in ("a & b.safetensors", "c.safetensors"):
        opened(shell, engine, tmp_path / name)
    assert [action.text() for action in recent.actions()] == ["c.safetensors", "a && b.safetensors"]
    assert shell.settings.recent_models == []
    assert shell.window.windowTitle() == "c.safetensors — KV Loupe"
    recent.actions()[1].trigger()
    assert engine.sent[-1:] == [OpenSnapshot(tmp_path / "a & b.safetensors")]
    path = tmp_path / "settings.ini"
    shell.settings.save(path)
    assert Settings.load(path).recent_snapshots == [
        str(tmp_path / "c.safetensors"),
        str(tmp_path / "a & b.safetensors"),
    ]


def test_after_the_engines_death_the_file_is_opened_again_without_any_step(
    running: Shell, engine: FakeEngine, tmp_path: Path
) -> None:
    opened(running, engine, tmp_path / "a.safetensors")
    engine.emit(EngineLost("The engine was killed"))
    turn(running)
    engine.sent.clear()
    running.controller.replay()
    assert engine.sent == []
    assert running.models.status.notice == "The engine begins again: the file is opened once more"


def test_an_opened_session_shows_no_numbers_that_were_not_measured(
    running: Shell, engine: FakeEngine, tmp_path: Path
) -> None:
    window, models = running.window, running.models
    assert any(told.startswith("KV ") for told in texts_in(window.status))
    engine.status = replace(engine.status, cache=cache_preset("paged").spec)
    opened(running, engine, tmp_path / "a.session.json", has_rows=False)
    for name, what in (("bytes", "byte counts"), ("pages", "page tables"), ("timings", "times")):
        panel = window.panels[name]
        why = f"A session file has no {what}: go on with its model to compute them."
        assert panel.read() == why, name
    assert not any(told.startswith("KV ") for told in texts_in(window.status))
    assert node_lines(models, 3)[0].endswith(" ms")
    part = replace(models.timeline.records[3].sequences[0], stop="non-finite logits")
    assert "chose" in node_lines(models, 3)[0]
    models.history.replace(replace(models.timeline.records[3], sequences=(part,)))
    assert "chose" not in node_lines(models, 3)[0]
    models.history.replace(replace(models.timeline.records[3], timings=Timings(0.0, 0.0, 0.0, 0.0)))
    assert not node_lines(models, 3)[0].endswith(" ms")
    records = [replace(record, timings=Timings(0.0, 0.0, 0.0, 0.0)) for record in models.timeline.records]
    models.timeline.clear()
    models.timeline.append(records)
    assert rates(models.timeline, models.pictures, 0).first_token_ms is None


def test_the_selection_saved_in_a_snapshot_is_restored(running: Shell, engine: FakeEngine, tmp_path: Path) -> None:
    """A window that opens the snapshot begins with the selection of the window that wrote it."""
    models = running.models
    models.selection.update(layer=1, kv_head=1, position=2, lens="values", change=True)
    running.window.arrange("truth")
    view = view_text(models, running.window.docks.arrangement)
    models.selection.update(layer=0, kv_head=0, position=None, lens="keys", change=False)
    running.window.arrange("learn")
    opened(running, engine, tmp_path / "a.safetensors")
    for bad in (
        '{"selection": {"layer": 99}}',
        '{"selection": {"step": 99, "layer": -1}}',
        '{"selection": {"position": 4000000}}',
        '{"selection": 7, "layout": 3}',
    ):
        engine.emit(SessionOpened("", SamplingParams(), view=bad))
        turn(running)
        assert (models.selection.now.layer, models.selection.now.position) == (0, None)
        assert running.window.docks.layout_name == "learn"
    told = models.status.now
    assert told is not None
    short = replace(told.sequences[0], seq_id=9, num_tokens=1)  # another one that has no such position
    engine.emit(StateChanged(replace(told, sequences=(*told.sequences, short))))
    turn(running)
    engine.emit(SessionOpened("", SamplingParams(), view=view))
    turn(running)
    now = models.selection.now
    assert (now.layer, now.kv_head, now.position, now.lens, now.change) == (1, 1, 2, "values", True)
    assert running.window.docks.layout_name == "truth"


def test_what_was_restored_is_told_although_a_dragged_area_is_selected_again(
    running: Shell, engine: FakeEngine
) -> None:
    models, note = running.models, running.window.status.note
    models.selection.update(area=Rows(1, 3))
    assert note.text().startswith("Selected: positions 1")
    view = view_text(models, running.window.docks.arrangement)
    models.selection.update(position=None)
    engine.emit(WentTo(models.timeline.tip, "restored as it was", 12.0), SessionOpened("", SamplingParams(), view=view))
    turn(running)
    assert models.selection.now.area == Rows(1, 3)
    assert "restored as it was" in note.text()
