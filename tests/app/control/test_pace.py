from __future__ import annotations

import re
from pathlib import Path

from app.control.requests import PACES, USUAL_PACE
from app.shell import Shell
from app.start.settings import Settings
from app.window.bars import PaceButton
from engine.wire.commands import SetPace
from engine.wire.events import Restarted
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine


def test_a_pace_is_sent_marked_named_and_remembered(running: Shell, engine: FakeEngine) -> None:
    for name in PACES:
        running.set_pace("5" if name != "5" else "1")
        engine.sent.clear()
        running.actions[f"pace.{name}"].trigger()
        assert engine.of(SetPace) == [PACES[name].command], name
        assert [other for other in PACES if running.actions[f"pace.{other}"].isChecked()] == [name]
        assert running.window.top.transport.pace.text() == PACES[name].label
        assert PACES[name].tip in running.window.top.transport.pace.toolTip().replace("\n", " ")
        assert running.settings.pace == name


def test_a_pace_says_of_what_it_is_at_every_width(shell: Shell) -> None:
    button = shell.window.top.findChild(PaceButton)
    assert button is not None
    for width in (980, 1280, 1600):
        shell.window.resize(width, 700)
        turn(shell)
        for name, unit in {"1": "token", "5": "tokens", USUAL_PACE: "pictures", "all": "token"}.items():
            shell.set_pace(name)
            assert unit in re.split(r"[ /]", button.text())
            assert unit in button.toolTip()
            assert button.fontMetrics().horizontalAdvance(button.text()) < button.width() - 8, "none of it is cut"


def test_slow_paces_hold_a_run_back_and_the_others_do_not() -> None:
    assert {name: pace.command.steps_per_second for name, pace in PACES.items()} == {
        "1": 1,
        "5": 5,
        USUAL_PACE: None,
        "all": None,
    }


def test_the_usual_pace_names_the_pictures_that_it_asks_for() -> None:
    usual = PACES[USUAL_PACE]
    asked = usual.command.pictures_per_second
    assert asked is not None
    assert (usual.label, usual.text) == (f"{asked:g} pictures/s", f"{asked:g} pictures a second")
    assert f"shown {asked:g} times a second" in usual.tip


def test_an_engine_that_begins_is_told_the_pace(shell: Shell, engine: FakeEngine) -> None:
    shell.set_pace("1")
    assert not engine.of(SetPace)  # nobody is there yet
    engine.loaded()
    engine.emit(Restarted())
    turn(shell)
    assert engine.of(SetPace) == [PACES["1"].command]


def test_the_pace_is_kept_between_runs_and_nonsense_is_not(tmp_path: Path) -> None:
    path = tmp_path / "settings.ini"
    Settings(pace="5").save(path)
    assert Settings.load(path).pace == "5"
    path.write_text(path.read_text().replace("pace=5", "pace=fast"))
    assert Settings.load(path).pace == USUAL_PACE
