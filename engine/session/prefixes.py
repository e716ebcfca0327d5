"""The page pools of a session as a prefix tree, which is looked at and asked as those of servers are."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import InputError
from engine.serving.answers import answer
from engine.serving.schema import Stored
from engine.serving.server import Server
from engine.serving.tree import Tree
from engine.session.prompt import encode
from engine.session.session import Session
from engine.spec.sampling import Prompt
from engine.wire.page_events import ROOT_HASH
from engine.wire.serving import ExplainPrefix, PrefixExplained, PrefixTree, TakePrefixTree


class SessionText:
    """Text and token ids by the tokenizer of a session's model, as `engine.serving.text.Tokenizer` has them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        info = session.model.info
        self.bytes_per_token = info.geometry.bytes_per_token(info.dtype)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(encode(self._session.model, Prompt(text=text)))

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
    server = Server("")
    tree = server.trees[b"", 0] = Tree(0)
    for number, group in enumerate(store.groups):
        for page in group.pool.findable():
            parent = None if page.parent_hash == ROOT_HASH else page.parent_hash
            size, window = group.pool.page_size, group.window or 0
            tree.fold(
                Stored((page.page_hash,), parent, (page.token_bytes,), ((),), size, group=number, window=window), 0.0
            )
    return answer(server, command, SessionText(session))
