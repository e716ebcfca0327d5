"""An engine on another machine: which, how ssh is called, and what went wrong in words. ssh brings keys, jump hosts and
encryption; nothing listens, and the engine ends with its connection."""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from msgspec.structs import replace

from engine.errors import InputError
from engine.files.atomic import replacing
from engine.files.text import kind_of, read_bytes
from engine.wire.commands import OpenSnapshot
from engine.wire.encoding import VERSION, WireError

PREFIX = "ssh://"
COMMAND = "kvloupe-engine"
NEVER_ASKS = "BatchMode=yes"  # nobody could answer
CONNECT_S = 20  # to connect, by ssh itself
HELLO_S = 60.0  # to connect and begin, before it counts as hanging
MAX_CARRIED = 1 << 27  # bytes of a file that is opened there and lies here
MAX_BANNER = 1 << 16  # bytes that the other machine's shell may print before the engine speaks
_HELLO, _BEGINS = b"kvloupe hello ", b"kvloupe begins"
_ADDRESS = re.compile(
    r"(?P<host>(?:[\w.+-]+@)?(?:[\w.-]+|\[[0-9A-Fa-f:.%\w]+\]))(?::(?P<port>\d{1,5}))?(?P<command>/[^\0\n]*)?"
)


@dataclass(frozen=True)
class Remote:
    """A machine that ssh reaches, and its command of this engine. `host` may begin with a user's name."""

    host: str
    port: int | None = None
    command: str = COMMAND

    @property
    def machine(self) -> str:
        """The machine as people call it."""
        return self.host.rpartition("@")[2]

    def call(self, *options: str) -> list[str]:
        """How ssh is called with these options, up to what it shall run there."""
        port = [] if self.port is None else ["-p", str(self.port)]
        named = [word for option in options for word in ("-o", option)]
        return ["ssh", *named, *port, "--", self.host.replace("[", "").replace("]", "")]

    @property
    def arguments(self) -> list[str]:
        """How ssh is called to run the engine."""
        options = (f"ConnectTimeout={CONNECT_S}", "ServerAliveInterval=5", "ServerAliveCountMax=3")
        return [*self.call(NEVER_ASKS, "RequestTTY=no", *options), f"{shlex.quote(self.command)} child"]

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start ssh, and through it the engine."""
        return _started(self.arguments, subprocess.PIPE, subprocess.PIPE)

    def carried(self, command: OpenSnapshot) -> OpenSnapshot:
        """The command with the content of its file, which lies on this machine; raises `InputError` where it cannot be
        sent."""
        content = b"" if kind_of(command.path) else read_bytes(command.path, MAX_CARRIED, "file")
        if not content:
            raise InputError(
                f"'{command.path}' is not sent to {self.machine} (it is empty, or llama.cpp's, whose model is needed "
                "there too): copy it there, and open it there."
            )
        return replace(command, content=content)

    def bring(self, there: Sequence[Path], folder: Path) -> None:
        """Copy files of that machine into a folder of this one, and remove them there with the folder that they are in.
        Raises `InputError` with what ssh says; then they stay there, and nothing is changed here."""
        paths = [shlex.quote(each.as_posix()) for each in there]
        for path, quoted in zip(there, paths, strict=True):
            with replacing(folder / path.name) as stream:
                self._run(f"cat -- {quoted}", stream)
        self._run(f"rm -f -- {' '.join(paths)} && rmdir -- {shlex.quote(there[0].parent.as_posix())}")

    def _run(self, command: str, into: IO[bytes] | None = None) -> None:
        """Run a command there; what it writes, and not what a shell says before, goes `into` a stream."""
        script = shlex.quote(f"echo; echo {_BEGINS.decode()}; {command}")
        with (
            tempfile.TemporaryFile() as complaints,
            _started([*self.call(NEVER_ASKS), f"sh -c {script}"], subprocess.DEVNULL, complaints) as ssh,
        ):
            assert ssh.stdout is not None
            while (line := ssh.stdout.readline(MAX_BANNER)) and line.strip() != _BEGINS:
                pass
            if into is not None:
                shutil.copyfileobj(ssh.stdout, into, 1 << 20)
            if ssh.wait() or not line:
                complaints.seek(0)
                said = complaints.read(MAX_BANNER).decode("utf-8", "replace").strip().splitlines()
                raise InputError(said[-1][:200].rstrip(".") if said else f"ssh ended with {ssh.returncode}")

    def why_it_ended(self, code: int, complaints: Sequence[str], *, has_begun: bool) -> str:
        """Why the connection ended, as one sentence without its full stop; empty if ssh only passes on how the engine
        itself ended."""
        refused = (line for line in complaints if not has_begun and ("denied (" in line or "ost key" in line))
        said = next(refused, complaints[-1] if complaints else "")  # a jump host's refusal is not its last word
        said = f" ({said[:200].rstrip('.')})" if said else ""
        if code < 0:
            return f"The connection to {self.machine} broke (ssh on this machine was killed by signal {-code})"
        if code == 255 and has_begun:
            return f"The connection to {self.machine} broke{said or ', or the engine there crashed or was killed'}"
        if code == 255:
            return f"ssh does not reach {self.machine}{said}; {self._way_in(said)}"
        if code == 128 + 9:
            return f"The engine on {self.machine} was killed, as a system does with a program when memory runs out"
        if has_begun:
            return ""
        if code in (126, 127):
            return (
                f"{self.machine} has no {self.command} that can be run{said}; install KV Loupe there, or give its path "
                f"as {PREFIX}{self.host}/PATH/{COMMAND}"
            )
        return f"{self.command} on {self.machine} ended before it said a word{said}"

    def _way_in(self, said: str) -> str:
        """What to do where ssh does not get in, by what it says."""
        if "ost key" in said:
            return f"call '{shlex.join(self.call())}' in a terminal once, and answer whether it is the right machine"
        if "resolve hostname" in said:
            return "give the name that it has in ssh's configuration or in the network, or its address"
        if re.search("refused|timed out|No route|unreachable", said):
            return "see whether that machine runs, and give the port on which its sshd listens"
        call = f"'{shlex.join(self.call(NEVER_ASKS))}' must get in without"
        if "ermission denied" in said:
            return f"{call} a password: give it a key (ssh-copy-id), and load that (ssh-add) if it has a passphrase"
        return f"{call} a question"


def _started(arguments: list[str], stdin: int, stderr: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start ssh. It has no terminal: Ctrl+C there is for the window, which ends it, and a jump host cannot ask there
    for a password that nobody would see."""
    return subprocess.Popen(
        arguments,
        bufsize=1 << 16,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        start_new_session=True,
    )


def remote_of(address: str) -> Remote:
    """The machine of `ssh://[user@]HOST[:port][/COMMAND]`, with the path of its kvloupe-engine; `/~/` is its home.
    Raises `InputError` for anything else."""
    found = _ADDRESS.fullmatch(address.removeprefix(PREFIX)) if address.startswith(PREFIX) else None
    if found is None or found["host"].startswith("-") or "@-" in found["host"]:
        raise InputError(f"'{address[:200]}' is no address of an engine: give {PREFIX}[user@]HOST[:port][/COMMAND].")
    if (port := found["port"] and int(found["port"])) and not 0 < port < 1 << 16:
        raise InputError(f"The port {port:,} of '{address[:200]}' is none: give 1 to 65,535.")
    command = (found["command"] or "").rstrip("/")
    command = f"./{command[3:]}" if command.startswith("/~/") else command
    return Remote(found["host"], port or None, command or COMMAND)


# ---- the first line ------------------------------------------------------------------------------------------------


def hello() -> bytes:
    """The line with which an engine on another machine begins: its versions, and the name of the machine."""
    facts = {"protocol": VERSION, "machine": platform.node(), "packages": _packages()}
    return _HELLO + json.dumps(facts).encode() + b"\n"


def _packages() -> dict[str, str]:
    # imported here, with the parsers of e-mail that it needs: every window and engine imports this module
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("kvloupe", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # runs from its source
            continue
    return found


def check_hello(stream: IO[bytes], machine: str) -> str | None:
    """Read up to the first line of the engine, past what a shell printed, and return its versions in words; None at the
    end of the stream. Raises `WireError` in a sentence without its full stop for anything else."""
    read = 0
    while line := stream.readline(MAX_BANNER):
        read += len(line)
        _, mark, facts = line.partition(_HELLO)
        if mark:
            break
        if read >= MAX_BANNER:
            raise WireError(
                f"{machine} says much and not what an engine says: its shell must print less when ssh calls it"
            )
    else:
        return None
    try:
        told = json.loads(facts)
        protocol, packages = int(told["protocol"]), dict(told["packages"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise WireError(f"What {machine} says is not how an engine begins: install KV Loupe there again") from None
    here, there = _packages().get("kvloupe", ""), str(packages.get("kvloupe", ""))[:40]
    if protocol != VERSION or (here and there and here != there):
        raise WireError(
            f"{machine} has KV Loupe {there or 'of another time'}, protocol {protocol}, and this is "
            f"{here or 'another'}, protocol {VERSION}: install one version on both"
        )
    return ", ".join(f"{name} {version}" for name, version in packages.items())[:200]
