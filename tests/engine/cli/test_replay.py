"""`replay`: a saved session is done once more; what is not as it was is named, and the exit status says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.saved.document import read_session
from tests.engine.cli.conftest import IDS, Twin


@pytest.fixture
def saved(twin: Twin, folder: Path, tmp_path: Path) -> Path:
    """A session of two sequences in pages, drawn at random, of a model in a folder."""
    path = tmp_path / "s.json"
    options = ("--cache", "paged", "--temperature", 0.9, "--top-k", 20, "--seed", 4, "--threads", 1, "--steps", 6)
    lines = twin.lines(
        "run", "--model", folder, *options, "--prompt", "once", "--prompt", "upon a", "--save-session", path
    )
    assert [len(each["token_ids"]) for each in lines[-1]["sequences"]] == [6, 6]
    return path


def test_a_session_is_repeated(twin: Twin, folder: Path, saved: Path) -> None:
    lines = twin.lines("replay", saved, "--model", folder)
    steps = [node.step for node in read_session(saved).session.nodes]
    assert [line["step"] for line in lines if line["event"] == "step"] == steps
    nodes = read_session(saved).session.nodes
    parts = [part for node in nodes if node.work is not None for part in node.work.parts]
    num_tokens = sum((part.token_id is not None) + (part.sampled is not None) for part in parts)
    num_checksums = sum(len(node.checksums) for node in nodes)
    assert num_checksums == 2 * len(steps)
    assert lines[-1] | {"seconds": 0} == {
        "event": "done", "steps": len(steps), "differences": 0, "seconds": 0, "problem": "", "same": True,
        "tokens_compared": num_tokens, "checksums_compared": num_checksums, "rows_not_compared": {},
    }  # fmt: skip
    told = twin.run("replay", saved, "--model", folder)[1].splitlines()
    assert told[0] == f"compared: {num_tokens} tokens, {num_checksums} checksums of K and V"
    assert "as it was" in told[1]


def test_what_was_not_compared_is_counted_and_named(twin: Twin, folder: Path, tmp_path: Path) -> None:
    """An edit wrote no row in a step, and of one step there is no checksum in the file, of another one too many."""
    path = tmp_path / "s.json"
    run = ("run", "--model", folder, "--prompt", "upon a time", "--threads", 1, "--steps", 5)
    twin.lines(*run, "--edit", "zero pos=1:2", "--save-session", path)
    written = json.loads(path.read_text())
    computed = [node for node in written["nodes"] if node.get("checksums")]
    computed[1]["checksums"] = []
    computed[2]["checksums"].append(7)
    path.write_text(json.dumps(written))
    lines = twin.lines("replay", path, "--model", folder)
    assert lines[-1]["rows_not_compared"] == {
        "an edit or a change alone, which no step wrote": 1,
        "no checksum was written of them": 1,
        "their checksums are of another number of layers": 1,
    }
    assert lines[-1]["checksums_compared"] == 2 * (len(computed) - 2)
    assert "; not the rows of 1 step: no checksum was written of them" in twin.run("replay", path, "--model", folder)[1]


def test_another_token_is_named_with_its_step_and_sequence(twin: Twin, folder: Path, saved: Path) -> None:
    written = json.loads(saved.read_text())
    node = written["nodes"][-1]
    part = node["work"]["parts"][1]
    part["sampled"] = (part["sampled"] + 1) % 50
    saved.write_text(json.dumps(written))
    status, out, _ = twin.run("replay", saved, "--model", folder, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert lines[-1]["same"] is False
    (difference,) = lines[-2]["differences"]
    assert (difference["step"], difference["seq_id"], difference["expected"]) == (node["step"], 1, part["sampled"])
    status, out, _ = twin.run("replay", saved, "--model", folder)
    assert status == 1
    assert out.startswith(f"step {node['step']}, sequence 1: it chose token ")


def test_another_checksum_is_named_with_its_step_sequence_and_layer(twin: Twin, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    twin.lines("run", "--model", folder, "--prompt", "upon a", "--threads", 1, "--steps", 4, "--save-session", path)
    written = json.loads(path.read_text())
    node = written["nodes"][2]
    was = node["checksums"][1]
    node["checksums"][1] += 1
    path.write_text(json.dumps(written))
    status, out, err = twin.run("replay", path, "--model", folder, "--json")
    assert (status, err) == (1, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["differences"] for line in lines if line["event"] == "step" and line["step"] != 2] == [[]] * 3
    (difference,) = lines[2]["differences"]
    words = "step 2, sequence 0, layer 1: the rows of K and V are others"
    assert difference == {
        "step": 2, "what": "rows", "expected": was + 1, "found": was, "seq_id": 0, "layer": 1, "words": words,
    }  # fmt: skip
    assert (lines[-1]["differences"], lines[-1]["same"]) == (1, False)
    status, out, _ = twin.run("replay", path, "--model", folder)
    assert (status, out.splitlines()[0]) == (1, words)


@pytest.mark.parametrize("what", ["another model", "no model", "no session", "a newer version", "nothing there"])
def test_what_is_not_usable_exits_2(twin: Twin, folder: Path, source: str, saved: Path, what: str) -> None:
    arguments: tuple[object, ...] = ("replay", saved, "--model", folder)
    if what == "another model":
        arguments, words = ("replay", saved, "--model", source), "is another model than the session's tiny"
    elif what == "no model":
        arguments, words = ("replay", saved), f"It ran tiny from '{folder}': say where that is with --model."
    elif what == "no session":
        saved.write_text("{}")
        words = "is no session that can be opened"
    elif what == "a newer version":
        saved.write_text(saved.read_text().replace('"version": 1', '"version": 9'))
        words = "it has version 9 of the format and this program reads versions up to 1: update it"
    else:
        saved.unlink()
        words = "No such file"
    assert words in twin.refused(*arguments)


def test_a_run_from_a_snapshot_is_not_saved_as_a_session(twin: Twin, source: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    twin.lines("run", "--model", source, "--token-ids", IDS, "--steps", 2, "--export", path)
    words = twin.refused("run", "--model", source, "--from", path, "--steps", 2, "--save-session", tmp_path / "s.json")
    assert "cannot be repeated without it" in words
    assert not (tmp_path / "s.json").exists()


def test_a_file_that_an_edit_names_is_opened_where_it_is_named_here_too(
    twin: Twin, folder: Path, tmp_path: Path
) -> None:
    path, rows = tmp_path / "s.json", tmp_path / "rows.safetensors"
    run = ("run", "--model", folder, "--prompt", "upon a time", "--steps", 5, "--threads", 1)
    twin.lines(*run, "--export", rows)
    edit = f'overwrite pos=1:3 file="{rows}"'
    twin.lines(*run, "--temperature", 0.8, "--edit", edit, "--save-session", path)
    words = twin.refused("replay", path, "--model", folder)
    assert f"its edit takes rows from '{rows}', and no file that a session names is opened unasked" in words
    assert f"'{rows}'" in twin.refused("replay", path, "--model", folder, "--allow-file", tmp_path / "other")
    assert twin.lines("replay", path, "--model", folder, "--allow-file", rows)[-1]["same"] is True


def test_a_token_that_the_model_does_not_have_is_refused_by_name(twin: Twin, folder: Path, saved: Path) -> None:
    written = json.loads(saved.read_text())
    node = next(node for node in written["nodes"] if any(part.get("sampled") for part in node["work"]["parts"]))
    node["work"]["parts"][0]["sampled"] = 1_000_000
    saved.write_text(json.dumps(written))
    said = twin.refused("replay", saved, "--model", folder)
    assert f"Step {node['step']} has token 1,000,000 of sequence 0" in said
