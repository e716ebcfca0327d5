"""What is worked out of measurements where they are read."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from engine.wire.measurements import ParityReport
from tests.engine.wire.test_encoding import example


@pytest.mark.parametrize(("agrees", "share"), [((1, 0, 0, 1, 1), 0.6), ((0,), 0.0), ((), 1.0)])
def test_the_share_of_steps_that_agree(agrees: tuple[int, ...], share: float) -> None:
    assert replace(example(ParityReport), top1_agrees=np.array(agrees, np.int64)).top1_agreement == share
