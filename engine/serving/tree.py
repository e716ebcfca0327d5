"""The prefix tree of one rank, folded from its events by counting copies of each block."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from engine.serving.pool_size import Trace
from engine.serving.schema import GPU, Cleared, Hash, Removed, Stored, decode_ids

# What is remembered at most, for a stream that only stores: blocks, tokens in them, and blocks that are gone.
MAX_BLOCKS, MAX_TOKENS, MAX_GONE = 1 << 20, 1 << 26, 200_000
Key = Hash | tuple[int, Hash]


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
        self.copies: int | dict[str, int] = 0  # an int where all are on the GPU
        self.stored_at = self.used_at = now
        self.gone_at = 0.0
        self.why_gone = ""
        self.num_stored = self.number = 0  # `number` is its place in the trace
        self.sure = self.sure_since = 0
        self.below = -1  # live tokens in it and behind it; -1 until they are counted anew

    @property
    def is_live(self) -> bool:
        return bool(self.copies)

    @property
    def media(self) -> tuple[str, ...]:
        return tuple(self.copies) if isinstance(self.copies, dict) else (GPU,) if self.copies else ()

    def add(self, medium: str, change: int) -> bool:
        """Count copies; False where there are fewer than none, which is not counted."""
        if medium == GPU and isinstance(self.copies, int):
            if self.copies + change < 0:
                return False
            self.copies += change
            return True
        copies = dict(self.copies) if isinstance(self.copies, dict) else {GPU: self.copies} if self.copies else {}
        now = copies.get(medium, 0) + change
        if now < 0:
            return False
        copies[medium] = now
        copies = {name: count for name, count in copies.items() if count}
        self.copies = copies if copies and set(copies) != {GPU} else copies.get(GPU, 0)
        return True


def _touch(block: Block | None) -> None:
    """What is counted of a block and all before it has to be counted anew."""
    while block is not None and block.below >= 0:
        block.below, block = -1, block.parent


class Seconds:
    """Counts by powers of two of seconds, from a millisecond on: of lifetimes, or of gaps."""

    def __init__(self) -> None:
        self.counts = [0] * 32

    def add(self, seconds: float) -> None:
        self.counts[min(31, int(max(seconds, 0.0) * 1000).bit_length())] += 1

    def rows(self) -> tuple[tuple[float, int], ...]:
        """`(seconds up to which, count)` of those that occur."""
        return tuple((2**number / 1000, count) for number, count in enumerate(self.counts) if count)


class Tree:
    """`known` is whether all events since an empty cache were seen; after `lost()`, what cannot be relied on is counted
    anew: a block's `sure` copies are those that came since."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.blocks: dict[Key, Block] = {}
        self.roots: dict[Key, Block] = {}
        self.orphans: dict[Key, dict[Key, Block]] = {}  # by the parent that has not come
        self._gone: deque[Block] = deque()
        self.groups: dict[int, tuple[int, int]] = {}  # block size and window (0: all) of each cache group
        self.is_known = True
        self.since_lost = 0
        self.num_live = self.most_live = self.num_tokens = self.copies = self.most_copies = 0
        self.num_stored = self.num_removed = self.num_again = self.tokens_again = self.num_cleared = 0
        self.odd: dict[str, int] = {}  # what a stream that is true would not say, by kind
        self.lifetimes, self.reuse_gaps, self.absences = Seconds(), Seconds(), Seconds()
        self.trace = Trace()
        self.rates: dict[int, list[int]] = {}  # stored, removed, stored again by period
        self.period = 1
        self.now = 0.0

    # ---- the fold ------------------------------------------------------------------------------------------------

    def fold(self, event: Stored | Removed | Cleared, now: float) -> None:
        self.now = now
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
        if has_tokens:
            self.groups[group] = event.block_size, event.window
        if parent_key is not None:
            parent = self.blocks.get(parent_key)
            if parent is not None and has_tokens:
                self._use(parent, now)
        for hash_, tokens, extra in zip(event.hashes, event.tokens, event.extras, strict=True):
            key: Key = (group, hash_) if group else hash_
            block = self.blocks.get(key)
            if block is None:
                block = self.blocks[key] = Block(key, group, now)
            if tokens is not None and block.tokens is None:
                self._place(block, event, tokens, extra, parent, parent_key)
            self._arrive(block, medium, now)
            parent, parent_key = block, key
        if has_tokens and parent is not None:
            self.trace.add(parent.number, len(event.hashes))
        if len(self.blocks) > MAX_BLOCKS or self.num_tokens > MAX_TOKENS:
            self._drop_oldest()

    def _place(
        self, block: Block, event: Stored, tokens: bytes, extra: tuple[str, ...], parent: Block | None, key: Key | None
    ) -> None:
        """Give a block its tokens and its place in the tree."""
        block.tokens, block.extra, block.lora, block.size = tokens, extra, event.lora, event.block_size
        self.num_tokens += event.block_size
        block.parent, block.parent_key = parent, key
        if parent is not None and self._is_within(parent, block):
            self._say("parents within their own chain")
            block.parent, block.parent_key, parent, key = None, None, None, None
        _touch(parent)
        block.number = self.trace.block(parent.number if parent is not None else 0)
        self._beside(block)[block.key] = block
        for kid in self.orphans.pop(block.key, {}).values():
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

    def _arrive(self, block: Block, medium: str, now: float) -> None:
        if not block.copies:
            again = block.num_stored > 0
            if again:
                self.num_again += 1
                self.tokens_again += block.size
                self.absences.add(now - block.gone_at)
            self._rate(now, 2 if again else 0)
            block.stored_at = block.used_at = now
            self.num_live += 1
            if self.num_live > self.most_live:
                self.most_live = self.num_live
        block.add(medium, 1)
        _touch(block)
        block.num_stored += 1
        self.copies += 1
        if self.copies > self.most_copies:
            self.most_copies = self.copies
        self.num_stored += 1
        self._rely(block, 1)

    def _remove(self, block: Block | None, medium: str, now: float) -> None:
        self.num_removed += 1
        if block is None or not block.num_stored:
            self._say("blocks removed that were never stored")
        elif not block.add(medium, -1):
            self._say("blocks removed more often than stored")
        else:
            self.copies -= 1
            self._rely(block, -1)
            if not block.copies:
                self._leave(block, now, "evicted")

    def _leave(self, block: Block, now: float, why: str) -> None:
        self.num_live -= 1
        _touch(block)
        self.lifetimes.add(now - block.stored_at)
        self._rate(now, 1)
        block.gone_at, block.why_gone = now, why
        self._gone.append(block)
        if len(self._gone) > MAX_GONE:
            self._forget(self._gone.popleft())

    def clear(self, now: float, why: str, medium: str = "") -> None:
        """Take out all blocks, or those of a medium. Afterwards the tree is known."""
        self.num_cleared += why == "cleared"
        for block in [block for block in self.blocks.values() if block.copies]:
            copies = block.copies if isinstance(block.copies, dict) else {GPU: block.copies}
            for name, count in tuple(copies.items()):
                if not medium or name == medium:
                    block.add(name, -count)
                    self.copies -= count
            block.sure = 0
            if not block.copies:
                self._leave(block, now, why)
        if not medium:
            self.is_known = True

    def lost(self) -> None:
        """Events are missing from here on."""
        self.is_known = False
        self.since_lost += 1

    def _rely(self, block: Block, change: int) -> None:
        if block.sure_since != self.since_lost:
            block.sure, block.sure_since = 0, self.since_lost
        if block.sure or change > 0:
            block.sure += change

    def _use(self, block: Block, now: float) -> None:
        """Something was stored behind a block, so it was read: all before it are there as well."""
        if block.copies:
            self.reuse_gaps.add(now - block.used_at)
        block.used_at = now
        at = block if not self.groups[block.group][1] else None  # of a window, what slid out may be gone
        while not self.is_known and at is not None and not (at.sure_since == self.since_lost and at.sure):
            at.sure, at.sure_since = 1, self.since_lost
            if not at.copies:
                self._say("blocks in use that were said to be gone")
                at.add(GPU, 1)
                self.copies += 1
                self.num_live += 1
                at.stored_at = now
            at = at.parent

    # ---- bounds --------------------------------------------------------------------------------------------------

    def _forget(self, block: Block) -> None:
        """Forget a block that is gone; what stands behind it waits for its parent again."""
        if block.copies or self.blocks.get(block.key) is not block:
            return
        del self.blocks[block.key]
        self._detach(block)

    def _detach(self, block: Block) -> None:
        self.num_tokens -= block.size
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
            if block.copies:
                self.num_live -= 1
                self.copies -= sum(block.copies.values()) if isinstance(block.copies, dict) else block.copies
                block.copies = 0
            self._forget(block)
        self.lost()

    def _say(self, what: str) -> None:
        self.odd[what] = self.odd.get(what, 0) + 1

    def _rate(self, now: float, column: int) -> None:
        at = int(now // self.period)
        row = self.rates.get(at)
        if row is None:
            row = self.rates[at] = [0, 0, 0]
            if len(self.rates) > 600:
                self.period *= 2
                merged: dict[int, list[int]] = {}
                for old, counts in self.rates.items():
                    into = merged.setdefault(old // 2, [0, 0, 0])
                    for number, count in enumerate(counts):
                        into[number] += count
                self.rates = merged
                row = merged[at // 2]
        row[column] += 1

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

    def tops(self) -> Iterator[Block]:
        """The blocks that begin a prompt, and those whose parent is not known: of the cache group that sees the whole
        prompt, since others hold the same tokens once more."""
        main = min(self.groups, key=lambda group: (bool(self.groups[group][1]), group), default=0)
        for among in (self.roots, *self.orphans.values()):
            yield from (block for block in among.values() if block.group == main)

    def children(self, block: Block | None, group: int = 0) -> Iterator[Block]:
        """What follows a block, or begins a prompt, in one cache group; blocks that are gone too."""
        kids = self.roots if block is None else block.kids or {}
        return (kid for kid in kids.values() if kid.group == group)

    def largest_id(self) -> int:
        """The largest token id that is remembered."""
        return max((max(decode_ids(block.tokens)) for block in self.blocks.values() if block.tokens), default=0)
