"""A model over two GPUs, as accelerate spreads it: each layer's rows lie with its weights. The GPUs are not there."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from msgspec import structs

from engine.errors import InputError
from engine.model.device import Placement
from engine.model.forward import layers_by_index
from engine.model.loader import LoadedModel
from engine.model.runners.runners import Runners
from engine.model.weights import device_map_of, layer_devices
from engine.session.session import Session
from engine.spec.cache import PRESETS, fitted
from engine.spec.sampling import Prompt, SamplingParams
from tests.engine.card import CARD, card, has_card
from tests.engine.card_streams import Card
from tests.engine.session.failing import small
from tests.engine.tiny import model_of, prompt_ids

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.skipif(not has_card(), reason="this torch keeps its devices elsewhere")

SECOND = torch.device("cuda", 1)
PLACES = {
    "model.embed_tokens": CARD, "model.rotary_emb": CARD, "model.layers.0": CARD, "model.layers.1": SECOND,
    "model.norm": SECOND, "lm_head": SECOND,
}  # fmt: skip
STEPS = 4


def over_two(model: LoadedModel) -> LoadedModel:
    """A copy of a model whose second layer is on the second card."""
    network = copy.deepcopy(model.model)
    accelerate.dispatch_model(network, PLACES)
    info = structs.replace(model.info, layer_devices=layer_devices(layers_by_index(network)))
    return replace(model, info=info, model=network, device=CARD, runners=Runners(None, "transformers"))


def stepped(model: LoadedModel, name: str) -> Session:
    session = Session(model, small(fitted(PRESETS[name].spec, 64)), capture="everything")
    for number in range(2):
        sampling = SamplingParams(0.8 * number, seed=1, draws="counter")
        session.submit(Prompt(token_ids=prompt_ids(5 + number, number), sampling=sampling))
    for _ in range(2 + STEPS):
        session.step()
    return session


def test_weights_that_are_coded_as_they_are_loaded_are_placed_while_they_are() -> None:
    placed = Placement(SECOND, torch.float32)
    assert device_map_of(placed) is None, "as they are stored they are loaded whole, and moved"
    assert device_map_of(replace(placed, weights="int8")) == {"": SECOND}
    assert device_map_of(replace(placed, weights="int8", is_split=True)) == "auto"


@pytest.mark.parametrize("name", ["growing", "static", "h2o", "none"])
def test_rows_lie_with_the_weights_of_their_layer_and_the_tokens_are_those_of_one_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("llama")
    expected = stepped(replace(model, runners=Runners(None, "transformers")), name)
    with card(monkeypatch, made := Card()):
        session = stepped(over_two(model), name)
        assert session.model.devices == [CARD, SECOND]
        assert [layer.device for layer in session.bytes().layers] == ["cuda:0", "cuda:1"]
        for seq_id in range(2):
            assert session.sequence(seq_id).token_ids == expected.sequence(seq_id).token_ids
            for layer, device in enumerate((CARD, SECOND)):
                rows = session.cache_of(seq_id).rows(layer)
                assert rows is not None
                assert {rows.keys.device, rows.values.device} == {device}
        made.moved.clear()
        session.step()
    assert {(source, target) for source, target, _ in made.moved} == {("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")}
    if name == "none":
        return  # every token is computed again
    hidden, logits = 4 * 64, 4 * 128  # bytes of one token
    assert made.moved.count(("cuda:0", "cuda:1", hidden)) >= 2, "of each sequence what the first layer has made"
    assert made.moved.count(("cuda:1", "cuda:0", logits)) == 2
    assert max(size for *_, size in made.moved) <= logits, "nothing grows with the context"


@pytest.mark.parametrize("name", ["paged", "offloaded"])
def test_pages_which_lie_on_one_device_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with card(monkeypatch, Card()), pytest.raises(InputError, match="take the growing cache"):
        Session(over_two(model_of("llama")), PRESETS[name].spec)
