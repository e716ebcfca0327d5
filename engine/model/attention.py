"""The attention function that every model in transformers' registry runs through, and the recording of attention
weights.

It computes what transformers computes, and also keeps the newest query's weights, one row per head, without ever
building the full matrix. For a single query the weights are a by-product of the computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import create_position_bias_mask, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from engine.cache.attention_probe import NewestQuery, Probe, upcast, upcast_on_cpu
from engine.cache.contract import Pair
from engine.cache.part_timer import timed
from engine.device import to_device
from engine.model.batch import AttentionArguments, Batch

NAME = "kvloupe"
LONG_CONTEXT = 512  # rows; beyond these a single query is computed by explicit weights
COPIED_ROWS = 512  # rows in one piece where K and V have to be copied for a product
NO_LAYER = -1  # layer index of attention without a cache: that of an encoder
Rows = torch.Tensor | Sequence[torch.Tensor]  # `[B, H_kv, S, D]`, or several such pieces, consecutive in S
WEIGHT_BYTES = 64 << 20  # of explicit weights computed at once; up to three copies of them exist meanwhile


def register() -> None:
    """Register the function with transformers under `NAME`; harmless when repeated.

    The mask function must be registered under the same name, else transformers passes no mask at all and padding and
    sliding windows are silently ignored.
    """
    AttentionInterface.register(NAME, attention_of_module)
    AttentionMaskInterface.register(NAME, mask_of_padding)


def mask_of_padding(
    *sizes: Any, attention_mask: torch.Tensor | None = None, allow_is_causal_skip: bool = True, **kwargs: Any
) -> torch.Tensor | None:
    """`sdpa_mask`, except that a given padding mask is never skipped. transformers reads all of it to find out whether
    it hides anything, for which a GPU would be waited for at every step; here padding is only given if it does."""
    can_skip = allow_is_causal_skip and attention_mask is None
    return sdpa_mask(*sizes, attention_mask=attention_mask, allow_is_causal_skip=can_skip, **kwargs)  # type: ignore[no-any-return]


def attention_of_module(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    batch: Batch | None = None,
    **named: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer: `attention`, with the `batch` that is forwarded. `named` are the other
    arguments of an attention function, as transformers names them."""
    if batch is None:
        batch = Batch(query, None)  # a forward that asks for nothing
    elif batch.check is not None:
        batch.check()
    layer, scale = layer_of(module), named.pop("scaling", None)
    named.pop("dropout", None)
    asked = AttentionArguments(
        query.shape[-1] ** -0.5 if scale is None else scale,
        named.pop("softcap", None),
        named.pop("s_aux", None),
        batch.hidden.get(layer),
    )
    probe = batch.probe
    with timed(probe.timer if probe is not None else None, "attention", getattr(module, "layer_idx", None)):
        if batch.pages is not None:
            return batch.pages.read(layer, query, key, asked, probe), None
        return attention(module, query, key, value, mask, asked, None if layer == NO_LAYER else probe, **named), None


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    asked: AttentionArguments,
    probe: Probe | None,
    **named: Any,
) -> torch.Tensor:
    """query `[B, H, T, D]`, key and value `[B, H_kv, S, D]` -> output `[B, T, H, D_v]`. A `position_bias`
    `[1, H, T, S]` among the `named` arguments of transformers is added to the scores.

    transformers' own function computes the output, so that the numbers are transformers' to the last bit. Exceptions,
    computed here by explicit weights, which the probe then gets for free: models with a soft cap or sink logits, which
    that function cannot do, and single queries over long contexts, where it is slow on a CPU.
    """
    scale, softcap, s_aux, hidden = asked
    layer, num_queries = layer_of(module), query.shape[2]
    is_causal = getattr(module, "is_causal", True)
    if mask is None and num_queries > 1 and is_causal:
        # a static cache at its first prefill: the rest of its rows is still empty
        key, value = key[:, :, :num_queries], value[:, :, :num_queries]
    if (position_bias := named.pop("position_bias", None)) is not None:
        bias = position_bias[..., : key.shape[2]]
        mask = create_position_bias_mask(bias, mask, num_queries > 1 and is_causal, query, key)
    is_open = softcap is not None or s_aux is not None
    if mask is None and num_queries > 1 and not is_causal and (is_open or hidden is not None or probe):
        mask = torch.ones(1, 1, num_queries, key.shape[2], dtype=torch.bool, device=key.device)
    if hidden is not None:
        mask = without_hidden(mask, hidden, query, key.shape[2], num_queries if is_causal else 0)
    if is_open or (num_queries == 1 and key.shape[2] > LONG_CONTEXT):
        pieces = weights_in_pieces(query, key, mask, scale, softcap, s_aux)
        read = [weighted_values(weights, value) for weights in record_pieces(pieces, probe, layer)]
        return read[0] if len(read) == 1 else torch.cat(read, 1)
    output: torch.Tensor = sdpa_attention_forward(module, query, key, value, mask, scaling=scale, **named)[0]
    if probe is not None and probe.wants_more:
        count = probe.num_watched(num_queries)
        last = None if mask is None else mask[:, :, -count:]
        for _ in record_pieces(weights_in_pieces(query[:, :, -count:], key, last, scale, None, None), probe, layer):
            pass
    elif probe is not None:
        newest = None if mask is None else mask[:, :, -1]
        probe.seen[layer] = NewestQuery(query.select(2, -1), key, newest, scale)
    return output


def without_hidden(
    mask: torch.Tensor | None, hidden: torch.Tensor, query: torch.Tensor, columns: int, num_new: int
) -> torch.Tensor:
    """The mask `[B, H, T, S]` that also excludes `hidden` `[H_kv, R]` rows, those held before the new ones. A window
    that has slid has fewer columns than there were rows: the latest ones."""
    heads, queries = query.shape[1], query.shape[2]
    gone = max(0, hidden.shape[1] + num_new - columns)
    hidden = hidden[:, gone:].to(query.device)
    hides = torch.nn.functional.pad(hidden, (0, columns - hidden.shape[1]))
    hides = hides.repeat_interleave(heads // hides.shape[0], 0)[None, :, None]
    if mask is None:
        mask = torch.ones(queries, columns, dtype=torch.bool, device=query.device).tril(columns - queries)[None, None]
    return mask & ~hides if mask.dtype == torch.bool else mask.masked_fill(hides, -torch.inf)


def layer_of(module: torch.nn.Module) -> int:
    """The cache layer whose rows a module's attention reads."""
    layer: int = getattr(module, "cache_layer", None) or module.layer_idx  # type: ignore[assignment]
    return layer


def record_pieces(pieces: Iterable[torch.Tensor], probe: Probe | None, layer: int) -> Iterator[torch.Tensor]:
    """Pass weights on, piece by piece, and record each piece in the probe."""
    for number, weights in enumerate(pieces):
        if probe is not None:
            probe.record(layer, weights, is_first=number == 0)
        yield weights


def weights_in_pieces(
    query: torch.Tensor,
    key: Rows,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> Iterator[torch.Tensor]:
    """Yield weights `[B, H, t, S]` of a few queries at a time: those of a long chunk over a long context take
    gigabytes."""
    batch, heads, queries, _ = query.shape
    tokens = sum(part.shape[2] for part in parts_of(key))
    step = max(1, WEIGHT_BYTES // (4 * batch * heads * tokens))
    for first in range(0, queries, step):
        stop = min(queries, first + step)
        own = None if mask is None else mask[:, :, first:stop]
        yield explicit_weights(query[:, :, first:stop], key, own, scale, softcap, s_aux, queries - stop)


def parts_of(rows: Rows) -> Sequence[torch.Tensor]:
    """The rows as pieces. Where they must be converted for a product, the pieces have a fixed size: copies that grow by
    one row at each step would fragment memory."""
    parts = (rows,) if isinstance(rows, torch.Tensor) else rows
    if upcast_on_cpu(parts[0][:, :, :0]).dtype == parts[0].dtype:
        return parts
    return [piece for part in parts for piece in torch.split(part, COPIED_ROWS, 2)]


def weighted_values(weights: torch.Tensor, value: Rows) -> torch.Tensor:
    """Attention output `[B, T, H, D_v]` for weights `[B, H, T, S]`. Values are read once per kv head: the query heads
    of a group are rows of one product."""
    batch, heads, queries, tokens = weights.shape
    parts = parts_of(value)
    grouped = weights.view(batch, parts[0].shape[1], -1, tokens)
    output, start = None, 0
    for part in map(upcast_on_cpu, parts):
        product = grouped[..., start : start + part.shape[2]].to(part.dtype) @ part
        output = product if output is None else output.add_(product)
        start += part.shape[2]
    assert output is not None, "there are rows"
    read = output.view(batch, heads, queries, output.shape[3]).transpose(1, 2)
    return read.to(parts[0].dtype).contiguous()


def explicit_weights(
    query: torch.Tensor,
    key: Rows,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    s_aux: torch.Tensor | None,
    num_later: int = 0,
) -> torch.Tensor:
    """Attention weights `[B, H, T, S]` in float32. Without a mask, attention is causal, and `num_later` queries of the
    same chunk follow these. With sink logits the rows sum to less than one."""
    batch, heads, queries, dim = query.shape
    parts = parts_of(key)
    kv_heads, tokens = parts[0].shape[1], sum(part.shape[2] for part in parts)
    grouped = upcast(query.reshape(batch, kv_heads, heads // kv_heads * queries, dim))
    products = [grouped @ upcast(part).transpose(2, 3) for part in parts]
    product = products[0] if len(products) == 1 else torch.cat(products, -1)
    scores = product.view(batch, heads, queries, tokens).float().mul_(scale)  # in place: nothing else uses the product
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is None and queries + num_later > 1:
        last = tokens - queries - num_later
        mask = torch.ones(queries, tokens, dtype=torch.bool, device=query.device).tril(last)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if s_aux is None:
        return scores.softmax(-1)
    sinks = s_aux.float().view(1, heads, 1, 1).expand(batch, heads, queries, 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]


# ---- attention of one layer once its new rows are written: over one cache, each sequence's rows, or pages in place --


# attention module, queries [B, H, T, D], new keys and values [B, H_kv, T, D] -> attention output, [B, T, H, D]
Attend = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
# index of a layer, its new keys and values [B, H_kv, 1, D] -> all rows of each sequence, [1, H_kv, S, D]; if these are
# more than LONG_CONTEXT rows, the next sequence's may overwrite them
AppendBySequence = Callable[[int, torch.Tensor, torch.Tensor], Iterable[Pair]]


class RowMask(NamedTuple):
    """Which rows a query reads, `[1, 1, T, S]`: `kept` is true there, `bias` is added to the scores. Both None: causal
    attention."""

    kept: torch.Tensor | None
    bias: torch.Tensor | None

    @classmethod
    def of(cls, mask: torch.Tensor | None, hidden: torch.Tensor) -> RowMask:
        """The mask with a bias that all layers share; in transformers every layer computes its own."""
        if mask is None or hidden.shape[1] == 1:
            return cls(mask, mask)
        return cls(mask, torch.zeros_like(mask, dtype=hidden.dtype).masked_fill_(~mask, -torch.inf))


UNMASKED = RowMask(None, None)


@dataclass(frozen=True, eq=False)
class OneCache:
    """Writes the new rows of one sequence to the cache of a batch, and attends to all its rows. `num_read`: how many of
    them hold tokens, where a single query reads them. The room that a static cache has after these is masked; it is
    left out where it is long, so that a step costs what it reads, and transformers' numbers are not met in any case."""

    batch: Batch
    mask: RowMask
    num_read: int | None = None
    deferred: ClassVar[None] = None  # no outputs are deferred, as `NewestOfChunk` does

    def __call__(self, attn: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        probe, layer = self.batch.probe, attn.layer_idx
        keys, values = self.batch.cache.update(keys, values, layer)
        mask = self.mask
        if self.num_read is not None and keys.shape[2] > max(self.num_read, LONG_CONTEXT):
            keys, values = keys.narrow(2, 0, self.num_read), values.narrow(2, 0, self.num_read)
            mask = UNMASKED
        hidden = self.batch.hidden.get(layer)
        if probe is None or probe.timer is None:
            return attention_output(attn, query, keys, values, mask, probe, hidden)
        with probe.timer.timed("attention", layer):
            return attention_output(attn, query, keys, values, mask, probe, hidden)


@dataclass(frozen=True, eq=False)
class BySequence:
    """Writes the new rows of several sequences, and attends to the rows of each sequence separately: without padding
    and mask. One query per sequence."""

    append: AppendBySequence
    probes: list[Probe] | None

    def __call__(self, attn: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        read = []
        for number, (held_keys, held_values) in enumerate(self.append(attn.layer_idx, keys, values)):
            probe = None if self.probes is None else self.probes[number]
            with timed(probe.timer if probe is not None else None, "attention", attn.layer_idx):
                read.append(attention_output(attn, query.narrow(0, number, 1), held_keys, held_values, UNMASKED, probe))
        return torch.cat(read)


@dataclass(frozen=True, eq=False)
class InPlace:
    """Writes the new rows of one or several sequences to pages, and attends to the pages in place."""

    batch: Batch

    def __call__(self, attn: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        batch, layer = self.batch, attn.layer_idx
        assert batch.pages is not None
        batch.cache.layers[layer].write(keys, values)
        asked = AttentionArguments(attn.scaling, hidden=batch.hidden.get(layer))
        with timed(batch.probe.timer if batch.probe is not None else None, "attention", layer):
            return batch.pages.read(layer, query, keys, asked, batch.probe)


def attention_output(
    attn: Any,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: RowMask,
    probe: Probe | None,
    hidden: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention output `[1, T, H, D]` of queries `[1, H, T, D]`, which do not read `hidden` rows `[H_kv, S]`. Where
    possible, torch's kernel is called directly: without the choice that `attention` makes, and without copying K and V
    for every query head."""
    count, is_long = query.shape[2], keys.shape[2] > LONG_CONTEXT
    is_usual = query.device.type == "cpu" if count > 1 else mask.kept is None
    if not is_usual or hidden is not None or (probe is not None and probe.wants_more):
        asked = AttentionArguments(attn.scaling, hidden=hidden)
        return attention(attn, query, keys, values, mask.kept, asked, probe)
    if count == 1 and is_long:  # as in `attention`
        weights = explicit_weights(query, keys, None, attn.scaling, None, None)
        if probe is not None:
            probe.record(attn.layer_idx, weights)
        return weighted_values(weights, values)
    is_causal = mask.kept is None and count > 1
    if is_causal:  # a static cache at its first prefill: the rest of its rows is still empty
        keys, values = keys[:, :, :count], values[:, :, :count]
    if probe is not None:
        last = None if mask.kept is None else mask.kept[:, :, -1]
        probe.seen[attn.layer_idx] = NewestQuery(query.select(2, -1), keys, last, attn.scaling)
    is_grouped = query.shape[1] != keys.shape[1]
    read = scaled_dot_product_attention(
        query, keys, values, mask.bias, is_causal=is_causal, scale=attn.scaling, enable_gqa=is_grouped
    )
    return read.transpose(1, 2)


def right_aligned(lengths: Sequence[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The padding mask `[B, S + 1]` of right-aligned sequences of these lengths with one more token each, and the
    positions `[B, 1]` of these tokens."""
    positions = to_device(torch.tensor(lengths), device)[:, None]
    columns = torch.arange(max(lengths) + 1, device=device)
    return (columns >= max(lengths) - positions).long(), positions
