"""Why a prompt would be reused as far as it is, and no further: as a server's prefix cache looks it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from engine.errors import InputError
from engine.serving.schema import GPU, decode_ids, encode_ids
from engine.serving.server import Server
from engine.serving.tree import Block, Tree
from engine.wire.serving import PrefixExplained, Reason

Texts = Callable[[Sequence[int]], str]
# Tokens shown of either side where a prompt differs, and branches that are compared.
SIDE, MOST_COMPARED = 8, 20_000


class _Found(msgspec.Struct):
    """How far one rank has a prompt: `path` are the blocks that match in tokens and identity, live ones first."""

    tree: Tree
    group: int
    size: int
    tokens: int  # reused, the last token never
    sure: int
    all_blocks: int
    path: list[Block]


def explain(
    server: Server,
    token_ids: Sequence[int],
    *,
    salt: str = "",
    lora: str = "",
    rank: int | None = None,
    texts: Texts | None = None,
) -> PrefixExplained:
    """Looks a prompt up. Without a rank the one is taken that has most of it."""
    if not token_ids:
        raise InputError("The prompt is empty: give some tokens.")
    try:
        encode_ids(token_ids)
    except (OverflowError, TypeError):
        raise InputError("A token id is no whole number of 32 bits: give ids of the server's tokenizer.") from None
    trees = [tree for tree in server.trees.values() if tree.groups]
    asked = trees if rank is None else [tree for tree in trees if tree.rank == rank]
    if rank is not None and not asked and trees:
        raise InputError(f"There is no rank {rank} in it: it has {', '.join(str(tree.rank) for tree in trees)}.")
    texts = texts or (lambda ids: " ".join(map(str, ids)))
    most = max(len(token_ids) - 1, 0)
    if not asked:
        partial = server.is_partial
        why = "Nothing is stored yet" + (", as far as it was seen: batches are missing." if partial else ".")
        return PrefixExplained(
            server.name, len(token_ids), 0, why, "nothing stored", 0, most if partial else 0, 0, rank or 0, partial
        )
    found = [_look_up(tree, token_ids, salt, lora) for tree in asked]
    best = max(found, key=lambda each: each.tokens)
    others = [_look_up(tree, token_ids, salt, lora) for tree in trees if tree not in asked]
    better = max(others, key=lambda each: each.tokens, default=None)
    at_most = (most // best.size) * best.size if not best.tree.is_known else best.tokens
    answer = _why(server, best, token_ids, salt, lora, texts)
    why = answer.why
    if better is not None and better.tokens > best.tokens:
        why = (
            f"Rank {better.tree.rank} has {better.tokens:,} tokens of it, rank {best.tree.rank} {best.tokens:,}. {why}"
        )
        answer = msgspec.structs.replace(answer, reason="other rank")
    elif len(found) > 1 and best.tokens:
        behind = [each for each in found if each.tokens < best.tokens]
        if behind:
            ranks = ", ".join(f"rank {each.tree.rank} {each.tokens:,}" for each in behind[:4])
            why = f"{why} That is rank {best.tree.rank}; {ranks}."
    if not best.tree.is_known and best.sure < max(at_most, best.tokens):
        why += f" The tree is partial, because batches are missing: {best.sure:,} tokens for certain."
    return msgspec.structs.replace(
        answer,
        why=why,
        at_least=min(best.sure, best.tokens),
        at_most=max(at_most, best.tokens),
        partial=not best.tree.is_known,
    )


# ---- how far ---------------------------------------------------------------------------------------------------------


def _look_up(tree: Tree, ids: Sequence[int], salt: str, lora: str) -> _Found:
    """The longest prefix that every cache group has: of a group with a window only the blocks within it."""
    paths = {group: _path(tree, group, size, ids, salt, lora) for group, (size, _) in tree.groups.items()}
    full = [group for group, (_, window) in tree.groups.items() if not window] or list(tree.groups)
    main = min(full, key=lambda group: _live(paths[group]) * tree.groups[group][0])
    size = tree.groups[main][0]
    limit = (len(ids) - 1) // size * size
    numbers = []
    for count in (_live, lambda path: _sure(path, tree.since_lost)):
        tokens = min(limit, *(count(paths[group]) * tree.groups[group][0] for group in full)) // size * size
        while tokens and not all(
            _has_window(paths[group], tokens, *tree.groups[group], count) for group in tree.groups if group not in full
        ):
            tokens -= size
        numbers.append(tokens)
    return _Found(tree, main, size, numbers[0], numbers[1], len(ids) // size, paths[main])


def _path(tree: Tree, group: int, size: int, ids: Sequence[int], salt: str, lora: str) -> list[Block]:
    """The blocks of a prompt that were ever stored, from the first on; of equal ones a live one."""
    path: list[Block] = []
    data, width = encode_ids(ids), 4 * size
    for start in range(0, len(ids) // size * width, width):
        tokens = data[start : start + width]
        extra = (salt,) if salt and not path else ()
        at, found = path[-1] if path else None, None
        for kid in tree.children(at, group):
            if kid.tokens == tokens and kid.extra == extra and kid.lora == lora:
                found = kid
                if kid.copies:
                    break
        if found is None:
            break
        path.append(found)
    return path


def _live(path: Sequence[Block]) -> int:
    """How many blocks are found: those on the GPU, and behind them those of slower media."""
    count = next((n for n, block in enumerate(path) if GPU not in block.media), len(path))
    rest = path[count:]
    return count + next((n for n, block in enumerate(rest) if not set(block.media) - {GPU}), len(rest))


def _sure(path: Sequence[Block], since: int) -> int:
    """How many are found whatever the batches said that were lost."""
    unsure = (n for n, block in enumerate(path) if not (block.copies and block.sure and block.sure_since == since))
    return next(unsure, len(path))


def _has_window(
    path: Sequence[Block], tokens: int, size: int, window: int, count: Callable[[Sequence[Block]], int]
) -> bool:
    """Whether the blocks that the next token sees through a window are there."""
    first, stop = max(0, tokens - window + 1) // size, -(-tokens // size)
    return stop <= len(path) and count(path[first:stop]) == stop - first


# ---- why no further --------------------------------------------------------------------------------------------------


def _why(server: Server, found: _Found, ids: Sequence[int], salt: str, lora: str, texts: Texts) -> PrefixExplained:
    size, reused, tree = found.size, found.tokens, found.tree
    matched = _live(found.path)

    def answer(reason: Reason, why: str, at: int | None = None, here: str = "", there: str = "") -> PrefixExplained:
        return PrefixExplained(
            server.name, len(ids), reused, why, reason, reused, reused, size, tree.rank, False, at, here, there
        )

    if len(ids) < size:
        return answer("shorter than a block", f"The prompt has {len(ids)} tokens, less than a block of {size}.")
    if reused < matched * size and reused < (len(ids) - 1) // size * size:
        return answer(
            "evicted", f"Blocks of a sliding window are gone: {reused:,} tokens are the most with a whole window."
        )
    if matched == found.all_blocks:
        if matched * size == len(ids):
            return answer(
                "last token",
                f"All {len(ids):,} tokens are stored; the last is always computed, and its block of {size} with it.",
            )
        rest = len(ids) - matched * size
        return answer(
            "all reused", f"Every whole block is reused; the last {rest} tokens are less than a block of {size}."
        )
    start = matched * size
    wanted, parent = ids[start : start + size], found.path[matched - 1] if matched else None
    if matched < len(found.path):
        gone = found.path[matched]
        ago = max(0.0, server.last - gone.gone_at)
        if gone.copies:
            return answer(
                "evicted", f"The block of tokens {start:,} to {start + size - 1:,} is in no tier that is read on."
            )
        return answer(
            "evicted",
            f"The block of tokens {start:,} to {start + size - 1:,} was {gone.why_gone} {_seconds(ago)} ago, after "
            f"{_seconds(gone.gone_at - gone.stored_at)} in the cache.",
        )
    if (other := _other_identity(tree, found, parent, wanted, salt, lora)) is not None:
        return answer("other salt or adapter", other)
    nearest, equal = _nearest(tree, found.group, parent, wanted)
    if nearest is not None and nearest.tokens is not None and equal:
        at = start + equal
        stored = decode_ids(nearest.tokens)
        here, there = texts(ids[at : at + SIDE]), texts(stored[equal : equal + SIDE])
        state = "stored" if nearest.copies else f"{nearest.why_gone} by now"
        why = f"Differs at token {at:,}: the prompt has {here!r}, the nearest branch ({state}) {there!r}."
        return answer("differs", why, at, here, there)
    if not _orphan_tokens(tree).isdisjoint(_blocks(ids, size, matched + 1)):
        why = f"Later blocks of this prompt are stored; the one at token {start:,} came before what was seen."
        return answer("partial", why)
    if nearest is not None and nearest.tokens is not None:
        here, there = texts(wanted[:SIDE]), texts(decode_ids(nearest.tokens)[:SIDE])
        why = f"Differs at token {start:,}: the prompt has {here!r}, what is stored there begins {there!r}."
        return answer("differs", why, start, here, there)
    where = f"after token {start - 1:,}" if start else "at the beginning"
    if not tree.is_known:
        return answer("partial", f"Nothing was seen to be stored {where} of this prompt.")
    return answer("never stored", f"Nothing was ever stored {where} of this prompt.")


def _other_identity(
    tree: Tree, found: _Found, parent: Block | None, wanted: Sequence[int], salt: str, lora: str
) -> str | None:
    """In words, under which other salt or adapter these very tokens are stored."""
    tokens = encode_ids(wanted)
    kids = [kid for kid in tree.children(parent, found.group) if kid.tokens == tokens]
    if not kids:
        return None
    kid = next((kid for kid in kids if kid.copies), kids[0])
    asked, there = _identity((salt,) if salt and parent is None else (), lora), _identity(kid.extra, kid.lora)
    state = "" if kid.copies else f", and was {kid.why_gone}"
    return f"The same tokens are stored {there}{state}; this prompt comes {asked}."


def _identity(extra: Sequence[str], lora: str) -> str:
    salts = " and ".join(f"with '{each}'" for each in extra) or "without a salt"
    return salts + (f" for the adapter '{lora}'" if lora else "")


def _nearest(tree: Tree, group: int, parent: Block | None, wanted: Sequence[int]) -> tuple[Block | None, int]:
    """The stored block with most leading tokens in common, live ones first; and how many."""
    best: tuple[int, bool] = (-1, False)
    nearest = None
    data = encode_ids(wanted)
    for number, kid in enumerate(tree.children(parent, group)):
        if kid.tokens is None or number >= MOST_COMPARED:
            continue
        score = num_equal(kid.tokens, data), bool(kid.copies)
        if score > best:
            best, nearest = score, kid
    return nearest, max(0, best[0])


def num_equal(left: bytes, right: bytes) -> int:
    """How many leading tokens two blocks have in common."""
    if left == right:
        return len(left) // 4
    return next(
        (at for at, (a, b) in enumerate(zip(decode_ids(left), decode_ids(right), strict=False)) if a != b),
        min(len(left), len(right)) // 4,
    )


def _blocks(ids: Sequence[int], size: int, first: int) -> list[bytes]:
    return [encode_ids(ids[at : at + size]) for at in range(first * size, len(ids) // size * size, size)]


def _orphan_tokens(tree: Tree) -> set[bytes]:
    """Tokens of the blocks whose parent is not known."""
    return {block.tokens for kids in tree.orphans.values() for block in kids.values() if block.tokens is not None}


def _seconds(seconds: float) -> str:
    return (
        f"{seconds:,.1f} s"
        if seconds < 120
        else f"{seconds / 60:,.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:,.0f} h"
    )
