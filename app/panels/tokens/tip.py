"""What the tool tip of a token says."""

from __future__ import annotations

from collections.abc import Sequence

from app.draw.edited import Edited, at
from app.draw.format import decimal, shortened, thousands, visible
from app.kit.bookmark_places import tip_lines
from app.kit.labels import plain_tip
from app.kit.provenance import Holders
from app.models import Token
from engine.spec.bookmark import Bookmark


def token_tip(
    token: Token, held: Holders | None, edited: Sequence[Edited], noted: Bookmark | None = None, *, num_source: int = 0
) -> str:
    """Everything about a token in lines; `held` says who holds its rows where some dropped them. The encoder read the
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
        lines.append("forced, not sampled")
    if held is not None and token.position < len(held.heads):
        lines.append(held.words(token.position))
    for one in at(edited, token.position):
        lines.append(f"edited at step {thousands(one.step)}: {one.edit.describe()}")
    return plain_tip("\n".join((*lines, *tip_lines(noted))))
