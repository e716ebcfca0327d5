"""Frozen messages behave as the standard library's frozen dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from engine.frozen import dataclass


@dataclass(frozen=True)
class Ours:
    first: int
    second: str = "two"
    third: tuple[int, ...] = dataclasses.field(default_factory=tuple)

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("first")


@dataclasses.dataclass(frozen=True)
class Theirs:
    first: int
    second: str = "two"
    third: tuple[int, ...] = dataclasses.field(default_factory=tuple)

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("first")


@dataclass(frozen=True, eq=False)
class Identity:
    first: int


CALLS: list[tuple[tuple[object, ...], dict[str, object]]] = [
    ((1,), {}),
    ((1, "x"), {}),
    ((1, "x", (3,)), {}),
    ((1,), {"third": (4,)}),
    ((), {"first": 2, "second": "y", "third": ()}),
    ((), {"third": (5,), "first": 3}),
]
WRONG: list[tuple[tuple[object, ...], dict[str, object]]] = [
    ((), {}),
    ((1, "x", (), 4), {}),
    ((1,), {"first": 2}),
    ((1,), {"fourth": 4}),
    ((), {"second": "x"}),
]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_they_are_made_copied_compared_and_shown_alike(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    ours, theirs = Ours(*args, **kwargs), Theirs(*args, **kwargs)  # type: ignore[arg-type]
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert repr(ours).removeprefix("Ours") == repr(theirs).removeprefix("Theirs")
    again = Ours(*args, **kwargs)  # type: ignore[arg-type]
    assert ours == again
    assert hash(ours) == hash(again)
    assert ours != theirs
    changed = dataclasses.replace(ours, second="other")
    assert (changed.first, changed.second, changed.third) == (ours.first, "other", ours.third)
    assert changed != ours
    assert copy.deepcopy(ours) == ours == pickle.loads(pickle.dumps(ours))
    match ours:
        case Ours(first, second):
            assert (first, second) == (ours.first, ours.second)


@pytest.mark.parametrize(("args", "kwargs"), WRONG)
def test_what_the_standard_one_refuses_is_refused(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    for kind in (Ours, Theirs):
        with pytest.raises(TypeError):
            kind(*args, **kwargs)  # type: ignore[arg-type]


def test_nothing_can_be_assigned_or_deleted_and_checks_run() -> None:
    one = Ours(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.first = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.first
    with pytest.raises(ValueError, match="first"):
        Ours(-1)
    with pytest.raises(ValueError, match="first"):
        dataclasses.replace(one, first=-2)


def test_without_equality_only_the_same_object_is_equal() -> None:
    assert Identity(1) != Identity(1)
    assert len({Identity(1), Identity(1)}) == 2
