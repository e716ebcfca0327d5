"""The two selectors of the top bar."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint
from PySide6.QtGui import QAction, QHelpEvent
from PySide6.QtWidgets import QApplication, QMenu, QToolTip

from app.shell import Shell
from app.window.selectors import BESIDE_WORDS, source_name
from engine.spec.cache import ALL_PRESETS, OPT_IN_PRESETS, cache_label, cache_preset
from engine.spec.model import ModelSpec
from engine.wire.commands import LoadModel, SetCache
from engine.wire.events import LocalModel, StateChanged
from engine.wire.status import Work
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.found import opened_menu
from tests.app.painted import painted

pytestmark = pytest.mark.one_window


def tip_of(entry: QAction, menu: QMenu) -> str:
    """The tool tip that the menu shows over an entry; empty if it shows none."""
    menu.popup(QPoint(0, 0))
    place = menu.actionGeometry(entry).center()
    QToolTip.showText(menu.mapToGlobal(place), "another", menu)  # which is hidden a little later than it is told to
    QApplication.sendEvent(menu, QHelpEvent(QHelpEvent.Type.ToolTip, place, menu.mapToGlobal(place)))
    return QToolTip.text().replace("another", "")


def test_found_and_recent_models_can_be_chosen(shell: Shell, engine: FakeEngine) -> None:
    selector = shell.window.top.model
    selector.set_recent(["/models/<b>&one"])
    selector.set_found((LocalModel("org/two", "org/two", "LlamaForCausalLM", 1 << 28, 23_040),))
    menu = opened_menu(selector)
    found = [action for action in menu.actions() if isinstance(action.data(), ModelSpec)]
    assert [action.data().source for action in found] == ["/models/<b>&one", "org/two"]
    late = LocalModel("org/three", "org/three", "LlamaForCausalLM", 1 << 28, None)
    selector.set_found((late, LocalModel("org/two", "org/two", "LlamaForCausalLM", 1 << 28, 23_040)))
    found = [action for action in menu.actions() if isinstance(action.data(), ModelSpec)]
    assert [action.data().source for action in found] == ["/models/<b>&one", "org/three", "org/two"], (
        "what is found while the menu is open is in it"
    )
    menu.close()
    found[2].trigger()
    assert engine.of(LoadModel)[0].model == ModelSpec("org/two")


def test_only_a_model_that_is_loaded_is_called_so(shell: Shell, engine: FakeEngine) -> None:
    selector = shell.window.top.model
    for work, words in (
        (Work("Opening a.safetensors", 0, None), "No model"),
        (Work("Loading", 0, None, is_loading=True), "Loading model…"),
    ):
        engine.emit(StateChanged(replace(engine.status, model=None, work=work)))
        turn(shell)
        assert any(f"‹{words}›" in line for line in painted(selector))


def test_caches_can_be_chosen_by_menu_and_by_action(running: Shell, engine: FakeEngine) -> None:
    running.window.actions_["cache.static"].trigger()
    assert engine.of(SetCache)[-1] == SetCache(cache_preset("static").spec)
    assert running.window.actions_["cache.growing"].isChecked()  # until the engine reports another
    assert not running.window.actions_["cache.static"].isChecked()


def test_the_menu_of_caches_has_one_for_each_family_where_all_modes_would_lie_over_the_selector(
    dark_theme: None, running: Shell, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    selector = running.window.top.cache
    assert running.window.screen().size().height() == 800
    menu = opened_menu(selector)
    families = [action for action in menu.actions() if action.menu() is not None]
    assert [action.text().split(":")[0] for action in families] == ["Lossless", "Quantised", "Evicting"]
    assert [action.isChecked() for action in families] == [True, False, False]
    assert selector.entries["static"].text() == "Static", "the screen ends beside it"
    menu.close()
    monkeypatch.setattr(type(selector), "_room_beside", lambda _: 700)
    menu = opened_menu(selector)
    whole = "KIVI-4\t4 bits, keys per channel over groups of tokens, values per token, the latest exact."
    assert selector.entries["kivi-4"].text() == whole, "the names of its own family are shorter than the longest"
    menu.close()
    monkeypatch.setattr(type(selector), "_room_beside", lambda _: 560)
    menu = opened_menu(selector)
    widest = max(menu.sizeHint().width() for menu in selector.families.values())
    assert 560 - 64 < widest <= 560 + BESIDE_WORDS
    assert selector.entries["static"].text() == "Static\ttransformers' StaticCache"
    assert selector.entries["kivi-4"].text().startswith("KIVI-4\t4 bits, keys per channel over groups of")
    assert "all room reserved" in tip_of(selector.entries["static"], selector.families["lossless"])
    selector.families["quantised"].actions()[1].trigger()
    assert engine.of(SetCache)[-1] == SetCache(cache_preset("int8").spec), "and it is chosen once"
    assert len(engine.of(SetCache)) == 1
    menu.close()
    monkeypatch.setattr(type(selector), "_room_below", lambda _: 900)
    menu = opened_menu(selector)
    assert {*selector.entries.values()} <= {*menu.actions()}
    assert not tip_of(selector.entries["static"], menu), "it would lie over the modes below, and say what stands there"
    assert "Needs layers with full attention" in tip_of(selector.entries["h2o"], menu)
    menu.close()


def test_the_menu_of_caches_offers_modes_of_a_gpu_to_a_gpu_alone(running: Shell, engine: FakeEngine) -> None:
    selector = running.window.top.cache
    entries = selector.entries
    assert {*entries} == {*ALL_PRESETS}
    for device, is_there in (("cpu", False), ("cuda:1", True)):
        model = replace(engine.status.model, device=device)
        engine.emit(StateChanged(replace(engine.status, model=model)))
        turn(running, 2)
        menu = opened_menu(selector)
        assert {entries[n].isEnabled() for n, mode in OPT_IN_PRESETS.items() if mode.spec.row.needs_cuda} == {is_there}
        assert all(entries[n].isEnabled() for n, mode in ALL_PRESETS.items() if not mode.spec.row.needs_cuda)
        menu.close()
    engine.sent.clear()
    for name in ("h2o", *OPT_IN_PRESETS):
        entries[name].trigger()
    assert engine.of(SetCache) == [SetCache(ALL_PRESETS[name].spec) for name in ("h2o", *OPT_IN_PRESETS)]
    engine.emit(StateChanged(replace(engine.status, cache=cache_preset("h2o").spec)))
    turn(running, 2)
    assert [name for name, entry in entries.items() if entry.isChecked()] == ["h2o"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("bundled", "bundled"),
        ("org/two", "org/two"),
        ("/models/one", "one"),
        ("shape:/models/deep/config.json", "shape of deep"),
        ("shape:/models/deep.json", "shape of deep"),
        ("/models/one+adapter:/loras/two", "one + two"),
        ("shape:/models/deep.json+adapter:/loras/two", "shape of deep + two"),
    ],
)
def test_a_source_is_named_short(source: str, name: str) -> None:
    assert source_name(source) == name


def test_the_name_of_a_mode_is_whole_wherever_there_is_room_for_it(running: Shell, engine: FakeEngine) -> None:
    window, longest = running.window, "transformers-offloaded-static"
    for width, mode in (800, "streamingllm"), (960, longest), (1149, longest), (1150, longest):
        window.resize(width, 700)
        spec = ALL_PRESETS[mode].spec
        engine.emit(StateChanged(replace(engine.status, cache=spec)))
        turn(running, 2)
        name, *_ = (line for line in painted(window.top.cache) if line.startswith("text text"))
        assert f"‹{cache_label(spec)}›" in name, width


def test_a_long_name_is_cut_and_a_detail_gives_way_part_by_part(running: Shell, engine: FakeEngine) -> None:
    selector = running.window.top.model
    for name, is_whole in (("short", True), ("a-name-without-words-" * 9, False)):
        engine.emit(StateChanged(replace(engine.status, model=replace(engine.status.model, name=name))))
        turn(running, 2)
        (told,) = (line for line in painted(selector) if line.startswith("text text"))
        assert (f"‹{name}›" in told) == is_whole
        assert ("…" in told) != is_whole
        assert f"‹{name[:5]}" in told
