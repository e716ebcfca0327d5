"""The Cache menu: cache modes, and measurements of what they change and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.actions import dialogs
from app.control.actions import Action
from app.control.conditions import (
    needs_live,
    needs_live_steps,
    needs_model,
    needs_no_file,
    needs_parameters,
    needs_steps,
)
from engine.spec.presets import FAMILIES, PRESETS, Preset

if TYPE_CHECKING:
    from app.shell import Shell


def _mode(preset: Preset) -> Action:
    def choose(shell: Shell) -> None:
        shell.window.top.cache.choose(preset.spec)

    return Action(f"cache.{preset.name}", "", preset.label, preset.summary, choose, needs_no_file, is_check=True)


# fmt: off
CACHE = (
    *(tuple(_mode(preset) for preset in PRESETS.values() if preset.family == family) for family, _ in FAMILIES),
    (
        Action("cache.tune", "", "Parameters of this cache…", "Lengths and sizes of the cache in use",
               dialogs.ask_parameters, needs_parameters),
    ),
    (
        Action("truth.parity", "F8", "Check parity",
               "Compare the steps taken with the same tokens without a cache, or in the mode the Parity panel names",
               lambda shell: shell.window.measure("parity"), needs_live_steps),
        Action("truth.sweep", "Shift+F8", "Measure every cache mode",
               "Bytes, speed and damage of every mode on the tokens of this prompt",
               lambda shell: shell.window.measure("sweep"), needs_live_steps),
        Action("truth.bench", "Ctrl+Shift+F8", "Measure the speed of cache modes",
               "Decode speed, time to the first token and overhead at several contexts, modes taking turns",
               lambda shell: shell.window.measure("bench"), needs_live),
        Action("compare.with", "", "Compare with…",
               "The same tokens in another mode or dtype, an earlier step or a snapshot, side by side",
               lambda shell: shell.window.compare().choose_opponent(), needs_steps),
        Action("truth.regret", "Ctrl+F8", "Measure policy regret",
               "What removing each row does to the next token, against the score of a rule",
               lambda shell: shell.window.measure("evicted"), needs_live_steps),
    ),
    (
        Action("cache.calculator", "Ctrl+Shift+B", "Calculator…",
               "How many bytes a cache takes: any model, context, batch and mode", dialogs.open_calculator),
        Action("cache.max", "Ctrl+Shift+M", "MAX parameters…", "The KVCacheParams of MAX for the loaded model",
               dialogs.open_max_parameters, needs_model),
    ),
)
