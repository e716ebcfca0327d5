"""Which pages a step reads that is recorded once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from engine.cache.fixed import PagedRows


@pytest.mark.parametrize(
    ("bucket", "pages"),
    [
        (4, [[5], [7]]),
        (5, [[5, 6], [7, 0]]),  # a page that is read in part is in the table as well
        (8, [[5, 6], [7, 0]]),
        (2, [[5], [7]]),
        (16, [[5, 6, 0, 0], [7, 0, 0, 0]]),
    ],
)
def test_every_page_of_the_rows_that_are_read_is_in_the_table(bucket: int, pages: list[list[int]]) -> None:
    tables = [SimpleNamespace(page_ids=[5, 6]), SimpleNamespace(page_ids=[7])]
    store = SimpleNamespace(page_size=4, plans=[SimpleNamespace(tables=tables)])
    rows = torch.zeros(1, 32, 2)
    found = PagedRows(cast(Any, store), [(rows, rows)]).tables(bucket)
    assert found is not None
    assert found.tolist() == pages
