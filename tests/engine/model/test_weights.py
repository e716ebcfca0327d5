"""Weights that do not fit their config are refused by the name of a tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.model.folders import edit_config, edit_weights, refused

pytestmark = pytest.mark.usefixtures("nothing_runs")


def test_a_tensor_of_another_shape_is_named(copy: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = torch.zeros(63)

    edit_weights(copy, change)
    message = refused(copy)
    assert "model.norm.weight" in message


def test_a_tensor_that_is_missing_is_named(copy: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]

    edit_weights(copy, change)
    message = refused(copy)
    assert "lack" in message
    assert "model.layers.1.mlp.up_proj.weight" in message


@pytest.mark.parametrize("change", [{"num_hidden_layers": 3}, {"hidden_size": 32}, {"vocab_size": 99}])
def test_a_config_of_another_model(copy: Path, change: dict[str, int]) -> None:
    edit_config(copy, **change)
    assert "config" in refused(copy)
