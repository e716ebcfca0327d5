"""Tensors of the same shape as one tensor, so that one kernel does what would take thirty small ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


def on_one_device(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The same tensors on one device, that of the first: the layers of a model may be on several GPUs, and a cache's
    rows partly in main memory. Copies are made only where devices differ."""
    found = list(tensors)
    return [tensor.to(found[0].device) for tensor in found] if len({t.device for t in found}) > 1 else found


def stacked_view(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """`[N, …]` of N tensors of one shape: a view where they are evenly spaced in one storage, else a copy."""
    view = evenly_spaced(tensors)
    return torch.stack(list(tensors)) if view is None else view


def evenly_spaced(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A view `[N, …]` of N tensors of one shape that are evenly spaced in one storage; None where they are not."""
    first, last = tensors[0], tensors[-1]
    if len(tensors) == 1:
        return first[None]
    size, pointers = first.element_size(), list(map(torch.Tensor.data_ptr, tensors))
    step = (pointers[-1] - pointers[0]) // max(1, len(tensors) - 1)
    is_even = step > 0 and step % size == 0 and pointers == list(range(pointers[0], pointers[-1] + 1, step))
    if is_even and first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr():
        strides = first.stride()
        if all(map(strides.__eq__, map(torch.Tensor.stride, tensors))):
            return first.as_strided((len(tensors), *first.shape), (step // size, *strides))
    return None
