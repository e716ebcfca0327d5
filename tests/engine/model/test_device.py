"""A device that cannot compute is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import InputError
from engine.model.loader import load
from engine.spec.model import ModelSpec

pytestmark = pytest.mark.usefixtures("nothing_runs")


@pytest.mark.parametrize("device", ["cuda:77", "nonsense", "meta"])
def test_a_device_that_is_not_here(whole: Path, device: str) -> None:
    with pytest.raises(InputError):
        load(ModelSpec(str(whole), device=device, num_threads=1))
