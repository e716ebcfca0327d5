"""A snapshot goes on: every mode, in its prompt and behind it, from now and from an earlier step, to the last bit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig

from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.snapshot.read import SnapshotFile
from engine.snapshot.resume import misfit, resumed, why_not_resumable
from engine.snapshot.verify import verified
from engine.spec.cache import PRESETS, cache_named, tuned
from engine.spec.edit import Mask, Pin, Rows, Zero
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.pictures import RowRequest
from tests.effort import effort
from tests.engine.geometry.tiny_configs import TINY
from tests.engine.snapshot.crafted import Crafted, changed
from tests.engine.snapshot.sessions import PROMPT, begun, goes_on_alike, kept, small, snapshot
from tests.engine.tiny import model_of, prompt_ids, random_model

SPECS = {
    **{name: small(name) for name in PRESETS},
    "fp8-head": cache_named("fp8-head"),
    "fp8-max": tuned(cache_named("fp8-max"), group=8),
    "fp8-max-e8m0": tuned(cache_named("fp8-max-e8m0"), group=8),
    "int8/kivi-4": tuned(cache_named("int8/kivi-4"), group=8, residual=8),
    "h2o+int8": tuned(cache_named("h2o+int8"), budget=12),
    "paged+h2o": tuned(cache_named("paged+h2o"), budget=12, page_size=4),
    "paged+tova+int8": tuned(cache_named("paged+tova+int8"), budget=12, page_size=4),
    "rerotated": tuned(PRESETS["streamingllm"].spec, sinks=2, window=10, rerotate=True),
}


@pytest.mark.parametrize("name", SPECS)
def test_every_mode_goes_on_to_the_last_bit(name: str, tmp_path: Path) -> None:
    session = begun(SPECS[name])
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        assert file.manifest.why_not == ""
        other = resumed(session.model, file)
    assert other.last_step == session.last_step
    assert other.sequence(0) == session.sequence(0)
    for layer in range(2):
        mine, theirs = session.cache_of(0).rows(layer), other.cache_of(0).rows(layer)
        assert mine is not None
        assert theirs is not None
        assert torch.equal(mine.keys, theirs.keys)
        assert torch.equal(mine.values, theirs.values)
        assert mine.first == theirs.first
    goes_on_alike(session, other, steps=12)  # rows leave windows and residuals meanwhile


def test_a_sequence_that_has_as_many_tokens_as_were_asked_for_goes_on(tmp_path: Path) -> None:
    session = Session(model_of("llama"), small("growing"))
    prompt = Prompt(token_ids=prompt_ids(9), sampling=SamplingParams(max_new_tokens=3))
    session.submit(prompt)
    while session.has_work:
        session.step()
    assert session.sequence(0).stop == "length"
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        other = resumed(session.model, file)
    for _ in range(4):
        assert other.has_work
        other.step()
    assert other.sequence(0).num_tokens == session.sequence(0).num_tokens + 4


def held_position(session: Session) -> int:
    """Of a row that every head of both layers holds, neither the first nor among the newest."""
    held = [set(row) for layer in range(2) for row in session.cache_of(0).held_positions(layer).tolist()]
    return sorted(set.intersection(*held))[2]


BY_HAND = [(name, what) for name in ("growing", "int8", "paged", "h2o", "paged+h2o") for what in ("hidden", "zeroed")]


@pytest.mark.parametrize(("name", "what"), [*BY_HAND, ("h2o", "pinned")])
def test_what_was_done_by_hand_is_written_and_goes_on(name: str, what: str, tmp_path: Path) -> None:
    """Hidden rows stay hidden and pinned ones are not dropped; edited pages are nobody's prefix."""
    session = begun(SPECS[name])
    position = held_position(session)
    rows = Rows(position, position + 1, None if "paged" in name else (1,))
    edit = {"hidden": Mask(0, rows), "pinned": Pin(0, rows), "zeroed": Zero(0, rows)}[what]
    make_edit(session, edit)
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        assert (file.manifest.why_not, file.manifest.edited_from) == ("", position)
        assert (f"layers.1.{what}" in file) == (what != "zeroed")
        other = resumed(session.model, file)
    mine, its = session.cache_of(0).by_hand, other.cache_of(0).by_hand
    assert its.edits == ((session.sequence(0).num_tokens, position),)
    for one, two in ((mine.hidden, its.hidden), (mine.pinned, its.pinned)):
        assert {layer: mask.tolist() for layer, mask in one.layers.items()} == {
            layer: mask.tolist() for layer, mask in two.layers.items()
        }
    goes_on_alike(session, other, steps=8)
    store = other.live.mode.store
    if store is not None:
        assert store.groups[0].pool.match_prefix(other.sequence(0).token_ids).num_hit_tokens == 0


def test_moments_of_the_file_are_looked_at_after_an_edit_though_they_are_no_nodes(tmp_path: Path) -> None:
    session = begun(SPECS["growing"])
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        other = resumed(session.model, file)
    count, step = session.sequence(0).num_tokens - 2, session.last_step
    request = RowRequest(0, count, 3)
    assert other.take_picture(request, step - 2).provenance == "live cache"
    make_edit(other, Zero(0, Rows(2, 5)))
    assert other.take_picture(request, step - 2).provenance == "as stored now"
    assert other.take_picture(request, step).provenance == "kept"


@pytest.mark.parametrize("name", ["growing", "static", "h2o", "snapkv", "fp8", "kivi-4", "paged", "paged+h2o"])
def test_in_the_middle_of_a_prompt(name: str, tmp_path: Path) -> None:
    """Scales wait for the end of the prompt, and rules watch it."""
    session = begun(SPECS[name], steps=-5)
    assert session.sequence(0).num_tokens == 16
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        assert len(file.waiting_ids) == 5
        other = resumed(session.model, file)
    goes_on_alike(session, other)


@pytest.mark.parametrize("name", ["growing", "dynamic", "paged", "h2o", "knorm", "kivi-4", "int8", "rerotated"])
def test_from_an_earlier_step(name: str, tmp_path: Path) -> None:
    session, twin = begun(SPECS[name]), begun(SPECS[name], steps=6)
    with SnapshotFile(kept(session, tmp_path / "x.safetensors", 27)) as file:
        assert file.manifest.why_not == ""
        assert file.manifest.step == twin.last_step
        goes_on_alike(twin, resumed(session.model, file))


OTHERS = [
    (architecture, name)
    for architecture in ("gpt2", "gemma3_text", "mistral", "deepseek_v3", "falcon")
    for name in ("dynamic", "static", "growing", "paged", "none")
]


@pytest.mark.parametrize(("architecture", "name"), effort(OTHERS[::2], OTHERS))
def test_windows_and_other_architectures(architecture: str, name: str, tmp_path: Path) -> None:
    session = begun(SPECS[name], architecture=architecture)
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        goes_on_alike(session, resumed(session.model, file))


ENCODED = [("t5", "none"), *(("bart", name) for name in ("growing", "static", "int8", "h2o", "paged", "paged+h2o"))]


@pytest.mark.parametrize(("architecture", "name"), [*ENCODED, ("t5", "transformers-quantized")])
def test_an_encoder_decoder_goes_on_with_the_rows_of_its_source(architecture: str, name: str, tmp_path: Path) -> None:
    """Pages and rules count the decoder's tokens alone."""
    session = begun(SPECS[name], steps=18, architecture=architecture)
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        num_own = session.cache_of(0).layers[0].rows().keys.shape[2]  # type: ignore[union-attr]
        assert [(entry.kind, entry.first, entry.num_rows) for entry in file.layers] == [
            *[("full", PROMPT, num_own)] * 2, *[("cross", 0, PROMPT)] * 2,
        ]  # fmt: skip
        assert file.manifest.why_not == ""
        assert verified(file.path).problems == ()
        other = resumed(session.model, file)
    goes_on_alike(session, other)
    assert other.cache_of(0).num_source == PROMPT


@cache
def recurrent(name: str) -> LoadedModel:
    """Jamba has layers of either kind, Falcon-H1 rows and a state in each."""
    config = AutoConfig.for_model(name, **{**TINY[name][0], "vocab_size": 128})
    return random_model({**config.to_dict(), "model_type": name}, 0.15)


STATES = [
    *((model_of, "mamba", "growing"), (model_of, "lfm2", "paged"), (model_of, "lfm2", "none")),
    *((recurrent, "jamba", "int8"), (recurrent, "falcon_h1", "static"), (recurrent, "falcon_h1", "int8")),
]


@pytest.mark.parametrize(("made", "architecture", "name"), STATES)
def test_recurrent_states_are_written_and_go_on(made: Any, architecture: str, name: str, tmp_path: Path) -> None:
    session = begun(SPECS[name], model=made(architecture), steps=4)
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        manifest = file.manifest
        assert (manifest.version, manifest.why_not) == (4, "")
        assert verified(file.path).problems == ()
        with safe_open(file.path, "pt") as opened:
            for layer in session.model.info.geometry.layers:
                states = [state for state in manifest.states if state.layer == layer.index]
                written = sum(opened.get_tensor(state.name).numel() for state in states)
                assert written == (layer.state_elements or 0)
        other = resumed(session.model, file)
    goes_on_alike(session, other)
    count = session.sequence(0).num_tokens - 1
    if architecture == "mamba":
        with pytest.raises(InputError, match="no K and V to export"):
            snapshot(session, 0, count)
        return
    with SnapshotFile(kept(session, tmp_path / "past.safetensors", count)) as file:
        assert file.manifest.states == ()
        why_not = why_not_resumable(session.model, file)
    assert why_not == ("" if name == "none" else "the states of then are not kept: go to that step")


def test_states_that_are_missing_or_cannot_be_are_refused(tmp_path: Path) -> None:
    session = begun(SPECS["growing"], architecture="mamba", steps=2)
    raw, path = kept(session, tmp_path / "x.safetensors").read_bytes(), tmp_path / "y.safetensors"
    states = json.loads(Crafted.of(raw).manifest["states"])
    for wrong, why in (
        ([], "its layers are none"),
        ([*states, states[0]], "not in order"),
        ([*states, states[0] | {"number": 3}], "it lacks the state 'layers.0.convolution.3'"),
        ([*states, states[0] | {"kind": "rows"}], "about states .Invalid enum value 'rows'"),
        ([*states, states[0] | {"layer": 9}], "layer 9 that its model does not have"),
    ):
        path.write_bytes(Crafted.of(raw).say(states=wrong).bytes())
        with pytest.raises(InputError, match=why):
            SnapshotFile(path)
    for wrong, why in ((states[:-1], "the state of layer 1 has another size"), (states[:2], "states of other layers")):
        path.write_bytes(Crafted.of(raw).say(states=wrong).bytes())
        with SnapshotFile(path) as file:
            assert why in misfit(session.model, file)
    name = "layers.0.convolution.0"
    shape = Crafted.of(raw).entries[name]["shape"]
    transposed = [shape[0], shape[2], shape[1]]
    path.write_bytes(Crafted.of(raw).entry(name, shape=transposed).bytes())
    with SnapshotFile(path) as file:
        assert (
            misfit(session.model, file)
            == f"the state '{name}' has the shape {transposed}, and that of the model {shape}"
        )
    kept(begun(SPECS["growing"], steps=2, model=model_of("mamba", "bfloat16")), path)
    with SnapshotFile(path) as file:
        assert "layer 0 is in bfloat16, and the model computes in float32" in misfit(session.model, file)


def test_forced_tokens_are_still_to_come(tmp_path: Path) -> None:
    session = begun(SPECS["growing"])
    session.force(0, prompt_ids(4, seed=9))
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        other = resumed(session.model, file)
    goes_on_alike(session, other)
    assert tuple(other.sequence(0).token_ids[-6:-2]) == prompt_ids(4, seed=9)


def test_going_back_to_where_it_was_opened_and_stepping_again(tmp_path: Path) -> None:
    session = begun(SPECS["h2o"])
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        other = resumed(session.model, file)
    opened_at = other.last_step
    assert opened_at is not None
    goes_on_alike(session, other, steps=3)
    other.go_to(opened_at)
    session.go_to(opened_at)
    logits = other.logits(0)
    assert logits is not None
    assert torch.equal(logits, session.logits(0))
    goes_on_alike(session, other)


def test_it_is_refused_with_the_reason(tmp_path: Path) -> None:
    session = begun(SPECS["kivi-4"])
    with SnapshotFile(kept(session, tmp_path / "rows.safetensors", form="rows")) as file:
        assert "as they are stored" in why_not_resumable(session.model, file)
        with pytest.raises(InputError, match="viewed and not gone on from"):
            resumed(session.model, file)
    with SnapshotFile(kept(session, tmp_path / "part.safetensors", layers=(1,))) as file:
        assert why_not_resumable(session.model, file) == "not all layers and heads were written"
    with SnapshotFile(kept(session, tmp_path / "heads.safetensors", kv_heads=(1,))) as file:
        assert why_not_resumable(session.model, file) == "not all layers and heads were written"
    with SnapshotFile(kept(session, tmp_path / "x.safetensors")) as file:
        assert why_not_resumable(session.model, file) == ""
        assert "other weights" in why_not_resumable(model_of("gpt2"), file)


def test_what_a_rule_remembered_and_nobody_knows_any_more(tmp_path: Path) -> None:
    session = begun(SPECS["h2o"])
    session.cache_of(0).lost.memory_floor = 28
    with SnapshotFile(kept(session, tmp_path / "x.safetensors", 27)) as file:
        assert "remembered then" in why_not_resumable(session.model, file)


def test_the_manifest_says_how_it_goes_on(tmp_path: Path) -> None:
    session = begun(SPECS["h2o"])
    with SnapshotFile(kept(session, tmp_path / "x.safetensors", notes="größer", view='{"layer":3}')) as file:
        manifest = file.manifest
    assert manifest.cache_spec == SPECS["h2o"]
    assert manifest.sequence.sampling == session.sequence(0).sampling
    assert manifest.sequence.sampled == session.sequence(0).sampled
    assert manifest.sequence.num_prompt_tokens == 21
    assert manifest.notes == "größer"
    assert msgspec.json.decode(manifest.view) == {"layer": 3}


def test_a_file_of_version_2_goes_on_and_its_damage_is_found(tmp_path: Path) -> None:
    """Its checksums were SHA-256, and it did not say so."""
    session, path = begun(SPECS["kivi-4"]), tmp_path / "x.safetensors"
    kept(session, path)
    path.write_bytes(Crafted.of(path.read_bytes()).as_second_version().bytes())
    assert verified(path).is_sound
    with SnapshotFile(path) as file:
        assert file.manifest.version == 2
        assert {len(digits) for digits in file.manifest.checksums.values()} == {64}
        goes_on_alike(session, resumed(session.model, file))
    flipped = bytearray(path.read_bytes())
    with SnapshotFile(path) as file:
        place = file.entries["layers.0.keys.words"].start
    flipped[place] ^= 1
    path.write_bytes(flipped)
    assert "'layers.0.keys.words' was changed: its checksum is another one" in verified(path).problems
    with SnapshotFile(path) as file, pytest.raises(InputError, match=r"'layers\.0\.keys\.words' has another checksum"):
        resumed(session.model, file)


def test_codes_of_a_prompt_that_had_not_ended_are_not_gone_on_from(tmp_path: Path) -> None:
    """Its next step would code rows that are not there."""
    session, path = begun(SPECS["kivi-4"]), tmp_path / "x.safetensors"
    raw = kept(session, path).read_bytes()
    keys = json.loads(Crafted.of(raw).manifest["layers"])[0]["keys"]
    assert keys["num_coded"]
    path.write_bytes(changed(raw, lambda f: f.layer(0, keys=keys | {"quantised_at": None})))
    with SnapshotFile(path) as file:
        assert "written in another codec" in why_not_resumable(session.model, file)


def test_what_nothing_follows_or_lacks_some_of_its_prompt_is_not_gone_on_from(tmp_path: Path) -> None:
    session, path = begun(SPECS["growing"]), tmp_path / "x.safetensors"
    raw = kept(session, path).read_bytes()
    sequence = json.loads(Crafted.of(raw).manifest["sequence"])
    for change, said in (
        ({"sampled": None}, "no token was chosen to follow"),
        ({"num_prompt_tokens": 31}, "its prompt has more tokens than it holds"),
        ({"num_prompt_tokens": 30}, ""),
        ({"sampled": None, "stop": "stopped"}, ""),
    ):
        path.write_bytes(changed(raw, lambda f, new=change: f.say(sequence=sequence | new)))
        with SnapshotFile(path) as file:
            assert said in (found := why_not_resumable(session.model, file)), change
            assert bool(said) == bool(found), change
