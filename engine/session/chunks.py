"""The sizes of the chunks in which a prompt is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.model.loader import LoadedModel

CHUNK_FLOPS = 3.3e11  # of one chunk: a second or two on two cores, while other commands wait and no row is shown
CHECK_FLOPS = 3.5e10  # between two cancel checks: a cancel may wait for 0.3 s
SMALLEST, LARGEST = 64, 2048  # tokens: below, matrix products take longer per token; above, they hardly take less
MEMORY_BYTES = 256 << 20  # limit for what grows with chunk times context: masks, and attention weights if reported
MASK_BYTES = 8  # per query and row while masks are made: a boolean mask and an additive one
WHOLE = 1 << 30  # tokens: a chunk size that takes any prompt at once


@dataclass(frozen=True)
class PrefillPlan:
    """The chunk sizes in which a prompt is computed. They depend on the model and the position in the prompt only, not
    on measured time: chunks of other sizes round differently, and every run of a prompt must give the same rows, bit
    for bit.

    `size` is a power of two in tokens, or the size that the caller fixed; `cell_bytes` is the memory that a chunk needs
    for each pair of a query and a row that it may read.
    """

    size: int
    cell_bytes: int = 0

    @classmethod
    def of(cls, model: LoadedModel, fixed: int | None = None) -> PrefillPlan:
        """The plan for a model: large enough to be fast, small enough to show rows early and to be cancelled soon; or
        chunks of `fixed` tokens, however long they take."""
        if fixed is not None:
            return cls(fixed)
        flops = flops_per_token(model)
        fitting = min(CHUNK_FLOPS / flops, CHECK_FLOPS * num_checks(model) / flops)
        size = LARGEST if model.device.type == "cuda" else power_of_two(fitting)
        return cls(min(LARGEST, max(SMALLEST, size)), MASK_BYTES + reported_bytes(model))

    def next_size(self, num_tokens: int) -> int:
        """Tokens of the chunk that follows the first `num_tokens`: fewer in a long context, to bound memory."""
        size = self.size
        while size > 1 and size * (num_tokens + size) * self.cell_bytes > MEMORY_BYTES:
            size //= 2
        return size

    def lengths(self, stop: int) -> Iterator[int]:
        """The length after each piece of a prompt of `stop` tokens."""
        done = 0
        while done < stop:
            done = min(stop, done + self.next_size(done))
            yield done


def power_of_two(number: float) -> int:
    """The largest power of two that is not above `number`, at least 1."""
    return 1 << max(1, int(number)).bit_length() - 1


def flops_per_token(model: LoadedModel) -> int:
    """Floating-point operations of the matrix products of one token, without attention: two for each weight. Input
    embeddings are not counted unless they are tied to the head: they are only looked up."""
    embeddings = model.model.get_input_embeddings().weight
    head = model.model.get_output_embeddings()
    is_tied = head is not None and head.weight.data_ptr() == embeddings.data_ptr()
    return max(1, 2 * (model.info.num_parameters - (0 if is_tied else embeddings.numel())))


def num_checks(model: LoadedModel) -> int:
    """How often a forward checks for a cancel: at every layer that runs our attention function, else once."""
    return len(model.info.geometry.attention_layers) if model.info.captures_attention else 1


def reported_bytes(model: LoadedModel) -> int:
    """Bytes per query and row of the attention weights of all layers and heads, which a model with its own attention
    code returns; 0 where our attention function runs."""
    if model.info.captures_attention:
        return 0
    return sum(4 * layer.num_heads for layer in model.info.geometry.attention_layers)
