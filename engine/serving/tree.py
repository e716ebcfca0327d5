"""The prefix tree of one rank, folded from its events by counting copies of each block; and what the prefix cache would
hit with another pool."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from engine.serving.events import GPU, Cleared, Hash, Removed, Stored
from engine.wire.pages import decode_token_ids

# What is remembered of a server at most, for a stream that only stores: blocks, tokens in them, and of each rank blocks
# that are gone.
MAX_BLOCKS, MAX_TOKENS, MAX_GONE = 1 << 20, 1 << 26, 200_000
# Copies of most blocks, which share these: a dict for each would take as much time and memory as all the rest.
NONE: Mapping[str, int] = {}
ONE: Mapping[str, int] = {GPU: 1}
MOST_PERIODS = 120  # of the chart over time
Key = Hash | tuple[int, Hash]


class Counts:
    """What the stream of a server says in all, over its ranks. Distributions are counts by the seconds up to which, in
    powers of two from a millisecond on; `rates` blocks stored, evicted and stored again by number of the period."""

    def __init__(self) -> None:
        self.stored = self.removed = self.cleared = self.again = self.again_tokens = 0
        self.live = self.most_live = 0  # copies
        self.num_blocks = self.num_tokens = 0  # that are remembered, of blocks that are gone too
        self.odd = Counter[str]()  # what a stream that is true would not say, by kind
        self.lifetimes, self.reuse_gaps, self.absences = Counter[float](), Counter[float](), Counter[float]()
        self.period = 1
        self._rates = Counter[tuple[int, int]]()
        self._since, self._until = float("inf"), float("-inf")

    def rate(self, now: float, column: int, count: int = 1) -> None:
        self._since, self._until = min(self._since, now), max(self._until, now)
        while self._until - self._since >= MOST_PERIODS * self.period:
            self.period *= 2
            merged = Counter[tuple[int, int]]()
            for (at, of), number in self._rates.items():
                merged[at // 2, of] += number
            self._rates = merged
        self._rates[int(now // self.period), column] += count

    @property
    def rates(self) -> tuple[tuple[int, int, int], ...]:
        """By period, the latest last."""
        if not self._rates:
            return ()
        first, last = (int(each // self.period) for each in (self._since, self._until))
        found = self._rates
        return tuple((found[at, 0], found[at, 1], found[at, 2]) for at in range(first, last + 1))


def up_to(seconds: float) -> float:
    """The power of two of milliseconds that so many seconds lie below, in seconds."""
    return float(2 ** min(31, int(max(seconds, 0.0) * 1000).bit_length()) / 1000)


class Group(NamedTuple):
    """A cache group: tokens of a block, how many tokens layers see (0: all), and how many behind a block its hash
    covers."""

    size: int
    window: int = 0
    ahead: int = 0


class Block:
    """A block that is or was in the server's cache. `copies` are its copies by medium (the same tokens may be computed
    twice); `parent` is None at a root, and where the parent is not known (`parent_key` says which it would be)."""

    __slots__ = (
        "below", "copies", "extra", "gone_at", "group", "key", "kids", "lora", "num_stored", "number", "parent",
        "parent_key", "size", "stored_at", "sure", "sure_since", "tokens", "used_at", "why_gone",
    )  # fmt: skip

    def __init__(self, key: Key, group: int, now: float) -> None:
        self.key, self.group = key, group
        self.parent: Block | None = None
        self.parent_key: Key | None = None
        self.tokens: bytes | None = None
        self.size = 0
        self.extra: tuple[str, ...] = ()
        self.lora = ""
        self.kids: dict[Key, Block] | None = None
        self.copies = NONE
        self.stored_at = self.used_at = now
        self.gone_at = 0.0
        self.why_gone = ""
        self.num_stored = self.number = 0  # `number` is its place in the trace
        self.sure: dict[str, int] | None = None  # copies that came since `sure_since` events were lost
        self.sure_since = 0
        self.below = -1  # live tokens in it and behind it; -1 until they are counted anew

    @property
    def ids(self) -> tuple[int, ...]:
        """Its token ids; none where the server named its hash alone."""
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
        self.orphans: dict[Key, dict[Key, Block]] = {}  # by the parent that has not come
        self._gone: deque[Block] = deque()
        self.groups: dict[int, Group] = {}
        self._sized: set[int] = set()  # those that stored something since the cache was empty
        self.is_known = True
        self._num_lost = 0
        self.trace = Trace()

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
        group, medium, parent = event.group, event.medium, None
        parent_key: Key | None = None if event.parent is None else (group, event.parent) if group else event.parent
        has_tokens = bool(event.tokens) and event.tokens[0] is not None
        is_computed = has_tokens and medium == GPU  # of slower media it is a copy
        if event.block_size:
            self._set_group(event)
        if parent_key is not None:
            parent = self.blocks.get(parent_key)
            if parent is not None and is_computed:
                self._use(parent, now)
        num_new = 0
        for hash_, tokens, extra in zip(event.hashes, event.tokens, event.extras, strict=True):
            key: Key = (group, hash_) if group else hash_
            block = self.blocks.get(key)
            if block is None:
                block = self.blocks[key] = Block(key, group, now)
                self.counts.num_blocks += 1
            if tokens is not None and block.tokens is None:
                self._place(block, event, tokens, extra, parent, parent_key)
            if not block.copies:
                if block.num_stored:
                    self._return(block, now)
                else:
                    num_new += 1
                block.stored_at = block.used_at = now
            block.num_stored += 1
            self._count(block, medium, 1)
            parent, parent_key = block, key
        counts = self.counts
        counts.stored += len(event.hashes)
        counts.live += len(event.hashes)
        counts.most_live = max(counts.most_live, counts.live)
        if num_new:
            counts.rate(now, 0, num_new)
        if is_computed and parent is not None:
            self.trace.add(parent.number, len(event.hashes))
        if counts.num_blocks > MAX_BLOCKS or counts.num_tokens > MAX_TOKENS:
            self._drop_oldest()

    def _set_group(self, event: Stored) -> None:
        if event.group in self._sized and self.groups[event.group].size != event.block_size:
            self._say("chains with other block sizes than those before")
            return
        ahead = len(event.tokens[0]) // 4 - event.block_size if event.tokens and event.tokens[0] else 0
        self.groups[event.group] = Group(event.block_size, event.window, ahead)
        self._sized.add(event.group)

    def _place(
        self, block: Block, event: Stored, tokens: bytes, extra: tuple[str, ...], parent: Block | None, key: Key | None
    ) -> None:
        """Give a block its tokens and its place in the tree."""
        block.tokens, block.extra, block.lora, block.size = tokens, extra, event.lora, event.block_size
        self.counts.num_tokens += event.block_size
        block.parent, block.parent_key = parent, key
        if parent is not None and (parent is block or block.kids) and self._is_within(parent, block):
            self._say("parents within their own chain")
            block.parent, block.parent_key, parent = None, None, None
        if parent is not None and parent.below >= 0:
            _touch(parent)
        block.number = self.trace.block(parent.number if parent is not None else 0)
        self._beside(block)[block.key] = block
        for kid in self.orphans.pop(block.key, {}).values() if self.orphans else ():
            if self._is_within(block, kid):
                self._say("parents within their own chain")
                kid.parent_key = None
            else:
                kid.parent = block
            self._beside(kid)[kid.key] = kid

    def _beside(self, block: Block) -> dict[Key, Block]:
        """The blocks that stand where this one does: behind its parent, at the root, or waiting for a parent."""
        if block.parent is not None:
            if block.parent.kids is None:
                block.parent.kids = {}
            return block.parent.kids
        return self.roots if block.parent_key is None else self.orphans.setdefault(block.parent_key, {})

    @staticmethod
    def _is_within(block: Block | None, other: Block) -> bool:
        """Whether `other` is this block or above it. Only a block that has something below it can be."""
        if block is other:
            return True
        if other.kids is None:
            return False
        while block is not None:
            if block is other:
                return True
            block = block.parent
        return False

    def _return(self, block: Block, now: float) -> None:
        self.counts.again += 1
        self.counts.again_tokens += block.size
        self.counts.absences[up_to(now - block.gone_at)] += 1
        self.counts.rate(now, 2)

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
            sure = self._since_lost(block)
            sure[medium] = max(0, sure.get(medium, 0) + change)

    def sure(self, block: Block) -> Mapping[str, int]:
        """The copies of a block that are there whatever the batches said that were lost."""
        return block.copies if self.is_known else self._since_lost(block)

    def _since_lost(self, block: Block) -> dict[str, int]:
        if block.sure is None or block.sure_since != self._num_lost:
            block.sure, block.sure_since = {}, self._num_lost
        return block.sure

    def _remove(self, block: Block | None, medium: str, now: float) -> None:
        self.counts.removed += 1
        if block is None or not block.num_stored:
            self._say("blocks removed that were never stored")
        elif medium not in block.copies:
            self._say("blocks removed more often than stored")
        else:
            self._count(block, medium, -1)
            self.counts.live -= 1
            if not block.copies:
                self._leave(block, now, "evicted")

    def _leave(self, block: Block, now: float, why: str) -> None:
        self.counts.lifetimes[up_to(now - block.stored_at)] += 1
        self.counts.rate(now, 1)
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
                    self.counts.live -= count
            if not block.copies:
                self._leave(block, now, why)
        if not medium:
            self.is_known = True
            self._sized.clear()

    def lost(self) -> None:
        """Events are missing from here on."""
        self.is_known = False
        self._num_lost += 1

    def _use(self, block: Block, now: float) -> None:
        """Something was stored behind a block, so it was read: all before it are there as well."""
        if block.copies:
            self.counts.reuse_gaps[up_to(now - block.used_at)] += 1
        block.used_at = now
        has_window = block.group in self.groups and self.groups[block.group].window  # then what slid out may be gone
        at = None if self.is_known or has_window else block
        while at is not None and not self.sure(at).get(GPU):
            if GPU in at.copies:
                self._since_lost(at)[GPU] = 1
            else:
                self._say("blocks in use that were said to be gone")
                self._count(at, GPU, 1)
                self.counts.live += 1
                at.stored_at = now
            at = at.parent

    # ---- bounds --------------------------------------------------------------------------------------------------

    def _forget(self, block: Block) -> None:
        """Forget a block that is gone; what stands behind it waits for its parent again."""
        if block.copies or self.blocks.get(block.key) is not block:
            return
        del self.blocks[block.key]
        self.counts.num_blocks -= 1
        self.counts.num_tokens -= block.size
        _touch(block.parent)
        self._beside(block).pop(block.key, None)
        if block.parent is None and block.parent_key is not None and not self.orphans[block.parent_key]:
            del self.orphans[block.parent_key]
        if block.kids:
            self.orphans[block.key] = block.kids
            for kid in block.kids.values():
                kid.parent, kid.parent_key = None, block.key

    def _drop_oldest(self) -> None:
        """Let an eighth of all blocks go, the oldest of those that are gone first: no true pool is that large."""
        self._say("times more blocks than are followed")
        kept = sorted(self.blocks.values(), key=lambda block: (bool(block.copies), block.used_at))
        for block in kept[: max(1, len(kept) // 8)]:
            self.counts.live -= sum(block.copies.values())
            block.copies = NONE
            self._forget(block)
        self.lost()

    def _say(self, what: str) -> None:
        self.counts.odd[what] += 1

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

    def tops(self) -> Iterator[Block]:
        """The blocks of the main group that begin a prompt, and those whose parent is not known."""
        main = self.main
        for among in (self.roots, *self.orphans.values()):
            yield from (block for block in among.values() if block.group == main)

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
        self._parents, self._depths = array("I", [0]), array("I", [0])
        self._last, self._new = array("I"), array("I")

    def block(self, parent: int) -> int:
        """The number of a new block."""
        if len(self._parents) == MOST:
            return 0
        self._depths.append(self._depths[parent] + 1)
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
        first = count = len(self._new)
        while first and latest > 0:
            first -= 1
            latest -= self._depths[self._last[first]]
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
