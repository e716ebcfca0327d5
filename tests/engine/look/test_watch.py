"""A watched picture is, after any number of steps, the slice that could be taken in its place: to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engine.look.magnitudes import HeadStatistics
from engine.look.watch import Watcher
from engine.session.session import Session
from engine.spec.sampling import Prompt
from engine.wire.commands import SetPace, Watch, Watched
from engine.wire.encoding import decode_command, encode
from engine.wire.pictures import (
    AttentionPicture,
    AttentionRequest,
    CellUpdate,
    HeadPicture,
    HeadRequest,
    TablePicture,
    Unchanged,
    WallPicture,
    WallRequest,
)
from tests.effort import effort
from tests.engine.look.watching import HEAD, MODES, PICTURES, ROW, TABLE, TOKEN, WALL, Watching
from tests.engine.tiny import model_of, prompt_ids


@pytest.mark.parametrize("mode", MODES)
def test_what_is_watched_is_what_a_whole_slice_gives(mode: str) -> None:
    watching = Watching(MODES[mode])
    for _ in range(9):  # the first reads the rest of the prompt; one column holds one token, then two, then more
        watching.follow(5)
        watching.check()


@pytest.mark.parametrize("mode", ["h2o", "kivi"])
def test_a_head_of_no_rows_is_watched_while_rows_are_dropped_and_coded(mode: str) -> None:
    session = Watching(MODES[mode], length=19).session
    nothing = Watched(HeadRequest(0, 0, "keys", 0, 0, 3, 3, 24), "fixed", id=4)
    watcher = Watcher()
    watcher.set_pace(SetPace(None, None))
    watcher.watch(session, [nothing])
    for _ in range(12):
        session.force(0, (7,))
        (piece,) = watcher.after_step(session, session.step(), is_last=False)
        assert watcher.take_failures() == []
        assert isinstance(piece, HeadPicture)
        assert piece.positions.size == 0


OTHERS = [
    (mode, architecture)
    for mode in ("dynamic", "growing", "paged")
    for architecture in ("mistral", "gemma3_text", "deepseek_v3", "lfm2", "gemma2")
]


@pytest.mark.parametrize(("mode", "architecture"), effort(OTHERS[::4], OTHERS))
def test_of_windows_latents_and_layers_without_rows_as_well(mode: str, architecture: str) -> None:
    watching = Watching(MODES[mode], architecture, length=4)
    for _ in range(8):
        watching.follow(3)
        watching.check()


def test_of_states_alone_as_well() -> None:
    watching = Watching(MODES["growing"], "mamba", length=4)
    for _ in range(3):
        watching.follow(3)
        watching.check()


@pytest.mark.parametrize("mode", ["growing", "dynamic", "none", "paged"])
def test_of_cross_layers_whose_rows_stay_the_same_as_well(mode: str) -> None:
    watching = Watching(MODES[mode], "bart", length=6)
    for _ in range(5):
        watching.follow(3)
        watching.check()
    session = watching.session
    cross = session.take_picture(AttentionRequest(0, 12, 3, 64))
    assert isinstance(cross, AttentionPicture)
    assert cross.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.allclose(cross.weights.sum(1), 1, atol=1e-5)
    assert cross.absent is None or not cross.absent.any()
    assert not cross.is_causal, "each query reads all of the source"
    own = session.take_picture(AttentionRequest(0, 12, 1, 64))
    assert isinstance(own, AttentionPicture)
    assert own.positions.tolist() == list(range(6, 19))
    wall = session.take_picture(WallRequest(0, 19, 19, "keys", False, 24, 8))
    assert isinstance(wall, WallPicture)
    assert (wall.layers, wall.note) == ((0, 1, 2, 3), "")
    has_rows = np.isfinite(wall.low[:, 0, :, 0])
    assert has_rows[:2].tolist() == [[False] * 6 + [True] * 13] * 2
    assert has_rows[2:].tolist() == [[True] * 6 + [False] * 13] * 2


@pytest.mark.parametrize("mode", ["dynamic", "growing", "static", "paged", "paged-int8"])
def test_rows_that_stay_as_written_come_as_new_columns(mode: str) -> None:
    watching = Watching(MODES[mode])
    watching.follow(14)  # 22 tokens: the wall of 24 columns is never pooled anew
    assert watching.seen(WALL) == {CellUpdate}
    assert CellUpdate in watching.seen(HEAD)
    assert watching.seen(TOKEN) == {Unchanged}
    assert watching.seen(ROW) == {AttentionPicture}


def test_a_new_column_brings_the_new_rows_alone() -> None:
    watching = Watching(MODES["growing"])
    watching.follow(3)
    (update,) = [
        piece
        for piece in watching.watcher.after_step(watching.session, watching.session.step(), is_last=False)
        if isinstance(piece, CellUpdate) and piece.reply_to == WALL.id
    ]
    assert update.picture.low.shape == (4, 8)
    assert update.places.tolist() == [[0, 0, 1, 1], [0, 1, 0, 1], [11] * 4]
    assert watching.session.sequence(0).num_tokens == update.num_columns == 12


def test_a_wall_is_sent_whole_when_more_tokens_share_a_column() -> None:
    watching = Watching(MODES["growing"])
    watching.follow(14)
    watching.follow(4)  # the 25th token
    assert WallPicture in watching.seen(WALL)


@pytest.mark.parametrize(("gave_way", "kind"), [(0, WallPicture), (1, CellUpdate)])
def test_of_a_sequence_that_gave_its_rows_up_the_wall_is_sent_whole(gave_way: int, kind: type) -> None:
    """It may have read them again by now, in other pieces, to as many tokens as it had."""
    watching = Watching(MODES["paged"])
    watching.follow(3)
    record = replace(watching.session.step(), preempted=(gave_way,))
    pieces = watching.watcher.after_step(watching.session, record, is_last=False)
    assert [type(piece) for piece in pieces if piece.reply_to == WALL.id] == [kind]


def test_pictures_come_at_their_pace_and_the_last_step_is_always_shown() -> None:
    now = 100.0
    session = Session(model_of("llama"), MODES["growing"])
    watcher = Watcher(lambda: now)
    watcher.set_pace(SetPace(None, 10))
    session.submit(Prompt(token_ids=prompt_ids(9)))
    watcher.watch(session, (WALL,))
    shown = []
    for tenth in range(1, 41):
        now = 100.0 + tenth / 40
        shown.append(len(watcher.after_step(session, session.step(), is_last=False)))
    assert sum(shown) == 10  # in one second
    assert len(watcher.after_step(session, session.step(), is_last=True)) == 1
    assert watcher.catch_up(session) == []


def test_a_page_table_is_sent_only_when_a_page_came() -> None:
    watching = Watching(MODES["paged"])  # pages of 4
    watching.follow(1)
    table = watching.screens[PICTURES.index(TABLE)]
    assert watching.session.sequence(0).num_tokens == 9
    table.seen.clear()
    watching.follow(8)
    assert table.seen == [*[Unchanged] * 3, TablePicture, *[Unchanged] * 3, TablePicture]


def test_what_is_watched_already_goes_on_without_a_whole_slice() -> None:
    watching = Watching(MODES["growing"])
    pieces = watching.watcher.watch(watching.session, (WALL, HEAD, replace(ROW, request=replace(ROW.request, layer=0))))
    assert [type(piece) for piece in pieces] == [AttentionPicture]
    watching.follow(1)
    assert watching.screens[0].seen[-1] is CellUpdate


def test_after_a_failed_step_everything_is_sent_whole() -> None:
    watching = Watching(MODES["growing"])
    assert watching.watcher.undone(watching.session) == [], "nobody had seen a part of it"
    watching.follow(1)
    assert watching.screens[0].seen[-1] is WallPicture


def test_after_a_suspended_step_everything_is_sent_whole_once() -> None:
    watching = Watching(MODES["growing"])
    wall = watching.screens[0]
    watching.follow(1)
    watching.show(watching.watcher.at_phase(watching.session))
    watching.follow(1)
    assert wall.seen[-3:] == [CellUpdate, WallPicture, WallPicture]
    watching.follow(2)
    assert wall.seen[-2:] == [CellUpdate, CellUpdate]
    assert watching.watcher.undone(watching.session) == [], "nobody has seen a part of this step"
    watching.show(watching.watcher.at_phase(watching.session))
    watching.show(watching.watcher.undone(watching.session))
    assert wall.seen[-2:] == [WallPicture, WallPicture]
    assert watching.watcher.undone(watching.session) == []


def test_a_sequence_that_was_removed_is_watched_no_more() -> None:
    watching = Watching(MODES["growing"])
    other = watching.session.submit(Prompt(token_ids=prompt_ids(5)))
    watching.session.remove(0)
    record = watching.session.step()
    assert record.sequences[0].seq_id == other
    assert watching.watcher.after_step(watching.session, record, is_last=False) == []


def test_the_limit_is_the_quantile_of_all_magnitudes() -> None:
    values = torch.from_numpy(np.random.default_rng(3).normal(size=20_000).astype(np.float32))
    values[9_000:] = values[9_000:].clamp(-2, 2)
    assert HeadStatistics(values).limit == float(values.abs().sort().values[int(0.995 * len(values))])


def test_what_is_watched_can_be_asked_of_another_process() -> None:
    command = Watch(PICTURES)
    assert decode_command(encode(command)) == command
