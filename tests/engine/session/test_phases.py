"""A step in phases: which rows are there at each phase, and that it ends bit for bit as an ordinary step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.session.session import Session
from engine.spec.cache import PRESETS
from engine.spec.sampling import Prompt
from engine.wire.pictures import (
    AttentionPicture,
    AttentionRequest,
    HeadPicture,
    HeadRequest,
    RowPicture,
    RowRequest,
    WallPicture,
    WallRequest,
)
from engine.wire.status import Chosen, LayerDone, PhaseReached, Scheduled, SuspendedStep, Written
from tests.engine.session.phases import MODES, PHASES, phased
from tests.engine.session.sessions import facts, prepared, same, started, tensors
from tests.engine.tiny import model_of, prompt_ids


def layers_of(session: Session) -> int:
    return len(session.model.info.geometry.layers)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("mode", MODES)
def test_it_passes_every_phase_in_order_and_ends_bit_for_bit_as_an_ordinary_step(mode: str, phase: str) -> None:
    session, twin = prepared("llama", MODES[mode], phase), prepared("llama", MODES[mode], phase)
    expected = twin.step()
    record, seen = phased(session)
    ends = [LayerDone] * layers_of(session) + ([Chosen] if expected.sequences[0].sampled is not None else [])
    assert [type(event.phase) for event in seen] == [Scheduled, *ends, Written]
    assert [event.phase.layer for event in seen if isinstance(event.phase, LayerDone)] == list(
        range(layers_of(session))
    )
    assert {event.step for event in seen} == {record.step} == {expected.step}
    assert same(tensors(session), tensors(twin))
    assert facts(session) == facts(twin)
    assert record.sequences[0].sampled == expected.sequences[0].sampled
    for _ in range(3):  # and goes on alike
        assert session.step().sequences[0].sampled == twin.step().sequences[0].sampled
    assert same(tensors(session), tensors(twin))


@pytest.mark.parametrize("phase", ["second chunk", "decode"])
@pytest.mark.parametrize(
    "architecture",
    ["llama", "gpt2", "mistral", "gemma3_text", "gemma3n_text", "gpt_oss", "deepseek_v3", "lfm2", "mamba"],
)
def test_every_architecture_is_followed_layer_by_layer(architecture: str, phase: str) -> None:
    session, twin = (prepared(architecture, "growing", phase) for _ in range(2))
    twin.step()
    # a picture that computes queries again runs the model between its own layers
    _, seen = phased(session, lambda _: session.take_picture(HeadRequest(0, 99, "attention-map", 0, 0, 0, 99, 9)))
    assert [e.phase.layer for e in seen if isinstance(e.phase, LayerDone)] == list(range(layers_of(session)))
    assert same(tensors(session), tensors(twin))
    for event in seen:
        if isinstance(event.phase, LayerDone):
            norm = event.phase.rows[0].output_norm
            assert norm is not None
            assert norm > 0


@pytest.mark.parametrize("mode", MODES)
def test_once_a_layer_is_done_it_has_the_new_row_and_later_layers_do_not(mode: str) -> None:
    """The row has the values that it has after the step, unless the mode codes it."""
    session, twin = prepared("llama", MODES[mode], "decode"), prepared("llama", MODES[mode], "decode")
    had, rows, places = session.cache_of(0).num_tokens, [], []

    def look(event: PhaseReached) -> None:
        if isinstance(event.phase, LayerDone):
            piece = session.take_picture(RowRequest(0, had + 1, had))
            assert isinstance(piece, RowPicture)
            rows.append(piece)
            places.append(piece.layers)
            norms = event.phase.rows[0]
            assert norms.key_norm == pytest.approx(np.linalg.norm(piece.keys[event.phase.layer], axis=-1), rel=1e-5)
            assert norms.value_norm == pytest.approx(np.linalg.norm(piece.values[event.phase.layer], axis=-1), rel=1e-5)

    phased(session, look)
    assert places == [tuple(range(n + 1)) for n in range(layers_of(session))]
    assert all(piece.note for piece in rows[:-1]), "layers that lack the row are named"
    assert not rows[-1].note
    if MODES[mode].codec.is_exact:
        twin.step()
        done = twin.take_picture(RowRequest(0, had + 1, had))
        assert isinstance(done, RowPicture)
        for layer in done.layers:
            assert np.array_equal(done.values[layer], rows[-1].values[layer], equal_nan=mode != "growing")


@pytest.mark.parametrize("mode", ["growing", "paged", "kivi", "h2o", "paged h2o"])
@pytest.mark.parametrize("phase", ["second chunk", "decode"])
def test_the_wall_says_which_layers_lack_the_new_rows(mode: str, phase: str) -> None:
    session = prepared("llama", MODES[mode], phase)
    had = session.cache_of(0).num_tokens
    lacking: list[list[int]] = []
    notes: list[str] = []

    def look(event: PhaseReached) -> None:
        if isinstance(event.phase, Written):
            return
        count = session.pictures.visible(0).source.num_tokens
        wall = session.take_picture(WallRequest(0, count, count, "keys", False, 200, 200))
        assert isinstance(wall, WallPicture)
        assert wall.absent is not None
        assert wall.num_tokens == count
        new = wall.absent[:, :, had:]
        assert (np.isnan(wall.low[:, :, had:]).all(-1) == (new == 1)).all()
        lacking.append([layer for layer, heads in zip(wall.layers, new, strict=True) if (heads == 1).all()])
        assert all((heads == 1).all() or (heads == 0).all() for heads in new)
        notes.append(wall.note)

    phased(session, look)
    assert lacking[:3] == [[0, 1], [1], []]
    assert ("scheduled" in notes[0], "after layer 0" in notes[1]) == (True, True)
    assert not any("suspended" in note for note in notes[2:])


def test_without_a_cache_later_layers_have_no_rows_at_all() -> None:
    session, seen = prepared("llama", "none", "decode"), []

    def look(event: PhaseReached) -> None:
        if not isinstance(event.phase, Written):
            count = session.pictures.visible(0).source.num_tokens
            wall = session.take_picture(WallRequest(0, count, count, "keys", False, 200, 200))
            assert isinstance(wall, WallPicture)
            seen.append(wall.layers)

    phased(session, look)
    assert seen == [(), (0,), (0, 1), (0, 1)]


def test_a_head_and_the_newest_attention_can_be_drawn_once_their_layer_is_done() -> None:
    session, twin = prepared("llama", "growing", "decode"), prepared("llama", "growing", "decode")
    had, step = session.cache_of(0).num_tokens, (session.last_step or 0) + 1
    heads: list[tuple[int, str]] = []
    rows: list[AttentionPicture] = []

    def look(event: PhaseReached) -> None:
        if isinstance(event.phase, LayerDone):
            head = session.take_picture(HeadRequest(0, had + 1, "keys", 1, 0, 0, had + 1, 200))
            row = session.take_picture(AttentionRequest(0, step, 1, 200))
            assert isinstance(head, HeadPicture)
            assert isinstance(row, AttentionPicture)
            heads.append((len(head.positions), head.note))
            rows.append(row)

    phased(session, look)
    assert [count for count, _ in heads] == [had, had + 1]
    assert ["after layer 0" in note for _, note in heads] == [True, False]
    assert (rows[0].weights.size, "after layer 0" in rows[0].note) == (0, True)
    twin.step()
    expected = twin.take_picture(AttentionRequest(0, step, 1, 200))
    assert isinstance(expected, AttentionPicture)
    assert rows[1].query_position == expected.query_position == had
    assert np.allclose(rows[1].weights, expected.weights, atol=1e-7)


def test_what_each_phase_knows() -> None:
    session = prepared("llama", MODES["paged"], "decode")
    had = session.cache_of(0).num_tokens
    while session.cache_of(0).num_tokens % 4:
        session.step()
        had += 1
    record, seen = phased(session)
    part, first, last = record.sequences[0], seen[0].phase, seen[-1].phase
    assert isinstance(first, Scheduled)
    scheduled = first.sequences[0]
    assert (scheduled.first_position, scheduled.token_ids, scheduled.phase) == (had, part.token_ids, "decode")
    assert scheduled.pages == (session.cache_of(0).page_ids_at(had + 1)[0][-1],), "the token begins a page"
    chosen = next(event.phase for event in seen if isinstance(event.phase, Chosen)).tokens[0]
    assert (chosen.token_id, chosen.candidates, chosen.entropy) == (part.sampled, part.candidates, part.entropy)
    assert (chosen.position, chosen.seed) == (had + 1, None)
    assert isinstance(last, Written)
    written = last.sequences[0]
    assert (written.num_written, written.num_rewritten, written.num_evicted, written.num_new_pages) == (2, 0, 0, 1)
    assert (written.num_layers, written.num_in_each) == (2, 1)


def test_layers_that_write_different_numbers_of_rows_are_not_said_to_write_alike() -> None:
    """The encoder's layers write the source, the decoder's a token, even where these divide evenly."""
    session = Session(model_of("bart"), PRESETS["growing"].spec)
    session.submit(Prompt(token_ids=prompt_ids(7, 3)))
    _, seen = phased(session)
    last = seen[-1].phase
    assert isinstance(last, Written)
    written = last.sequences[0]
    assert (written.num_written, written.num_layers, written.num_in_each) == (16, 4, None)


def test_rows_that_are_coded_and_dropped_are_counted_when_they_are_written() -> None:
    for mode, dropped in (("h2o", 4), ("kivi", 0)):
        record, seen = phased(prepared("llama", MODES[mode], "decode"))
        written = seen[-1].phase
        assert isinstance(written, Written)
        gone = sum(len(eviction.positions) for eviction in record.evictions)
        assert gone == dropped
        assert written.sequences[0].num_evicted == dropped // 2, "one row of every layer, whichever of its heads"
    session, _ = started(cache=MODES["kivi"], length=15)
    session.step()
    counts = []
    for _ in range(10):
        _, seen = phased(session)
        assert isinstance(seen[-1].phase, Written)
        counts.append(seen[-1].phase.sequences[0].num_rewritten)
    assert max(counts) > 0, "a group of eight was coded"


def test_a_shared_page_that_is_copied_to_be_written_is_a_new_one() -> None:
    session, seq_id = started(cache=MODES["paged"], length=6)
    session.step()
    session.fork(seq_id)
    _, seen = phased(session)
    assert isinstance(seen[-1].phase, Written)
    assert sorted(each.num_new_pages for each in seen[-1].phase.sequences) == [0, 1], "the other one keeps the page"


@pytest.mark.parametrize(("cache", "groups"), [("paged", [(0, 1), (0, 1)]), ("growing", [(0,), (0,), (1,), (1,)])])
def test_two_sequences_of_one_forward_and_of_one_each(cache: str, groups: list[tuple[int, ...]]) -> None:
    session, twin = prepared("llama", cache, "two sequences"), prepared("llama", cache, "two sequences")
    stands: list[SuspendedStep | None] = []
    _, seen = phased(
        session, lambda _event: stands.append(session.stepper.phases.suspended if session.stepper.phases else None)
    )
    done = [tuple(row.seq_id for row in e.phase.rows) for e in seen if isinstance(e.phase, LayerDone)]
    assert done == groups
    twin.step()
    assert same(tensors(session), tensors(twin))
    words = [where.words.split(": ")[1] for where in stands if where is not None]
    assert words[:2] == ["scheduled", "layer 0 done, 1 of 2"]
    assert (words[-1], stands[-1], session.stepper.phases) == ("chosen", None, None)


def test_waiting_at_a_phase_does_not_count_as_time_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps an hour at every phase: the record's times have none of it."""
    import time

    session, waited = prepared("llama", "growing", "decode"), [0.0]
    real = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: real() + waited[0])

    def wait(_event: PhaseReached) -> None:
        waited[0] += 3600.0

    record, seen = phased(session, wait)
    assert waited[0] == 3600.0 * len(seen)
    assert record.timings.total_ms < 60_000


def test_pictures_of_a_finished_step_count_the_rows_as_they_were_coded() -> None:
    """The range of colours is not that of rows seen before they were coded."""
    session, twin = prepared("llama", MODES["int8"], "decode"), prepared("llama", MODES["int8"], "decode")

    def look(_event: PhaseReached) -> None:
        count = session.pictures.visible(0).source.num_tokens
        session.take_picture(WallRequest(0, count, count, "keys", False, 50, 8))

    phased(session, look)
    twin.step()
    count = twin.cache_of(0).num_tokens
    request = WallRequest(0, count, count, "keys", False, 50, 8)
    one, other = session.take_picture(request), twin.take_picture(request)
    assert isinstance(one, WallPicture)
    assert isinstance(other, WallPicture)
    assert one.magnitudes is not None
    assert other.magnitudes is not None
    assert np.array_equal(one.magnitudes.limit, other.magnitudes.limit)
    assert np.array_equal(one.low, other.low, equal_nan=True)
    assert torch.equal(session.logits(0), twin.logits(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["growing", "none", "h2o"])
@pytest.mark.parametrize("phase", ["second chunk", "decode"])
def test_attention_is_of_the_queries_before_it_and_of_its_newest_in_layers_that_are_done(mode: str, phase: str) -> None:
    session = prepared("llama", MODES[mode], phase)
    had = session.cache_of(0).num_tokens

    def head(lens: str, layer: int) -> HeadPicture:
        piece = session.take_picture(HeadRequest(0, 99, lens, layer, 0, 0, 99, 100))
        assert isinstance(piece, HeadPicture)
        return piece

    lenses = ("attention-map", "attention-received", "attention-entropy")
    before, newest = [head(lens, 1) for lens in lenses], dict[int, np.ndarray]()

    def look(event: PhaseReached) -> None:
        if isinstance(event.phase, Written):
            return
        for lens, was in zip(lenses, before, strict=True):
            piece = head(lens, 1)
            assert np.array_equal(piece.low, was.low, equal_nan=True)
            assert piece.note.endswith(f"Step {event.step} is suspended: its queries are added when it ends.")
            asked = AttentionRequest(0, event.step, 1, 100, lens=lens, max_rows=100)
            of_panel = session.take_picture(asked)
            assert isinstance(of_panel, AttentionPicture)
            assert (of_panel.query_position, of_panel.note) == (had - 1, piece.note)
        if isinstance(event.phase, LayerDone):
            newest[event.phase.layer] = head("attention", event.phase.layer).low

    phased(session, look)
    for layer in range(layers_of(session)):
        done = head("attention", layer)
        assert np.array_equal(newest[layer], done.low, equal_nan=True)
        assert not done.note
    assert not head("attention-map", 1).note.startswith("Step")
