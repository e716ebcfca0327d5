"""An engine over ssh: a stub named `ssh` on PATH runs its last argument on this machine, as sshd would on another."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

import engine.client.process as process
from engine.client import check_choice, open_client
from engine.client.child import FIRST_CREDIT
from engine.client.ssh import Remote, hello, remote_of
from engine.errors import InputError
from engine.files.text import SEQUENCE_MAGIC
from engine.saved.document import write_session
from engine.snapshot import save_cache
from engine.spec.codec import PARTS
from engine.spec.sampling import Prompt
from engine.wire.commands import ListFolder, OpenSnapshot, SubmitPrompt, TakePicture, Watch, Watched
from engine.wire.encoding import VERSION, encode
from engine.wire.events import EngineLine, Failed, FolderListed, Restarted, StateChanged
from engine.wire.pictures import WallPicture, WallRequest
from engine.wire.records import StepRecord
from tests.engine.client.driver import Driver
from tests.engine.client.sshd import ROOT, programs
from tests.engine.saved.samples import SAMPLE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stub is a shell script")


@pytest.fixture
def rack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on PATH whose `ssh` runs its last argument, and whose `kvloupe-engine` is this tree's."""
    folder = programs(tmp_path, 'for last; do :; done\nprintf "%s\\n" "$@" > "$0.given"\nexec sh -c "exec $last"')
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def far(rack: Path) -> Iterator[Driver]:
    driver = Driver(open_client("ssh://me@rack:2222"))
    yield driver
    driver.client.close(0.5)


def lost(driver: Driver) -> str:
    """The sentence of a connection that was lost, or never was there."""
    cause = driver.end().cause
    driver.client.send(ListFolder(id=9))
    driver.wait(lambda: [e for e in driver.of(Failed) if e.reply_to == 9], "the answer of one that is gone")
    return cause


def test_it_works_there_and_says_how_far_away_it_is_and_ends_with_its_window(
    far: Driver, rack: Path, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "x.safetensors").write_text("")
    (tmp_path / ".hidden").write_text("")
    far.client.send(ListFolder(str(tmp_path), id=1))
    far.client.send(ListFolder(str(tmp_path / "nowhere"), id=2))
    far.wait_for(Failed)
    far.wait(lambda: far.of(FolderListed) and far.of(EngineLine), "answers")
    assert far.of(FolderListed) == [FolderListed(str(tmp_path), ("bin", "models"), ("x.safetensors",), reply_to=1)]
    assert "cannot be listed (No such file or directory)" in str(far.of(Failed)[0])
    line = far.of(EngineLine)[0]
    assert isinstance(line, EngineLine)
    assert line.machine == "rack"
    assert "torch 2" in line.versions
    assert line.delay_ms >= 0
    given = (rack / "ssh.given").read_text().splitlines()
    assert given[-3:] == ["--", "me@rack", "kvloupe-engine child"]
    assert {"BatchMode=yes", "-p", "2222"} <= set(given)
    child = far.child
    far.client.close(300)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_connection_that_breaks_is_told_in_a_sentence(far: Driver) -> None:
    far.client.send(ListFolder(id=1))
    far.wait_for(FolderListed)
    far.child.send_signal(signal.SIGKILL)
    assert "killed" in lost(far)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'me@rack: Permission denied (publickey,password).' >&2; exit 255", "ssh does not reach rack (me@rack: "),
        (
            "echo 'me@gate: Permission denied (publickey).' >&2; echo 'Connection closed by UNKNOWN' >&2; exit 255",
            "(me@gate: Permission denied (publickey)); 'ssh -o BatchMode=yes -- rack' must get in without a password",
        ),
        ("sh -c 'no-such-program-at-all'", "rack has no kvloupe-engine that can be run"),
        ("echo Welcome; exit 0", "ended before it said a word"),
        ("yes 'Welcome to the rack' | head -c 200000", "says much and not what an engine says"),
        ("echo 'kvloupe hello {}'; sleep 60", "is not how an engine begins"),
        (
            f"""echo 'kvloupe hello {{"protocol": {VERSION + 1}, "packages": {{"kvloupe": "9.9"}}}}'; sleep 60""",
            f"rack has KV Loupe 9.9, protocol {VERSION + 1}",
        ),
    ],
)
def test_what_ssh_says_when_it_fails_is_told(script: str, words: str, rack: Path) -> None:
    program(rack / "ssh", script)
    driver = Driver(open_client("ssh://rack"))
    assert words in lost(driver)
    driver.client.close(0.5)


def test_one_that_hangs_is_given_up(rack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "HELLO_S", 0.2)
    program(rack / "ssh", "exec sleep 60")
    driver = Driver(open_client("ssh://rack"))
    assert "rack did not answer within" in lost(driver)


def test_a_banner_is_passed_over_and_a_break_afterwards_is_one(rack: Path) -> None:
    said = hello().decode().strip()
    program(rack / "ssh", f"printf 'Welcome to the rack\\nNo newline here: %s\\n' {shlex.quote(said)}; exit 255")
    assert "The connection to rack broke" in lost(Driver(open_client("ssh://rack")))


def test_files_that_were_written_there_come_here_whole_or_not_at_all(rack: Path, tmp_path: Path) -> None:
    program(rack / "ssh", 'printf "Welcome to the rack"\nfor last; do :; done\nexec sh -c "exec $last"')
    there, here = tmp_path / "there; it's", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
    for name in ("a b.npz", "a b.py"):
        (there / name).write_text(f"of {name}")
    Remote("rack").bring([there / "a b.npz", there / "a b.py"], here)
    assert [(here / name).read_text() for name in ("a b.npz", "a b.py")] == ["of a b.npz", "of a b.py"]
    assert not there.exists()
    for ending, words in (
        ("echo 'me@rack: the line broke' >&2; exit 255", "the line broke"),
        ("exit 0", "ended with 0"),
    ):
        program(rack / "ssh", f"echo half; {ending}")
        with pytest.raises(InputError, match=words):
            Remote("rack").bring([there / "a b.py"], here)
    assert sorted(each.name for each in here.iterdir()) == ["a b.npz", "a b.py"]
    assert (here / "a b.py").read_text() == "of a b.py"


def test_without_ssh_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ssh could not be started" in lost(Driver(open_client("ssh://rack")))


def test_addresses() -> None:
    assert remote_of("ssh://rack") == Remote("rack")
    assert remote_of("ssh://me@10.0.0.1:22/opt/kv/bin/kvloupe-engine") == Remote(
        "me@10.0.0.1", 22, "/opt/kv/bin/kvloupe-engine"
    )
    assert remote_of("ssh://rack/~/venv/bin/kvloupe-engine").command == "./venv/bin/kvloupe-engine"
    assert remote_of("ssh://[::1]:22").arguments[-2] == "::1"
    assert remote_of("ssh://rack/a b; rm -rf $HOME").arguments[-1].startswith("'/a b; rm -rf $HOME' child")
    for bad in (
        "ssh://",
        "ssh://-oProxyCommand=x",
        "ssh://me@-o",
        "ssh://a b",
        "ssh://rack:99999",
        "rack",
        "ssh://r\n",
    ):
        with pytest.raises(InputError, match=r"no address|is none|cannot run"):
            check_choice(bad)
        if bad != "rack":
            with pytest.raises(InputError):
                remote_of(bad)


def test_large_pictures_come_in_fewer_cells_and_then_whole(far: Driver) -> None:
    far.load("bundled")
    far.wait_for(Restarted)
    far.client.send(SubmitPrompt(Prompt(token_ids=tuple(range(5, 205))), num_steps=1, id=2))
    far.wait_for(StepRecord)
    request, watched = WallRequest(0, 200, 200, "keys", False, 400, 64), WallRequest(0, 0, 0, "values", False, 400, 64)
    for number, command in ((3, TakePicture(request, id=3)), (4, Watch((Watched(watched, id=4),)))):
        far.client.send(command)
        far.wait(lambda number=number: any(map(is_whole, walls(far, number))), "the whole one")  # type: ignore[misc]
        *coarser, whole = walls(far, number)
        assert sum(map(len, encode(whole))) > FIRST_CREDIT
        assert whole.num_tokens == 200
        assert len(coarser) <= 1  # none where both came before either was read, or the line has turned out to be fast
        for coarse in coarser:
            assert sum(map(len, encode(coarse))) < sum(map(len, encode(whole)))
            assert (is_whole(coarse), coarse.num_tokens) == (False, 200)


def test_a_file_of_this_machine_is_opened_there_and_shown_by_its_name_here(far: Driver, tmp_path: Path) -> None:
    pairs = [(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))]
    for number, name in enumerate(("a.safetensors", "a.npz", "a.json", "a.bin"), 1):
        path = tmp_path / name
        match path.suffix:
            case ".safetensors":
                save_cache(pairs, path)
            case ".npz":
                np.savez(path, **{f"layers.0.{part}": rows.numpy() for part, rows in zip(PARTS, pairs[0], strict=True)})
            case ".json":
                write_session(SAMPLE, path)
            case ".bin":
                path.write_bytes(SEQUENCE_MAGIC)
        far.client.send(OpenSnapshot(path, is_here=True, id=number))
        path.unlink()  # there is none of that name there
        if name == "a.bin":
            far.wait_for(Failed)
            assert f"'{path}' is not sent to rack" in str(far.of(Failed)[-1])
        else:
            far.wait(lambda path=path: path in opened_paths(far), f"{name} to be open")  # type: ignore[misc]


def opened_paths(driver: Driver) -> list[Path]:
    statuses = (event.status for event in driver.of(StateChanged) if isinstance(event, StateChanged))
    return [status.opened.path for status in statuses if status.opened is not None]


def is_whole(wall: WallPicture) -> bool:
    return wall.tokens_per_column * wall.dims_per_row == 1


def walls(driver: Driver, number: int) -> list[WallPicture]:
    return [event for event in driver.of(WallPicture) if isinstance(event, WallPicture) and event.reply_to == number]


SENDS_PICTURES = """
import sys
from engine.client.ssh import hello
from engine.client.stream import read_frames, write_messages
from engine.wire.encoding import encode
from engine.wire.pictures import TableRequest, Unchanged
sys.stdout.buffer.write(hello())
picture = encode(Unchanged(TableRequest(0, 1), reply_to=5))
write_messages(sys.stdout.buffer, [picture, picture, picture])
count = 0
while count < 3:
    count += read_frames(sys.stdin.buffer) == []
sys.exit("three are returned")
"""


def test_every_picture_that_was_read_is_told_to_the_other_side(rack: Path) -> None:
    run = f"{shlex.quote(sys.executable)} -c {shlex.quote(SENDS_PICTURES)}"
    program(rack / "kvloupe-engine", f"export PYTHONPATH={shlex.quote(str(ROOT))}\n{run}")
    assert "three are returned" in lost(Driver(open_client("ssh://rack")))
