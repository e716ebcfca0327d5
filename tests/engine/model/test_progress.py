"""How far a load is, told while other libraries do it, and a cancel of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.overrides import _get_current_function_mode

from engine.errors import Cancelled
from engine.model import loader
from engine.model.loader import load, num_tensors
from engine.spec.model import ModelSpec
from tests.engine.tiny import write_config

Said = tuple[str, int, int | None]


@pytest.fixture(autouse=True)
def _at_every_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "REPORT_EVERY_S", -1.0)


def told_by(spec: ModelSpec) -> list[Said]:
    said: list[Said] = []
    load(spec, lambda *told: said.append(told))
    return said


def test_the_tensors_of_a_folder_are_counted_as_they_come(whole: Path) -> None:
    said = told_by(ModelSpec(str(whole), num_threads=1))
    total = num_tensors(whole)
    assert total is not None
    loading = [done for label, done, of in said if (label, of) == ("Loading tiny-llama", total)]
    assert loading == sorted(loading)
    assert loading[0] == 0
    assert loading[-1] == total
    assert len(set(loading)) > total // 2, "not all at once"
    assert said[-1] == ("Trying tiny-llama on a few tokens", 0, None)


def test_random_weights_get_on_with_every_tensor_as_well(tmp_path: Path) -> None:
    """A large one is filled for minutes, and must not be called hanging."""
    said = told_by(ModelSpec(f"shape:{write_config('llama', tmp_path)}", num_threads=1))
    num_parameters = max(done for _, done, _ in said)
    assert num_parameters > 15
    assert sum(label == "Building random weights" for label, _, _ in said) > 2 * num_parameters


@pytest.mark.parametrize("at", [1, 30, 100, 400])
def test_a_cancel_ends_it_anywhere_as_a_cancel_and_nothing_remains(at: int, whole: Path) -> None:
    calls = 0

    num_threads, used = torch.get_num_threads(), set[int]()

    def cancel(label: str, done: int, total: int | None) -> None:
        nonlocal calls
        calls += 1
        used.add(torch.get_num_threads())
        if calls == at:
            raise Cancelled

    with pytest.raises(Cancelled):
        load(ModelSpec(str(whole), num_threads=3), cancel)
    assert calls == at, "nothing is told any more"
    assert used == {3}, "from the first number on that is computed"
    assert torch.get_num_threads() == num_threads
    assert _get_current_function_mode() is None
    assert not torch.nn.modules.module._global_parameter_registration_hooks
    assert load(ModelSpec(str(whole), num_threads=1)).info.name == "tiny-llama"


def test_a_cancel_that_was_taken_for_an_error_of_a_tensor_is_a_cancel_all_the_same() -> None:
    def cancel(label: str, done: int, total: int | None) -> None:
        raise Cancelled

    def load_it() -> None:
        with loader.LoadProgress(cancel).reporting() as told:
            try:
                told.begin("Loading it")
            except Cancelled:
                raise ValueError("this tensor cannot be read") from None

    with pytest.raises(Cancelled):
        load_it()
