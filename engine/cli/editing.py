"""Edits by hand on the command line: made after the prompt has been read, and printed with their effect."""

from __future__ import annotations

import argparse
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.config_report import geometry_on_disk
from engine.spec.edit import AddNoise, Drop, Mask, Overwrite, Pin, Scale, Zero
from engine.spec.edit_text import EXAMPLE, FORMS, parse_edit

if TYPE_CHECKING:
    from engine.session.session import Session

LONGEST = 1 << 40  # stands for the number of tokens while it is unknown


def add_edit_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--edit",
        metavar="EDIT",
        action="append",
        default=[],
        help=f"change the cache by hand when the prompt is read, like '{EXAMPLE}' ({', '.join(FORMS)}); repeat it",
    )


class Editing:
    """The edits to be made after the prompt of the first sequence; raises `InputError` for one that cannot be parsed,
    or that no sequence of the model can take, as far as its config.json and the files that edits name can tell."""

    def __init__(self, texts: list[str], model: str) -> None:
        self._texts = texts
        geometry = geometry_on_disk(model) if texts else None
        for edit in [parse_edit(text, 0, LONGEST) for text in texts]:
            if isinstance(edit, Zero | Scale | AddNoise | Overwrite | Mask | Pin | Drop):
                edit.check_parameters(LONGEST)
            if geometry is not None:
                edit.check_model(geometry)
            if isinstance(edit, Overwrite) and edit.from_file is not None:
                from engine.snapshot.read import SnapshotFile  # imported here, since few edits name a file

                SnapshotFile(Path(edit.from_file)).close()

    def make(self, session: Session, generated: dict[int, list[int]]) -> list[dict[str, Any]]:
        """Make the edits if the prompt has been read; returns one line about each. The token chosen last is replaced in
        `generated` by the one chosen again."""
        if not self._texts or session.is_prefilling or session.last_step is None:
            return []
        from engine.session.editing import make_edit

        seq_id, lines = next(iter(generated)), list[dict[str, Any]]()
        for text in self._texts:
            edit = parse_edit(text, seq_id, session.sequence(seq_id).num_tokens)
            _, told = make_edit(session, edit)
            kl = told.kl if told.kl is not None and isfinite(told.kl) else None
            measured = {"kl": kl, "took_ms": round(told.took_ms, 3), "measured_ms": round(told.measured_ms, 3)}
            lines.append({"event": "edit", "step": told.step, "seq_id": seq_id, "edit": edit.describe(), **measured})
        self._texts = []
        sequence = session.sequence(seq_id)
        if sequence.stop == "non-finite logits":  # no token was chosen instead
            generated[seq_id][-1:] = []
        elif sequence.sampled is not None and generated[seq_id]:
            lines[-1] |= {"token_id": sequence.sampled, "text": session.text_of(sequence.sampled)}
            generated[seq_id][-1] = sequence.sampled
        return lines


def in_words(line: dict[str, Any]) -> str:
    """An edit in words, with its KL, and the token that was chosen again."""
    moved = "" if line["kl"] is None else f" · KL {line['kl']:.4g} nats"
    return f"\n[{line['edit']}{moved}]\n{line.get('text', '')}"
