"""What the commands print, as lines for programs and as text, and what they write, approved from a file."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

from engine.cli.command_line import CommandLineParser, command_line
from tests.engine.cli.conftest import Twin
from tests.engine.told import approve, told

_OF_TIME = re.compile(  # and of versions, and of a size that has both in it
    r"[\d,.]+ tok/s|tok_per_s [\d,.]+|made .*|in [\d.]+ s|\d[\d,]* of \d[\d,]* bytes free|[\d,]+ bytes, version"
    r"|(?<= spread ).*(?=  kv_bytes)|(?<=overhead_ratio ).*|(?<=  records  ) +U8 .*|(?<=^cpu   ).*"
)
_OF_RECORDS = re.compile(r"(?<=name: 'records', dtype: 'U8', )shape: \[\d+\], num_bytes: \d+")


def lines_of(text: str) -> list[str]:
    """Printed lines: of JSON all that it says, of text its words."""
    found = []
    for line in text.splitlines():
        try:
            found.append(_OF_RECORDS.sub("…", told(json.loads(line))))
        except ValueError:
            found.append(told(_OF_TIME.sub("…", line)))
    return found


def test_what_is_printed_and_written_is_approved(twin: Twin, folder: Path, tmp_path: Path) -> None:
    cache, events, saved = tmp_path / "x.safetensors", tmp_path / "events.jsonl", tmp_path / "s.json"
    part, chat, text, host = (
        tmp_path / "part.safetensors",
        tmp_path / "chat.json",
        tmp_path / "text.txt",
        tmp_path / "host.jsonl",
    )
    rule, short, other, rows = (
        tmp_path / name for name in ("turns.jinja", "short.safetensors", "other.safetensors", "r.jsonl")
    )
    damaged, changed = tmp_path / "damaged.safetensors", tmp_path / "changed.json"
    chat.write_text(json.dumps([{"role": "user", "content": "Hi"}]))
    rule.write_text("{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}")
    text.write_text("the quick brown fox jumps over the lazy dog and runs")
    model = ("--model", folder, "--threads", 1)
    warm = ("--temperature", 1.5, "--top-k", 30, "--top-p", 0.9, "--min-p", 0.01, "--seed", 7)
    run, export = ("run", *model), ("--steps", 5, "--export", cache, "--notes", "n")
    turns = ("--system", "A", "--user", "Hi", "--user", "Yo", "--chat-template", rule)
    few = ("--layers", "1", "--heads", "0", "--form", "rows")
    prompt = (*model, "--prompt", "abcdefgh")
    two = ("run", *model, "--prompt", "abcdefg", "--prompt", "hijk", "--cache", "paged", "--page-size", 4)
    config = ("--config", folder / "config.json")
    commands: tuple[tuple[object, ...], ...] = (
        (*two, "--pool-pages", 6, "--steps", 9, *warm, "--events", events, "--save-session", saved, "--json"),
        (*two, "--steps", 3, "--force-ids", "5,6"),
        (*two[:-4], "--cache", "offloaded", "--page-size", 4, "--pool-pages", 6, "--steps", 9, "--events", host),
        (*run, "--prompt", "abcdefg", "--steps", 4, "--cache", "static", "--max-length", 10, "--json"),
        (*run, *turns, "--steps", 3, "--json"),
        (*run, *turns, "--steps", 3),
        (*run, "--chat", chat, "--steps", 2),
        ("run", *prompt, "--cache", "h2o", "--budget", 6, *export),
        (*run, "--prompt", "abcd", "--edit", "zero pos=1:3 layer=1", "--steps", 3, "--stop-when", "tokens = 6"),
        (*run, "--from", cache, "--steps", 2, "--capture", "off", "--json"),
        (*run, "--prompt", "abcdefghijx", "--steps", 4, "--export", other, "--notes", "m"),
        (*two[:-4], "--force", "vw", "--steps", 2, "--stop", "q", "--json"),
        (*run, "--token-ids", "5,6,7", "--steps", 2, "--seed", 4, "--temperature", 2, "--json"),
        ("snapshot", "info", cache, "--json"),
        ("snapshot", "info", cache),
        ("snapshot", "verify", cache, text, "--json"),
        ("snapshot", "verify", cache),
        ("snapshot", "export", cache, "--to", "snapshot", "--out", part, *few),
        ("snapshot", "info", part),
        ("snapshot", "diff", cache, part),
        ("snapshot", "diff", cache, part, "--json"),
        *(("snapshot", "export", cache, "--to", kind) for kind in ("npz", "table", "trace", "session", "script")),
        ("snapshot", "export", cache, "--to", "npz"),
        ("snapshot", "export", cache, "--to", "snapshot", "--steps", "0-2", "--out", short),
        ("snapshot", "export", other, "--to", "snapshot", "--steps", "0-2", "--out", short),
        ("snapshot", "export", cache, "--to", "table", "--steps", "2-9", "--out", tmp_path / "t.csv"),
        ("snapshot", "export", cache, "--to", "snapshot", "--out", cache),
        ("snapshot", "diff", cache, other),
        ("snapshot", "diff", short, other),
        ("snapshot", "diff", short, other, "--json"),
        ("snapshot", "import", tmp_path / "x.npz", tmp_path / "back.safetensors"),
        ("snapshot", "info", tmp_path / "back.safetensors", text),
        ("snapshot", "verify", damaged, text),
        ("replay", saved, *model),
        ("replay", saved, *model, "--json"),
        ("replay", changed, *model),
        ("sweep", *prompt, "--text", text, "--recall", "12:0.25", "--steps", 3, "--caches",
         "growing,h2o,int8", "--budgets", "6,50%", "--json"),
        ("sweep", *prompt, "--steps", 2, "--caches", "h2o,kivi-2", "--budget", 6),
        ("sweep", *prompt, "--steps", 2, "--caches", "h2o,int8", "--budget", 6, "--resume", rows),
        ("sweep", *prompt, "--steps", 2, "--caches", "h2o,int8,sliding", "--budget", 6, "--resume", rows, "--json"),
        ("sweep", *prompt, "--text", text, "--text", text, "--recall", "12", "--codecs", "int8/fp8,kivi-4",
         "--steps", 2, "--caches", "growing"),
        ("bench", *model, "--caches", "growing,int8,offloaded", "--contexts", "4,9", "--steps", 1, "--batch", "1,2"),
        ("verify", *prompt, "--steps", 3, "--caches", "growing,paged,int8", "--prefill-chunk", 1),
        ("verify", *prompt, "--steps", 3, "--caches", "growing,int8", "--json"),
        ("params", *config, "--page-size", 64, "--devices", 2, "--data-parallel", 2, "--available-bytes", 9999999),
        ("budget", *config, "--cache", "h2o", "--budget", 20, "--batch", 3, "--available-bytes", 999999),
        ("budget", *config, "--codec", "int8", "--context", 50, "--dtype", "float32", "--json"),
        ("devices", *model, "--cache", "static", "--context", 50, "--device", "cpu", "--dtype", "float32"),
    )  # fmt: skip
    lines = []
    for command in commands:
        if damaged in command:
            damaged.write_bytes(_with_another_byte(other.read_bytes()))
        if changed in command:
            changed.write_text(_with_another_checksum(saved.read_text()))
        status, out, err = twin.run(*command)
        words = (each.name if isinstance(each, Path) else str(each) for each in command)
        lines += [f"> {' '.join(words)}: {status}", *lines_of(out), *(f"! {line}" for line in lines_of(err))]
    lines += ["> events", *lines_of(events.read_text()), "> of two tiers", *lines_of(host.read_text())]
    lines += ["> session", told(json.loads(saved.read_text())), *sorted(path.name for path in tmp_path.iterdir())]
    approve(
        Path(__file__).parent / "approved" / "printed.txt", [x for x in lines if not x.startswith(("'cuda", "'mps"))]
    )


def _with_another_byte(content: bytes) -> bytes:
    """One number of the rows is another one."""
    return bytes((*content[:-9], content[-9] ^ 1, *content[-8:]))


def _with_another_checksum(text: str) -> str:
    """One layer of a moment has other rows, and of another moment nothing is known."""
    session = json.loads(text)
    session["nodes"][2]["checksums"][1] += 1
    del session["nodes"][4]["checksums"]
    return json.dumps(session)


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Every argument of a command and of its sub-commands: its names, what it takes, its default and its help."""
    assert isinstance(parser, CommandLineParser)
    parser.complete()
    yield f"> {parser.prog}: {parser.description}"
    # argparse has no public way to its arguments but the words of its help, which are cut into lines
    exclusive = {
        action: f"group {number}{' required' * group.required}"
        for number, group in enumerate(parser._mutually_exclusive_groups)
        for action in group._group_actions
    }
    actions = parser._actions
    for action in actions:
        if hasattr(action, "add_parser"):
            yield f"  sub-commands {action.metavar}, required {action.required}"
            yield from (f"  {each.dest}: {each.help}" for each in action._choices_actions)
            continue
        takes = {name: getattr(action, name) for name in ("nargs", "choices", "metavar", "default")} | {
            "group": exclusive.get(action),
            "required": action.required or None,
        }
        words = (f"{name}={told(value)}" for name, value in takes.items() if value not in (None, 0, argparse.SUPPRESS))
        yield f"  {' '.join(action.option_strings)} {' '.join(words)}: {action.help}"
    for action in actions:
        if hasattr(action, "add_parser"):
            for sub in dict.fromkeys(action.choices.values()):
                yield from options_of(sub)


def test_what_every_command_takes_is_approved() -> None:
    known: set[str] = set()
    lines = []
    for line in options_of(command_line()):  # an option of several commands is told once
        is_known = line in known and line.startswith("  -")
        lines.append(f"  {line.split()[0]}" if is_known else line)
        known.add(line)
    approve(Path(__file__).parent / "approved" / "options.txt", lines)
