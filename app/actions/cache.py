"""The Cache menu: the modes, what they change, and what they cost."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from app.control.actions import Action
from app.control.conditions import needs_model, needs_parameters, needs_steps
from engine.spec.cache import CacheSpec
from engine.spec.presets import FAMILIES, PRESETS, Preset

if TYPE_CHECKING:
    from app.shell import Shell


def _choose(shell: Shell, spec: CacheSpec) -> None:
    shell.window.top.cache.choose(spec)


def _ask_parameters(shell: Shell) -> None:
    from app.dialogs.cache import CacheDialog
    from app.dialogs.pool import PoolDialog

    spec = shell.models.status.cache
    paged = spec.is_paged and spec.retention.keeps_all
    dialog = PoolDialog(spec, shell.models.status.model, shell.window) if paged else CacheDialog(spec, shell.window)
    dialog.chosen.connect(shell.intents.on_cache_chosen)
    dialog.open()


def _open_calculator(shell: Shell) -> None:
    """Not modal: it is used beside the window."""
    from app.dialogs.calculator import Calculator

    sheet = Calculator(shell.models.status.model, shell.models.status.cache, shell.window)
    sheet.told.connect(shell.models.status.notify)
    sheet.show()


def _open_max_parameters(shell: Shell) -> None:
    from app.dialogs.max_params import MaxParams

    if (model := shell.models.status.model) is not None:
        sheet = MaxParams(model, shell.window)
        sheet.told.connect(shell.models.status.notify)
        sheet.show()


def _mode(preset: Preset) -> Action:
    choose = partial(_choose, spec=preset.spec)
    return Action(f"cache.{preset.name}", preset.label, choose, tip=preset.summary, is_check=True)


def _modes(family: str) -> tuple[Action, ...]:
    return tuple(_mode(preset) for preset in PRESETS.values() if preset.family == family)


CACHE = (
    *(_modes(family) for family, _ in FAMILIES),
    (
        Action(
            "cache.tune",
            "Parameters of this cache…",
            _ask_parameters,
            tip="Lengths and sizes of the cache in use",
            needs=needs_parameters,
        ),
    ),
    (
        Action(
            "truth.parity",
            "Check parity",
            lambda shell: shell.window.measure("parity"),
            key="F8",
            tip="Compare the steps taken with the same tokens without a cache, or in the mode the Parity panel names",
            needs=needs_steps,
        ),
        Action(
            "truth.sweep",
            "Measure every cache mode",
            lambda shell: shell.window.measure("sweep"),
            key="Shift+F8",
            tip="Bytes, speed and damage of every mode on the tokens of this prompt",
            needs=needs_steps,
        ),
        Action(
            "truth.regret",
            "Measure policy regret",
            lambda shell: shell.window.measure("evicted"),
            key="Ctrl+F8",
            tip="What removing each row does to the next token, against the score of a rule",
            needs=needs_steps,
        ),
    ),
    (
        Action(
            "cache.calculator",
            "Calculator…",
            _open_calculator,
            key="Ctrl+Shift+B",
            tip="How many bytes a cache takes: any model, context, batch and mode",
        ),
        Action(
            "cache.max",
            "MAX parameters…",
            _open_max_parameters,
            key="Ctrl+Shift+M",
            tip="The KVCacheParams of MAX for the loaded model",
            needs=needs_model,
        ),
    ),
)
