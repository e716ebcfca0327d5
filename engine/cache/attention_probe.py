"""What a forward records of attention: the newest query's weights always, more where an eviction rule needs more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from engine.cache.part_timer import PartTimer
from engine.cache.stacking import evenly_spaced, stacked_view

# rows; longer keys are not copied into one tensor: the copy would cost more than one product for each layer
MAX_COPIED_ROWS = 128


class NewestQuery(NamedTuple):
    """The inputs of the newest query's attention in one layer: query `[B, H, D]`, keys `[B, H_kv, S, D]`, mask
    `[B, 1, S]` or None."""

    query: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor | None
    scale: float


@dataclass(eq=False)
class Probe:
    """Attention weights recorded by one forward, by layer index.

    `weights`: those of the newest query `[B, H, S]`; `seen`: the inputs from which these will be computed; `latest`:
    those of the latest `num_rows` queries `[B, H, t, S]`; `sums`: the sum over all queries of the forward `[B, H, S]`,
    if `wants_sums`. Of other layers than `layers` (None: of none), the newest query alone is recorded.

    The newest weights of all layers are computed together after the forward: thirty times a handful of small kernels
    between the large ones would cost three times as much. Where the sequences of a batch are attended one by one, each
    has a probe in `parts`, and what is read here is right-aligned. `is_borrowed`: the next forward overwrites the
    weights, so whoever keeps them must copy them (`copy_borrowed`). `timer` measures the time that attention takes.
    """

    num_rows: int = 1
    wants_sums: bool = False
    weights: dict[int, torch.Tensor] = field(default_factory=dict)
    seen: dict[int, NewestQuery] = field(default_factory=dict)
    latest: dict[int, torch.Tensor] = field(default_factory=dict)
    sums: dict[int, torch.Tensor] = field(default_factory=dict)
    parts: list[Probe] = field(default_factory=list)
    layers: frozenset[int] | None = None
    is_borrowed: bool = False
    timer: PartTimer | None = None

    @property
    def wants_more(self) -> bool:
        """Whether the newest row alone is not enough."""
        return self.wants_sums or self.num_rows > 1

    def num_watched(self, num_queries: int) -> int:
        """Of how many of the latest queries the weights are needed."""
        return num_queries if self.wants_sums else min(self.num_rows, num_queries)

    def record(self, layer: int, weights: torch.Tensor, is_first: bool = True) -> None:
        """Record weights `[B, H, t, S]` of one layer: of the forward's first queries, or of those that follow the ones
        recorded so far. Only what the probe needs is kept of them."""
        newest = weights[:, :, -1]
        # a row of a large matrix would keep all of it
        self.weights[layer] = newest if weights.shape[2] == 1 else newest.clone()
        if self.wants_sums:
            sums = weights.sum(2)
            self.sums[layer] = sums if is_first else self.sums[layer].add_(sums)
        if self.num_rows > 1 and (self.layers is None or layer in self.layers):
            latest = weights[:, :, -self.num_rows :]
            together = latest.clone() if is_first else torch.cat([self.latest[layer], latest], 2)
            self.latest[layer] = together[:, :, -self.num_rows :]

    def copy_borrowed(self) -> None:
        """Copy borrowed weights, which the next forward would overwrite."""
        if self.is_borrowed:
            rows, is_one_kind = list(self.weights.values()), len({row.shape for row in self.weights.values()}) == 1
            kept = torch.stack(rows) if is_one_kind else [row.clone() for row in rows]
            self.weights, self.is_borrowed = dict(zip(self.weights, kept, strict=True)), False

    def split(self, count: int) -> list[Probe]:
        """Make a probe for each of `count` sequences, which are attended one by one."""
        self.parts = [Probe(timer=self.timer) for _ in range(count)]
        return self.parts

    def row(self, layer: int) -> torch.Tensor | None:
        """The newest query's weights `[B, H, S]` of one layer during the forward; None until the layer has run."""
        if self.parts:
            rows = [row[None] for part in self.parts if (row := part.row(layer)) is not None]
            return right_aligned(rows)[0] if rows else None
        if layer in self.seen:
            return newest_weights([self.seen[layer]])[0]
        return self.weights.get(layer)

    def rows(self) -> dict[int, torch.Tensor]:
        """The newest query's weights of every layer that ran, in order of layers."""
        if self.parts:
            found = [part.rows() for part in self.parts]

            # some layers hold a window, others all rows
            if any(len({row.shape for row in rows.values()}) > 1 for rows in found):
                return {layer: right_aligned([rows[layer][None] for rows in found])[0] for layer in found[0]}
            stacked = right_aligned([stacked_view(list(rows.values())) for rows in found])
            return dict(zip(found[0], stacked, strict=True))
        alike: dict[tuple[object, ...], list[int]] = {}
        for layer, seen in self.seen.items():
            kind = (seen.query.shape, seen.keys.shape, seen.query.device, id(seen.mask), seen.scale)
            alike.setdefault(kind, []).append(layer)
        for layers in alike.values():
            self.weights.update(zip(layers, newest_weights([self.seen[layer] for layer in layers]), strict=True))
        self.seen.clear()  # frees the keys it references
        return dict(sorted(self.weights.items()))


def right_aligned(parts: list[torch.Tensor]) -> torch.Tensor:
    """Weights `[L, 1, H, S]` of several sequences as one tensor `[L, B, H, longest]`, shorter ones padded with zeros on
    the left."""
    longest = max(part.shape[3] for part in parts)
    made = parts[0].new_zeros(len(parts[0]), len(parts), parts[0].shape[2], longest)
    for number, part in enumerate(parts):
        made[:, number, :, longest - part.shape[3] :] = part[:, 0]
    return made


def upcast(rows: torch.Tensor) -> torch.Tensor:
    """Queries or keys in the dtype in which they are multiplied: a float16 product can exceed 65,504 before it is
    scaled, and the weights would be NaN, so float16 becomes float32."""
    return rows.float() if rows.dtype == torch.float16 else upcast_on_cpu(rows)


def upcast_on_cpu(rows: torch.Tensor) -> torch.Tensor:
    """16-bit rows as float32 on a CPU, which compiles a 16-bit product anew for each new shape: that takes a
    millisecond and keeps 0.7 MB. In float32 it does not, and is faster."""
    is_narrow = rows.dtype in (torch.bfloat16, torch.float16)
    return rows.float() if is_narrow and rows.device.type == "cpu" else rows


def joined_keys(keys: list[torch.Tensor]) -> torch.Tensor | None:
    """Keys `[B, H_kv, S, D]` of L layers as one tensor `[L * B * H_kv, S, D]` for one product: a view where they are
    evenly spaced in one storage, a copy where they are short. Else None: a copy would cost more than a product for each
    layer."""
    batch, heads = keys[0].shape[:2]
    view = evenly_spaced(keys) if batch == 1 else None
    if view is not None and upcast(view) is view and view.stride(0) == heads * view.stride(2):
        return view.flatten(0, 2)
    return upcast(stacked_view(keys)).flatten(0, 2) if keys[0].shape[2] <= MAX_COPIED_ROWS else None


def newest_weights(seen: list[NewestQuery]) -> torch.Tensor:
    """Attention weights `[L, B, H, S]` in float32 of the newest query of L layers, which have the same shape, mask and
    scale."""
    first = seen[0]
    (batch, heads, dim), (_, kv_heads, tokens, _) = first.query.shape, first.keys.shape
    queries = upcast(stacked_view([one.query for one in seen])).reshape(len(seen) * batch * kv_heads, -1, dim)
    keys = joined_keys([one.keys for one in seen])
    if keys is not None:
        scores = torch.bmm(queries, keys.mT)
    else:
        scores = queries.new_empty(len(seen), batch * kv_heads, heads // kv_heads, tokens)
        for query, one, out in zip(queries.chunk(len(seen)), seen, scores.unbind(0), strict=True):
            torch.bmm(query, upcast(one.keys).flatten(0, 1).mT, out=out)
    scores = scores.reshape(len(seen), batch, heads, tokens).float() * first.scale
    if first.mask is not None:
        is_kept = first.mask.dtype == torch.bool
        scores = scores.masked_fill_(~first.mask, -torch.inf) if is_kept else scores.add_(first.mask)
    return scores.softmax(-1)
