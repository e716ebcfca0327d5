"""Pictures that grow by columns are compared with ones that are put together anew from all that came."""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec.structs import replace

from app.models import Models
from app.models.pictures import ColumnBuffer
from engine.wire.pictures import HeadRequest, Unchanged, WallRequest
from tests.app import samples


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_columns_come_and_go_as_in_a_plain_array(axis: int) -> None:
    """In chance order: further columns, none, earlier cells written again, first columns gone, the rest not written."""
    for seed in range(60):
        rng = random.Random(seed)
        shape = [3, 2, 4]
        plain = np.arange(24, dtype=np.float32).reshape(shape)
        buffer, kept = ColumnBuffer(plain.copy(), axis, -1), [(plain, plain.copy())]
        for number in range(1, 25):
            removed = rng.choice((0, 0, 0, 1, 2, plain.shape[axis]))
            plain = np.delete(plain, np.s_[:removed], axis)
            come = rng.choice((0, 1, 1, 2, 5))
            if plain.shape[axis] + come == 0:
                come = 1
            before = plain.shape[axis]
            shape[axis] = come
            plain = np.concatenate([plain, np.full(shape, -1, np.float32)], axis)
            first = 0 if rng.random() < 0.2 else max(0, before - 1)
            at = sorted(rng.sample(range(first, plain.shape[axis]), rng.randint(1, plain.shape[axis] - first)))
            grids = np.meshgrid(
                *(at if n == axis else range(size) for n, size in enumerate(plain.shape)), indexing="ij"
            )
            places = tuple(grid.reshape(-1) for grid in grids)
            cells = np.arange(len(places[0]), dtype=np.float32) + 1000 * number
            plain[places] = cells
            found = buffer.put(removed, plain.shape[axis], places, cells)
            assert found.tolist() == plain.tolist(), (seed, number)
            assert not found.flags.writeable
            if first == 0 and before > 1:  # what somebody keeps stays what it was, where more than its end is written
                kept.append((found, plain.copy()))
            plain = plain.copy()


def test_a_picture_that_no_step_altered_is_that_of_the_newer_request(models: Models) -> None:
    """Each kind, with the number of tokens where the picture has one."""
    old, new = HeadRequest(0, 5, "keys", 1, 2, 0, 5, 40), HeadRequest(0, 6, "keys", 1, 2, 0, 6, 40)
    models.pictures.put(samples.head_picture(old), Unchanged(new))
    assert models.pictures.head is not None
    assert models.pictures.head.request == new
    wall = WallRequest(0, 5, 4, "keys", False, 20, 8)
    models.pictures.put(samples.wall_picture(wall), Unchanged(replace(wall, num_tokens=7)))
    assert models.pictures.wall is not None
    assert (models.pictures.wall.request.num_tokens, models.pictures.wall.num_tokens) == (7, 7)
