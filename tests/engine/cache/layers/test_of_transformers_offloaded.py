"""transformers' offloaded caches: refused where there is no CUDA GPU, and with streams that do nothing what they
offload: its rows, its tokens, its bytes."""

from __future__ import annotations

import pytest
import torch

from engine.errors import InputError
from engine.session.mode import CacheMode
from engine.session.session import Session
from engine.spec.cache import OPT_IN_PRESETS, PRESETS, CacheSpec, cache_named, preset_of
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids

MODES = {"transformers-offloaded": "dynamic", "transformers-offloaded-static": "static"}


class NoStream:
    """What copies are queued on, where there is nothing to queue."""

    def wait_stream(self, other: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def test_they_are_modes_of_their_own_that_no_sweep_of_all_modes_runs() -> None:
    assert {name for name, mode in OPT_IN_PRESETS.items() if mode.spec.row.needs_cuda} == set(MODES)
    assert not set(OPT_IN_PRESETS) & set(PRESETS)
    for name in MODES:
        spec = cache_named(name)
        assert preset_of(spec).name == name
        assert spec.is_exact
        assert preset_of(spec).needs == ("a CUDA GPU",)
    assert CacheSpec("offloaded-static", max_length=50).max_length == 50
    with pytest.raises(InputError, match="max_length"):
        CacheSpec("offloaded", max_length=50)


@pytest.mark.parametrize("name", MODES)
def test_on_a_cpu_they_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InputError, match="a CUDA GPU, and this model is on cpu: take the"):
        Session(model_of("llama"), cache_named(name))


@pytest.mark.parametrize(("name", "like"), MODES.items())
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_where_there_is_something_like_a_gpu_they_are_the_caches_that_they_offload(
    name: str, like: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(architecture)
    monkeypatch.setattr(torch, "Stream", NoStream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: NoStream())
    monkeypatch.setattr(CacheMode, "_check_device", lambda mode: None)
    runs = []
    for mode in (name, like):
        session = Session(model, cache_named(mode))
        session.submit(Prompt(token_ids=prompt_ids(9)))
        assert session.cache_of(0).model_cache.offloading is (mode == name)
        runs.append([session.step() for _ in range(4)])
    for mine, other in zip(*runs, strict=True):
        assert mine.checksums == other.checksums
        assert mine.sequences[0].sampled == other.sequences[0].sampled
        assert [(la.stored, la.reserved, la.predicted) for la in mine.num_bytes.layers] == [
            (la.stored, la.reserved, la.predicted) for la in other.num_bytes.layers
        ]
