"""Whatever is replaced, added or changed in a model that was tried is noticed, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from engine.model.runners.decoder import Guard
from tests.engine.tiny import CONFIGS, model_of


@pytest.fixture(scope="module")
def model() -> Any:
    assert "llama" in CONFIGS
    return model_of("llama").model


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    yield
    setattr(owner, name, before)


@contextmanager
def listened(module: nn.Module) -> Iterator[None]:
    handle = module.register_forward_hook(lambda *_: None)
    yield
    handle.remove()


@contextmanager
def listened_everywhere() -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
    yield
    handle.remove()


@contextmanager
def with_another_hook_dict(module: nn.Module) -> Iterator[None]:
    """As libraries do that set hooks aside and bring their own."""
    before, module._forward_hooks = module._forward_hooks, type(module._forward_hooks)({0: lambda *_: None})
    yield
    module._forward_hooks = before


@contextmanager
def adapted(module: nn.Module) -> Iterator[None]:
    """Something beside what there was."""
    module.add_module("lora_A", nn.Linear(4, 4))
    yield
    del module.lora_A


@contextmanager
def parametrised(module: nn.Module) -> Iterator[None]:
    before = module.weight
    parametrize.register_parametrization(module, "weight", nn.Identity())
    yield
    parametrize.remove_parametrizations(module, "weight")
    module.weight = before  # it leaves another one behind


class Other(nn.Linear):
    """Another class with the same weights."""


def changes(model: Any) -> dict[str, Callable[[], Any]]:
    """Of the last layer, since the first is the easy one."""
    layer = model.model.layers[-1]
    down, norm = layer.mlp.down_proj, layer.post_attention_layernorm
    weight = nn.Parameter(down.weight.detach().clone())
    return {
        "a weight": lambda: attribute(down, "weight", weight),
        "a bias where there was none": lambda: attribute(down, "bias", nn.Parameter(torch.zeros(64))),
        "a module": lambda: attribute(layer.mlp, "down_proj", nn.Linear(96, 64, bias=False)),
        "a class": lambda: attribute(down, "__class__", Other),
        "a forward of a class": lambda: attribute(type(norm), "forward", lambda self, rows: rows),
        "a number": lambda: attribute(norm, "variance_epsilon", 0.25),
        "a scale of attention": lambda: attribute(layer.self_attn, "scaling", 0.5),
        "a hook": lambda: listened(layer.self_attn.q_proj),
        "a hook at all": listened_everywhere,
        "hooks of another": lambda: with_another_hook_dict(layer.mlp),
        "an adapter": lambda: adapted(layer.self_attn.q_proj),
        "a parametrisation": lambda: parametrised(layer.mlp.up_proj),
    }


@pytest.mark.parametrize("what", list(changes(model_of("llama").model)))
def test_a_change_is_noticed_until_it_is_taken_back(model: Any, what: str) -> None:
    guard = Guard(model)
    assert guard.is_unchanged
    with changes(model)[what]():
        assert not guard.is_unchanged
    assert guard.is_unchanged


def test_an_own_forward_is_noticed(model: Any) -> None:
    guard, down = Guard(model), model.model.layers[-1].mlp.down_proj
    down.forward = lambda rows: rows
    assert not guard.is_unchanged
    del down.forward
    assert guard.is_unchanged


def test_weights_that_change_in_place_are_the_same(model: Any) -> None:
    guard = Guard(model)
    with torch.no_grad():
        model.model.layers[-1].mlp.down_proj.weight.mul_(1.0)
    assert guard.is_unchanged
