"""The Cache menu: cache modes, and measurements of what they change and cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.actions import dialogs
from app.control.actions import Action, Submenu
from app.control.conditions import (
    needs_live,
    needs_live_steps,
    needs_model,
    needs_no_file,
    needs_parameters,
    needs_steps,
)
from engine.spec.cache import FAMILIES, PRESETS, Family, Preset

if TYPE_CHECKING:
    from app.shell import Shell


# Other words under which the modes of a family are looked for.
FAMILY_WORDS: Mapping[Family, str] = {
    "lossless": "cache mode, lossless, exact",
    "quantised": "quantize, quantise, quantization, quantised, quantising codec, fewer bits, compress, lossy",
    "evicting": "evict, eviction, drop rows, sparse, heavy hitters, compress, cache mode, lossy, retention",
}


def _mode(preset: Preset) -> Action:
    def choose(shell: Shell) -> None:
        shell.window.top.cache.choose(preset.spec)

    return Action(
        f"cache.{preset.name}",
        "",
        preset.label,
        preset.summary,
        choose,
        needs_no_file,
        is_check=True,
        also=FAMILY_WORDS[preset.family],
    )


# fmt: off
CACHE = (
    tuple(
        Submenu(title, (tuple(_mode(preset) for preset in PRESETS.values() if preset.family == family),), "Cache")
        for family, title in FAMILIES
    ),
    (
        Action("cache.tune", "", "Parameters of this cache…", "Lengths and sizes of the cache in use",
               dialogs.ask_parameters, needs_parameters, also="settings, options, tune, configure"),
    ),
    (
        Action("truth.parity", "F8", "Check parity",
               "Compare the steps taken with the same tokens without a cache, or in the mode the Parity panel names",
               lambda shell: shell.window.measure("parity"), needs_live_steps,
               also="exact, correctness, verify, lossless, divergence"),
        Action("truth.sweep", "Shift+F8", "Measure every cache mode",
               "Bytes, speed and damage of every mode on the tokens of this prompt",
               lambda shell: shell.window.measure("sweep"), needs_live_steps,
               also="perplexity, KL, benchmark modes, Pareto, which mode is best, accuracy, agreement"),
        Action("truth.bench", "Ctrl+Shift+F8", "Measure the speed of cache modes",
               "Decode speed and time to the first token at several contexts, modes taking turns",
               lambda shell: shell.window.measure("bench"), needs_live,
               also="benchmark, tokens per second, TTFT, latency, throughput"),
        Action("compare.with", "", "Compare with…",
               "The same tokens in another mode or dtype, an earlier step or a snapshot, side by side",
               lambda shell: shell.window.compare().choose_opponent(), needs_steps,
               also="diff, difference, duel, side by side, versus"),
        Action("truth.regret", "Ctrl+F8", "Leave each row out",
               "What the next token loses (KL) when each row is left out, against the score of an eviction rule",
               lambda shell: shell.window.measure("evicted"), needs_live_steps,
               also="leave one out, regret, importance of rows, ablation, saliency"),
    ),
    (
        Action("cache.calculator", "Ctrl+Shift+B", "Calculator…",
               "How many bytes a cache takes: any model, context, batch and mode", dialogs.open_calculator,
               also="VRAM, GPU memory, how much memory, estimate, fits, plan"),
        Action("cache.max", "Ctrl+Shift+M", "MAX parameters…", "The KVCacheParams of MAX for the loaded model",
               dialogs.open_max_parameters, needs_model, also="Modular, KVCacheParams"),
    ),
)
