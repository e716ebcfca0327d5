"""How many tokens of a prompt go through the model at once."""

from __future__ import annotations

TARGET_S = 0.2  # a cancel is looked at between chunks, and may wait for 0.3 s
FIRST, SMALLEST, LARGEST = 64, 16, 4096
WHOLE = 1 << 30  # tokens: the prompt at once


class PrefillChunk:
    """The size of the next chunk: what this machine does in about 200 ms, as the last chunks told. Not with `fixed`.

    So the pieces of a prompt, and with them the last bits of its rows, may differ from run to run. The journal knows
    the pieces that were fed: a replay repeats them exactly.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self._is_fixed = fixed is not None
        self.size = FIRST if fixed is None else fixed

    def took(self, num_tokens: int, seconds: float) -> None:
        """A chunk of so many tokens took so long. The rest of a prompt, which is shorter, tells little."""
        if self._is_fixed or num_tokens < self.size or seconds <= 0:
            return
        fitting = int(num_tokens * TARGET_S / seconds) // SMALLEST * SMALLEST
        self.size = max(SMALLEST, min(fitting, 4 * self.size, LARGEST))
