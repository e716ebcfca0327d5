"""Which cache modes a model can have."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from engine.errors import InputError
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from tests.engine.tiny import model_of


def test_there_are_no_pages_where_layers_stand_on_several_devices() -> None:
    model = model_of("llama")
    info = msgspec.structs.replace(model.info, layer_devices=("cpu", "cuda:0"))
    with pytest.raises(InputError, match="lies on one device"):
        Session(replace(model, info=info), CacheSpec("paged", page_size=4))
