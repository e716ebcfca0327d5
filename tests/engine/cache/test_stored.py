"""What caches keep of the same tokens, as it lies in memory: of every codec and rule in the last layer, now and some
tokens ago."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from engine.cache.contract import StoredPart
from engine.cache.sequence_cache import SequenceCache
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_named, tuned
from engine.spec.codec import ROW_OF_NAME, CodecSpec, Coding, uniform
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids
from tests.engine.told import approve, told

PAGES = {"page_size": 4, "num_pages": 40}
MODES: dict[str, tuple[str, CacheSpec]] = {
    **{
        name: ("llama", CacheSpec(codec=uniform(name, 8 if Coding(name).has_groups else None)))
        for name in ROW_OF_NAME
        if "kivi" not in name
    },
    **{name: ("llama", CacheSpec(codec=uniform(name, 16, 16))) for name in ("kivi-8", "kivi-4", "kivi-2")},
    "kivi beside int8": ("llama", CacheSpec(codec=CodecSpec(Coding("kivi-4", 8, 8), Coding("int8")))),
    "h2o": ("llama", tuned(cache_named("h2o+int8"), budget=9, sinks=1)),
    "snapkv": ("llama", tuned(cache_named("snapkv"), budget=9, window=3)),
    "random": ("llama", tuned(cache_named("random"), ratio=0.5)),
    "rotated sinks": ("llama", tuned(cache_named("streamingllm"), sinks=2, window=6, rerotate=True)),
    "pages": ("llama", tuned(cache_named("paged-int8"), **PAGES)),
    "pages of a rule": ("llama", tuned(cache_named("paged+tova"), budget=8, **PAGES)),
    "windows": ("gemma3_text", CacheSpec("dynamic")),
    "pages of windows": ("gemma3_text", tuned(cache_named("paged"), **PAGES)),
    "states": ("lfm2", CacheSpec()),
    "latent": ("deepseek_v3", CacheSpec()),
    "encoder": ("bart", tuned(cache_named("tova"), budget=5)),
    "transformers": ("llama", cache_named("transformers-quantized")),
    "static": ("llama", CacheSpec("static", max_length=40)),
}


def test_what_is_stored_is_told_as_approved() -> None:
    lines: list[str] = []
    for name, (architecture, spec) in MODES.items():
        session = Session(model_of(architecture), spec, prefill_chunk=9)
        session.submit(Prompt(token_ids=prompt_ids(20)))
        session.force(0, prompt_ids(8, seed=2))
        while session.sequence(0).num_tokens < 25:
            session.step()
        lines.append(f"== {name}")
        cache = session.cache_of(0)
        lines += [f"  {line}" for count in (25, 22) for line in of_cache(cache, count)]
        session.close()
    approve(Path(__file__).parent / "approved" / "stored.txt", lines)


def of_cache(cache: SequenceCache, num_tokens: int) -> Iterator[str]:
    found = cache.stored(num_tokens)
    tables = [(table.layers, table.page_size, table.page_ids, table.window) for table in found.tables]
    states = {index: {name: _told(state) for name, state in of.items()} for index, of in found.states.items()}
    yield f"{found.num_tokens}: prompt ended {found.prompt_ended_at} {tables} {states} {found.why_no_states}"
    for index, layer in [*found.layers.items()][-1:]:
        beside = {name: getattr(layer, name) for name in ("positions", "memory", "sinks")}
        words = ", ".join(f"{name} {_told(tensor)}" for name, tensor in beside.items() if tensor is not None)
        yield f"  {index}: {layer.num_rows} rows from {layer.first} of {layer.num_tokens} {layer.why_not} {words}"
        yield from (f"    {part}" for part in map(_part, (layer.keys, layer.values)))


def _part(part: StoredPart) -> str:
    kept = ", ".join(f"{name} {_told(tensor)}" for name, tensor in part.tensors.items())
    return f"{part.codec} {part.num_coded} at {part.quantised_at}: {kept}"


def _told(tensor: torch.Tensor) -> str:
    """Codes as numbers that may round otherwise elsewhere; several in a word by their shape alone."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype == torch.int32:
        return f"{kind} {tuple(tensor.shape)}"
    is_place = tensor.dtype in (torch.int64, torch.bool)
    return f"{kind} {told(tensor.numpy() if is_place else tensor.float().numpy())}"
