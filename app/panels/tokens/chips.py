"""The state that the strip of tokens shows, and the tool tip of a token."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from app.draw.edited import EditedRows, at
from app.draw.format import decimal, shortened, thousands, visible
from app.kit.bookmark_places import tip_lines
from app.kit.provenance import Holders
from app.models import Token
from engine.spec.bookmark import Bookmark


class Chips(Struct, frozen=True):
    """The tokens in the cache; the text of the chosen one that is not fed yet; the selected position; which heads still
    hold each token (None: every head of every layer); whether surprisals are still to come; the selected range; the
    edits; the bookmarks; the ids of special tokens, which are no text; and how many tokens, the first ones, an encoder
    read."""

    tokens: Sequence[Token] = ()
    pending: str | None = None
    selected: int | None = None
    holders: Holders | None = None
    awaits_surprisal: bool = False
    area: tuple[int, int] | None = None
    edited: tuple[EditedRows, ...] = ()
    noted: tuple[Bookmark, ...] = ()
    special: frozenset[int] = frozenset()
    num_source: int = 0

    def dropped_share(self, index: int) -> float:
        """The share of all heads of all layers that dropped a token's row."""
        held = self.holders
        if held is None or index >= len(held.heads) or not held.all_heads:
            return 0.0
        return 1 - float(held.heads[index]) / held.all_heads

    def is_outlined(self, position: int) -> bool:
        """Whether a position is in the selected range; without a range, whether it is the selected one."""
        return position == self.selected if self.area is None else self.area[0] <= position < self.area[1]

    def is_start(self, index: int) -> bool:
        """Whether a token is the first generated one, or the first after those that an encoder read."""
        token = self.tokens[index]
        starts = token.position == self.num_source if self.num_source else not token.is_prompt
        return index > 0 and starts and self.tokens[index - 1].is_prompt


def token_words(
    token: Token,
    held: Holders | None,
    edited: Sequence[EditedRows],
    noted: Bookmark | None,
    *,
    num_source: int,
) -> str:
    """All about a token, in lines. `held` tells which heads hold its row, if some dropped theirs; the encoder read the
    first `num_source` tokens."""
    lines = [
        f"“{shortened(visible(token.text[:400]), 200)}”",
        f"token {token.id_text} · position {thousands(token.position)} · step {thousands(token.step)}",
    ]
    if token.position < num_source:
        lines.append("source: read by the encoder, its rows are in the cross layers")
    elif token.position == num_source > 0:
        lines.append("the decoder starts from it")
    elif token.surprisal is not None:
        lines.append(f"surprisal {decimal(token.surprisal)} nats")
    else:
        lines.append(f"surprisal: {token.no_surprisal}")
    if token.forced:
        lines.append("forced, not chosen by the model")
    if held is not None and token.position < len(held.heads):
        lines.append(held.words(token.position))
    for one in at(edited, token.position):
        lines.append(f"edited at step {thousands(one.step)}: {one.edit.describe()}")
    return "\n".join((*lines, *tip_lines(noted)))
