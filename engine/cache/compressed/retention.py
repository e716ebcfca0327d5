"""Eviction rules for single rows. To add a rule, add a small class with a `score`: the rows with the lowest scores are
evicted.

Shapes: keys `[H_kv, S, D]`, scores `[H_kv, S]`, slots `[H_kv, K]`. The prompt is attended in full. From its end on,
each step evicts the rows over budget after its forward, the same number in every layer and head. Masks stay correct,
because every row kept is before every later query.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.cache.attention_probe import Probe
from engine.spec.retention import SNAPKV_WINDOW, RetentionSpec

POOL_WIDTH = 5  # tokens; width of SnapKV's pooling


@dataclass(frozen=True, eq=False)
class LayerView:
    """What a rule may read of a layer: keys as attention reads them, positions `[H_kv, S]`, the rule's
    `memory`, and the newest query's weights `[H, S]` (None if there are none). The latest `recent` rows stay whatever
    their scores."""

    layer: int
    keys: torch.Tensor
    positions: torch.Tensor
    memory: torch.Tensor | None
    weights: torch.Tensor | None
    recent: int = 0


class Rule:
    """A rule for the specs whose name is in `names`; it scores rows. `per_head`: heads may keep different rows.
    `remembers`: it has a memory, which is updated at each step. `is_per_row`: the memory is one number `[H_kv, S]` for
    each row, which is logged and evicted with its row."""

    names: tuple[str, ...] = ()
    per_head = True
    remembers = False
    is_per_row = False

    def __init__(self, spec: RetentionSpec) -> None:
        self.spec = spec

    @property
    def has_large_memory(self) -> bool:
        """Whether the rule has a memory that is too large to be logged at each step."""
        return self.remembers and not self.is_per_row

    @property
    def words(self) -> str:
        """The reason why a row is evicted, for people."""
        return self.spec.row.victim if self.spec.row is not None else ""

    def probe(self) -> Probe | None:
        """What the rule needs of attention; None if nothing."""
        return None

    def remember(self, memory: torch.Tensor | None, probe: Probe, layer: int, kv_heads: int) -> torch.Tensor | None:
        """The rule's memory after a forward: `[…, S]`, with a column for every row."""
        return None

    def score(self, view: LayerView) -> torch.Tensor:
        """Scores `[H_kv, S]`; the rows with the lowest ones are evicted."""
        raise NotImplementedError


class Latest(Rule):
    """Sliding windows, with or without sinks: the latest rows stay."""

    names = ("window", "sinks+window")
    per_head = False

    def score(self, view: LayerView) -> torch.Tensor:
        return view.positions.float()


class HeavyHitters(Rule):
    """H2O: the rows that received the most attention stay, summed over all queries so far and averaged over a group's
    heads."""

    names = ("h2o",)
    remembers = True
    is_per_row = True

    def probe(self) -> Probe:
        return Probe(wants_sums=True)

    def remember(self, memory: torch.Tensor | None, probe: Probe, layer: int, kv_heads: int) -> torch.Tensor:
        received = by_group(probe.sums[layer][0], kv_heads)
        if memory is not None:
            received[:, : memory.shape[1]] += memory
        return received

    def score(self, view: LayerView) -> torch.Tensor:
        assert view.memory is not None
        return view.memory


class ObservationWindow(Rule):
    """SnapKV: rows score by the mean attention that they receive from the prompt's last queries, pooled along the
    tokens so that neighbours stay together. The rows of these last queries themselves stay.

    As in the authors' code (FasterDecoding/SnapKV, `SnapKVCluster`) and in kvpress: there are as many queries as rows
    that always stay, only the rows before them are pooled, and beyond an edge the mean of five counts zeros.
    """

    names = ("snapkv",)
    remembers = True

    def probe(self) -> Probe:
        return Probe(num_rows=max(2, self._num_queries))

    @property
    def _num_queries(self) -> int:
        return self.spec.window or SNAPKV_WINDOW

    def remember(self, memory: torch.Tensor | None, probe: Probe, layer: int, kv_heads: int) -> torch.Tensor | None:
        rows = probe.latest.get(layer)
        if rows is None:
            return None
        rows = rows[0]  # [H, t, S]
        if memory is not None:
            older = torch.nn.functional.pad(memory, (0, rows.shape[2] - memory.shape[2]))
            rows = torch.cat([older, rows], 1)
        # contiguous, because a view would keep the older queries' memory alive
        return rows[:, -self._num_queries :].contiguous()

    def score(self, view: LayerView) -> torch.Tensor:
        assert view.memory is not None
        prefix = view.memory.shape[2] - view.recent
        rows = view.memory[:, -view.recent :] if view.recent else view.memory
        mean = by_group(rows[..., : max(1, prefix)].mean(1), view.keys.shape[0])
        pooled = torch.nn.functional.avg_pool1d(mean[None], POOL_WIDTH, 1, POOL_WIDTH // 2)[0]
        stay = pooled.amax(1, keepdim=True).expand(-1, view.memory.shape[2] - pooled.shape[1])
        return torch.cat([pooled, stay], 1)


class NewestWeights(Rule):
    """TOVA: rows score by the newest query's attention, averaged over all heads, so that a layer's heads keep the same
    rows."""

    names = ("tova",)
    per_head = False

    def probe(self) -> Probe:
        return Probe()

    def score(self, view: LayerView) -> torch.Tensor:
        assert view.weights is not None
        return view.weights.mean(0, keepdim=True).expand(view.keys.shape[0], -1)


class SmallNorms(Rule):
    """Knorm: keys of large L2 norm are evicted, because keys of small norm tend to receive much attention."""

    names = ("knorm",)

    def score(self, view: LayerView) -> torch.Tensor:
        norms: torch.Tensor = view.keys.float().norm(dim=-1)
        return -norms


class DistinctKeys(Rule):
    """KeyDiff: the keys that are least similar to the mean of all normalised keys stay."""

    names = ("keydiff",)

    def score(self, view: LayerView) -> torch.Tensor:
        units = torch.nn.functional.normalize(view.keys.float(), dim=-1)
        return -torch.nn.functional.cosine_similarity(units, units.mean(1, keepdim=True), dim=-1)


class RandomScores(Rule):
    """Random scores, the baseline for any rule: computed from seed, layer, head and position, and so the same every
    time."""

    names = ("random",)

    def score(self, view: LayerView) -> torch.Tensor:
        heads = torch.arange(view.positions.shape[0], device=view.positions.device)[:, None]
        number = (
            view.positions * 0x9E3779B1 + heads * 0x85EBCA77 + view.layer * 0xC2B2AE3D + self.spec.seed * 0x27D4EB2F
        )
        for shift in (15, 13, 16):  # mix the bits, so that neighbouring positions get unrelated scores
            number = (number ^ (number >> shift)) * 0x2C1B3C6D & 0x7FFFFFFF
        return number.float() / 0x7FFFFFFF


def rule_of(spec: RetentionSpec) -> Rule:
    """The rule of a spec: the class in this file that has its name."""
    return next(made for made in Rule.__subclasses__() if spec.name in made.names)(spec)


# ---- from scores to rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cut:
    """Which slots are kept, `[H_kv, K]`, and which are evicted, `[H_kv, E]`, both ascending; `on_merit` `[H_kv, S]`
    marks the rows that are not protected."""

    kept: torch.Tensor
    evicted: torch.Tensor
    on_merit: torch.Tensor


def cut(
    scores: torch.Tensor,
    positions: torch.Tensor,
    spec: RetentionSpec,
    num_kept: int,
    pinned: torch.Tensor | None = None,
) -> Cut:
    """Choose the `num_kept` rows to keep. Sinks, the latest rows and those `pinned` `[H_kv, S]` stay whatever their
    score; of rows with equal scores the older one stays."""
    num_rows = scores.shape[1]
    recent = spec.recent(num_kept)
    is_protected = positions < spec.sinks
    is_protected[:, num_rows - recent :] = True
    if pinned is not None:
        is_protected |= pinned
    ranked = scores.float().masked_fill(is_protected, torch.inf).argsort(dim=1, descending=True, stable=True)
    return Cut(ranked[:, :num_kept].sort(1).values, ranked[:, num_kept:].sort(1).values, ~is_protected)


def by_group(per_head: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """The mean over the query heads of each kv head: `[H, S]` -> `[H_kv, S]`."""
    return per_head.reshape(kv_heads, -1, per_head.shape[1]).mean(1)
