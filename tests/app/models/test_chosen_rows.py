"""The rows that a person has selected, whichever way."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication

from app.models import Models
from app.models.places import choose_part, chosen_rows, is_within
from engine.spec.edit import Rows
from tests.app import samples
from tests.app.rich import rich_models

LAST = samples.PROMPT + 7


@pytest.mark.parametrize(
    ("selected", "rows"),
    [
        ({"position": 6}, Rows(6, 7)),
        ({"position": 6, "channel": 5, "lens": "keys"}, Rows(6, 7, (3,), (1,), (5,), "keys")),
        ({"position": 6, "channel": 5, "lens": "values"}, Rows(6, 7, (3,), (1,), (5,), "values")),
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


AREA = Rows(4, 8, (1, 2), (0,), (5, 6))


@pytest.mark.parametrize(
    ("rows", "area", "expected"),
    [
        (AREA, AREA, True),
        (Rows(4, 8, (2,), (0,), (6,)), AREA, True),
        (Rows(3, 8, (2,), (0,), (6,)), AREA, False),
        (Rows(4, 9, (2,), (0,), (6,)), AREA, False),
        (Rows(4, 8, (2, 3), (0,), (6,)), AREA, False),
        (Rows(4, 8, (2,), (1,), (6,)), AREA, False),
        (Rows(4, 8, (2,), (0,), (7,)), AREA, False),
        (Rows(4, 8, None, (0,), (6,)), AREA, False),  # all layers are more than some
        (Rows(4, 8, (2,), None, (6,)), AREA, False),
        (Rows(4, 8, (2,), (0,)), AREA, False),
        (AREA, Rows(0, 9), True),
        (Rows(0, 9), Rows(0, 9), True),
    ],
)
def test_rows_are_within_an_area_where_all_of_them_are(rows: Rows, area: Rows, expected: bool) -> None:
    assert is_within(rows, area) is expected


def test_another_part_of_the_same_rows_is_chosen(qapp: QApplication) -> None:
    models = rich_models()
    models.selection.update(position=6)
    choose_part(models, "values")
    assert models.selection.now.area == Rows(6, 7, part="values")
    models.selection.update(position=4, area=Rows(4, 8, (2,), (0,), part="values"))
    choose_part(models, "keys")
    assert models.selection.now.area == Rows(4, 8, (2,), (0,), part="keys")
    models.selection.update(position=None)
    choose_part(models, "keys")
    assert models.selection.now.area is None
