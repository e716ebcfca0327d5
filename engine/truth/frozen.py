"""A session's newest forward, repeated on a copy of its cache: the live cache is read and never written."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.cache.adapter import HeldRows, SequenceCache
from engine.cache.attention_probe import Probe
from engine.cache.compact import CompactCache
from engine.cache.rotary import turner_of
from engine.codec_spec import CodecSpec, LayerCoding
from engine.config import CacheSpec
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session import Session


@dataclass(frozen=True, eq=False)
class Frozen:
    """The moment before the newest token of a sequence was fed: the rows of all layers without that token's own, the
    token, and the attention it paid, `[H, S]` a layer, where that was recorded."""

    model: LoadedModel
    seq_id: int
    rows: dict[int, HeldRows]
    token_id: int
    num_tokens: int
    num_prompt_tokens: int
    attention: dict[int, torch.Tensor]


def freeze(session: Session, seq_id: int) -> Frozen:
    """The newest forward of a sequence, ready to be repeated; refused where its rows are not all there."""
    sequence, cache = session.sequence(seq_id), session.cache_of(seq_id)
    count = sequence.num_tokens
    if count < 2:
        raise InputError("There is nothing to try yet: a sequence needs two tokens in its cache.")
    geometry = session.model.info.geometry
    if any(layer.kind == "linear" or layer.state_elements for layer in geometry.layers):
        raise InputError("A recurrent state cannot be tried with other rows: this needs a model of attention alone.")
    rows: dict[int, HeldRows] = {}
    for layer in geometry.attention_layers:
        held = cache.rows(layer.index)
        if held is None or held.first:
            raise InputError("Some layers have let go of their first rows: use the growing cache for this.")
        if held.positions is not None:
            raise InputError(
                "This cache has dropped rows: what they would change is gone. Use a cache that keeps them."
            )
        rows[layer.index] = HeldRows(held.keys[:, :, : count - 1], held.values[:, :, : count - 1], 0)
    attention = session.newest_attention(seq_id)
    token = sequence.token_ids[count - 1]
    return Frozen(session.model, seq_id, rows, token, count, sequence.num_prompt_tokens, attention)


@torch.inference_mode()
def exact_logits(frozen: Frozen, probe: Probe | None = None) -> torch.Tensor:
    """Next-token logits `[V]` from the rows as they are: what every alternative is compared with."""
    return refed(
        frozen, filled(frozen, SequenceCache(CacheSpec(), frozen.model.model.config, frozen.num_tokens)), probe
    )


def filled(frozen: Frozen, cache: SequenceCache) -> SequenceCache:
    for index, rows in frozen.rows.items():
        cache.live.update(rows.keys, rows.values, index)
    cache.num_tokens = frozen.num_tokens - 1
    return cache


@torch.inference_mode()
def tried(frozen: Frozen, spec: CacheSpec) -> CompactCache:
    """A scratch cache of another codec or rule, holding the frozen rows as it would."""
    geometry, info = frozen.model.info.geometry, frozen.model.info
    if spec.layout != "growing":
        raise InputError(
            "Only codecs and rules that drop rows can be tried on the frozen cache: other layouts are exact."
        )
    spec.codec.check(geometry)
    spec.retention.check(geometry, info.captures_attention)
    turner = turner_of(frozen.model.model) if spec.retention.rerotate else None
    cache = CompactCache(spec, frozen.model.model.config, frozen.num_tokens, frozen.seq_id, turner)
    filled(frozen, cache)
    cache.condense(frozen.num_tokens - 1, frozen.num_tokens - 1, watched(frozen, cache))
    return cache


def watched(frozen: Frozen, cache: CompactCache) -> Probe | None:
    """What the rule would have seen of attention: the newest recorded row stands for all, since no more is kept."""
    if cache.rule is None or not cache.spec.retention.needs_weights:
        return None
    if not frozen.attention:
        raise InputError("This rule reads attention and none was recorded: step once, then try it.")
    probe = Probe()
    for index, row in frozen.attention.items():
        weights = row[None, :, : frozen.num_tokens - 1]
        probe.weights[index], probe.sums[index], probe.latest[index] = weights, weights, weights[:, :, None]
    return probe


@torch.inference_mode()
def refed(frozen: Frozen, cache: SequenceCache, probe: Probe | None = None) -> torch.Tensor:
    """Next-token logits `[V]` after feeding the newest token to a scratch cache."""
    ids = torch.tensor([[frozen.token_id]], device=frozen.model.device)
    return frozen.model.forward(ids, cache.live, probe)[0, -1].float()


def only_layer(codec: CodecSpec, layer: int) -> CodecSpec:
    """A codec in one layer, every other exact."""
    keys, values = codec.at(layer)
    return CodecSpec(layers=(LayerCoding(layer, keys, values),))


def divergence(before: torch.Tensor, after: torch.Tensor) -> float:
    """KL(before || after) in nats of two rows of logits."""
    expected, found = before.log_softmax(-1), after.log_softmax(-1)
    kl = torch.nn.functional.kl_div(found, expected, log_target=True, reduction="none")
    return max(0.0, float(kl.nan_to_num(0.0).sum()))  # a padded vocabulary has -inf on both sides
