"""How surprising the tokens of a chunk are: their log-probabilities, from a few rows of logits at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import cross_entropy

Head = Callable[[torch.Tensor], torch.Tensor]

# numbers in the logits held at once: those of a whole prompt would be gigabytes, and a cache of the CPU holds none
SLICE_LOGITS = 1 << 23


class Surprisal:
    """-log p of every token of a chunk but its first, each under the logits of the token before it. To be handed to a
    forward, which fills it."""

    def __init__(self, token_ids: Sequence[int], vocab_size: int) -> None:
        self._targets = torch.tensor(token_ids[1:], dtype=torch.long)
        self._num_rows = max(1, SLICE_LOGITS // vocab_size)
        self._parts: list[torch.Tensor] = []

    def read(self, hidden: torch.Tensor, head: Head, check: Callable[[], None] | None = None) -> None:
        """Take the last layer's output `[1, T, hidden]` of the chunk. `head` makes logits `[1, t, V]` of some rows of
        it; `check` is called before each of its calls, and raises to end it."""
        targets = torch.split(self._targets.to(hidden.device), self._num_rows)
        for rows, next_ids in zip(torch.split(hidden[:, :-1], self._num_rows, 1), targets, strict=True):
            if check is not None:
                check()
            self._parts.append(cross_entropy(head(rows)[0].float(), next_ids, reduction="none"))

    @property
    def values(self) -> list[float]:
        """One number for each token but the first."""
        return torch.cat(self._parts).tolist() if self._parts else []


@contextmanager
def last_hidden(model: Any, is_wanted: bool) -> Iterator[list[Any]]:
    """What the body of a transformers model, all of it but the head, returns inside, if that is wanted."""
    found: list[Any] = []

    def note(module: Any, arguments: Any, output: Any) -> None:
        found.append(output)

    hooks = [model.get_decoder().register_forward_hook(note)] if is_wanted else []
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def head_of(model: Any, body_output: Any) -> Head:
    """The head of a transformers model, with all that its architecture does to logits: the model itself, whose body
    returns the rows given."""
    body = model.get_decoder()

    def head(rows: torch.Tensor) -> torch.Tensor:
        body.forward = lambda *arguments, **named: type(body_output)(last_hidden_state=rows)
        try:
            ids = torch.zeros(rows.shape[:2], dtype=torch.long, device=rows.device)
            logits: torch.Tensor = model(ids, use_cache=False).logits
        finally:
            del body.forward
        return logits

    return head
