"""Answers about a server as the wire has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from engine.cache.paged.prefix import encode_token_ids
from engine.errors import InputError
from engine.serving.explain import explain, numbers
from engine.serving.metrics import Metrics
from engine.serving.picture import rows_of
from engine.serving.server import Server
from engine.wire.serving import ExplainPrefix, PrefixExplained, PrefixTree, ServerState, TakePrefixTree


class Words(Protocol):
    """A tokenizer: `pieces` are words as they may stand within a text."""

    @property
    def bytes_per_token(self) -> int: ...
    def encode(self, text: str) -> tuple[int, ...]: ...
    def pieces(self, words: str) -> list[tuple[int, ...]]: ...
    def texts(self, ids: Sequence[int]) -> str: ...


def answer(
    server: Server, command: TakePrefixTree | ExplainPrefix, tokenizer: Words | None
) -> PrefixTree | PrefixExplained:
    """Raises InputError, with the remedy, for what cannot be answered."""
    texts = tokenizer.texts if tokenizer is not None else numbers
    if isinstance(command, ExplainPrefix):
        ids = command.token_ids if command.token_ids is not None else _ids_in(command.text)
        if ids is None and tokenizer is None:
            raise InputError("Without a tokenizer a prompt is token ids: type some, like 5 17 42.")
        ids = tokenizer.encode(command.text) if ids is None and tokenizer is not None else ids or ()
        found = explain(server, ids, salt=command.salt, lora=command.lora, eagle=command.eagle, texts=texts)
        return replace(found, server=command.server, reply_to=command.id)
    needles: list[bytes] = []
    if words := command.words.strip():
        if (ids := _ids_in(words)) is not None:
            needles = [encode_token_ids(ids)]
        elif tokenizer is None:
            raise InputError("Without a tokenizer only token ids can be searched: type some, like 5 17 42.")
        else:
            needles = [encode_token_ids(ids) for ids in tokenizer.pieces(words) if ids]
    rows, total, branches = rows_of(server, texts, needles)
    why = ""
    if not rows:
        why = f"No branch holds '{words}'." if words else "Nothing is stored yet."
    size = tokenizer.bytes_per_token if tokenizer is not None else 0
    return PrefixTree(command.server, rows, total, branches, size, why, reply_to=command.id)


def _ids_in(text: str) -> tuple[int, ...] | None:
    """The token ids that a text consists of; None for any other text."""
    parts = text.replace(",", " ").split()
    if not parts or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        return None
    return tuple(map(int, parts))


def state_of(
    server: Server,
    state: str,
    words: str,
    pools: tuple[tuple[int, float], ...],
    first: Metrics | None,
    now: Metrics | None,
    why_no_metrics: str,
    is_recording: bool,
) -> ServerState:
    counts, tops = server.counts, [block for tree in server.trees.values() for block in tree.tops()]
    told = () if now is None or first is None else _told(server, first, now)
    if why_no_metrics:
        told = (*told, ("metrics", why_no_metrics))
    return ServerState(
        server.name,
        state,
        words,
        server.notes(),
        server.num_batches,
        live_blocks=counts.live,
        most_blocks=counts.most_live,
        live_tokens=sum(max(0, block.below) for block in tops),
        stored=counts.stored,
        evicted=counts.removed,
        again=counts.again,
        again_tokens=counts.again_tokens,
        period_s=counts.period,
        rates=counts.rates,
        lifetimes=rows(counts.lifetimes),
        reuse_gaps=rows(counts.reuse_gaps),
        absences=rows(counts.absences),
        pools=pools,
        told=told,
        is_recording=is_recording,
    )


def rows(counts: Counter[float]) -> tuple[tuple[float, int], ...]:
    """A distribution as the wire has it: `(seconds up to which, count)`."""
    return tuple(sorted(counts.items()))


def _told(server: Server, first: Metrics, now: Metrics) -> tuple[tuple[str, str], ...]:
    """The server's own figures, and beside them what its events say."""
    found: list[tuple[str, str]] = []
    if now.queries is not None and now.hits is not None:
        found.append(("prompt tokens found in the cache, in all", _ratio(now.hits, now.queries)))
        if first.queries is not None and first.hits is not None and now.queries > first.queries:
            found.append(("and since attached", _ratio(now.hits - first.hits, now.queries - first.queries)))
    live = server.counts.live
    if now.num_blocks:
        usable = now.num_blocks - 1  # one is kept for padding
        found.append(("blocks of the pool that hold a prefix", f"{live:,} of {usable:,}"))
        if live > usable * len(server.trees):
            found.append(("more live blocks than the pool has", "the server sends some events twice"))
    if now.usage is not None:
        found.append(("blocks in use by requests", f"{now.usage:.1%}"))
    for name, value in (("preemptions", now.preemptions), ("requests running", now.running), ("waiting", now.waiting)):
        if value is not None:
            found.append((name, f"{value:,.0f}"))
    return tuple(found)


def _ratio(part: float, whole: float) -> str:
    return f"{part:,.0f} of {whole:,.0f} ({part / whole:.1%})" if whole else "none yet"
