"""Conversations on the command line: from a file or from single turns, rendered by a chat template."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.output import print_json, printable, printable_line
from engine.errors import InputError
from engine.files.text import MIB, read_text
from engine.spec.sampling import MAX_TEMPLATE_CHARS, Chat, Turn, chat_of_json

if TYPE_CHECKING:
    from engine.session.session import Session

MAX_CHAT_FILE_BYTES = 16 * MIB


def add_chat_arguments(parser: argparse.ArgumentParser, source: Any, several: bool) -> None:
    """Add the options for conversations to the alternatives in `source`, and those for templates."""
    source.add_argument("--chat", type=Path, metavar="FILE.json", help='a list of {"role": …, "content": …}')
    again = "; repeat it: each is said when the one before was answered" if several else ""
    source.add_argument("--user", action="append", metavar="TEXT", help=f"what the user says, as a conversation{again}")
    parser.add_argument("--system", metavar="TEXT", help="the system's turn before the first --user")
    parser.add_argument(
        "--chat-template", metavar="NAME|FILE", help="one of the model's own templates, or a file (x.jinja, ./x)"
    )


def chat_of(args: argparse.Namespace) -> Chat | None:
    """The conversation up to the user's first turn; None if none is given."""
    if args.user is None and args.system is not None:
        raise InputError("A --system turn stands before a --user turn: give that as well, or write both in a --chat.")
    if args.chat is not None:
        turns = chat_of_json(read_text(args.chat, MAX_CHAT_FILE_BYTES, "conversation")).turns
    elif args.user:
        system = () if args.system is None else (Turn("system", args.system),)
        turns = (*system, Turn("user", args.user[0]))
    else:
        if args.chat_template is not None:
            raise InputError("A chat template renders a conversation: give --chat or --user.")
        return None
    given = args.chat_template or ""
    if is_template_file(given):
        return Chat(turns, Path(given).name, read_text(Path(given), 4 * MAX_TEMPLATE_CHARS, "chat template"))
    return Chat(turns, given)


def is_template_file(given: str) -> bool:
    """Whether a --chat-template is a file: it contains a folder, or has a suffix and exists. A plain name is that of
    one of the model's templates, whatever files are in the working directory."""
    path = Path(given)
    return path.name != given or bool(path.suffix and path.is_file())


def print_turn(session: Session, seq_id: int, answer: str, as_json: bool) -> None:
    """Print how much of the cache the next turn reuses, and where it differs from what is cached."""
    reuse = session.live.get(seq_id).continued
    assert reuse is not None
    if not as_json:
        print(printable(f"\n\n{reuse.words(quoted)}\n"))
        return
    differs = {} if reuse.position is None else {
        "position": reuse.position,
        "token": reuse.token,
        "cached": reuse.cached,
        "template_line": reuse.line or None,
        "template_text": reuse.line_text,
    }  # fmt: skip
    print_json(
        {
            "event": "turn",
            "seq_id": seq_id,
            "answer": answer,
            "num_tokens": len(session.sequence(seq_id).token_ids),
            "reused": reuse.num_reused,
            "cached": reuse.num_cached,
            "why": reuse.why,
            "differs": differs,
        }
    )


def quoted(text: str) -> str:
    """A text of the model on one line between quotation marks, with escapes."""
    return f"“{printable_line(text)}”"
