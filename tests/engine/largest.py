"""The largest tensors that a block makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class MadeTensors(TorchDispatchMode):
    """Notes the shape and bytes of everything that is computed, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, torch.Tensor):
                self.shapes.add(tuple(tensor.shape))
                self.num_bytes = max(self.num_bytes, tensor.numel() * tensor.element_size())
        return output

    def made(self, *last: int) -> bool:
        """Whether a tensor was made whose last dimensions are these."""
        return any(shape[-len(last) :] == last for shape in self.shapes)


@contextmanager
def largest_tensor() -> Iterator[MadeTensors]:
    with MadeTensors() as made:
        yield made
