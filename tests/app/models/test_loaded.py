"""What a layer is called."""

from __future__ import annotations

from msgspec.structs import replace

from app.models import Models
from app.models.places import layer_words
from app.window.selectors import layer_places
from tests.app import samples


def test_a_layer_says_where_it_stands_if_layers_stand_on_several_devices(models: Models) -> None:
    models.status.set(samples.status())
    assert layer_words(models, 1) == "layer 1"
    devices = ("cuda:0", "cuda:0", "cuda:1", "cpu", "cpu", "cpu")
    models.status.set(samples.status(model=replace(samples.model_info(), layer_devices=devices)))
    assert layer_words(models, 1) == "layer 1 on cuda:0"
    assert layer_words(models, 2) == "layer 2 on cuda:1"
    assert layer_places(devices) == ["layers 0–1 on cuda:0", "layer 2 on cuda:1", "layers 3–5 on cpu"]
