"""What every cache mode would take on models of every kind: compared with what was approved (see `tests.engine.told`).
Bytes are held to real caches in `test_bytes`; here every bound and every refusal is."""

from __future__ import annotations

from pathlib import Path

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.predict.bytes import (
    Budget,
    BudgetSpec,
    Fill,
    budget_of,
    page_bytes,
    predict,
    tokens_that_fit,
    why_no_sharing,
)
from engine.predict.capacity import cache_capacity, most_tokens, pool_pages, tokens_at_once
from engine.spec.cache import CacheSpec, cache_name
from tests.engine.geometry.tiny_configs import TINY
from tests.engine.spec.modes import BY_LAYER, MODES
from tests.engine.tiny import config_dict
from tests.engine.told import approve

FILLS = (
    Fill(1, None),
    Fill(70, None),
    Fill(1, 1),
    Fill(17, 16),
    Fill(33, 30),
    Fill(64, 40),
    Fill(65, 40),
    Fill(130, 90),
)


def geometries() -> dict[str, CacheGeometry]:
    names = ("llama", "falcon", "mistral", "gemma3_text", "deepseek_v3", "lfm2", "t5", "bart")
    found = {name: CacheGeometry.from_config(config_dict(name)) for name in names}
    shared = {**TINY["gemma3n_text"][0], "model_type": "gemma3n_text"}
    indexed = {**TINY["deepseek_v32"][0], "model_type": "deepseek_v32"}
    wide = {"model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
            "head_dim": 64, "hidden_size": 48, "vocab_size": 128, "max_position_embeddings": 6000}  # fmt: skip
    others = {"shared": shared, "indexed": indexed, "wide": wide}
    return found | {name: CacheGeometry.from_config(config) for name, config in others.items()}


def taken(spec: CacheSpec, geometry: CacheGeometry, dtype: str) -> str:
    """Rows, bytes stored by kind, and bytes reserved of every layer together, at every length; and the capacities."""
    try:
        found = [predict(spec, geometry, fill, dtype) for fill in FILLS]
        stored = [
            " ".join(
                str(sum(column))
                for column in zip(
                    *((n.rows, n.stored.codes, n.stored.scales, n.stored.exact, n.reserved) for n in needs), strict=True
                )
            )
            for needs in found
        ]
        limit = geometry.max_length or 2048
        more = sum(need.one_more for need in found[0])
        numbers = [more, most_tokens(spec, geometry), cache_capacity(spec, limit, geometry), *[
            pool_pages(spec, limit), page_bytes(spec, geometry, dtype), tokens_at_once(spec, limit, geometry),
        ] * spec.is_paged]  # fmt: skip
    except InputError as refusal:
        return f"refused: {refusal}"
    return f"{' '.join(map(str, numbers))} | {' | '.join(stored)}{'; ' * spec.is_paged}" + (
        why_no_sharing(spec, geometry) if spec.is_paged else ""
    )


def test_modes_and_their_bytes_are_as_approved() -> None:
    lines, models = [], geometries()
    for name, spec in MODES.items():
        found = {model: taken(spec, geometry, "bfloat16") for model, geometry in models.items()}
        refused = [f"   {model}: {words}" for model, words in found.items() if words.startswith("refused")]
        lines += [f"{name}, {cache_name(spec)}: {' || '.join(found.values())}", *refused]
    lines += [f"float32 {model}: {taken(CacheSpec(codec=BY_LAYER), g, 'float32')}" for model, g in models.items()]
    approve(Path(__file__).parent / "approved" / "modes.txt", lines)


BUDGETED = ("llama", "gemma3_text", "deepseek_v3", "lfm2", "t5", "wide")  # a model for each kind of layer
BUDGETS = ("dynamic", "static", "paged", "offloaded", "kivi-2", "streamingllm", "pyramid", "by layer", "small pages")


def test_budgets_and_what_fits_are_as_approved() -> None:
    """Of a batch of three, by kind of layer, and the tokens for which a memory has room."""
    lines = []
    for name in BUDGETS:
        for model, geometry in ((model, each) for model, each in geometries().items() if model in BUDGETED):
            asked = BudgetSpec(MODES[name], 70, 3, prompt=40)
            try:
                found = budget_of(geometry, asked)
                fit = [tokens_that_fit(geometry, asked, memory) for memory in (0, 9_000, 300_000, 10**10, 10**18)]
            except InputError as refusal:
                lines.append(f"{name}, {model}: {refusal}")
                continue
            lines += [f"{name}, {model}: {_numbers(found)}; fit {fit}", *(f"   {kind}" for kind in found.kinds)]
    approve(Path(__file__).parent / "approved" / "budgets.txt", lines)


def _numbers(found: Budget) -> str:
    names = (
        "bytes_per_token", "stored_bytes_per_sequence", "reserved_bytes_per_sequence", "state_bytes_per_sequence",
        "bytes_per_sequence", "total_bytes", "pool_bytes", "host_bytes",
    )  # fmt: skip
    return " ".join(str(getattr(found, name)) for name in names)
