"""Prefix trees: of servers that run elsewhere, and of the page pools here; and why a prompt is not reused there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import ClassVar, Literal

from msgspec import Struct, field

from engine.wire.message import Answer, Command, Event, Facts, Nested


class ServerSpec(Struct, frozen=True):
    """A server to attach to: where it publishes its KV events, or a recording of them (`.kvevents`), which is played
    `speed` times as fast as it was (0: at once); where it repeats what was missed; its page of metrics; the folder with
    its tokenizer. What is empty is not used."""

    endpoint: str
    replay: str = ""
    metrics: str = ""
    tokenizer: str = ""
    speed: float = 0.0


class AttachServer(Command, frozen=True):
    """Listen to a server, and fold what it publishes. Refused where that cannot be."""

    facts: ClassVar[Facts] = Facts("attaching to a server", needs="nothing", effect="looks", is_quiet=True)

    spec: ServerSpec

    @property
    def server(self) -> str:
        return self.spec.endpoint


class DetachServer(Command, frozen=True):
    """Stop listening to a server, and forget it."""

    facts: ClassVar[Facts] = Facts("detaching a server", needs="nothing", effect="looks", is_quiet=True)

    server: str


class RecordServer(Command, frozen=True):
    """Write what comes from a server from now on to a file; None ends it."""

    facts: ClassVar[Facts] = Facts("recording a server", needs="nothing", effect="looks", is_quiet=True)

    server: str
    path: Path | None = None


class TakePrefixTree(Command, frozen=True):
    """Ask for the tree of a server, by its endpoint, or (empty) of the page pools of this session. With `words`, only
    the branches that hold them. Answered by a `PrefixTree`."""

    facts: ClassVar[Facts] = Facts(
        "reading the prefix tree", needs="nothing", answers="one", effect="looks", is_quiet=True
    )

    server: str = ""
    words: str = ""


class ExplainPrefix(Command, frozen=True):
    """Ask how much of a prompt would be reused, and why no more; with `eagle`, by a server that drafts with EAGLE or
    MTP and computes the last block that it finds again. Answered by a `PrefixExplained`."""

    facts: ClassVar[Facts] = Facts("looking up a prefix", needs="nothing", answers="one", effect="looks", is_quiet=True)

    text: str
    token_ids: tuple[int, ...] | None = None
    server: str = ""
    salt: str = ""
    lora: str = ""
    eagle: bool = False


ServerCommand = AttachServer | DetachServer | RecordServer | TakePrefixTree | ExplainPrefix


class PrefixRow(Nested, frozen=True):
    """A run of blocks that nothing branches off, at a depth of the tree: tokens from `start` on (-1: not known), with
    their text from where it parts from the branches above it; how many tokens it and all behind it hold; seconds since
    it was stored; its tiers; what sets it apart. `num_more`: so many smaller branches beside it, which are not listed,
    and nothing else of a row."""

    depth: int
    start: int = 0
    num_tokens: int = 0
    num_blocks: int = 0
    below: int = 0
    text: str = ""
    age_s: float = 0.0
    media: str = ""
    salt: str = ""
    copies: int = 1
    num_more: int = 0


class PrefixTree(Answer, frozen=True):
    """Rows from the largest branch on. `bytes_per_token` is 0 where nothing says it."""

    rows: tuple[PrefixRow, ...]
    num_tokens: int
    num_branches: int
    bytes_per_token: int = 0
    why_none: str = ""


Reason = Literal[
    "all reused", "last token", "shorter than a block", "never stored", "differs", "other salt or adapter", "evicted",
    "other rank", "partial", "nothing stored",
]  # fmt: skip


class PrefixExplained(Answer, frozen=True):
    """`reused` tokens of `num_tokens` would be found in the cache of a rank, if what was seen of the stream is all.
    Where it is not (`partial`), `at_least` and `at_most` so many. `differs_at` is the place of a token, `prompt_text`
    and `stored_text` are what stands there on both sides."""

    num_tokens: int
    reused: int
    why: str
    reason: Reason
    at_least: int
    at_most: int
    block_size: int
    rank: int = 0
    partial: bool = False
    differs_at: int | None = None
    prompt_text: str = ""
    stored_text: str = ""


class Counts(Struct):
    """What the stream of a server said in all, over its ranks, and by its own clock. Batches are those that were
    folded; blocks that live are counted by copies, those remembered are gone ones too. `lifetimes_s`, `reuse_gaps_s`
    and `absences_s` are counts by the seconds up to which, in powers of two from a millisecond on; `rates` blocks
    stored, evicted and stored again by number of the period of `period_s`; `contradictions` what a stream that is true
    would not say."""

    batches: int = 0
    events: int = 0
    missing_batches: int = 0
    repeated: int = 0
    unreadable: int = 0
    restarts: int = 0
    stored: int = 0
    removed: int = 0
    cleared: int = 0
    stored_again: int = 0
    stored_again_tokens: int = 0
    live_blocks: int = 0
    most_live_blocks: int = 0
    lifetimes_s: dict[float, int] = field(default_factory=Counter)
    reuse_gaps_s: dict[float, int] = field(default_factory=Counter)
    absences_s: dict[float, int] = field(default_factory=Counter)
    first_s: float = 0.0
    last_s: float = 0.0
    period_s: int = 1
    rates: tuple[dict[int, int], ...] = field(default_factory=lambda: (Counter(), Counter(), Counter()))
    contradictions: dict[str, int] = field(default_factory=Counter)
    remembered_blocks: int = 0
    remembered_tokens: int = 0


class ServerState(Nested, frozen=True):
    """What is known of a server. `words`: how the connection is; `notes`: what has to be known before the numbers are
    believed. `pools` are estimated hit ratios by number of blocks, `told` figures of its metrics page, name and
    words."""

    name: str
    state: str
    words: str
    notes: tuple[str, ...] = ()
    live_tokens: int = 0
    counts: Counts = field(default_factory=Counts)
    pools: tuple[tuple[int, float], ...] = ()
    told: tuple[tuple[str, str], ...] = ()
    is_recording: bool = False


class ServersChanged(Event, frozen=True):
    """All servers that are attached to, as they are now."""

    servers: tuple[ServerState, ...]
