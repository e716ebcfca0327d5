"""How many tokens of a prompt go through the model at once."""

from __future__ import annotations

TARGET_S = 1.0  # the rows of a chunk come into the window together, and other commands wait for its end
LAYER_S = 0.2  # a cancel is looked at between layers, and may wait for 0.3 s
FIRST, SMALLEST, LARGEST = 256, 64, 2048  # products of fewer tokens take longer for each; of more, hardly less
WHOLE = 1 << 30  # tokens: the prompt at once


class PrefillChunk:
    """The size of the next chunk: what this machine does in about a second, as the last chunks told. Not with `fixed`.
    `num_looks`: how often a cancel is looked at in a forward; where that is seldom, chunks are smaller.

    The pieces of a prompt, and with them the last bits of its rows, may differ from run to run; powers of two that stay
    as long as they fit more or less make that rare. The journal knows the pieces that were fed: a replay repeats them.
    """

    def __init__(self, fixed: int | None = None, num_looks: int = 1 << 30) -> None:
        self._is_fixed = fixed is not None
        self._target_s = min(TARGET_S, LAYER_S * num_looks)
        self.size = FIRST if fixed is None else fixed

    def took(self, num_tokens: int, seconds: float) -> None:
        """A chunk of so many tokens took so long. The rest of a prompt, which is shorter, tells little."""
        if self._is_fixed or num_tokens < self.size or seconds <= 0:
            return
        if 0.4 * self._target_s <= seconds <= 1.6 * self._target_s:
            return
        fitting = int(min(LARGEST, num_tokens * self._target_s / seconds))
        self.size = 1 << max(SMALLEST, fitting).bit_length() - 1
