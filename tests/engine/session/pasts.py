"""Sessions for tests that look at earlier steps."""

from __future__ import annotations

from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_preset, tuned
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids

SCORED = {"budget": 20, "sinks": 2, "window": 4}
KIVI = {"group": 16, "residual": 16}


SPECS: dict[str, CacheSpec] = {
    "sliding": tuned(cache_preset("sliding").spec, window=12),
    "streamingllm": tuned(cache_preset("streamingllm").spec, sinks=2, window=14),
    "rerotate": tuned(cache_preset("streamingllm").spec, sinks=2, window=14, rerotate=True),
    **{
        name: tuned(cache_preset(name).spec, **SCORED)
        for name in ("h2o", "snapkv", "tova", "knorm", "keydiff", "random")
    },
    "fp8": cache_preset("fp8").spec,
    "int8": cache_preset("int8").spec,
    "kivi-4": tuned(cache_preset("kivi-4").spec, **KIVI),
    "kivi-2": tuned(cache_preset("kivi-2").spec, **KIVI),
}


PROMPT, STEPS = 24, 20


def started(spec: CacheSpec, length: int = PROMPT) -> Session:
    session = Session(model_of("llama"), spec)
    session.submit(Prompt(token_ids=prompt_ids(length)))
    session.step()
    session.force(0, tuple(reversed(prompt_ids(STEPS + 4))))  # greedy might end early
    return session
