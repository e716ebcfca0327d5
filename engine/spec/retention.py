"""Which rows are kept: one row for each eviction rule, the only place that describes it; and the rule of a cache with
its budget. Frozen, checked, no torch.

Published rules: sinks and a window (StreamingLLM, Xiao et al., 2023), heavy hitters (H2O, Zhang et al., 2023), an
observation window's choice (SnapKV, Li et al., 2024), the newest query's choice (TOVA, Oren et al., 2024), small key
norms (Devoto et al., 2024), dissimilar keys (KeyDiff, Park et al., 2025), more rows for the first layers than for the
last (PyramidKV, Cai et al., 2024). All of them let the prompt attend in full and evict rows from its end on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from engine.errors import InputError, check_known
from engine.geometry.dimensions import CacheGeometry
from engine.spec.parameter import AUTOMATIC, TOKENS, UNUSED, Parameter

Reads = Literal["nothing", "positions", "keys", "weights"]

SNAPKV_WINDOW = 32
BUDGET = Parameter(
    "budget",
    "Rows kept per head",
    "Rows kept per layer and head",
    default=256,
    unset=UNUSED,
    unit=TOKENS,
    also="cache budget, max capacity, kept rows, tokens kept",
)
RATIO = Parameter(
    "ratio",
    "Part of the rows evicted",
    "Part of the rows that is evicted, instead of a budget",
    "share",
    unset=UNUSED,
    also="compression ratio, share dropped, share evicted",
)
SINKS = Parameter(
    "sinks",
    "Sinks: first rows always kept",
    "The first rows, which are always kept",
    default=0,
    unit=TOKENS,
    also="attention sinks, first tokens",
)
RECENT = Parameter(
    "window",
    "Latest rows always kept",
    "The latest rows, which are kept whatever their score",
    unset=AUTOMATIC,
    unit=TOKENS,
    also="recent window, sliding window, recent tokens",
)
WINDOW = replace(RECENT, label="Latest rows kept", tip="The latest rows, which are kept", default=256, unset="")
REROTATE = Parameter(
    "rerotate",
    "Re-rotate the sinks over the gap",
    "Rotate the keys of the sinks, as if no row had been evicted behind them",
    "switch",
    False,
)
LAYOUT = Parameter(
    "layout",
    "Rows are evicted",
    "Where a rule evicts: rows of a growing cache, or whole pages",
    "choice",
    "growing",
    choices=(("growing", "one by one, in growing room"), ("paged", "by whole pages")),
)
SCORED = (BUDGET, RATIO, SINKS, RECENT, LAYOUT)

FULL = "layers with full attention"
WEIGHTS = (FULL, "attention weights")
KEYS = (FULL, "keys, not a latent")


class RuleRow(Struct, frozen=True):
    """An eviction rule. `name` is the name by which people choose it, `rule` its name in specs if that differs.

    `formula` is the score of row j; rows with the lowest score are evicted first. `score` says in words what is scored,
    and `victim` why a row was evicted. `reads` is what the score is computed from. Unless a window is given, the latest
    rows always kept are a share `recent_share` of all kept rows, at most `recent_most`.
    """

    name: str
    label: str
    summary: str
    formula: str
    paper: str
    score: str
    victim: str
    reads: Reads
    parameters: tuple[Parameter, ...] = SCORED
    needs: tuple[str, ...] = (FULL,)
    rule: str = ""
    schedule: str = "uniform"
    recent_share: float = 0.0
    recent_most: int = 1 << 62
    watches_prompt: bool = False
    only_at_prompt_end: bool = False

    @property
    def spec_name(self) -> str:
        """The name of the rule in a `RetentionSpec`."""
        return self.rule or self.name


_OLDEST = "the position; the oldest go first"
_SNAPKV = RuleRow(
    "snapkv",
    "SnapKV",
    "When the prompt ends, keeps what its last queries attend to.",
    "score(j) = pool₅ meanₜ aₜ(j), t the prompt’s last queries, j before them",
    "Li et al., 2024",
    "attention of the last queries before the newest token, pooled, as if the prompt ended there",
    "little attended by the prompt's last queries",
    "weights",
    needs=WEIGHTS,
    recent_share=0.5,
    recent_most=SNAPKV_WINDOW,
    watches_prompt=True,
    only_at_prompt_end=True,
)

RULES: Mapping[str, RuleRow] = {
    row.name: row
    for row in (
        RuleRow(
            "sliding",
            "Sliding",
            "Keeps the latest tokens and nothing else.",
            "score(j) = j",
            "Beltagy et al., 2020 (Longformer)",
            _OLDEST,
            "older than the window",
            "positions",
            (WINDOW, LAYOUT),
            rule="window",
        ),
        RuleRow(
            "streamingllm",
            "StreamingLLM",
            "Keeps the first tokens, on which attention rests, and the latest.",
            "score(j) = j",
            "Xiao et al., 2023",
            _OLDEST,
            "older than the window",
            "positions",
            (replace(SINKS, default=4), replace(WINDOW, default=252), REROTATE, LAYOUT),
            rule="sinks+window",
        ),
        RuleRow(
            "h2o",
            "H2O",
            "Keeps the tokens that received most attention, and the latest.",
            "score(j) = Σₜ aₜ(j), mean over the group",
            "Zhang et al., 2023",
            "attention of every query before the newest token, summed, nothing evicted",
            "received the least attention in sum",
            "weights",
            needs=WEIGHTS,
            recent_share=0.5,
            watches_prompt=True,
        ),
        _SNAPKV,
        replace(
            _SNAPKV,
            name="pyramidkv",
            label="PyramidKV",
            summary="SnapKV with more rows for the first layers than for the last.",
            paper="Cai et al., 2024",
            parameters=(replace(BUDGET, tip="Rows kept per head, in the mean of the layers"), RATIO, SINKS, RECENT),
            rule="snapkv",
            schedule="pyramid",
        ),
        RuleRow(
            "tova",
            "TOVA",
            "Evicts what the newest query attends to least.",
            "score(j) = mean over heads of aₙ(j), n newest",
            "Oren et al., 2024",
            "attention of the last query before the newest token",
            "least attended by the newest query",
            "weights",
            needs=WEIGHTS,
            recent_share=1.0,
            recent_most=1,
        ),
        RuleRow(
            "knorm",
            "Knorm",
            "Evicts the keys of largest norm.",
            "score(j) = −‖kⱼ‖₂",
            "Devoto et al., 2024",
            "minus the norm of the key",
            "largest key norm",
            "keys",
            needs=KEYS,
        ),
        RuleRow(
            "keydiff",
            "KeyDiff",
            "Evicts the keys most like the others.",
            "score(j) = −cos(kⱼ, mean of k/‖k‖)",
            "Park et al., 2025",
            "minus the likeness to the mean key",
            "key most like the others",
            "keys",
            needs=KEYS,
        ),
        RuleRow(
            "random",
            "Random",
            "Evicts at random: what any rule must beat.",
            "score(j) = hash(seed, layer, head, j)",
            "a baseline",
            "drawn by chance",
            "drawn by chance",
            "nothing",
        ),
    )
}


_ROW_OF_SPEC = {(row.spec_name, row.schedule): row for row in RULES.values()}


SPEC_NAMES = tuple(dict.fromkeys(row.spec_name for row in RULES.values()))


# ---- the rule of a cache ---------------------------------------------------------------------------------------------

Schedule = Literal["uniform", "pyramid"]

# PyramidKV's beta: the last layer chooses a twentieth of the mean number of rows
PYRAMID_STEEPNESS = 20


class RetentionSpec(Struct, frozen=True):
    """The rows that are kept, per layer and kv head.

    `window` and `sinks+window` keep the latest `window` rows, the second also the first `sinks`. Every other rule keeps
    `budget` rows, or the share `1 - ratio` of all tokens seen: always the first `sinks` and the latest `window` (None:
    the rule's own number), the others by score. Layers may have different budgets: `layer_budgets` has one for every
    layer that evicts rows, in order; with the schedule `pyramid`, `budget` is their mean (see `at`). `rerotate` rotates
    the keys of the sinks so that their distance to the window is as if no rows had been evicted between them.
    """

    name: str = "all"
    budget: int | None = None
    ratio: float | None = None
    sinks: int = 0
    window: int | None = None
    rerotate: bool = False
    seed: int = 0
    schedule: Schedule = "uniform"
    layer_budgets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_known("retention", self.name, ("all", *SPEC_NAMES))
        if isinstance(self.sinks, bool) or self.sinks < 0 or (self.window is not None and self.window < 0):
            raise InputError("Sinks and window are numbers of tokens from 0 up.")
        if self.rerotate and self.name != "sinks+window":
            raise InputError(f"Re-rotation closes the gap behind sinks; {self.name} has no such gap: use sinks+window.")
        check_known("schedule", self.schedule, get_args(Schedule))
        if self.schedule == "pyramid" and self.budget is None:
            raise InputError("A pyramid spreads a budget over the layers: give their mean as the budget.")
        if self.name == "all":
            self._check_all()
        elif self.is_by_position:
            self._check_window()
        else:
            self._check_scored()

    def _check_all(self) -> None:
        if self._num_sizes or self.sinks or self.window is not None:
            raise InputError("A cache that keeps all rows has no budget: choose a rule that evicts some.")

    def _check_window(self) -> None:
        if self._num_sizes:
            raise InputError(f"{self.name} keeps its window: give window, not a budget or a ratio.")
        if self.name == "window" and self.sinks:
            raise InputError("A plain window keeps no sinks: use sinks+window.")
        if self.window is None or self.window < 1:
            raise InputError("A window must hold the newest token at least: give a window of 1 or more.")

    @property
    def _num_sizes(self) -> int:
        return (self.budget is not None) + (self.ratio is not None) + bool(self.layer_budgets)

    def _check_scored(self) -> None:
        if self._num_sizes != 1:
            raise InputError(
                f"{self.name} needs a budget in tokens, one for each layer, or a ratio: give exactly one of them."
            )
        if self.ratio is not None and not 0 <= self.ratio < 1:
            raise InputError(
                f"A ratio of {self.ratio:g} is outside [0, 1): it is the part of the rows that is evicted."
            )
        for budget in self.layer_budgets if self.budget is None else (self.budget,):
            if isinstance(budget, bool) or budget < self.sinks + 1:
                raise InputError(
                    f"A budget of {budget} tokens cannot hold {self.sinks} sinks and one more: "
                    f"give {self.sinks + 1} or more."
                )
            if self.sinks + (self.window or 0) > budget:
                raise InputError(
                    f"{self.sinks} sinks and a window of {self.window} exceed the budget of {budget}: "
                    "make one of them smaller."
                )

    @property
    def row(self) -> RuleRow | None:
        """The description of the rule; None if all rows are kept."""
        return _ROW_OF_SPEC.get((self.name, self.schedule)) or _ROW_OF_SPEC.get((self.name, "uniform"))

    @property
    def summary(self) -> str:
        """What the rule keeps, in a sentence or two."""
        if self.row is None:
            return "Keeps all rows."
        is_spread = self.schedule == "pyramid" and self.row.schedule != "pyramid"
        return self.row.summary + (" More rows in the first layers than in the last." if is_spread else "")

    @property
    def differs_by_layer(self) -> bool:
        """Whether layers have different budgets."""
        return bool(self.layer_budgets) or self.schedule != "uniform"

    @property
    def keeps_all(self) -> bool:
        return self.name == "all"

    @property
    def is_by_position(self) -> bool:
        """Whether a row's position alone decides whether it is kept."""
        return self.row is not None and self.row.reads == "positions"

    @property
    def needs_weights(self) -> bool:
        """Whether the rule reads attention weights."""
        return self.row is not None and self.row.reads == "weights"

    @property
    def watches_all(self) -> bool:
        """Whether the rule needs the attention weights of the whole prompt."""
        return self.row is not None and self.row.watches_prompt

    @property
    def only_at_prompt_end(self) -> bool:
        """Whether rows are evicted once, when the prompt ends, and all generated rows are kept, as SnapKV does."""
        return self.row is not None and self.row.only_at_prompt_end

    def at(self, number: int, count: int, prompt: int | None = None) -> RetentionSpec:
        """The rule of layer `number` of the `count` layers that evict rows, with one budget.

        In a pyramid all layers keep the same sinks and latest rows; the number of rows chosen beyond them falls evenly
        from the first layer to the last, which chooses a twentieth of the mean. If a rule evicts rows of the prompt
        alone, and the `prompt` of that many tokens is shorter than the first layers' budgets, the other layers get what
        these do not use; a prompt with fewer than twice the mean to choose from is spread evenly (the authors' code,
        Zefan-Cai/KVCache-Factory, `PyramidKVCluster`). Budgets are rounded per layer, as in kvpress, so that their mean
        is the one asked for; the authors round the step between layers down.
        """
        if self.layer_budgets:
            return replace(self, layer_budgets=(), budget=self.layer_budgets[number])
        if self.schedule == "uniform" or self.budget is None:
            return self
        recent = self.recent(self.budget)
        chosen = self.budget - self.sinks - recent
        least = chosen // PYRAMID_STEEPNESS
        most = 2 * chosen - least
        if prompt is not None and self.only_at_prompt_end:
            most = min(most, prompt - self.sinks - recent)
            least = 2 * chosen - most
            if prompt - self.sinks < 2 * chosen:
                least = most = chosen
        mine = most - (most - least) * number // max(1, count - 1) if count > 1 else chosen
        budget = max(self.sinks + recent + mine, self.sinks + 1)
        return replace(self, schedule="uniform", budget=budget, window=recent)

    def num_kept(self, seen: int) -> int:
        """Rows kept of `seen` tokens. If layers differ, call it on what `at` returns."""
        if self.name == "all":
            return seen
        if self.is_by_position:
            return min(seen, self.sinks + (self.window or 0))
        if self.budget is not None:
            return min(seen, self.budget)
        return min(seen, max(int(seen * (1 - (self.ratio or 0))), self.sinks + 1))

    def num_kept_pages(self, seen: int, page_size: int) -> int:
        """Pages kept of those that `seen` tokens fill, if only whole pages are evicted: all pages with a sink or one of
        the latest rows, and as many others as the rows to keep would fill. The number changes only when a page is
        begun."""
        pages = -(-seen // page_size)
        first_recent = max(0, seen - max(1, self.recent(self.num_kept(seen)))) // page_size
        protected = min(-(-self.sinks // page_size), first_recent) + pages - first_recent
        if self.name == "all":
            return pages
        if self.is_by_position:
            return protected
        return min(pages, max(protected, -(-self.num_kept((pages - 1) * page_size + 1) // page_size)))

    def recent(self, kept: int) -> int:
        """How many of the latest rows are always kept, if `kept` rows are kept in all."""
        own = self.window
        if own is None:
            own = min(int(kept * self.row.recent_share), self.row.recent_most) if self.row is not None else 0
        return max(0, min(own, kept - self.sinks))

    def check(self, geometry: CacheGeometry, captures_attention: bool) -> None:
        """Raise `InputError`, with the reason, if the model's masks or attention make evicting rows wrong."""
        if self.keeps_all:
            return
        kinds = {layer.kind for layer in geometry.layers}
        if not geometry.attention_layers:
            raise InputError("This architecture keeps a recurrent state and no K and V: there are no rows to evict.")
        if any(layer.state_elements is not None for layer in geometry.attention_layers):
            raise InputError(
                "Layers of this model keep rows and a state of all tokens in one, which no rule can evict rows from: "
                "use a cache that keeps all rows."
            )
        if any(layer.index_dim for layer in geometry.layers):
            raise InputError("This model's indexer counts every row: use a cache that keeps all rows.")
        if "shared" in kinds or "chunked" in kinds:
            raise InputError(
                "Layers of this model read the rows of other layers or of fixed chunks, and their masks count every "
                "row: use a cache that keeps all rows."
            )
        if not captures_attention:
            raise InputError(
                "This architecture's own attention code counts rows by tokens seen and shows no weights: "
                "rows cannot be evicted under it. Use a cache that keeps all rows."
            )
        evicting = layers_that_evict(geometry)
        if not evicting:
            raise InputError(
                f"{self.name} evicts rows of any age, and this model has only sliding layers, whose masks count "
                "distances by rows: they would be wrong. Use a cache that keeps all rows."
            )
        if "latent" in kinds and self.row is not None and self.row.reads == "keys":
            raise InputError(
                f"{self.name} compares keys, and this model caches a latent instead of them: use another rule."
            )
        if self.layer_budgets and len(self.layer_budgets) != len(evicting):
            raise InputError(
                f"{len(self.layer_budgets)} budgets are given, and {len(evicting)} layers of this model evict rows "
                f"({', '.join(map(str, evicting))}): give one for each."
            )


def layers_that_evict(geometry: CacheGeometry) -> tuple[int, ...]:
    """The layers of which a rule can evict rows of any age: those with full attention. The mask of a sliding layer
    counts distances by rows, so all its rows must stay; recurrent layers have no rows."""
    return tuple(
        layer.index
        for layer in geometry.attention_layers
        if layer.kind in ("full", "latent") and layer.state_elements is None and layer.index_dim is None
    )


@lru_cache(maxsize=64)
def budgets_by_layer(
    retention: RetentionSpec, evicting: tuple[int, ...], num_prompt_tokens: int | None
) -> Mapping[int, RetentionSpec]:
    """The rule of each layer that evicts rows, by layer index. Budgets of a pyramid may depend on the prompt's
    length."""
    count = len(evicting)
    return {index: retention.at(number, count, num_prompt_tokens) for number, index in enumerate(evicting)}


class LayerBudgets(Struct, frozen=True):
    """Budgets that differ by layer: one for each layer that evicts rows, or the mean of a pyramid."""

    layers: tuple[int, ...] = ()
    mean: int | None = None

    @property
    def schedule(self) -> Schedule:
        return "uniform" if self.layers else "pyramid"


def parse_budget(text: str) -> int | LayerBudgets:
    """Parse a budget: `N`, `N,N,…` with one for every layer that evicts rows, or `pyramid:N` with their mean."""
    kind, _, mean = text.rpartition(":")
    try:
        if kind == "pyramid":
            return LayerBudgets(mean=int(mean))
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers:
        raise InputError(
            f"'{text[:60]}' is no budget: write 256, one number for each layer like 384,128, or pyramid:256."
        )
    return numbers[0] if len(numbers) == 1 else LayerBudgets(numbers)
