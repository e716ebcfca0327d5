"""The two selectors of the top bar."""

from __future__ import annotations

from app.shell import Shell
from engine.spec.model import ModelSpec
from engine.spec.presets import cache_preset
from engine.wire.commands import LoadModel, SetCache
from engine.wire.events import LocalModel
from tests.app.fake_engine import FakeEngine


def test_found_and_recent_models_can_be_chosen(shell: Shell, engine: FakeEngine) -> None:
    selector = shell.window.top.model
    selector.set_recent(["/models/<b>&one"])
    selector.set_found((LocalModel("org/two", "org/two", "LlamaForCausalLM", 1 << 28, 23_040),))
    selector.offer()
    found = [action for action in selector._menu.actions() if isinstance(action.data(), ModelSpec)]
    assert [action.data().source for action in found] == ["/models/<b>&one", "org/two"]
    late = LocalModel("org/three", "org/three", "LlamaForCausalLM", 1 << 28, None)
    selector.set_found((late, LocalModel("org/two", "org/two", "LlamaForCausalLM", 1 << 28, 23_040)))
    found = [action for action in selector._menu.actions() if isinstance(action.data(), ModelSpec)]
    assert [action.data().source for action in found] == ["/models/<b>&one", "org/three", "org/two"], (
        "what is found while the menu is open is in it"
    )
    selector._menu.close()
    found[2].trigger()
    assert engine.of(LoadModel)[0].model == ModelSpec("org/two")


def test_caches_can_be_chosen_by_menu_and_by_action(running: Shell, engine: FakeEngine) -> None:
    running.window.actions_["cache.static"].trigger()
    assert engine.of(SetCache)[-1] == SetCache(cache_preset("static").spec)
    assert running.window.actions_["cache.growing"].isChecked()  # until the engine says otherwise
    assert not running.window.actions_["cache.static"].isChecked()
