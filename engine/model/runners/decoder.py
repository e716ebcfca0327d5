"""A fused forward for decoders with Llama's structure, in a third of transformers' operations.

A small model spends a third of a decode step between its matrix products: on norms, rotations and calls of modules. A
prompt chunk spends it on copies: of K and V for query heads that share them, of masks, of everything that is not
changed in place. The arithmetic here is the same, and rounds every number where transformers rounds it, so that logits,
K and V are equal to the last bit; this is tested on each model when it is loaded (`trial_forwards`). For several
sequences the next tokens share the matrix products, and each attends to its own rows, without padding. Models with
another structure go through transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from operator import attrgetter, contains, eq, is_, itemgetter
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear
from torch.nn.modules import module as modules_of_torch
from transformers.masking_utils import create_causal_mask

from engine.cache.paged.rows import GatherBuffer
from engine.cache.part_timer import timed
from engine.device import to_device
from engine.model.attention import (
    LONG_CONTEXT,
    UNMASKED,
    AppendBySequence,
    Attend,
    BySequence,
    InPlace,
    OneCache,
    RowMask,
    attention_output,
)
from engine.model.batch import Batch

MIN_DEFERRED_PRODUCTS = 5 * 10**8  # fewer multiplications, some 50 ms of one core, are not deferred
MOST_COPIED = 4  # limit for K and V that must be copied for it, as a multiple of the numbers in the layer's input


@dataclass(frozen=True, eq=False)
class DeferredOutputs:
    """The last layer's output `[1, T, hidden]` for a chunk, computed on request from the layer's input `hidden`, its
    queries, and K and V `[1, H_kv, S, D]` as they were then."""

    block: Block
    hidden: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.hidden.nbytes + self.queries.nbytes + self.keys.nbytes + self.values.nbytes

    @property
    def shape(self) -> torch.Size:
        return self.hidden.shape

    def clone(self) -> DeferredOutputs:
        """A copy that stays valid while the cache, to which K and V belong, is changed by later steps."""
        return replace(self, keys=self.keys.clone(), values=self.values.clone())

    def narrow(self, dim: int, start: int, length: int) -> torch.Tensor:
        """Compute the outputs of `length` tokens from `start` on, `[1, length, hidden]`."""
        hidden, queries = self.hidden.narrow(dim, start, length), self.queries.narrow(2, start, length)
        stop = self.keys.shape[2] - self.shape[1] + start + length
        rows = torch.arange(stop, device=hidden.device)
        mask = RowMask.of((rows <= rows[stop - length :, None])[None, None], hidden)
        keys, values = self.keys[:, :, :stop], self.values[:, :, :stop]
        return self.block.after_attention(
            hidden, attention_output(self.block.attention, queries, keys, values, mask, None)
        )


@dataclass(eq=False)
class NewestOfChunk:
    """Attends as `others` does, but in the `last` layer only for the newest query; `deferred` then computes the outputs
    of all. `num_tokens` includes the chunk: a static cache has empty rows after these."""

    others: OneCache
    last: Block
    num_tokens: int
    deferred: DeferredOutputs | None = None
    hidden: torch.Tensor | None = None  # the last layer's input, once that is its turn

    @classmethod
    def of(cls, others: OneCache, last: Block, shape: torch.Size, least_products: int) -> NewestOfChunk | OneCache:
        """For a chunk of this shape `[1, T, hidden]`; returns `others` itself where deferring is not worth it: at most
        `least_products` multiplications, or too much to copy. The decision must depend only on sizes and on what is
        asked of attention, because both ways round differently."""
        _, count, size = shape
        batch = others.batch
        num_tokens = batch.starts[0] + count
        is_long = count > 1 and count * last.num_deferrable_products > least_products
        if not is_long or 2 * num_tokens * last.num_cached > MOST_COPIED * count * size:
            return others
        is_plain = not batch.hidden and not (batch.probe and batch.probe.wants_more)
        return cls(others, last, num_tokens) if is_plain else others

    def __call__(self, attn: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if self.hidden is None:
            return self.others(attn, query, keys, values)
        held_keys, held_values = self.others.batch.cache.update(keys, values, attn.layer_idx)
        held_keys, held_values = held_keys[:, :, : self.num_tokens], held_values[:, :, : self.num_tokens]
        self.deferred = DeferredOutputs(self.last, self.hidden, query, held_keys, held_values)
        probe = self.others.batch.probe
        with timed(probe.timer if probe is not None else None, "attention", attn.layer_idx):
            return attention_output(attn, query[:, :, -1:], held_keys, held_values, UNMASKED, probe)


JOINED_BYTES = 64 << 20  # products of larger matrices take so long that one more call makes no difference
FEW = range(4, 16)  # tokens
PART = 1024  # rows of the weight matrix


def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`linear`, the same to the last bit. For one token each of several sequences, `[B, 1, D]`, a CPU takes twice as
    long for a large matrix as for its parts: a part stays in the processor's caches while it is read again for each
    token."""
    is_slow = rows.shape[0] in FEW and rows.shape[1] == 1 and bias is None and weight.shape[0] > PART
    if not is_slow or torch.compiler.is_compiling() or weight.dtype != torch.float32 or not weight.is_cpu:
        return linear(rows, weight, bias)
    flat, made = rows[:, 0], rows.new_empty(len(rows), len(weight))
    for out, part in zip(made.split(PART, 1), weight.split(PART), strict=True):  # type: ignore[no-untyped-call]
        torch.mm(flat, part.t(), out=out)
    return made[:, None]


class Joined:
    """Several linear layers of one input as one product; their results are concatenated. `views` are the parameters
    that must lie at their `places` in it."""

    def __init__(self, maps: Sequence[nn.Linear], is_joined: bool) -> None:
        self._maps = maps
        biases = [m.bias for m in maps if m.bias is not None]
        is_small = sum(m.weight.nbytes for m in maps) <= JOINED_BYTES
        self._matrix = self._bias = None
        if is_joined and is_small and len(biases) in (0, len(maps)):
            self._matrix = joined([m.weight for m in maps])
            self._bias = joined(biases) if biases else None
        self.views = [*(m.weight for m in maps), *biases]
        self.places = [view.data_ptr() for view in self.views]

    def __call__(self, rows: torch.Tensor, is_in_place: bool) -> torch.Tensor:
        """The results for rows `[B, T, D]`; `is_in_place`: all views are still where they were."""
        if self._matrix is not None and is_in_place:
            return product(rows, self._matrix, self._bias)
        return torch.cat(self.separate(rows), -1)

    def separate(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """The results of the layers as separate tensors."""
        return [product(rows, m.weight, m.bias) for m in self._maps]


@torch.inference_mode(False)  # tensors made in inference mode could not be changed in place outside of it
@torch.no_grad()
def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate parameters of one width into one tensor, of which each parameter becomes a view."""
    whole = torch.cat([part.data for part in parts])
    for part, view in zip(parts, torch.split(whole, [len(part) for part in parts]), strict=True):
        part.data = view
    return whole


HOOKS = tuple(map(itemgetter, ("_forward_hooks", "_forward_pre_hooks")))
GLOBAL_HOOKS = (modules_of_torch._global_forward_hooks, modules_of_torch._global_forward_pre_hooks)


class Guard:
    """Remembers every module of a model with its class, weights and float attributes.

    `is_unchanged` is false once any of them is replaced, removed or added to: a replaced weight or module, an adapter,
    another class or `forward`, a changed epsilon, a hook at any module or at all of them. Weights changed in place are
    the same weights. Only Python objects are compared, which takes less than half a percent of a step.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._own = list(map(vars, self._modules))
        self._classes = list(map(type, self._modules))
        self._kinds: list[Any] = list(set(self._classes))
        self._forwards = [kind.forward for kind in self._kinds]
        self._dicts = [d for m in self._modules for d in (m._parameters, m._modules)]
        self._sizes = list(map(len, self._dicts))
        held = [(d, name, d[name]) for d in self._dicts for name in d]
        self._places, self._names, self._parts = (list(column) for column in zip(*held, strict=True))
        numbers = [(d, name, number) for d in self._own for name, number in d.items() if type(number) is float]
        self._number_places = [place for place, _, _ in numbers]
        self._number_names = [name for _, name, _ in numbers]
        self._numbers = [number for _, _, number in numbers]

    @property
    def is_unchanged(self) -> bool:
        return (
            all(map(is_, map(dict.get, self._places, self._names), self._parts))
            and list(map(len, self._dicts)) == self._sizes
            and list(map(type, self._modules)) == self._classes
            and all(map(is_, map(attrgetter("forward"), self._kinds), self._forwards))
            and all(map(eq, map(dict.get, self._number_places, self._number_names), self._numbers))
            and not any(map(contains, self._own, repeat("forward")))
            and not any(any(map(hooks, self._own)) for hooks in HOOKS)
            and not any(GLOBAL_HOOKS)
        )


PROJECTIONS = frozenset({*(f"self_attn.{x}_proj" for x in "qkvo"), *(f"mlp.{x}_proj" for x in ("gate", "up", "down"))})
NEEDED = frozenset({f"{x}.weight" for x in (*PROJECTIONS, "input_layernorm", "post_attention_layernorm")})
OPTIONAL = frozenset({*(f"{x}.bias" for x in PROJECTIONS), "self_attn.q_norm.weight", "self_attn.k_norm.weight"})
AROUND = frozenset({"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"})


def has_llama_structure(model: nn.Module) -> bool:
    """Whether a model has exactly the modules that are computed here, and no others."""
    layers = getattr(getattr(model, "model", None), "layers", None)
    if not isinstance(layers, nn.ModuleList) or not hasattr(model.model, "rotary_emb"):
        return False
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {n for n in names if not n.startswith("model.layers.")} == AROUND and all(map(is_llama_layer, layers))


def is_llama_layer(layer: nn.Module) -> bool:
    """Whether a layer has exactly the parameters and attributes that are computed here."""
    names = {name for name, _ in layer.named_parameters()}
    if not NEEDED <= names <= NEEDED | OPTIONAL:
        return False
    is_linear = all(type(layer.get_submodule(name)) is nn.Linear for name in PROJECTIONS)
    return is_linear and all(hasattr(layer.self_attn, name) for name in ("head_dim", "scaling", "layer_idx"))


class FusedDecoder:
    """The forward of a model with Llama's structure, layer by layer, without calling its modules.

    It uses the model's own weights, so changes in place are seen. With `is_joined`, matrices that read the same input
    become views of one matrix, in the same memory. If a weight, a module or its `forward` is replaced, the `guard`
    notices it, and the model itself must be called. `takes_chunks`, `takes_batches` and `defers_last_layer` (of a
    long chunk) are set after the respective forwards were tried.
    """

    takes_chunks = takes_batches = defers_last_layer = False

    def __init__(self, model: Any, is_joined: bool = True) -> None:
        body = model.model
        self._config, self._rotary = body.config, body.rotary_emb
        self.embedded = body.embed_tokens  # ids [B, T] -> embeddings [B, T, hidden]
        self._blocks = [Block(layer, is_joined) for layer in body.layers]
        self._norm, self._head = norm_of(body.norm), model.lm_head
        self._turned: Turned | None = None
        self.guard = Guard(model)
        self._weights: list[torch.Tensor] = list(model.parameters())
        joins = [join for block in self._blocks for join in block.joins]
        self._views = [view for join in joins for view in join.views]
        self._places = [place for join in joins for place in join.places]
        self._buffers = [own for module in model.modules() if (own := module._buffers)]

    def takes(self, ids: torch.Tensor) -> bool:
        """Whether ids `[B, T]` can be computed here now: one sequence, or the next tokens of several."""
        can = self.takes_batches if len(ids) > 1 else self.takes_chunks
        return (can or ids.numel() == 1) and 1 in ids.shape and self.guard.is_unchanged

    @property
    def addresses(self) -> tuple[int, ...]:
        """The memory addresses of all weights and buffers. A recorded step reads these addresses, so it must not be
        replayed once they change; a rotary embedding may replace its buffers."""
        buffers = (buffer for own in self._buffers for buffer in own.values() if buffer is not None)
        return tuple(map(torch.Tensor.data_ptr, (*self._weights, *buffers)))

    @property
    def dtype(self) -> torch.dtype:
        return self._weights[0].dtype

    @property
    def device(self) -> torch.device:
        return self._weights[0].device

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The newest logits `[B, 1, V]` of a batch. Its `check` is called before every layer and after the last."""
        deferred: DeferredOutputs | None = None
        if batch.pages is not None:
            hidden = self.embedded(batch.ids)
            hidden = self.run_layers(hidden, self.rotation(hidden, places_of(batch)), InPlace(batch), batch)
        elif batch.lengths is None:
            hidden, deferred = self.outputs(batch, MIN_DEFERRED_PRODUCTS if self.defers_last_layer else None)
        else:
            hidden = self.hidden_by_sequence(batch, append_by_sequence(batch.cache))
        if batch.surprisal is not None:
            batch.surprisal.read(hidden if deferred is None else deferred, self.head, batch.check)
        return self.head(hidden[:, -1:])

    def outputs(
        self, batch: Batch, least_products: int | None = None, start: int | None = None
    ) -> tuple[torch.Tensor, DeferredOutputs | None]:
        """The last layer's output `[1, T, hidden]` for ids `[1, T]`, at positions from `start` on if that is not where
        the cache ends. If more than `least_products` multiplications can be deferred, only the newest token's output,
        and an object that computes the output of all."""
        hidden, first = self.embedded(batch.ids), batch.starts[0] if start is None else start
        is_one, mask = hidden.shape[1] == 1, UNMASKED
        if not is_one or batch.cache is None or batch.cache.is_compileable:  # else one query reads every row
            places = torch.arange(first, first + hidden.shape[1], device=hidden.device)[None]
            mask = RowMask.of(create_causal_mask(self._config, hidden, None, batch.cache, places), hidden)
        one = OneCache(batch, mask, batch.starts[0] + 1 if is_one else None)
        attend: OneCache | NewestOfChunk = one
        if least_products is not None and not is_one:
            attend = NewestOfChunk.of(one, self._blocks[-1], hidden.shape, least_products)
        hidden = self.run_layers(hidden, self._rotation_from(hidden, first), attend, batch)
        return hidden, attend.deferred

    def hidden_by_sequence(self, batch: Batch, append: AppendBySequence) -> torch.Tensor:
        """The last layer's output `[B, 1, hidden]` for the next tokens of several sequences: matrix products for all at
        once, attention for each sequence separately."""
        attend = BySequence(append, batch.probe.split(len(batch.ids)) if batch.probe is not None else None)
        hidden = self.embedded(batch.ids)
        return self.run_layers(hidden, self.rotation(hidden, places_of(batch)), attend, batch)

    def rotation(self, hidden: torch.Tensor, places: torch.Tensor) -> Rotate:
        """Rotates the heads of tokens at positions `places` `[B, T]`, in the dtype of `hidden`."""
        return rotation(*turns_of(*self._rotary(hidden, position_ids=places)))

    def _rotation_from(self, hidden: torch.Tensor, first: int) -> Rotate:
        """Rotates the heads of the tokens `hidden` `[1, T, hidden]`, the first of which is at the position `first`. The
        angles of single tokens are computed for many positions at once, which takes hardly longer than for one."""
        count, kind = hidden.shape[1], getattr(self._rotary, "rope_type", "dynamic")
        if count > 1 or "dynamic" in kind or kind == "longrope":  # then angles depend on how many tokens there are
            return self.rotation(hidden, torch.arange(first, first + count, device=hidden.device)[None])
        turned, start = self._turned, first - first % TURNED
        if turned is None or turned[0] != (start, hidden.dtype) or turned[1] is not self._rotary.inv_freq:
            places = torch.arange(start, start + TURNED, device=hidden.device)[None]
            found = turns_of(*self._rotary(hidden, position_ids=places))
            turned = self._turned = (start, hidden.dtype), self._rotary.inv_freq, found
        cos, signed = turned[2]
        return rotation(cos.narrow(2, first - start, 1), signed.narrow(2, first - start, 1))

    def run_layers(
        self, hidden: torch.Tensor, rotate: Rotate, attend: Attend, batch: Batch | None = None
    ) -> torch.Tensor:
        """Run all layers on embeddings `[B, T, hidden]` of tokens, whose heads `rotate` rotates to their positions."""
        check, on_layer = (None, None) if batch is None else (batch.check, batch.on_layer)
        # a weight that was moved or cast is no longer a view of a joined matrix; while torch compiles this is not
        # checked, because `LaunchKey` has the addresses
        is_in_place = torch.compiler.is_compiling() or self._places == list(map(torch.Tensor.data_ptr, self._views))
        for layer, block in enumerate(self._blocks):
            if check is not None:
                check()
            if block is self._blocks[-1] and isinstance(attend, NewestOfChunk):
                attend.hidden = hidden
            hidden = block(hidden, rotate, attend, is_in_place)
            if on_layer is not None:
                on_layer(layer, hidden)
        if check is not None:
            check()
        return hidden

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits `[B, T, V]` of the last layer's output."""
        return product(self._norm(hidden), self._head.weight)


class Block:
    """One layer: attention and then the feed-forward network, each with its residual connection."""

    def __init__(self, layer: Any, is_joined: bool) -> None:
        attn, mlp = layer.self_attn, layer.mlp
        self.attention, self._activation = attn, mlp.act_fn.forward
        self._before, self._between = norm_of(layer.input_layernorm), norm_of(layer.post_attention_layernorm)
        self._qkv = Joined([attn.q_proj, attn.k_proj, attn.v_proj], is_joined)
        self._gate_up = Joined([mlp.gate_proj, mlp.up_proj], is_joined)
        self._out, self._down = ((p.weight, p.bias) for p in (attn.o_proj, mlp.down_proj))
        self._width = mlp.down_proj.in_features
        self._heads, self._kv_heads = (p.out_features // attn.head_dim for p in (attn.q_proj, attn.k_proj))
        self._query_norm, self._key_norm = (
            norm_of(getattr(attn, name)) if getattr(attn, name, None) else None for name in ("q_norm", "k_norm")
        )
        # multiplications after attention, for one token
        self.num_deferrable_products = attn.o_proj.weight.numel() + 3 * mlp.down_proj.weight.numel()
        self.num_cached = attn.k_proj.out_features  # numbers in the keys of one token

    @property
    def joins(self) -> tuple[Joined, Joined]:
        return self._qkv, self._gate_up

    def __call__(self, hidden: torch.Tensor, rotate: Rotate, attend: Attend, is_in_place: bool = False) -> torch.Tensor:
        """The layer's output for `[B, T, hidden]`, or for the newest tokens only where `attend` returns only these;
        `attend` also stores the new rows. `is_in_place`: joined matrices are those of the weights."""
        if hidden.shape[1] == 1:
            read = attend(self.attention, *self._rows_of_one(self._before(hidden), rotate, is_in_place))
        else:
            read = attend(self.attention, *self._rows_of_many(self._before(hidden), rotate))
            hidden = hidden[:, -read.shape[1] :]
        return self.after_attention(hidden, read, is_in_place)

    def after_attention(self, hidden: torch.Tensor, read: torch.Tensor, is_in_place: bool = False) -> torch.Tensor:
        """The layer after attention: its output from its input `hidden` `[B, T, hidden]` and the attention output
        `read` `[B, T, H, D]`."""
        batch, count, _ = hidden.shape
        hidden = product(read.reshape(batch, count, -1), *self._out).add_(hidden)
        return product(self._activated(self._between(hidden), is_in_place), *self._down).add_(hidden)

    def _rows_of_one(
        self, normed: torch.Tensor, rotate: Rotate, is_in_place: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value `[B, H, 1, D]` for one token per sequence: one product, one rotation."""
        heads, kv_heads = self._heads, self._kv_heads
        rows = self._qkv(normed, is_in_place).view(-1, heads + 2 * kv_heads, 1, self.attention.head_dim)
        rotated, value = rows.split_with_sizes((heads + kv_heads, kv_heads), 1)
        if self._query_norm is not None and self._key_norm is not None:
            rotated = torch.cat([self._query_norm(rotated[:, :heads]), self._key_norm(rotated[:, heads:])], 1)
        query, key = rotate(rotated).split_with_sizes((heads, kv_heads), 1)
        return query, key, value

    def _rows_of_many(self, normed: torch.Tensor, rotate: Rotate) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value `[1, H, T, D]` for several tokens: three products, because splitting the result of one
        would need a copy."""
        shape = (*normed.shape[:2], -1, self.attention.head_dim)
        query, key, value = (rows.view(shape) for rows in self._qkv.separate(normed))
        if self._query_norm is not None and self._key_norm is not None:
            query, key = self._query_norm(query), self._key_norm(key)
        return rotate(query.transpose(1, 2)), rotate(key.transpose(1, 2)), value.transpose(1, 2)

    def _activated(self, normed: torch.Tensor, is_in_place: bool) -> torch.Tensor:
        """The feed-forward network's activation between its two products, `[B, T, width]`."""
        if normed.shape[1] == 1:
            gate, up = self._gate_up(normed, is_in_place).split_with_sizes((self._width, self._width), 2)
        else:
            gate, up = self._gate_up.separate(normed)
        return self._activation(gate).mul_(up)  # type: ignore[no-any-return]


Rotate = Callable[[torch.Tensor], torch.Tensor]
# the first of TURNED positions and the dtype, the frequencies, and what `rotation` needs for these positions
Turned = tuple[tuple[int, torch.dtype], torch.Tensor, tuple[torch.Tensor, torch.Tensor]]
TURNED = 64


def turns_of(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin `[B, T, D]` as `rotation` needs them, `[B, 1, T, D]`, with the sign of its first half moved into the
    sine."""
    half = sin.shape[-1] // 2
    return cos.unsqueeze(1), torch.cat([-sin[..., :half], sin[..., half:]], -1).unsqueeze(1)


def rotation(cos: torch.Tensor, signed: torch.Tensor) -> Rotate:
    """A function that rotates heads `[B, H, T, D]`, half against half: x cos + (-x2, x1) sin. Of x only the halves have
    to be swapped."""
    half = signed.shape[-1] // 2
    return lambda rows: torch.mul(rows, cos).add_(rows.roll(half, -1).mul_(signed))


def places_of(batch: Batch) -> torch.Tensor:
    """The positions `[B, T]` of the ids of a batch."""
    starts, ids = batch.starts, batch.ids
    if len(starts) == 1:
        return torch.arange(starts[0], starts[0] + ids.shape[1], device=ids.device)[None]
    return to_device(torch.tensor(starts), ids.device)[:, None] + torch.arange(ids.shape[1], device=ids.device)


def append_by_sequence(cache: Any) -> AppendBySequence:
    """A function that appends rows of several sequences to a paged cache and yields all rows of each."""
    buffers = GatherBuffer(), GatherBuffer()
    return lambda layer, keys, values: cache.layers[layer].append_by_sequence(keys, values, buffers, LONG_CONTEXT)


def norm_of(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function for RMSNorm: computed in float32, then multiplied by the weight in the model's dtype."""
    weight = module.weight
    epsilon = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    # as tensors: of a few numbers, an operation with a number of Python takes twice as long
    least, width = torch.tensor(epsilon), torch.tensor(float(weight.shape[0]))

    def normed(rows: torch.Tensor) -> torch.Tensor:
        exact = rows.float()
        squares = exact * exact
        if exact.is_cpu:  # the mean plus epsilon, whose mean torch computes from the sum too
            mean = torch.addcdiv(least, squares.sum(-1, keepdim=True), width)
        else:
            mean = squares.mean(-1, keepdim=True).add_(epsilon)
        unit = exact * mean.rsqrt_()
        return unit.mul_(weight) if exact is rows else weight * unit.to(rows.dtype)

    return normed
