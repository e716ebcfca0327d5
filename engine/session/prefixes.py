"""The page pools of a session as a prefix tree, which is viewed and asked as those of servers are."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from engine.cache.paged.store import PageStore
from engine.errors import InputError
from engine.serving.answers import answer
from engine.serving.events import Removed, Stored
from engine.serving.server import Server
from engine.serving.tree import Tree
from engine.session.commands import encode
from engine.session.session import Session
from engine.spec.sampling import Prompt
from engine.wire.pages import ROOT_HASH, PageCommitted, Tier
from engine.wire.serving import ExplainPrefix, PrefixExplained, PrefixTree, TakePrefixTree


class SessionText:
    """Text and token ids by the tokenizer of a session's model, as `engine.serving.text.Words`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        info = session.model.info
        self.bytes_per_token = info.geometry.bytes_per_token(info.dtype)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(encode(self._session.model, Prompt(text=text)).token_ids)

    def pieces(self, words: str) -> list[tuple[int, ...]]:
        tokenizer = self._session.model.tokenizer
        if tokenizer is None:
            raise InputError("The model has no tokenizer: type token ids, like 5 17 42.")
        return [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in (words, f" {words}")]

    def texts(self, ids: Sequence[int]) -> str:
        return "".join(map(self._session.text_of, ids))


def answer_of(session: Session, command: TakePrefixTree | ExplainPrefix) -> PrefixTree | PrefixExplained:
    """Raises InputError where the cache has no pages."""
    store = session.live.mode.store
    if store is None:
        raise InputError("This cache mode has no pages that prompts could share: choose Paged.")
    return answer(server_of(store), command, SessionText(session))


def server_of(store: PageStore) -> Server:
    """The pages on the device that prompts can find, and those evicted of late; times in seconds since 1970."""
    server, copies = Server(""), Counter[tuple[int, bytes]]()
    tree = server.trees[b"", 0] = Tree(0, server.counts)
    at = server.counts.last_s = time.time()

    def add(number: int, page: PageCommitted, now: float) -> None:
        parent = None if page.parent_hash == ROOT_HASH else page.parent_hash
        size, window = store.page_size, store.groups[number].window or 0
        stored = Stored((page.page_hash,), parent, (page.token_bytes,), ((),), size, group=number, window=window)
        tree.fold(stored, now)
        copies[number, page.page_hash] += 1

    for at, number, event in store.turnover:
        page = event if isinstance(event, PageCommitted) else event.committed
        if page.tier is not Tier.DEVICE:
            continue
        if page is event:
            add(number, page, at)
        elif copies[number, page.page_hash]:
            copies[number, page.page_hash] -= 1
            tree.fold(Removed((page.page_hash,), group=number), at)
    # What going back brought or took, and what is older than what the store remembers.
    for number, group in enumerate(store.groups):
        for page in group.pool.findable():
            copies[number, page.page_hash] -= 1
            if copies[number, page.page_hash] < 0:
                add(number, page, at)
    for (number, page_hash), surplus in copies.items():
        for _ in range(surplus):
            tree.fold(Removed((page_hash,), group=number), at)
    return server
