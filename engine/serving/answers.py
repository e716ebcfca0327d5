"""Answers about a server as the wire has them: how a prompt would be reused, and its tree as rows for the screen, the
largest branches, runs without branches as one row, the rest as a count."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from engine.cache.paged.prefix import encode_token_ids, num_equal_tokens
from engine.serving.explain import explain
from engine.serving.server import Server
from engine.serving.text import Texts, Words
from engine.serving.tree import Block
from engine.wire.serving import ExplainPrefix, PrefixExplained, PrefixRow, PrefixTree, TakePrefixTree


def answer(server: Server, command: TakePrefixTree | ExplainPrefix, tokenizer: Words) -> PrefixTree | PrefixExplained:
    """Raises InputError, with the remedy, for what cannot be answered."""
    if isinstance(command, ExplainPrefix):
        ids = command.token_ids if command.token_ids is not None else _ids_in(command.text)
        ids = tokenizer.encode(command.text) if ids is None else ids
        found = explain(server, ids, salt=command.salt, lora=command.lora, eagle=command.eagle, texts=tokenizer.texts)
        return replace(found, reply_to=command.id)
    words, why = command.words.strip(), ""
    needles: list[tuple[int, ...]] = []
    if words:
        ids = _ids_in(words)
        needles = tokenizer.pieces(words) if ids is None else [ids]
    rows, total, branches = rows_of(server, tokenizer.texts, [encode_token_ids(each) for each in needles if each])
    if not rows:
        why = f"No branch holds '{words}'." if words else "Nothing is stored yet: a block is stored once it is full."
    return PrefixTree(rows, total, branches, tokenizer.bytes_per_token, why, reply_to=command.id)


def _ids_in(text: str) -> tuple[int, ...] | None:
    """The token ids that a text consists of; None for any other text."""
    parts = text.replace(",", " ").split()
    if not parts or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        return None
    return tuple(map(int, parts))


# ---- the tree as rows ------------------------------------------------------------------------------------------------

# Rows of a picture, branches listed at one place, and tokens of a row that are read as text.
MOST_ROWS, MOST_BRANCHES, MOST_TEXT = 160, 12, 64


class _Run:
    """Blocks one after another that nothing branches off, and what is behind the last one."""

    def __init__(self, first: Block, start: int, depth: int, among: set[Block] | None) -> None:
        self.blocks, self.start, self.depth = [first], start, depth
        self.kids = _kids((first.kids or {}).values(), among)
        while len(self.kids) == 1 and self.kids[0].extra == () and list(self.kids[0].copies) == list(first.copies):
            self.blocks.append(self.kids[0])
            self.kids = _kids((self.kids[0].kids or {}).values(), among)
        self.num_tokens = sum(block.size for block in self.blocks)
        self.below: list[_Run] = []


def _kids(kids: Iterable[Block], among: set[Block] | None) -> list[Block]:
    return [kid for kid in kids if kid.below and (among is None or kid in among)]


def rows_of(server: Server, texts: Texts, needles: Sequence[bytes] = ()) -> tuple[tuple[PrefixRow, ...], int, int]:
    """Rows, tokens that are live, and branches at the root. With `needles` (ids as bytes) only branches that hold one
    of them."""
    roots: dict[Block, int] = {}  # and their ranks
    among: set[Block] | None = set() if needles else None
    for tree in server.trees.values():
        tree.settle()
        if among is not None:
            among |= _holding(tree.blocks.values(), needles)
        roots |= dict.fromkeys(_kids(tree.tops(), among), tree.rank)
    total = sum(root.below for root in roots)
    listed: list[_Run] = []
    waiting: list[tuple[int, int, _Run]] = []  # the largest that is not yet opened first
    num_rows = 0

    def add(blocks: Iterable[Block], into: list[_Run], start: int, depth: int) -> int:
        for block in heapq.nlargest(MOST_BRANCHES, blocks, key=lambda each: each.below):
            run = _Run(block, -1 if block.parent is not None and block.parent.tokens is None else start, depth, among)
            into.append(run)
            if run.kids:
                heapq.heappush(waiting, (-block.below, id(run), run))
        return len(into)

    num_rows += add(roots, listed, 0, 0)
    while waiting and num_rows < MOST_ROWS:
        run = heapq.heappop(waiting)[2]
        stop = run.start if run.start < 0 else run.start + run.num_tokens
        num_rows += add(run.kids, run.below, stop, run.depth + 1)
    rows: list[PrefixRow] = []

    def write(runs: Iterable[_Run], num_more: int, depth: int) -> None:
        beside: list[Block] = []  # the first blocks of the branches above
        for run in runs:
            first = run.blocks[0]
            tokens = first.tokens or b""
            alike = (other for other in beside if (other.extra, other.lora) == (first.extra, first.lora))
            parted = max((num_equal_tokens(tokens, other.tokens or b"") for other in alike), default=0)
            beside.append(first)
            ids = [each for block in run.blocks[:MOST_TEXT] for each in block.ids]
            stop = parted + MOST_TEXT
            text = f"{'…' if parted else ''}{texts(ids[parted:stop]).lstrip(' ')}{' …' if len(ids) > stop else ''}"
            apart = list(first.extra)
            if depth == 0:
                apart += [first.lora, f"rank {roots[first]}" if len(server.trees) > 1 else ""]
            rows.append(
                PrefixRow(
                    depth, run.start, run.num_tokens, len(run.blocks), first.below, text,
                    max(0.0, server.now - first.stored_at), ", ".join(first.copies) or "evicted",
                    " · ".join(filter(None, apart)), sum(first.copies.values()),
                )
            )  # fmt: skip
            write(run.below, len(run.kids) - len(run.below), depth + 1)
        if num_more:
            rows.append(PrefixRow(depth, num_more=num_more))

    write(listed, len(roots) - len(listed), 0)
    return tuple(rows), total, len(roots)


def _holding(blocks: Iterable[Block], needles: Sequence[bytes]) -> set[Block]:
    """The blocks in which a needle ends, with all before and behind them."""
    found: set[Block] = set()
    for block in blocks:
        if block.copies and block.tokens and any(_ends_in(block, needle) for needle in needles):
            behind = [block]
            for each in behind:
                if each not in found:
                    behind += (each.kids or {}).values()
            found.update(behind)
            at = block.parent
            while at is not None and at not in found:
                found.add(at)
                at = at.parent
    return found


def _ends_in(block: Block, needle: bytes) -> bool:
    """Whether tokens end in a block, which may begin in the blocks before it."""
    tokens, before = (block.tokens or b"")[: 4 * block.size], block.parent
    if needle[-4:] not in tokens:  # which is fast, and rules out most
        return False
    first = 0
    while first < len(needle) - 4 and before is not None and before.tokens:
        tokens, first = before.tokens[: 4 * before.size] + tokens, first + 4 * before.size
        before = before.parent
    at = tokens.find(needle, max(0, first - len(needle) + 4))
    while at > 0 and at % 4:
        at = tokens.find(needle, at + 1)
    return at >= 0
