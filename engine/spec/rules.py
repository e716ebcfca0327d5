"""Which rows are kept: one row for each rule, the only place that describes it. No torch.

Published rules: sinks and a window (StreamingLLM, Xiao et al., 2023), heavy hitters (H2O, Zhang et al., 2023), an
observation window's choice (SnapKV, Li et al., 2024), the newest query's choice (TOVA, Oren et al., 2024), small key
norms (Devoto et al., 2024), dissimilar keys (KeyDiff, Park et al., 2025), more rows for the first layers than for the
last (PyramidKV, Cai et al., 2024). All of them let the prompt attend in full and evict rows from its end on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

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


def rule_row(name: str, schedule: str) -> RuleRow | None:
    """The row of a spec's rule; None if the cache keeps all rows."""
    return _ROW_OF_SPEC.get((name, schedule)) or _ROW_OF_SPEC.get((name, "uniform"))
