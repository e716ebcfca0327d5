"""The prefix tree of one rank, folded from its events by counting copies of each block; and what the prefix cache would
hit with another pool."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from engine.serving.events import GPU, Cleared, Hash, Removed, Stored
from engine.wire.pages import decode_token_ids
from engine.wire.serving import Counts

# What is remembered of a server at most, for a stream that only stores: blocks, tokens in them, and of each rank blocks
# that are gone.
MAX_BLOCKS, MAX_TOKENS, MAX_GONE = 1 << 20, 1 << 26, 200_000
# Copies of most blocks, which share these: a dict for each would take as much time and memory as all the rest.
NONE: Mapping[str, int] = {}
ONE: Mapping[str, int] = {GPU: 1}
Key = Hash | tuple[int, Hash]
STORED, EVICTED, AGAIN = range(3)  # places in `Counts.rates`


def up_to(seconds: float) -> float:
    """The power of two of milliseconds that so many seconds lie below, in seconds."""
    return float(2 ** min(31, int(max(seconds, 0.0) * 1000).bit_length()) / 1000)


class Group(NamedTuple):
    """A cache group: tokens of a block, how many tokens layers see (0: all), and how many behind a block its hash
    covers."""

    size: int
    window: int = 0
    ahead: int = 0


@dataclass(eq=False, slots=True)
class Block:
    """A block that is or was in the server's cache. One whose tokens are not known (the server named its hash alone)
    has no place in the tree but before its `kids`. `copies` are its copies by medium: the same tokens may be computed
    twice. `parent` is None at the beginning of a prompt."""

    key: Key
    group: int
    stored_at: float
    used_at: float
    copies: Mapping[str, int]
    parent: Block | None = None
    kids: dict[Key, Block] | None = None
    tokens: bytes | None = None
    size: int = 0
    extra: tuple[str, ...] = ()
    lora: str = ""
    num_stored: int = 0
    gone_at: float = 0.0
    why_gone: str = ""
    number: int = 0  # its place in the trace
    below: int = -1  # live tokens in it and behind it; -1 until they are counted anew

    @property
    def ids(self) -> tuple[int, ...]:
        return decode_token_ids(self.tokens[: 4 * self.size]) if self.tokens else ()


def _touch(block: Block | None) -> None:
    """What is counted of a block and all before it has to be counted anew."""
    while block is not None and block.below >= 0:
        block.below, block = -1, block.parent


class Tree:
    """`is_known` is whether all events since an empty cache were seen; after `lost()`, what cannot be relied on is
    counted anew, and `sure` says what can."""

    def __init__(self, rank: int, counts: Counts) -> None:
        self.rank, self.counts = rank, counts
        self.blocks: dict[Key, Block] = {}
        self.roots: dict[Key, Block] = {}
        self.unknown: dict[Key, Block] = {}  # blocks without tokens that others follow
        self.groups: dict[int, Group] = {}
        self.is_known = True
        self.trace = Trace()
        self._sized: set[int] = set()  # groups that stored something since the cache was empty
        self._sure: dict[Block, dict[str, int]] = {}  # copies that came since events were lost
        self._gone: deque[Block] = deque()

    # ---- the fold ------------------------------------------------------------------------------------------------

    def fold(self, event: Stored | Removed | Cleared, now: float) -> None:
        if isinstance(event, Stored):
            self._store(event, now)
        elif isinstance(event, Removed):
            for hash_ in event.hashes:
                self._remove(self.blocks.get((event.group, hash_) if event.group else hash_), event.medium, now)
        else:
            self.clear(now, "cleared", event.medium)

    def _store(self, event: Stored, now: float) -> None:
        group, medium, counts = event.group, event.medium, self.counts
        has_tokens = bool(event.tokens) and event.tokens[0] is not None
        is_computed = has_tokens and medium == GPU  # of slower media it is a copy
        if event.block_size:
            self._set_group(event)
        parent = None if event.parent is None else self.blocks.get((group, event.parent) if group else event.parent)
        if parent is not None and is_computed:
            self._use(parent, now)
        num_new = 0
        for hash_, tokens, extra in zip(event.hashes, event.tokens, event.extras, strict=True):
            block = self._block(group, hash_, now)
            if tokens is not None and block.tokens is None:
                if parent is None and event.parent is not None:
                    parent = self._block(group, event.parent, now)
                self._place(block, event, tokens, extra, parent)
            if not block.copies:
                if block.num_stored:
                    counts.stored_again += 1
                    counts.stored_again_tokens += block.size
                    counts.absences_s[up_to(now - block.gone_at)] += 1
                    self._rate(AGAIN, now)
                else:
                    num_new += 1
                block.stored_at = block.used_at = now
            block.num_stored += 1
            self._count(block, medium, 1)
            parent = block
        counts.stored += len(event.hashes)
        counts.live_blocks += len(event.hashes)
        counts.most_live_blocks = max(counts.most_live_blocks, counts.live_blocks)
        if num_new:
            self._rate(STORED, now, num_new)
        if is_computed and parent is not None:
            self.trace.add(parent.number, len(event.hashes))
        if counts.remembered_blocks > MAX_BLOCKS or counts.remembered_tokens > MAX_TOKENS:
            self._drop_oldest()

    def _set_group(self, event: Stored) -> None:
        if event.group in self._sized and self.groups[event.group].size != event.block_size:
            self._say("chains with other block sizes than those before")
            return
        ahead = len(event.tokens[0]) // 4 - event.block_size if event.tokens and event.tokens[0] else 0
        self.groups[event.group] = Group(event.block_size, event.window, ahead)
        self._sized.add(event.group)

    def _block(self, group: int, hash_: Hash, now: float) -> Block:
        key: Key = (group, hash_) if group else hash_
        block = self.blocks.get(key)
        if block is None:
            block = self.blocks[key] = Block(key, group, now, now, NONE)
            self.counts.remembered_blocks += 1
        return block

    def _place(self, block: Block, event: Stored, tokens: bytes, extra: tuple[str, ...], parent: Block | None) -> None:
        """Give a block its tokens and its place in the tree."""
        above = parent if block.kids or parent is block else None
        while above is not None and above is not block:
            above = above.parent
        if above is not None:
            self._say("parents within their own chain")
            return
        block.tokens, block.extra, block.lora, block.size = tokens, extra, event.lora, event.block_size
        self.counts.remembered_tokens += event.block_size
        self.unknown.pop(block.key, None)
        _touch(parent)
        block.parent, block.below = parent, -1
        block.number = self.trace.block(parent.number if parent is not None else 0)
        self._beside(block)[block.key] = block

    def _beside(self, block: Block) -> dict[Key, Block]:
        """The blocks that stand where this one does: behind its parent, or at the beginning."""
        parent = block.parent
        if parent is None:
            return self.roots
        if parent.tokens is None:
            self.unknown[parent.key] = parent
        if parent.kids is None:
            parent.kids = {}
        return parent.kids

    def _count(self, block: Block, medium: str, change: int) -> None:
        """Count copies of a block."""
        if not block.copies and medium == GPU:
            block.copies = ONE
        else:
            number = block.copies.get(medium, 0) + change
            block.copies = {name: count for name, count in {**block.copies, medium: number}.items() if count}
        if block.below >= 0:
            _touch(block)
        if not self.is_known:
            sure = self._sure.setdefault(block, {})
            sure[medium] = max(0, sure.get(medium, 0) + change)

    def sure(self, block: Block) -> Mapping[str, int]:
        """The copies of a block that are there whatever the batches said that were lost."""
        return block.copies if self.is_known else self._sure.get(block, NONE)

    def _rate(self, of: int, now: float, number: int = 1) -> None:
        self.counts.rates[of][int(now // self.counts.period_s)] += number

    def _remove(self, block: Block | None, medium: str, now: float) -> None:
        self.counts.removed += 1
        if block is None or not block.num_stored:
            self._say("blocks removed that were never stored")
        elif medium not in block.copies:
            self._say("blocks removed more often than stored")
        else:
            self._count(block, medium, -1)
            self.counts.live_blocks -= 1
            if not block.copies:
                self._leave(block, now, "evicted")

    def _leave(self, block: Block, now: float, why: str) -> None:
        self.counts.lifetimes_s[up_to(now - block.stored_at)] += 1
        self._rate(EVICTED, now)
        block.gone_at, block.why_gone = now, why
        self._gone.append(block)
        if len(self._gone) > MAX_GONE:
            self._forget(self._gone.popleft())

    def clear(self, now: float, why: str, medium: str = "") -> None:
        """Take out all blocks, or those of a medium. Without a medium the tree is known afterwards."""
        self.counts.cleared += why == "cleared"
        for block in [block for block in self.blocks.values() if block.copies]:
            for name in [medium] if medium else list(block.copies):
                if count := block.copies.get(name, 0):
                    self._count(block, name, -count)
                    self.counts.live_blocks -= count
            if not block.copies:
                self._leave(block, now, why)
        if not medium:
            self.is_known = True
            self._sized.clear()

    def lost(self) -> None:
        """Events are missing from here on."""
        self.is_known, self._sure = False, {}

    def _use(self, block: Block, now: float) -> None:
        """Something was stored behind a block, so it was read: all before it are there as well."""
        if block.copies:
            self.counts.reuse_gaps_s[up_to(now - block.used_at)] += 1
        block.used_at = now
        has_window = block.group in self.groups and self.groups[block.group].window  # then what slid out may be gone
        at = None if self.is_known or has_window else block
        while at is not None and at.num_stored and not self.sure(at).get(GPU):
            if GPU in at.copies:
                self._sure.setdefault(at, {})[GPU] = 1
            else:
                self._say("blocks in use that were said to be gone")
                self._count(at, GPU, 1)
                self.counts.live_blocks += 1
                at.stored_at = now
            at = at.parent

    # ---- bounds --------------------------------------------------------------------------------------------------

    def _forget(self, block: Block) -> None:
        """Forget a block that is gone; where others stand behind it, all but that."""
        parent = block.parent
        if block.copies or self.blocks.get(block.key) is not block:
            return
        _touch(parent)
        if block.tokens is not None:
            del self._beside(block)[block.key]
        self.counts.remembered_tokens -= block.size
        self._sure.pop(block, None)
        if block.kids:
            block.tokens, block.size, block.num_stored, block.parent = None, 0, 0, None
            self.unknown[block.key] = block
        else:
            del self.blocks[block.key]
            self.counts.remembered_blocks -= 1
        if parent is not None and parent.tokens is None and not parent.kids:
            del self.unknown[parent.key]
            self._forget(parent)

    def _drop_oldest(self) -> None:
        """Let an eighth of all blocks go with what stands behind them, the oldest of those that are gone first: no true
        pool is that large."""
        self._say("more blocks than are followed")
        kept = sorted(self.blocks.values(), key=lambda block: (bool(block.copies), block.used_at))
        waiting = kept[: max(1, len(kept) // 8)]
        while waiting:
            block = waiting.pop()
            waiting += (block.kids or {}).values()
            self.counts.live_blocks -= sum(block.copies.values())
            block.copies = NONE
            self._forget(block)
        self.lost()

    def _say(self, what: str) -> None:
        self.counts.contradictions[what] += 1

    def settle(self) -> None:
        """Count anew how many tokens are behind each block, where that changed."""
        dirty = [block for block in self.tops() if block.below < 0]
        for block in dirty:  # which grows while it is gone through
            if block.kids:
                dirty += [kid for kid in block.kids.values() if kid.below < 0]
        for block in reversed(dirty):
            block.below = block.size if block.copies else 0
            if block.kids:
                block.below += sum([kid.below for kid in block.kids.values()])

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def main(self) -> int:
        """The cache group that sees the whole prompt, by the smallest blocks: the others hold the same tokens once
        more."""
        return min(self.groups, key=lambda of: (bool(self.groups[of].window), self.groups[of].size, of), default=0)

    def late(self) -> Iterator[Block]:
        """The blocks whose parent is not known."""
        return chain.from_iterable((block.kids or {}).values() for block in self.unknown.values())

    def tops(self) -> Iterator[Block]:
        """The blocks of the main group that begin a prompt, and those whose parent is not known."""
        main = self.main
        return (block for block in chain(self.roots.values(), self.late()) if block.group == main)

    def children(self, block: Block | None, group: int = 0) -> Iterator[Block]:
        """What follows a block, or begins a prompt, in one cache group; blocks that are gone too."""
        kids = self.roots if block is None else block.kids or {}
        return (kid for kid in kids.values() if kid.group == group)

    def largest_id(self) -> int:
        """The largest token id that is remembered."""
        return max((max(block.ids) for block in self.blocks.values() if block.tokens), default=0)


# ---- other pools -----------------------------------------------------------------------------------------------------

# An estimate from the chains that were stored, since a stream does not say where requests begin, and those that store
# nothing are not in it.

# What a trace remembers at most: 16 MB of blocks, and as much of events.
MOST = 1 << 22


class Trace:
    """Every block by number with the one before it (0: none), and of every chain stored its last block and how many of
    it were new."""

    def __init__(self) -> None:
        self._parents, self._last, self._new = array("I", [0]), array("I"), array("I")
        self._depths = array("I", [0])  # of the first blocks; of all before they are read

    def block(self, parent: int) -> int:
        """The number of a new block."""
        if len(self._parents) == MOST:
            return 0
        self._parents.append(parent)
        return len(self._parents) - 1

    def add(self, last: int, num_new: int) -> None:
        if last and len(self._last) < MOST:
            self._last.append(last)
            self._new.append(num_new)

    @property
    def num_blocks(self) -> int:
        return len(self._parents) - 1

    def hits(self, num_blocks: int, latest: float) -> tuple[int, int]:
        """Blocks found, and blocks asked for, with the least recently used of `num_blocks` evicted first, the end of a
        chain before its beginning. A chain that grows by one block at its end is a request that decodes on. Of the
        `latest` blocks asked for the first quarter only fills the pool."""
        pool: OrderedDict[int, None] = OrderedDict()
        ends: set[int] = set()
        asked = hits = 0
        depths, first = self._depths, len(self._new)
        depths.extend(depths[parent] + 1 for parent in self._parents[len(depths) :])
        count = first
        while first and latest > 0:
            first -= 1
            latest -= depths[self._last[first]]
        begin = first + (count - first) // 4 if first else 0
        for number in range(first, count):
            last, num_new = self._last[number], self._new[number]
            chain, at = [], last
            while at:
                chain.append(at)
                at = self._parents[at]
            if num_new == 1 and len(chain) > 1 and chain[1] in ends:
                ends.discard(chain[1])
            elif number >= begin:
                asked += len(chain)
                for block in reversed(chain):
                    if block not in pool:
                        break
                    hits += 1
            ends.add(last)
            for block in chain:
                pool[block] = None
                pool.move_to_end(block)
            while len(pool) > num_blocks:
                pool.popitem(last=False)
        return hits, asked
