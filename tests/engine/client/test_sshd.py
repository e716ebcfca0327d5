"""An engine over a real ssh and a real sshd on loopback, where they are installed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.client import open_client
from engine.client.ssh import remote_of
from engine.snapshot.verify import verified
from engine.spec.sampling import Prompt
from engine.wire.commands import ListFolder, Run, Step, SubmitPrompt
from engine.wire.events import EngineLine, FolderListed, Restarted
from engine.wire.exporting import Export, Exported
from engine.wire.records import StepRecord
from tests.engine.client.driver import Driver
from tests.engine.client.sshd import Sshd, sshd


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as found:
        if isinstance(found, str):
            pytest.skip(f"no sshd can be had: {found}")
        yield found


@pytest.fixture
def rack(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> Sshd:
    monkeypatch.setenv("PATH", f"{server.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return server


def test_steps_exports_and_the_end_of_the_connection_in_mid_run(rack: Sshd, tmp_path: Path) -> None:
    far = Driver(open_client(rack.address))
    try:
        far.load("bundled")
        far.wait_for(Restarted)
        far.client.send(SubmitPrompt(Prompt("Once upon a time"), id=2))
        far.client.send(Step(id=3))
        far.wait_for(StepRecord)
        far.client.send(Export(tmp_path / "here.safetensors", 0, with_script=True, comes_here=True, id=4))
        far.wait_for(Exported)
        written = far.of(Exported)[0]
        assert isinstance(written, Exported)
        assert (written.path, written.script) == (tmp_path / "here.safetensors", tmp_path / "here.py")
        assert verified(written.path).is_sound
        assert written.path.stat().st_size == written.num_bytes
        assert "here.safetensors" in (tmp_path / "here.py").read_text("utf-8")
        far.client.send(Run(100_000, id=5))
        far.wait_for(StepRecord, 5)
        there = rack.sessions()
        for process in there:
            if "sshd" in process.name():
                process.kill()
        assert "The connection to rack broke" in far.end().cause
        far.wait(lambda: not any(process.is_running() for process in there), "the engine's end")
    finally:
        far.client.close(0.5)


def test_the_end_of_one_sshd_leaves_another_at_work(rack: Sshd, tmp_path: Path) -> None:
    with sshd(tmp_path) as another:
        assert isinstance(another, Sshd)
        assert not another.why_not()
    assert not rack.why_not()


def test_the_other_forms_of_an_address_and_a_shell_that_talks(rack: Sshd, tmp_path: Path) -> None:
    address = f"ssh://rack:{rack.chatty_port}{rack.bin}/kvloupe-engine"
    far = Driver(open_client(address))
    far.client.send(ListFolder(str(rack.bin), id=1))
    far.wait(lambda: far.of(FolderListed) and far.of(EngineLine), "answers")
    assert far.of(FolderListed)[0] == FolderListed(str(rack.bin), (), ("kvloupe-engine", "ssh"), reply_to=1)
    assert far.client.close(300)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a b").write_bytes(bytes(range(256)) * 1000)
    remote_of(address).bring([tmp_path / "there" / "a b"], tmp_path)
    assert (tmp_path / "a b").read_bytes() == bytes(range(256)) * 1000
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("key", r"Permission denied.*must get in without a password: give it a key"),
        ("host", r"(?i)host key.*call 'ssh -- rack' in a terminal once"),
        ("port", r"Connection refused.*see whether that machine runs, and give the port"),
        ("name", r"resolve hostname.*give the name that it has in ssh's configuration"),
        ("command", r"rack has no /no/such that can be run"),
    ],
)
def test_what_keeps_one_out_is_said_with_its_remedy(fault: str, words: str, rack: Sshd) -> None:
    known, address = rack.known.read_text(), "ssh://rack/no/such"
    if fault == "key":
        rack.use_key("stranger")
    elif fault == "host":
        rack.known.write_text("")
    elif fault == "port":
        address = "ssh://rack:1/no/such"
    elif fault == "name":
        address = rack.add_host("nowhere", "HostName no.such.host.invalid")
    far = Driver(open_client(address))
    try:
        assert re.search(words, far.end().cause)
    finally:
        rack.use_key("user")
        rack.known.write_text(known)
        far.client.close(0.5)
