"""The short way through a decode step: transformers' numbers to the last bit, or not taken at all."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, DynamicCache

from engine.errors import Cancelled
from engine.model.batch import Batch
from engine.model.loader import LoadedModel, load
from engine.model.runners.decoder import FusedDecoder
from engine.model.runners.runners import Runners
from engine.model.weights import build_shape
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.sampling import Prompt
from tests.effort import effort
from tests.engine.tiny import COMMON, model_of, prompt_ids

ALIKE = ["llama", "qwen2", "qwen3"]  # nothing beside the products; biases; norms of single heads


def loaded(folder: Path, name: str, **changes: Any) -> LoadedModel:
    """A tiny model of an architecture with some of its config changed."""
    config = AutoConfig.for_model(name, **{**COMMON, **changes})
    (folder / "config.json").write_text(json.dumps({**config.to_dict(), "model_type": name}, default=str), "utf-8")
    return load(ModelSpec(f"shape:{folder / 'config.json'}", dtype="float32", device="cpu", num_threads=1))


def stepped(
    model: LoadedModel, spec: CacheSpec, length: int, steps: int, chunk: int = 128
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The logits of every step, and the rows of every layer at the end."""
    session = Session(model, spec, prefill_chunk=chunk)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(length)))
    session.force(seq_id, prompt_ids(steps, seed=1))
    logits = []
    for _ in range(steps):
        session.step()
        newest = session.logits(seq_id)
        assert newest is not None
        logits.append(newest)
    held = [session.cache_of(seq_id).rows(layer) for layer in range(2)]
    return logits, [rows for pair in held if pair for rows in (pair.keys, pair.values)]


IN_ALL = [
    (architecture, cache)
    for architecture in ALIKE
    for cache in ("growing", "dynamic", "static", "paged", "int8", "h2o", "transformers-quantized")
]


@pytest.mark.parametrize(("architecture", "cache"), effort(IN_ALL[::3], IN_ALL))
def test_it_gives_the_numbers_of_transformers_to_the_last_bit(architecture: str, cache: str) -> None:
    model = model_of(architecture)
    assert model.runners.decoder is not None
    spec = PRESETS[cache].spec
    short, long = (stepped(m, spec, 9, 40) for m in (model, replace(model, runners=Runners(None))))
    for mine, theirs in zip([*short[0], *short[1]], [*long[0], *long[1]], strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("cache", ["growing", "static", "paged", "int8", "h2o"])
@pytest.mark.parametrize("architecture", ALIKE)
def test_chunks_of_a_prompt_have_the_bits_of_transformers(architecture: str, cache: str) -> None:
    model = model_of(architecture)
    assert model.runners.decoder is not None
    assert model.runners.decoder.takes_chunks
    short, long = (stepped(m, PRESETS[cache].spec, 21, 9, 5) for m in (model, replace(model, runners=Runners(None))))
    for mine, theirs in zip([*short[0], *short[1]], [*long[0], *long[1]], strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("architecture", ["mistral", "gemma2", "gpt2", "olmo2", "phi3", "mixtral", "stablelm", "lfm2"])
def test_other_structures_do_not_take_it(architecture: str) -> None:
    assert model_of(architecture).runners.decoder is None


@pytest.mark.parametrize(
    ("architecture", "same", "other"),
    [
        ("granite", {}, {"residual_multiplier": 0.5}),
        ("granite", {}, {"logits_scaling": 3.0}),
        ("smollm3", {"no_rope_layers": [1, 1]}, {"no_rope_layers": [1, 0]}),
        ("mistral", {"sliding_window": None}, {"sliding_window": 64}),
    ],
)
def test_the_same_parts_put_together_otherwise_are_told_by_their_numbers(
    architecture: str, same: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    assert loaded(tmp_path, architecture, **same).runners.decoder is not None
    assert loaded(tmp_path, architecture, **other).runners.decoder is None


def test_who_listens_at_a_module_hears_every_step() -> None:
    session = Session(model_of("llama"), CacheSpec())
    session.submit(Prompt(token_ids=prompt_ids(5)))
    session.step()
    heard: list[int] = []
    module = session.model.model.model.layers[1].mlp.up_proj
    handle = module.register_forward_hook(lambda _, args, output: heard.append(output.shape[1]))
    session.step()
    handle.remove()
    session.step()
    assert heard == [1]


def test_a_model_that_changes_its_dtype_is_followed(tmp_path: Path) -> None:
    model = loaded(tmp_path, "qwen2")
    for change in (torch.nn.Module.double, torch.nn.Module.float):
        change(model.model)
        short, long = (stepped(m, CacheSpec(), 5, 6) for m in (model, replace(model, runners=Runners(None))))
        assert short[0][0].dtype == model.model.dtype
        assert all(map(torch.equal, short[0], long[0]))


def test_a_weight_that_changes_in_place_is_followed(tmp_path: Path) -> None:
    model = loaded(tmp_path, "llama")
    before = stepped(model, CacheSpec(), 5, 6)
    with torch.no_grad():
        model.model.model.layers[1].self_attn.k_proj.weight[3] += 1.0
    short, long = (stepped(m, CacheSpec(), 5, 6) for m in (model, replace(model, runners=Runners(None))))
    assert all(map(torch.equal, short[0], long[0]))
    assert not torch.equal(short[0][-1], before[0][-1])


def test_the_weights_are_what_and_where_they_were(tmp_path: Path) -> None:
    """Joining them changes no name, no value, and takes no memory."""
    model = loaded(tmp_path, "qwen2")
    assert model.runners.decoder is not None
    config = AutoConfig.for_model("qwen2", **COMMON)
    plain = build_shape(config, torch.float32, "", None).state_dict()
    mine = model.model.state_dict()
    assert list(mine) == list(plain)
    assert all(torch.equal(mine[name], plain[name]) for name in plain)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in mine.values()}
    assert sum(storages.values()) == sum(p.nbytes for p in model.model.parameters())
    attention = model.model.model.layers[0].self_attn
    assert attention.q_proj.weight.untyped_storage().data_ptr() == attention.v_proj.weight.untyped_storage().data_ptr()


def replace_a_weight(model: LoadedModel, name: str) -> None:
    module = model.model.get_submodule(name)
    module.weight = torch.nn.Parameter(module.weight.detach() * 1.5 + 0.1)


def replace_the_data(model: LoadedModel, name: str) -> None:
    module = model.model.get_submodule(name)
    module.weight.data = module.weight.detach() * 1.5 + 0.1


class Adapted(torch.nn.Module):
    """What an adapter puts in the place of a linear map."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.inner(rows) * 1.5 + 0.1  # type: ignore[no-any-return]


def adapt(model: LoadedModel, name: str) -> None:
    place, _, last = name.rpartition(".")
    parent = model.model.get_submodule(place)
    setattr(parent, last, Adapted(getattr(parent, last)))


def call_another_forward(model: LoadedModel, name: str) -> None:
    module = model.model.get_submodule(name)
    real = module.forward
    module.forward = lambda rows: real(rows) * 1.5 + 0.1


LAYER = "model.layers.1."
PLACES = [
    *(f"{LAYER}self_attn.{x}_proj" for x in "qkvo"),
    *(f"{LAYER}mlp.{x}_proj" for x in ("gate", "up", "down")),
    *(f"{LAYER}{x}_layernorm" for x in ("input", "post_attention")),
    "model.norm",
    "lm_head",
]


@pytest.mark.parametrize("change", [replace_a_weight, replace_the_data, adapt, call_another_forward])
def test_whatever_weight_or_module_is_replaced_is_noticed(change: Any, tmp_path: Path) -> None:
    for name in PLACES:
        model = loaded(tmp_path, "llama", tie_word_embeddings=False)
        assert model.runners.decoder is not None
        before = stepped(model, CacheSpec(), 5, 3)
        change(model, name)
        short, long = (stepped(m, CacheSpec(), 5, 3) for m in (model, replace(model, runners=Runners(None))))
        assert all(map(torch.equal, short[0], long[0])), name
        assert not torch.equal(short[0][-1], before[0][-1]), name


def test_what_is_put_back_takes_the_short_way_again(tmp_path: Path) -> None:
    model = loaded(tmp_path, "llama")
    attention = model.model.model.layers[0].self_attn
    own = attention.v_proj
    assert model.runners.decoder is not None
    assert model.runners.decoder.guard.is_unchanged
    attention.v_proj = Adapted(own)
    assert not model.runners.decoder.guard.is_unchanged
    attention.v_proj = own
    assert model.runners.decoder.guard.is_unchanged


def test_a_forward_is_given_up_before_any_of_its_layers() -> None:
    model, calls = model_of("llama"), 0
    decoder = model.runners.decoder
    assert decoder is not None

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise Cancelled

    for stop in (0, 1, 2, 3):  # before each of two layers, and behind them
        calls, cache = 0, DynamicCache(config=model.model.config)
        with torch.inference_mode(), nullcontext() if stop == 0 else pytest.raises(Cancelled):
            decoder.outputs(Batch(torch.tensor([[5, 6, 7]]), cache, check=check))
        assert calls == (stop or 3)
        assert [layer.get_seq_length() for layer in cache.layers] == [3 * (stop != 1), 3 * (stop not in (1, 2))]


def test_the_addresses_are_those_of_all_weights_and_of_the_buffers_that_there_are(tmp_path: Path) -> None:
    model = loaded(tmp_path, "llama")
    model.model.register_buffer("nothing", None)
    decoder = FusedDecoder(model.model)
    tensors = (*model.model.parameters(), *model.model.buffers())
    assert sorted(decoder.addresses) == sorted(tensor.data_ptr() for tensor in tensors)
    rotary = model.model.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq.clone()
    assert rotary.inv_freq.data_ptr() in decoder.addresses, "a buffer that was replaced is asked for anew"
