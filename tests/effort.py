"""The tiers of the suite, and how many cases a test tries in each.

`pytest` alone is the default tier, of minutes. `pytest --tier rest` is what that leaves out, `--tier full` both, and
`--tier long` far more cases of each. A file or test that is named runs whole. `full_tier.txt` lists what the default
tier leaves out: `python -m tests.benchmarks.default_tier` chose it, by the lines that each test executes and its cost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar, get_args

T = TypeVar("T")
Tier = Literal["default", "rest", "full", "long"]
TIERS: tuple[Tier, ...] = get_args(Tier)
LEFT_OUT = Path(__file__).with_name("full_tier.txt")

_tier: Tier = "full"


def set_tier(tier: Tier) -> None:
    """Called once, before any file of tests is imported."""
    global _tier
    _tier = tier


def effort(usual: T, long: T) -> T:
    """A number of examples, operations or kills, or every how many calls fail: `usual`, in the long tier `long`."""
    return long if _tier == "long" else usual


def kept_cases() -> dict[str, frozenset[str]]:
    """For each test function that the default tier leaves out, as `FILE::NAME`, those of its cases that it keeps."""
    found: dict[str, frozenset[str]] = {}
    file = ""
    for line in LEFT_OUT.read_text("utf-8").splitlines():
        if line.startswith("tests/"):
            file = line.strip()
        elif line.startswith("  "):
            name, _, cases = line.strip().partition(" keeps ")
            found[f"{file}::{name}"] = frozenset(cases.split(" | ")) if cases else frozenset()
    return found


def is_left_out(nodeid: str, kept: dict[str, frozenset[str]]) -> bool:
    """Whether the default tier leaves this test out."""
    name, _, case = nodeid.partition("[")
    return name in kept and (not case or case.removesuffix("]") not in kept[name])


def is_in_tier(nodeid: str, kept: dict[str, frozenset[str]]) -> bool:
    """Whether the present tier runs this test."""
    if _tier in ("full", "long"):
        return True
    return is_left_out(nodeid, kept) == (_tier == "rest")
