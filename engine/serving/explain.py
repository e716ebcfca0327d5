"""Why a prompt would be reused as far as it is, and no further: as a server's prefix cache looks it up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from engine.cache.paged.prefix import encode_token_ids, most_equal
from engine.errors import InputError
from engine.serving.events import GPU
from engine.serving.server import Server
from engine.serving.text import Texts, numbers
from engine.serving.tree import Block, Tree
from engine.wire.pages import PrefixEnd, decode_token_ids
from engine.wire.serving import PrefixExplained, Reason

# The copies of a block by medium: all, or those that are certain.
Copies = Callable[[Block], Mapping[str, int]]
# Tokens shown of either side where a prompt differs, and branches that are compared.
SIDE, MOST_COMPARED = 8, 20_000


class _Found(msgspec.Struct):
    """How far one rank has a prompt. `path` are the blocks of its main group that match in tokens and identity, from
    the first on, those that are gone too; `unit` so many tokens are reused together, `limit` at most. `tokens` are
    found if what was seen is all, of them `sure` for certain, and `most` whatever was not seen."""

    tree: Tree
    path: list[Block]
    unit: int
    limit: int
    tokens: int
    sure: int

    @property
    def most(self) -> int:
        return self.tokens if self.tree.is_known else max(self.limit, self.tokens)


def explain(
    server: Server,
    token_ids: Sequence[int],
    *,
    salt: str = "",
    lora: str = "",
    rank: int | None = None,
    eagle: bool = False,
    texts: Texts = numbers,
) -> PrefixExplained:
    """Looks a prompt up. Without a rank the one is taken that has most of it. With `eagle` the server drafts tokens so
    that it computes the last block that it finds again."""
    if not token_ids:
        raise InputError("The prompt is empty: give some tokens.")
    encode_token_ids(token_ids)  # refuses one that is none, where nothing is stored as well
    found = [_look_up(tree, token_ids, salt, lora) for tree in server.trees.values() if tree.groups]
    asked = found if rank is None else [each for each in found if each.tree.rank == rank]
    if rank is not None and not asked and found:
        ranks = ", ".join(str(each.tree.rank) for each in found)
        raise InputError(f"There is no rank {rank} in it: it has {ranks}.")
    if not asked:
        partial = server.is_partial
        most = len(token_ids) - 1 if partial else 0
        why = "Nothing is stored yet" + (", as far as it was seen: batches are missing." if partial else ".")
        return PrefixExplained(len(token_ids), 0, why, "nothing stored", 0, most, 0, rank or 0, partial)
    best = max(asked, key=lambda each: each.tokens)
    at_least = max(min(each.sure, each.tokens) for each in asked)
    at_most = max(each.most for each in asked)
    answer = _why(server, best, token_ids, salt, lora, texts)
    reason, why = answer.reason, answer.why
    better = max(found, key=lambda each: each.tokens)
    if better.tokens > best.tokens:
        reason = "other rank"
        here = f"rank {best.tree.rank} has {best.tokens:,}"
        why = f"Rank {better.tree.rank} has {better.tokens:,} tokens of it, {here}. {why}"
    elif best.tokens and (behind := [each for each in asked if each.tokens < best.tokens]):
        ranks = ", ".join(f"rank {each.tree.rank} has {each.tokens:,}" for each in behind[:4])
        why = f"{why} So on rank {best.tree.rank}; {ranks}."
    if at_least < at_most:
        why += f" The tree is partial, because batches are missing: {at_least:,} tokens for certain."
    again = best.unit if eagle else 0
    if again and best.tokens:
        why += f" The last {again} of them are computed again, for EAGLE."
    counts = (max(0, each - again) for each in (best.tokens, at_least, at_most))
    return msgspec.structs.replace(
        answer, why=why, reason=reason, partial=any(not each.tree.is_known for each in asked),
        **dict(zip(("reused", "at_least", "at_most"), counts, strict=True)),
    )  # fmt: skip


# ---- how far ---------------------------------------------------------------------------------------------------------


def _look_up(tree: Tree, ids: Sequence[int], salt: str, lora: str) -> _Found:
    """The longest prefix that every cache group has: of a group with a window only the blocks within it."""
    main, groups = tree.main, tree.groups
    path = _path(tree, main, ids, salt, lora)
    blocks = {group: path if group == main else _beside(tree, group, path, ids, salt, lora) for group in groups}
    unit = math.lcm(*(group.size for group in groups.values()))
    limit = max(0, len(ids) - 1 - groups[main].ahead) // unit * unit

    def most(copies: Copies) -> int:
        whole = [group for group in groups if not groups[group].window]
        tokens = min([limit, *(_reach(blocks[group], copies) * groups[group].size for group in whole)]) // unit * unit
        while tokens and not all(
            _has_window(blocks[group], tokens, size, window, copies)
            for group, (size, window, _) in groups.items()
            if window
        ):
            tokens -= unit
        return tokens

    return _Found(tree, path, unit, limit, most(lambda block: block.copies), most(tree.sure))


def _path(tree: Tree, group: int, ids: Sequence[int], salt: str, lora: str) -> list[Block]:
    """The blocks of a prompt that were ever stored, from the first on; of equal ones a live one."""
    path: list[Block] = []
    size, _, ahead = tree.groups[group]
    data, width = encode_token_ids(ids), 4 * size
    for start in range(0, len(data) - width - 4 * ahead + 1, width):
        tokens = data[start : start + width + 4 * ahead]
        extra = (salt,) if salt and not path else ()
        kids = tree.children(path[-1] if path else None, group)
        same = [kid for kid in kids if kid.tokens == tokens and kid.extra == extra and kid.lora == lora]
        if not same:
            break
        path.append(next((kid for kid in same if kid.copies), same[0]))
    return path


def _beside(
    tree: Tree, group: int, path: Sequence[Block], ids: Sequence[int], salt: str, lora: str
) -> list[Block | None]:
    """The blocks of another cache group: by their hashes, which are those of the main group where it has as large
    blocks or smaller ones; else by their tokens, as far as they were said."""
    size = tree.groups[group].size
    every, rest = divmod(size, tree.groups[tree.main].size)
    if rest:
        return list(_path(tree, group, ids, salt, lora))
    keys = [block.key for block in path[every - 1 :: every]]
    hashes = [key[1] if isinstance(key, tuple) else key for key in keys]
    found = [tree.blocks.get((group, each) if group else each) for each in hashes]
    return found if every == 1 or any(found) else list(_path(tree, group, ids, salt, lora))


def _reach(blocks: Iterable[Block | None], copies: Copies) -> int:
    """How many blocks are found: those on the GPU, and behind them those of slower media."""
    count, is_behind = 0, False
    for block in blocks:
        found = copies(block) if block is not None else {}
        is_behind = is_behind or not found.get(GPU)
        if is_behind and not any(number for medium, number in found.items() if medium != GPU):
            break
        count += 1
    return count


def _has_window(blocks: Sequence[Block | None], tokens: int, size: int, window: int, copies: Copies) -> bool:
    """Whether the blocks that the next token sees through a window are there."""
    first, stop = max(0, tokens - window + 1) // size, -(-tokens // size)
    return stop <= len(blocks) and _reach(blocks[first:stop], copies) == stop - first


# ---- why no further --------------------------------------------------------------------------------------------------


def _why(server: Server, found: _Found, ids: Sequence[int], salt: str, lora: str, texts: Texts) -> PrefixExplained:
    unit, reused, tree, path = found.unit, found.tokens, found.tree, found.path
    size = tree.groups[tree.main].size
    matched = max(_reach(path, lambda block: block.copies), reused // size)  # blocks
    ahead = tree.groups[tree.main].ahead
    whole = (len(ids) - ahead) // unit * unit

    def answer(reason: Reason, why: str, at: int | None = None, here: str = "", there: str = "") -> PrefixExplained:
        return PrefixExplained(len(ids), reused, why, reason, reused, reused, unit, tree.rank, False, at, here, there)

    if reused < min(matched * size // unit * unit, found.limit):
        return answer(
            "evicted", f"Blocks of a sliding window are gone: {reused:,} tokens are the most with a whole window."
        )
    if reused >= found.limit and (reused == whole or matched * size >= whole):
        reason: Reason = "last token" if whole > reused else "all reused" if whole else "shorter than a block"
        return answer(reason, PrefixEnd(len(ids), reused, unit, is_all=True).words(reused, "", "", "block"))
    start = matched * size
    wanted, parent = encode_token_ids(ids[start : start + size + ahead]), path[matched - 1] if matched else None
    if matched < len(path):
        gone = path[matched]
        stop = start + size - 1
        if gone.copies:
            return answer("evicted", f"The block of tokens {start:,} to {stop:,} is in no tier that is read on.")
        ago, lived = (_seconds(max(0.0, each)) for each in (server.now - gone.gone_at, gone.gone_at - gone.stored_at))
        return answer(
            "evicted",
            f"The block of tokens {start:,} to {stop:,} was {gone.why_gone} {ago} ago, after {lived} in the cache.",
        )
    kids = sorted(tree.children(parent, tree.main), key=lambda kid: not kid.copies)[:MOST_COMPARED]
    if (other := _other_identity(kids, wanted, (salt,) if salt and parent is None else (), lora)) is not None:
        return answer("other salt or adapter", other)
    number, equal = most_equal([kid.tokens or b"" for kid in kids], wanted) if kids else (0, 0)
    later = {tuple(ids[at : at + size]) for at in range(start + size, whole, size)}
    if not equal and any(block.ids in later for block in tree.late()):
        why = f"Later blocks of this prompt are stored; the one at token {start:,} came before what was seen."
        return answer("partial", why)
    if kids:
        nearest, at = kids[number], start + equal
        stored, behind = decode_token_ids(nearest.tokens or b"")[equal:], [nearest]
        while len(stored) < SIDE and behind:
            behind = [kid for kid in tree.children(behind[0], tree.main) if kid.copies or not nearest.copies]
            stored += behind[0].ids if behind else ()
        here, there = texts(ids[at : at + SIDE]), texts(stored[:SIDE])
        branch = f"the nearest branch ({'stored' if nearest.copies else f'{nearest.why_gone} by now'}) {there!r}"
        end = PrefixEnd(len(ids), start, size, equal, next(iter(stored), 0))
        return answer("differs", end.words(reused, repr(here), branch, "block"), at, here, there)
    where = f"after token {start - 1:,}" if start else "at the beginning"
    if not tree.is_known:
        return answer("partial", f"Nothing was seen to be stored {where} of this prompt.")
    return answer("never stored", f"Nothing was ever stored {where} of this prompt.")


def _other_identity(kids: Iterable[Block], wanted: bytes, extra: tuple[str, ...], lora: str) -> str | None:
    """In words, under which other salt or adapter these very tokens are stored."""
    same = [kid for kid in kids if kid.tokens == wanted and (kid.extra, kid.lora) != (extra, lora)]
    if not same:
        return None
    kid = next((kid for kid in same if kid.copies), same[0])
    there, asked = [], []
    if kid.extra != extra:
        there, asked = ([" and ".join(f"with '{one}'" for one in of) or "without a salt"] for of in (kid.extra, extra))
    if kid.lora != lora:
        there.append(f"for the adapter '{kid.lora}'" if kid.lora else "without an adapter")
        asked.append(f"for the adapter '{lora}'" if lora else "without one")
    state = "" if kid.copies else f", and was {kid.why_gone}"
    return f"The same tokens are stored {' '.join(there)}{state}; this prompt comes {' '.join(asked)}."


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"
