"""A real sshd on loopback, with keys that are thrown away, and a real ssh that knows it as `rack`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path
from shlex import quote

import psutil

ROOT = Path(__file__).resolve().parents[3]
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/usr/local/sbin")


class Sshd:
    """`folder` holds `bin/ssh`, which is to be first on PATH, and `bin/kvloupe-engine`, which is this tree's. On
    `port` it runs what it is asked to; on `chatty_port` it says something first, as a shell's start files may."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.port, self.chatty_port = free_ports(2)
        for name in ("host", "user", "stranger"):
            made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
        (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
        kind, key = (folder / "host.pub").read_text().split()[:2]
        self.known, self.key = folder / "known", folder / "key"
        self.known.write_text("".join(f"[127.0.0.1]:{port} {kind} {key}\n" for port in (self.port, self.chatty_port)))
        self.use_key("user")
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nPort {self.chatty_port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\n"
            f"PidFile {folder}/pid\nAuthorizedKeysFile {folder}/authorized\nUsePAM no\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
            f"Match LocalPort {self.chatty_port}\n"
            """ForceCommand echo Welcome to the rack; exec sh -c "$SSH_ORIGINAL_COMMAND"\n"""
        )
        (folder / "ssh_config").write_text(
            f"Host *\nHostName 127.0.0.1\nPort {self.port}\nUser {getuser()}\nIdentityFile {self.key}\n"
            f"IdentitiesOnly yes\nUserKnownHostsFile {self.known}\nGlobalKnownHostsFile /dev/null\n"
            "StrictHostKeyChecking yes\n"
        )
        own = shutil.which("ssh") or "ssh"
        programs(folder, f'exec {quote(own)} -F {quote(f"{folder}/ssh_config")} "$@"')
        self._log = open(folder / "log", "wb")  # noqa: SIM115 - closed by `close`
        self._process = subprocess.Popen(
            [SSHD or "sshd", "-D", "-e", "-f", str(folder / "sshd_config")],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    @property
    def address(self) -> str:
        return f"ssh://rack{self.bin}/kvloupe-engine"

    def add_host(self, name: str, option: str) -> str:
        """The address of this machine under another name, with a further option of ssh's configuration."""
        config = self.folder / "ssh_config"
        config.write_text(f"Host {name}\n{option}\n{config.read_text()}")
        return f"ssh://{name}{self.bin}/kvloupe-engine"

    def use_key(self, name: str) -> None:
        """Log in with the key of that name: `user` is let in, `stranger` is not."""
        shutil.copy(self.folder / name, self.key)

    def sessions(self) -> list[psutil.Process]:
        """Every process of whoever is logged in."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def why_not(self) -> str:
        """Why nobody can log in; empty once somebody can."""
        end = time.monotonic() + 120
        while True:
            done = subprocess.run(
                [str(self.bin / "ssh"), "-o", "BatchMode=yes", "rack", "true"],
                capture_output=True,
                timeout=600,
                check=False,
            )
            if done.returncode == 0 or self._process.poll() is not None or b"refused" not in done.stderr:
                break
            if time.monotonic() > end:
                break
            time.sleep(0.1)  # it does not listen yet
        log = (self.folder / "log").read_text("utf-8", "replace").splitlines()[-2:]
        return "" if done.returncode == 0 else f"{done.stderr.decode('utf-8', 'replace').strip()}; {' '.join(log)}"

    def close(self) -> None:
        left = self.sessions() if self._process.poll() is None else []
        for process in (self._process, *left):
            process.kill()
        self._process.wait()
        self._log.close()


@contextmanager
def sshd(folder: Path) -> Iterator[Sshd | str]:
    """An sshd, or the reason why none can be had. One that root starts wants /run/sshd, as its service makes it; that
    stays, for another test process may have started one meanwhile, which would turn everybody away."""
    missing = [
        name for name, path in (("sshd", SSHD), *((n, shutil.which(n)) for n in ("ssh", "ssh-keygen"))) if not path
    ]
    if missing or not hasattr(os, "getuid"):
        yield f"there is no {missing[0] if missing else 'sshd for this system'} here"
        return
    server = None
    try:
        try:
            if os.getuid() == 0:
                Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
            server = Sshd(folder)
            why_not = server.why_not()
        except (OSError, KeyError, subprocess.SubprocessError) as error:  # a user without a name, among others
            why_not = f"{type(error).__name__}: {error}"
        yield why_not or server or ""
    finally:
        if server is not None:
            server.close()


def programs(folder: Path, ssh: str = 'for last; do :; done\nexec sh -c "exec $last"') -> Path:
    """A new folder `bin` with `kvloupe-engine`, which is this tree's, and `ssh`: that script, by default one that runs
    its last argument on this machine, as sshd would on another."""
    (folder / "bin").mkdir()
    engine = f'export PYTHONPATH={quote(str(ROOT))}\nexec {quote(sys.executable)} -P -m engine "$@"'
    for name, script in (("ssh", ssh), ("kvloupe-engine", engine)):
        path = folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return folder / "bin"


def free_ports(count: int) -> Sequence[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
