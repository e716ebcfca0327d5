"""The rows that a person has selected, whichever way."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication

from app.models import Models
from app.models.chosen_rows import chosen_rows
from engine.spec.edit import Rows
from tests.app import samples
from tests.app.rich import rich_models

LAST = samples.PROMPT + 7


@pytest.mark.parametrize(
    ("selected", "rows"),
    [
        ({"position": 6}, Rows(6, 7)),
        ({"position": 6, "channel": 5, "tensor": "keys"}, Rows(6, 7, (3,), (1,), (5,), "keys")),
        ({"position": 6, "channel": 5, "tensor": "values"}, Rows(6, 7, (3,), (1,), (5,), "values")),
        ({"position": LAST - 1}, Rows(LAST - 1, LAST)),
        ({"position": None}, None),
        ({"position": 4, "area": Rows(4, 90, (2,), (0,))}, Rows(4, LAST, (2,), (0,))),
        ({"position": 4, "area": Rows(4, 90, (2,), (0,)), "step": 0}, None),
        ({"position": 2, "area": Rows(2, 90), "step": 0}, Rows(2, samples.PROMPT)),
    ],
)
def test_what_is_selected_as_rows(qapp: QApplication, selected: dict[str, object], rows: Rows | None) -> None:
    models: Models = rich_models()
    models.selection.update(**selected)
    assert chosen_rows(models) == rows
