"""What each rule for dropping rows scores, as a sentence, a formula and where it was published."""

from __future__ import annotations

from dataclasses import dataclass

from engine.spec.retention import RetentionSpec


@dataclass(frozen=True)
class RuleWords:
    """`name` as the field calls it, `keeps` in words, `formula` of the score of row j (the lowest goes first)."""

    name: str
    keeps: str
    formula: str
    paper: str


def rule_words(retention: RetentionSpec) -> RuleWords:
    """The words of a rule; all rows kept have none."""
    words = {
        "window": (
            "Sliding window",
            "keeps the latest W rows",
            "score(j) = j",
            "Beltagy et al., 2020 (Longformer)",
        ),
        "sinks+window": (
            "StreamingLLM",
            "keeps the first rows, on which attention rests, and the latest W",
            "score(j) = j",
            "Xiao et al., 2023",
        ),
        "h2o": (
            "H2O",
            "keeps the rows that received most attention in sum, and the latest",
            "score(j) = Σₜ aₜ(j), mean over the group",
            "Zhang et al., 2023",
        ),
        "snapkv": (
            "SnapKV",
            "when the prompt ends, keeps what its last queries attend to",
            "score(j) = pool₅ meanₜ aₜ(j), t the prompt’s last queries, j before them",
            "Li et al., 2024",
        ),
        "tova": (
            "TOVA",
            "drops what the newest query attends to least",
            "score(j) = mean over heads of aₙ(j), n newest",
            "Oren et al., 2024",
        ),
        "knorm": ("Knorm", "drops the keys of largest norm", "score(j) = −‖kⱼ‖₂", "Devoto et al., 2024"),
        "keydiff": (
            "KeyDiff",
            "drops the keys most like the others",
            "score(j) = −cos(kⱼ, mean of k/‖k‖)",
            "Park et al., 2025",
        ),
        "random": (
            "Random",
            "drops by chance: what any rule must beat",
            "score(j) = hash(seed, layer, head, j)",
            "a baseline",
        ),
    }
    name, keeps, formula, paper = words[retention.name]
    if retention.schedule == "pyramid":
        keeps = f"{keeps}, more rows in the first layers than in the last"
        if retention.name == "snapkv":
            name, paper = "PyramidKV", "Cai et al., 2024"
    return RuleWords(name, keeps, formula, paper)
