"""`events`: record, info and explain as people type them."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.cli import events
from engine.cli.command_line import run_command_line
from engine.serving.events import packed
from tests.engine.serving.made_up import batch, removed, stored

RECORDED = Path(__file__).parents[1] / "serving" / "recorded"
STREAM = str(RECORDED / "stream.kvevents")


def ran(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = run_command_line(["events", *argv])
    except SystemExit as end:  # of an option that argparse refuses
        code = int(end.code or 0)
    out, error = capsys.readouterr()
    return code, out, error


def test_explain_says_what_the_server_found(capsys: pytest.CaptureFixture[str]) -> None:
    requests = json.loads((RECORDED / "requests.json").read_text("utf-8"))
    for request in (requests[7], next(each for each in requests if each["salt"] and each["cached"])):
        ids = ",".join(map(str, request["ids"]))
        code, out, _ = ran(
            capsys,
            "explain",
            STREAM,
            "--token-ids",
            ids,
            "--salt",
            request["salt"],
            "--at",
            str(request["batches"]),
            "--json",
        )
        found = json.loads(out)
        assert (code, found["reused"], found["batches"]) == (0, request["cached"], request["batches"])
        assert found["why"].endswith(".")


def test_explain_takes_text(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "Once upon a time, there was a little girl named Lily. She loved to play outside. "
        "One day she went and saw a big red dog."
    )
    code, out, _ = ran(capsys, "explain", STREAM, "--prompt", words)
    assert code == 0
    assert "there was a little" in out
    code, out, _ = ran(capsys, "explain", STREAM, "--token-ids", ",".join(["7"] * 40))
    assert "Differs at token 0: the prompt has '7 7" in out


def test_info_is_one_object(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = ran(capsys, "info", STREAM, "--json")
    found = json.loads(out)
    assert (code, found["batches"], found["encodings"], found["partial"]) == (0, 180, ["maps"], False)
    messages = [batch(3, stored([1], [1] * 4)), batch(4, removed(1)), batch(0, stored([1], [1] * 4), time=9.0)]
    path = tmp_path / "own.kvevents"
    path.write_bytes(b"".join(map(packed, messages)) + b"\x09\x00\x00\x00kv-ev")
    code, out, _ = ran(capsys, "info", str(path))
    assert "Batches 0 to 2 are" not in out  # of the server before its restart
    assert "restarted 1 time," in out
    assert "cut short" in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["info", "missing.kvevents"], "cannot be opened (No such file"),
        (["info", __file__], "is no recording of KV events"),
        (["info", os.devnull], "a device or a pipe and no regular file"),
        (["explain", STREAM, "--token-ids", "1", "--at", "181"], "has 180 batches, not 181"),
        (["explain", STREAM, "--token-ids", "1", "--at", "-1"], "no whole number from 0"),
        (["explain", STREAM, "--token-ids", "1", "--rank", "3"], "no rank 3"),
        (["explain", STREAM, "--prompt", "x", "--tokenizer", "nowhere"], "tokenizer.json' cannot be read"),
        (["record", "x", "--endpoint", "nonsense"], "no address of a publisher"),
        (["record", "x", "--endpoint", "tcp://h:1", "--seconds", "0"], "no number above 0"),
        (
            ["record", "x", "--endpoint", "tcp://h:1", "--replay", "tcp://h:2", "--replay", "tcp://h:3"],
            "more replay addresses than endpoints",
        ),
        (["record", "no/where/x", "--endpoint", "tcp://h:1"], "does not exist"),
    ],
)
def test_bad_input_is_one_sentence(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("zmq")
    code, out, error = ran(capsys, *argv)
    assert (code, out) == (2, "")
    assert words in error
    assert error.count("\n") == 1


def test_without_the_extra_the_remedy_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zmq", None)
    code, _, error = ran(capsys, "record", "x", "--endpoint", "tcp://localhost:1")
    assert (code, "pip install 'kvloupe[serving]'" in error) == (2, True)


@pytest.fixture
def over_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """Ends the seconds of a recording once something holds, however long a busy machine takes for that."""

    def set_clock(holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 300
        clock = SimpleNamespace(monotonic=lambda: 9.0 if holds() or time.monotonic() > end else 0.0, sleep=time.sleep)
        monkeypatch.setattr(events, "time", clock)

    return set_clock


def test_record_writes_what_comes(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    over_once: Callable[[Callable[[], bool]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("zmq")
    from tests.engine.serving.publisher import Publisher

    monkeypatch.setattr("engine.serving.source.REPLAY_S", 300.0)  # a busy machine may take longer than a person waits
    path = tmp_path / "new.kvevents"
    messages = [batch(number, stored([number], [number] * 4)) for number in range(4)]
    over_once(lambda: path.exists() and path.read_bytes() == b"".join(map(packed, messages)))
    with Publisher() as publisher:
        publisher.held = messages[:3]
        sender = threading.Thread(target=lambda: (publisher.wait(), publisher.send(messages[3])))
        sender.start()
        publisher.held = messages
        code, out, _ = ran(
            capsys,
            "record",
            str(path),
            "--endpoint",
            publisher.endpoint,
            "--replay",
            publisher.replay,
            "--seconds",
            "1",
            "--json",
        )
        sender.join()
    assert (code, json.loads(out)["batches"]) == (0, 4)
    assert path.read_bytes() == b"".join(map(packed, messages))


def test_record_says_that_nothing_came(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, over_once: Callable[[Callable[[], bool]], None]
) -> None:
    pytest.importorskip("zmq")
    path = tmp_path / "none.kvevents"
    path.write_bytes(b"kept")
    said: list[str] = []

    def is_said() -> bool:
        said.append(capsys.readouterr().err)
        return "Nothing answers at tcp://127.0.0.1:9" in "".join(said)

    over_once(is_said)
    code, _, error = ran(capsys, "record", str(path), "--endpoint", "tcp://127.0.0.1:9", "--seconds", "0.4")
    assert (code, path.read_bytes()) == (2, b"kept")
    assert "No batch came, and nothing was written." in error
    assert "Nothing answers" not in error, "it was said while it waited, and once"
