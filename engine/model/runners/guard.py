"""Detects whether a model was modified since it was tried."""

from __future__ import annotations

from itertools import repeat
from operator import contains, eq, is_, itemgetter
from typing import Any

from torch import nn
from torch.nn.modules import module as modules_of_torch

HOOKS = tuple(map(itemgetter, ("_forward_hooks", "_forward_pre_hooks")))
GLOBAL_HOOKS = (modules_of_torch._global_forward_hooks, modules_of_torch._global_forward_pre_hooks)


class Guard:
    """Remembers every module of a model with its class, weights and float attributes.

    `is_unchanged` is false once any of them is replaced, removed or added to: a replaced weight or module, an adapter,
    another class or `forward`, a changed epsilon, a hook at any module or at all of them. Weights changed in place are
    the same weights. Only Python objects are compared, which takes less than half a percent of a step.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._own = list(map(vars, self._modules))
        self._classes = list(map(type, self._modules))
        self._kinds: list[Any] = list(set(self._classes))
        self._forwards = [kind.forward for kind in self._kinds]
        self._dicts = [d for m in self._modules for d in (m._parameters, m._modules)]
        self._sizes = list(map(len, self._dicts))
        held = [(d, name, d[name]) for d in self._dicts for name in d]
        self._places, self._names, self._parts = (list(column) for column in zip(*held, strict=True))
        numbers = [(d, name, number) for d in self._own for name, number in d.items() if type(number) is float]
        self._number_places = [place for place, _, _ in numbers]
        self._number_names = [name for _, name, _ in numbers]
        self._numbers = [number for _, _, number in numbers]

    @property
    def is_unchanged(self) -> bool:
        return (
            all(map(is_, map(dict.get, self._places, self._names), self._parts))
            and list(map(len, self._dicts)) == self._sizes
            and list(map(type, self._modules)) == self._classes
            and all(map(is_, map(_forward_of, self._kinds), self._forwards))
            and all(map(eq, map(dict.get, self._number_places, self._number_names), self._numbers))
            and not any(map(contains, self._own, repeat("forward")))
            and not any(any(map(hooks, self._own)) for hooks in HOOKS)
            and not any(GLOBAL_HOOKS)
        )


def _forward_of(kind: Any) -> Any:
    return kind.forward
