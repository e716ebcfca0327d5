"""What speculative decoding changes in MAX's parameters of a KV cache, and what it does not.

Found by comparing the same parameters with it and without it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from engine.max.listing import derived_values
from engine.max.params import KVCacheParams

_SHOWN: Final = 3  # first probe lengths that are listed


@dataclass(frozen=True)
class SpeculativeChanges:
    """`changed`: by MAX's name what the value is without the method and with it; `unchanged`: the names of the values
    that are the same."""

    changed: dict[str, tuple[Any, Any]]
    unchanged: tuple[str, ...]


def query_width(params: KVCacheParams) -> int:
    """Tokens of one sequence in a decode step: 1, and under speculation also the draft tokens that it verifies."""
    return 1 if params.speculative_method is None else 1 + params.num_draft_tokens


def decode_values(params: KVCacheParams, batch: int, length: int) -> dict[str, Any]:
    """The kernel of a decode step, or of a step that verifies drafts, and the lengths at which graphs are captured."""
    width = query_width(params)
    probes = params.graph_capture_probe_cache_lengths(length, width)
    return {
        "resolve_attn_key": asdict(params.resolve_attn_key(batch, width, length)),
        "graph_capture_probe_cache_lengths": {"count": len(probes), "first": probes[:_SHOWN], "last": probes[-1:]},
    }


def speculative_changes(params: KVCacheParams, batch: int, length: int) -> SpeculativeChanges:
    """Compare the parameters with the same ones without a speculative method."""
    plain = replace(params, speculative_method=None, num_draft_tokens=0)
    without, found = _compared(plain, batch, length), _compared(params, batch, length)
    changed = {name: (without.get(name), value) for name, value in found.items() if without.get(name) != value}
    return SpeculativeChanges(changed, tuple(name for name in found if name not in changed))


def _compared(params: KVCacheParams, batch: int, length: int) -> dict[str, Any]:
    return {
        "speculative_method": params.speculative_method,
        "num_draft_tokens": params.num_draft_tokens,
        **decode_values(params, batch, length),
        **derived_values(params),
        **{tensor.name: "a graph input" for tensor in params.get_symbolic_inputs()[0].tensors},
    }
