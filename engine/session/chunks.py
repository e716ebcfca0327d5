"""How many tokens of a prompt go through the model at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.model.loader import LoadedModel

CHUNK_FLOPS = 3.3e11  # about a second or two of two cores: a chunk's rows come together, and other commands wait
LOOK_FLOPS = 3.5e10  # between two looks at whether to go on: a cancel may wait for 0.3 s
SMALLEST, LARGEST = 64, 2048  # products of fewer tokens take longer for each; of more, hardly less
MEMORY_BYTES = 256 << 20  # what grows with chunk times context: masks, and the attention of models that report it
MASK_BYTES = 8  # of one query and one row, while masks are made: as booleans, and as what is added to the scores
WHOLE = 1 << 30  # tokens: the prompt at once


@dataclass(frozen=True)
class PrefillPlan:
    """In which pieces a prompt is fed. They depend on the model and on the place in the prompt, and on no clock: pieces
    of other sizes round differently, so that every run of a prompt has the same rows to the last bit.

    `size` is a power of two, or what somebody asked for; `cell_bytes` is what a chunk needs for every pair of a query
    and a row that it may read.
    """

    size: int
    cell_bytes: int = 0

    @classmethod
    def of(cls, model: LoadedModel, fixed: int | None = None) -> PrefillPlan:
        """As large as is fast, told early and cancelled soon; or `fixed`, whatever it costs."""
        if fixed is not None:
            return cls(fixed)
        flops = flops_per_token(model)
        fitting = min(CHUNK_FLOPS / flops, LOOK_FLOPS * num_looks(model) / flops)
        size = LARGEST if model.device.type == "cuda" else power_of_two(fitting)
        return cls(min(LARGEST, max(SMALLEST, size)), MASK_BYTES + reported_bytes(model))

    def next_size(self, num_tokens: int) -> int:
        """Tokens of the chunk behind so many: fewer in a long context, so that memory stays bounded."""
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
    """The largest one that is not above."""
    return 1 << max(1, int(number)).bit_length() - 1


def flops_per_token(model: LoadedModel) -> int:
    """Operations of the matrix products of one token, its attention apart: two for each weight. Embeddings that are not
    the head as well are only looked up."""
    embeddings = model.model.get_input_embeddings().weight
    head = model.model.get_output_embeddings()
    is_tied = head is not None and head.weight.data_ptr() == embeddings.data_ptr()
    return max(1, 2 * (model.info.num_parameters - (0 if is_tied else embeddings.numel())))


def num_looks(model: LoadedModel) -> int:
    """How often in a forward a cancel is looked at: at every layer whose attention is ours."""
    return len(model.info.geometry.attention_layers) if model.info.captures_attention else 1


def reported_bytes(model: LoadedModel) -> int:
    """What a model with attention code of its own hands out for a query and a row: weights of all layers and heads."""
    if model.info.captures_attention:
        return 0
    return sum(4 * layer.num_heads for layer in model.info.geometry.attention_layers)
