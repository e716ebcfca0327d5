"""Snapshots of tiny sessions, written to a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.session.session import Session
from engine.spec.cache import PRESETS
from engine.spec.sampling import Prompt
from tests.engine.tiny import model_of, prompt_ids


def session_of(architecture: str = "llama", cache: str = "growing", length: int = 9) -> tuple[Session, int]:
    session = Session(model_of(architecture), PRESETS[cache].spec, prefill_chunk=5)
    seq_id = session.submit(Prompt(token_ids=prompt_ids(length)))
    session.force(seq_id, prompt_ids(12, seed=1))
    while session.sequence(seq_id).num_tokens < length + 3:
        session.step()
    return session, seq_id


def in_process(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> str:
    """What a script prints that ends well."""
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    capsys.readouterr()
    try:
        exec(compile(script.read_text("utf-8"), str(script), "exec"), {"__name__": "__main__", "__file__": str(script)})
    except SystemExit as ended:
        if ended.code:
            raise
    return capsys.readouterr().out
