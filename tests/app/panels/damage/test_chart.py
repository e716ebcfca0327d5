"""Words of the damage charts where there is no error."""

from __future__ import annotations

import pytest

from app.panels.damage.view import blank_words
from engine.spec.codec import Coding


@pytest.mark.parametrize(
    ("codec", "words"),
    [("kivi-2", "kept exact: residual"), ("exact", "not coded: exact"), ("int8", "no error"), ("fp8", "no error")],
)
def test_only_a_residual_is_called_one(codec: str, words: str) -> None:
    assert blank_words(Coding(codec))[0] == words
